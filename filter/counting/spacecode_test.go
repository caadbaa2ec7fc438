package counting

import (
	"math"
	"math/rand/v2"
	"testing"

	"weir/filter/bloom"
	"weir/filter/hash"
)

// All flows are estimated, small and large ones, with a relative error that does not grow
// with their size.
func TestSpaceCode(t *testing.T) {
	g, err := bloom.Standard(1<<18, 3)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpaceCode(g, 1, 32, 8, rand.NewPCG(1, 2))
	const each = 20
	sizes := []int{1, 3, 10, 30, 100, 1000, 10_000, 100_000}
	flow := func(i, j int) uint64 { return hash.Nth(9, uint64(i*each+j)) }
	for i, size := range sizes {
		for j := range each {
			for range size {
				s.AddHash(flow(i, j))
			}
		}
	}
	for i, size := range sizes {
		var sum, squares float64
		for j := range each {
			e := s.CountHash(flow(i, j))/float64(size) - 1
			sum += e
			squares += e * e
		}
		deviation := math.Sqrt(squares / each)
		t.Logf("%d insertions: mean error %+.3f, deviation %.3f", size, sum/each, deviation)
		most := 0.4
		if size == 1 {
			most = 0.7 // one in four of them is taken by the next level, too
		}
		if math.Abs(sum/each) > 0.25 || deviation > most {
			t.Errorf("%d insertions are estimated with a mean error of %+.3f, and a deviation of %.3f", size, sum/each, deviation)
		}
	}
	absent := 0
	for i := range 1000 {
		if s.CountHash(hash.Nth(10, uint64(i))) > 0 {
			absent++
		}
	}
	// What other elements set is taken into account.
	if absent > 150 {
		t.Errorf("%d of 1000 absent elements are estimated to be there", absent)
	}
}
