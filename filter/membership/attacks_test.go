package membership

import (
	"math"
	"testing"

	"weir/filter/key"
	"weir/tests/forgers"
	"weir/tests/long"
)

// Under no attack are honest sources dropped more often than without classes, but for a twentieth.
func TestForgedSources(t *testing.T) {
	long.Seconds(t)
	const n, honest = 100_000, 4000
	r := newRandom(t)
	for _, exponent := range long.Or([]float64{0.5}, []float64{0.5, 1.1}) {
		w := forgers.New(r.Rand, exponent)
		for _, bits := range []float64{8, 10} {
			planned, err := PlanLayout(Census{Keys: map[key.Shape]int{hosts4: n}}, Approximate, bits, secretOf(r.Uint64()))
			if err != nil {
				t.Fatal(err)
			}
			plain := planned.FalsePositiveRate(n)
			var listed ClassCounts
			for range n {
				countClass(&planned, &listed, hostKey(w.Listed()))
			}
			for _, f := range forgers.All() {
				l := planned
				found := foundIn(w, honest, &f)
				l.PlanClasses(&listed, found, n)
				rate := plain
				if l.Classes != nil {
					rate = 0
					of := l.ClassRates(n)
					if of[0] > 2.001*plain {
						t.Errorf("a class has %.2f times the rate without classes", of[0]/plain)
					}
					for i, share := range w.HonestShares() {
						rate += share * of[l.Classes[l.class(hostKey(w.In(i)).Append(nil))]]
					}
				}
				t.Logf("%v bits, exponent %v, %s: classes: %t, %.3f of the rate without", bits, exponent, f.Name, l.Classes != nil, rate/plain)
				if rate > 1.05*plain || math.IsNaN(rate) {
					t.Errorf("%v bits, exponent %v, %s: honest sources are dropped %.3f times as often", bits, exponent, f.Name, rate/plain)
				}
			}
		}
	}
}
