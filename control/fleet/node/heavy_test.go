package node

import (
	"strings"
	"testing"
	"time"

	"weir/control/fleet/wire"
)

// A hub that asks for too much is refused before anything is read.
func TestHeavyRefuses(t *testing.T) {
	for what, q := range map[string]wire.HeavyQuestion{
		"fewer than none": {Most: -1},
		"many flows":      {Most: wire.MaxHeavy + 1},
		"many keys":       {Keys: make([][]byte, wire.MaxEstimates+1)},
	} {
		if _, err := Heavy(q, time.Second, nil); err == nil || !strings.Contains(err.Error(), "asked for") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := Heavy(wire.HeavyQuestion{Most: wire.MaxHeavy, Keys: make([][]byte, wire.MaxEstimates)}, time.Second, nil); err == nil || strings.Contains(err.Error(), "asked for") {
		t.Errorf("the most: %v", err)
	}
}
