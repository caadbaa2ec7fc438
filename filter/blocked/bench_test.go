package blocked_test

import (
	"testing"

	"weir/filter/blocked"
	"weir/filter/hash"
)

func BenchmarkFilter(b *testing.B) {
	const n = 1_000_000
	g, err := blocked.For(n, 0.01)
	if err != nil {
		b.Fatal(err)
	}
	f := blocked.New(g)
	for i := range uint64(n) {
		f.Add(hash.Nth(1, i))
	}
	for _, op := range []struct {
		name string
		do   func(i uint64)
	}{
		{"op=add", func(i uint64) { f.Add(hash.Nth(1, i%n)) }},
		{"op=query-hit", func(i uint64) { f.Contains(hash.Nth(1, i%n)) }},
		{"op=query-miss", func(i uint64) { f.Contains(hash.Nth(2, i%n)) }},
	} {
		b.Run(op.name, func(b *testing.B) {
			for i := uint64(0); b.Loop(); i++ {
				op.do(i)
			}
		})
	}
}
