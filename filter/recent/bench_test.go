package recent_test

import (
	"testing"

	"weir/filter/hash"
	"weir/filter/recent"
)

func BenchmarkFilter(b *testing.B) {
	f := recent.New(1 << 14)
	for i := uint64(0); b.Loop(); i++ {
		f.Observe(hash.Nth(1, i), 1)
		if i%1_000_000 == 0 {
			f.Turn()
		}
	}
}

func BenchmarkCells(b *testing.B) {
	f := recent.NewCells(recent.IBFMC, 1<<14)
	for i := uint64(0); b.Loop(); i++ {
		f.Observe(hash.Nth(1, i), 1+int(i%7))
	}
}
