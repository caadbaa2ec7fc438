package police

import (
	"net/netip"
	"testing"
	"time"

	"weir/control/quantity"
	"weir/filter/key"
)

// A limit that has ended holds nothing back, and until it is removed packets do not come to a wider one.
func TestMeetingEnded(t *testing.T) {
	rate := quantity.Rate{Value: 100, Unit: quantity.Packets}
	wide, narrow := netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16")
	ended, later := time.Now().Add(-time.Second), time.Now().Add(time.Hour)
	of := func(text string) key.Key { return key.Source(netip.MustParsePrefix(text)) }
	for _, c := range []struct {
		what   string
		until  time.Time
		source string
		want   int
	}{
		{"both", later, "10.1.2.3/32", 1},
		{"the narrow one has ended", ended, "10.1.2.3/32", 0},
		{"only the wide one", ended, "10.2.2.3/32", 1},
		{"some are within the narrow one", later, "10.0.0.0/8", 2},
		{"some were within the narrow one", ended, "10.0.0.0/8", 1},
	} {
		p := NewSources([]Source{{wide, rate, later}, {narrow, rate, c.until}})
		if all := p.Meeting(of(c.source)); len(all) != c.want {
			t.Errorf("%s: %v", c.what, all)
		}
	}
}
