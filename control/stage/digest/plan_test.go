package digest

import (
	"errors"
	"testing"

	"weir/control/plan"
)

func TestPlan(t *testing.T) {
	p, err := planFor(100_000, 0.01)
	if err != nil || p.Rate > 0.01 || p.Rate < 0.0095 || p.BitsPerPacket < p.Standard || p.BitsPerPacket > 1.3*p.Standard || p.Bytes != 64*int(p.Lines) {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := planFor(0, 0.1); !errors.As(err, new(plan.InvalidError)) {
		t.Errorf("no packets: %v", err)
	}
}
