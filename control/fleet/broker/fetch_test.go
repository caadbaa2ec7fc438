package broker

import (
	"testing"
	"time"

	"weir/control/fleet/wire"
)

// A node may fetch what the stream has more than once, then as much as it has each minute.
func TestAllowed(t *testing.T) {
	for _, size := range []int64{0, 1 << 20, 100 << 20} {
		n, now := &fetching{}, time.Now()
		fetch := func() (bytes int64) {
			for n.allowed(size, now) {
				bytes += wire.ChunkSize
				n.used += wire.ChunkSize
			}
			return bytes
		}
		most := fetchTimes*size + fetchLeast
		if got := fetch(); got < most || got > most+wire.ChunkSize {
			t.Errorf("of %d bytes, %d at once", size, got)
		}
		now = now.Add(fetchPeriod)
		if got, each := fetch(), max(size, fetchLeast); got < each-wire.ChunkSize || got > each+wire.ChunkSize {
			t.Errorf("of %d bytes, %d in the next minute", size, got)
		}
		now = now.Add(-time.Hour) // a clock that is set back
		if got := fetch(); got > 0 {
			t.Errorf("of %d bytes, %d after the clock was set back", size, got)
		}
	}
}
