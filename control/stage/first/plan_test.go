package first

import (
	"cmp"
	"errors"
	"slices"
	"testing"

	"weir/control/plan"
	"weir/filter/recent"
)

func isInvalid(err error) bool { return errors.As(err, new(plan.InvalidError)) }

// The least memory suffices, and a KiB less does not; what is missed is at most 8 %.
func TestPlan(t *testing.T) {
	for _, flows := range []int{1, 2816, 2817, 180_224, 1_000_000} {
		p, err := planFor(recent.Bloom, flows, 0)
		if err != nil {
			t.Fatal(err)
		}
		if p.Filter != recent.Bloom || p.Flows != flows || p.Capacity < flows || p.Windows != 1 || p.Missed > 0.08 {
			t.Errorf("%+v", p)
		}
		if p.Memory == leastMemory {
			continue
		}
		if less, err := planFor(recent.Bloom, flows, p.Memory-1<<10); err != nil || less.Windows <= 1 {
			t.Errorf("%+v suffices, too, %v", less, err)
		}
	}
	if p, err := planFor(recent.Bloom, 180_224, 256<<10); err != nil || p.Capacity != 180_224 || p.Missed < 0.075 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, r := range [][2]int{{0, 0}, {1, 1 << 10}, {1, 2 << 30}} {
		if _, err := planFor(recent.IBFMC, r[0], r[1]); !isInvalid(err) {
			t.Errorf("%v: %v", r, err)
		}
	}
	if _, err := planFor(recent.Bloom, 2_000_000_000, 0); err == nil || isInvalid(err) {
		t.Errorf("more than there can be: %v", err)
	}
}

// The least memory for filters that forget has them forget few of the most important flows,
// and less important ones no later.
func TestPlanOfCells(t *testing.T) {
	for _, kind := range []recent.Kind{recent.Stable, recent.IBF2C, recent.IBFMC} {
		p, err := planFor(kind, 200_000, 0)
		if err != nil || p.Filter != kind || p.Missed > 0.08 || len(p.Forgotten) != recent.MaxLevel || p.Forgotten[6] > mostForgotten {
			t.Fatalf("%+v, %v", p, err)
		}
		if !slices.IsSortedFunc(p.Forgotten, func(a, b float64) int { return cmp.Compare(b, a) }) || kind.ByImportance() != (p.Forgotten[0] > 2*p.Forgotten[6]) {
			t.Errorf("%v forgets %v", kind, p.Forgotten)
		}
		if less, err := planFor(kind, 200_000, p.Memory-1<<10); err != nil || less.Forgotten[6] <= mostForgotten {
			t.Errorf("%+v suffices, too, %v", less, err)
		}
		if _, err := planFor(kind, 2_000_000_000, 0); err == nil || isInvalid(err) {
			t.Errorf("more than there can be: %v", err)
		}
	}
}
