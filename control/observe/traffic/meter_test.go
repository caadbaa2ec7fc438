package traffic

import (
	"testing"

	"weir/loader"
)

// The sum of a counter never goes back, also where the counter does for a moment.
func TestSince(t *testing.T) {
	var seen, total loader.Counter
	for i, step := range []struct{ now, want uint64 }{{5, 5}, {3, 5}, {5, 5}, {9, 9}} {
		total = sum(total, since(loader.Counter{Packets: step.now, Bytes: 10 * step.now}, &seen))
		if total != (loader.Counter{Packets: step.want, Bytes: 10 * step.want}) {
			t.Errorf("step %d: %+v", i, total)
		}
	}
}
