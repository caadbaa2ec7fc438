package police

import (
	"errors"
	"math"
	"testing"

	"weir/control/plan"
	"weir/filter/sfb"
)

// The figures of docs/policing.md: one in 500,000 with ten floods, in 7,000 with thirty, in 90
// with a hundred.
func TestPlan(t *testing.T) {
	for flows, one := range map[int]float64{10: 500_000, 30: 7000, 100: 90} {
		p, err := planFor(flows)
		if err != nil || math.Abs(1/p.Punished/one-1) > 0.1 || p.Suspended != (flows == 100) {
			t.Errorf("%d floods: %+v, %v", flows, p, err)
		}
	}
	if p, err := planFor(0); err != nil || p.Suspended || p.Punished != 0 || p.Levels != sfb.PolicerLevels || p.Bins != sfb.PolicerBins {
		t.Errorf("no floods: %+v, %v", p, err)
	}
	if _, err := planFor(-1); !errors.As(err, new(plan.InvalidError)) {
		t.Errorf("-1 flows: %v", err)
	}
}
