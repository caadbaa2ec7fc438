package attenuated

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"weir/filter/bloom"
)

// squares returns geometries for levels of a grid, with some bits a host.
func squares(t testing.TB, levels, hosts int, bits float64) (all []bloom.Geometry) {
	t.Helper()
	for i := range levels {
		n := max(1, hosts>>(2*(levels-i)))
		m := max(8, uint32(bits*float64(n)))
		g, err := bloom.Standard(m, bloom.OptimalK(m, uint64(n)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, g)
	}
	return all
}

// Every host is found from everywhere, wherever it moves, and what left is not. Where
// filters are large, messages take no step in vain.
func TestGrid(t *testing.T) {
	const levels, hosts = 4, 2000
	for _, bits := range []float64{3, 24} {
		t.Run(fmt.Sprint(bits, " bits"), func(t *testing.T) {
			r := rand.New(rand.NewPCG(63, 0))
			g := NewGrid(1, squares(t, levels, hosts, bits)...)
			side := g.Side()
			anywhere := func() Place { return Place{r.IntN(side), r.IntN(side)} }
			at := make([]Place, hosts)
			name := func(i int) []byte { return fmt.Append(nil, i) }
			for round := range 3 {
				for i := range at {
					if round == 0 || i%3 == 0 {
						at[i] = anywhere()
						if err := g.Move(name(i), at[i]); err != nil {
							t.Fatal(err)
						}
					}
				}
				wasted := 0
				for i := range at {
					from := anywhere()
					j, ok := g.Find(name(i), from)
					if !ok || j.To != at[i] {
						t.Fatalf("host %d is at %v, found at %v, %t", i, at[i], j.To, ok)
					}
					if from == at[i] && j.Hops != 0 || j.Hops-j.Wasted > levels {
						t.Fatalf("from %v to %v: %+v", from, at[i], j)
					}
					wasted += j.Wasted
				}
				if lost := float64(wasted) / hosts; (bits == 24) != (lost < 0.05) {
					t.Errorf("%.3f hops in vain for each message", lost)
				}
			}
			g.Leave(name(1))
			g.Leave(name(1))
			if j, ok := g.Find(name(1), at[1]); ok {
				t.Errorf("a host that left is found: %+v", j)
			}
			if err := g.Move(name(1), Place{side, 0}); err == nil {
				t.Error("a place outside is accepted")
			}
		})
	}
}
