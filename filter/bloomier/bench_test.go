package bloomier_test

import (
	"testing"

	"weir/filter/bloomier"
	"weir/filter/hash"
)

func BenchmarkFilter(b *testing.B) {
	entries := make([]bloomier.Entry, 100_000)
	for i := range entries {
		entries[i] = bloomier.Entry{Hash: hash.Nth(1, uint64(i)), Value: uint64(i % 256)}
	}
	f, err := bloomier.New(entries, 8, 8)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("op=build", func(b *testing.B) {
		for b.Loop() {
			if _, err := bloomier.New(entries, 8, 8); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("op=query", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			f.Lookup(entries[i%len(entries)].Hash)
		}
	})
}
