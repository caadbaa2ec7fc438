package invertible_test

import (
	"testing"

	"weir/filter/hash"
	"weir/filter/invertible"
)

func BenchmarkTable(b *testing.B) {
	const n = 1000
	b.Run("op=add", func(b *testing.B) {
		t, _ := invertible.New(make([]uint64, invertible.Words(n)))
		for i := uint64(0); b.Loop(); i++ {
			t.Add(hash.Nth(1, i))
		}
	})
	b.Run("op=list", func(b *testing.B) {
		for b.Loop() {
			t, _ := invertible.New(make([]uint64, invertible.Words(n)))
			for i := range uint64(n) {
				t.Add(hash.Nth(1, i))
			}
			if _, _, ok := t.List(); !ok {
				b.Fatal("the elements cannot be listed")
			}
		}
	})
}
