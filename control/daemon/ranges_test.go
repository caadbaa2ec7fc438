package daemon

import (
	"errors"
	"fmt"
	"testing"

	"weir/control/api"
	"weir/tests/lab"
)

// What ranges of ports make of a change is bounded; it is refused with the first entry that is too much.
func TestManyPorts(t *testing.T) {
	d := begin(t, configure(t, lab.New(t).B))
	var entries []string
	for i := range 255 {
		entries = append(entries, fmt.Sprintf("tcp 192.0.2.%d:* > *:0-4095", i))
	}
	_, err := d.changes.Change(t.Context(), api.Change{Action: api.Block, Entries: entries})
	var bad *api.BadRequest
	if !errors.As(err, &bad) || !errors.Is(bad.Err, api.ErrMaxChange) || bad.Entry == nil || *bad.Entry != api.MaxChange/4096 {
		t.Errorf("%+v, %v", bad, err)
	}
	for _, l := range d.readings.Lists().Lists {
		if l.Manual > 0 {
			t.Errorf("list %s has %d manual entries", l.Name, l.Manual)
		}
	}
}
