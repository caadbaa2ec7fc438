package penalty_test

import (
	"testing"
	"time"

	"weir/filter/hash"
	"weir/filter/penalty"
)

func BenchmarkTable(b *testing.B) {
	table, err := penalty.NewTable(make([]uint64, 1024*penalty.BucketWords))
	if err != nil {
		b.Fatal(err)
	}
	for i := range uint64(1000) {
		table.Set(hash.Nth(1, i), penalty.Penalty{Until: time.Hour, Rate: 1000, Burst: 100})
	}
	for i := uint64(0); b.Loop(); i++ {
		table.Check(hash.Nth(1, i%2000), 1, time.Duration(i))
	}
}
