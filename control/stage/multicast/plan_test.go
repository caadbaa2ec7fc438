package multicast

import (
	"errors"
	"testing"

	"weir/control/plan"
)

func TestPlan(t *testing.T) {
	p, err := planFor(8, 1024)
	if err != nil || p.Rate > 1e-6 || p.Bytes != 9*64*int(p.Lines) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := planFor(1, 0); !errors.As(err, new(plan.InvalidError)) {
		t.Errorf("no groups: %v", err)
	}
}
