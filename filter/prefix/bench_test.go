package prefix_test

import (
	"testing"

	"weir/filter/prefix"
)

func BenchmarkPlan(b *testing.B) {
	var h prefix.Histogram
	for i := range 25 {
		h[8+i] = 1 + i*i*100
	}
	for b.Loop() {
		prefix.Plan(&h, 10_000_000, 8)
	}
}
