package membership

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"

	"weir/filter/key"
	"weir/tests/long"
)

// forger sends from networks of its choice, in the order of how much is listed in them.
type forger struct {
	name string
	from func(*world) key.Key
	each func(period int) int // forged elements for each honest one
}

// shares returns the share of each network of the choices by these sums.
func shares(sums []float64) []float64 {
	of := slices.Clone(sums)
	for i := len(of) - 1; i >= 0; i-- {
		if i > 0 {
			of[i] -= of[i-1]
		}
		of[i] /= sums[len(sums)-1]
	}
	return of
}

// ranked returns the networks, those in which most is listed first.
func (w *world) ranked() []int {
	if w.ranks == nil {
		of := shares(w.listed)
		w.ranks = w.Perm(networks)
		slices.SortFunc(w.ranks, func(a, b int) int { return cmp.Compare(of[b], of[a]) })
	}
	return w.ranks
}

func (w *world) in(network int) key.Key {
	return hostKey(uint32(network)<<16 | 1<<28 | uint32(w.IntN(1<<16)))
}

// forgers returns the attacks. In each a third or more of the elements is honest in one period at least.
func forgers() (all []forger) {
	most := func(n int) func(*world) key.Key {
		return func(w *world) key.Key { return w.in(w.ranked()[w.IntN(n)]) }
	}
	flood := func(period int) int { // of hours: all periods but one
		if period == 3 {
			return 2
		}
		return 10
	}
	always := func(int) int { return 2 }
	for _, n := range []int{1, 5, 20, 100} {
		all = append(all, forger{fmt.Sprintf("from the %d most listed", n), most(n), flood},
			forger{fmt.Sprintf("always from the %d most listed", n), most(n), always})
	}
	least := func(w *world) key.Key { return w.in(w.ranked()[networks-1-w.IntN(20)]) }
	evenly := func(w *world) key.Key { return w.in(w.IntN(networks)) }
	likeLists := func(w *world) key.Key { return w.source(w.listed) }
	return append(all,
		forger{"from the 20 least listed", least, flood},
		forger{"evenly", evenly, flood},
		forger{"in proportion to the lists", likeLists, flood},
		// Inventions: bits for those networks in which honest sources are rare, and much and little is listed;
		// all that is cheap at once, so that nothing is left for others; and another network in each period.
		forger{"from half of all networks, the least listed", func(w *world) key.Key { return w.in(w.ranked()[500+w.IntN(500)]) }, flood},
		forger{"as honest sources do not", func(w *world) key.Key {
			for {
				n := w.IntN(networks)
				if of := shares(w.sending[max(n-1, 0) : n+1]); w.Float64()*2*w.sending[networks-1]/networks > of[len(of)-1]*w.sending[n] {
					return w.in(n)
				}
			}
		}, always},
		forger{"from one network after another", func(w *world) key.Key { return w.in(w.ranked()[w.forged/500%networks]) }, flood},
	)
}

// Under no attack are honest sources dropped more often than without classes, but for a twentieth.
func TestForgedSources(t *testing.T) {
	long.Seconds(t)
	const n, honest = 100_000, 4000
	r := newRandom(t)
	for _, exponent := range []float64{1.1, 0.5} {
		w := newWorld(r, exponent)
		for _, bits := range []float64{8, 10} {
			planned, err := PlanLayout(Census{Keys: map[key.Shape]int{hosts4: n}}, Approximate, bits, secretOf(r.Uint64()))
			if err != nil {
				t.Fatal(err)
			}
			plain := planned.FalsePositiveRate(n)
			var listed ClassCounts
			for range n {
				countClass(&planned, &listed, w.source(w.listed))
			}
			for _, f := range forgers() {
				l := planned
				found := Sightings{Periods: make([]Period, MaxPeriods)}
				for i := range found.Periods {
					p := &found.Periods[i]
					p.Exposed = 1
					for range honest / MaxPeriods {
						p.Add(w.source(w.sending))
						for range f.each(i) {
							w.forged++
							p.Add(f.from(w))
						}
					}
				}
				l.PlanClasses(&listed, &found, n)
				rate := plain
				if l.Classes != nil {
					rate = 0
					of := l.ClassRates(n)
					if of[0] > 2.001*plain {
						t.Errorf("a class has %.2f times the rate without classes", of[0]/plain)
					}
					for i, share := range shares(w.sending) {
						rate += share * of[l.Classes[l.class(w.in(i).Append(nil))]]
					}
				}
				t.Logf("%v bits, exponent %v, %s: classes: %t, %.3f of the rate without", bits, exponent, f.name, l.Classes != nil, rate/plain)
				if rate > 1.05*plain || math.IsNaN(rate) {
					t.Errorf("%v bits, exponent %v, %s: honest sources are dropped %.3f times as often", bits, exponent, f.name, rate/plain)
				}
			}
		}
	}
}
