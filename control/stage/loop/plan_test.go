package loop

import (
	"errors"
	"math"
	"testing"

	"weir/control/plan"
)

func TestPlan(t *testing.T) {
	p, err := (&planner{128, 16, 1}).Plan()
	if l, ok := p.(planned); err != nil || !ok || l.K != 7 || math.Abs(l.FalseAlarm-0.054) > 0.0005 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, p := range []planner{{100, 8, 1}, {64, 0, 1}} {
		if _, err := p.Plan(); !errors.As(err, new(plan.InvalidError)) {
			t.Errorf("%+v was planned", p)
		}
	}
}
