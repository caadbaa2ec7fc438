package ordered_test

import (
	"cmp"
	"fmt"
	"maps"
	"testing"

	"weir/filter/ordered"
)

// The keys of a map in order.
func ExampleOf() {
	ports := map[string]int{"ssh": 22, "domain": 53, "http": 80}
	fmt.Println(ordered.Of(maps.Values(ports), cmp.Compare))
	// Output: [22 53 80]
}

func BenchmarkBy(b *testing.B) {
	values := make([]int, 1000)
	for b.Loop() {
		for i := range values {
			values[i] = i * 7919 % 1000
		}
		ordered.By(values, cmp.Compare)
	}
}
