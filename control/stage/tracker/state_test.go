package tracker

import (
	"net/netip"
	"testing"

	"weir/filter/key"
	"weir/filter/sketch"
)

// An operator reads what became of a flow, and what a penalty would cut off.
func TestEventText(t *testing.T) {
	for _, c := range []struct {
		spec string
		e    Event
		want string
	}{
		{"key=src,threshold=5kpps", Event{}, "192.0.2.1 is a heavy hitter"},
		{"key=src,threshold=5kpps", Event{Released: true}, "192.0.2.1 is no longer a heavy hitter"},
		{"key=src,threshold=5kpps,action=block", Event{}, "192.0.2.1 is a heavy hitter, and is blocked"},
		{"key=src,threshold=5kpps,action=block", Event{Unmet: true}, "192.0.2.1 is a heavy hitter, and is not blocked: there is no room for another penalty"},
		{"key=src,threshold=5kpps,action=block", Event{CutsOff: "a peer", Unmet: true}, "192.0.2.1 is a heavy hitter, and would be blocked, but that would cut off a peer"},
		{"key=src,threshold=5kpps,action=block", Event{CutsOff: "a peer", Released: true}, "192.0.2.1 is no longer blocked: that would cut off a peer"},
		{"key=src,threshold=5kpps,action=limit", Event{Released: true}, "192.0.2.1 is no longer rate-limited"},
		{"key=src,threshold=5kpps,action=limit", Event{Released: true, Forgotten: true}, "192.0.2.1 is no longer watched: there are too many heavy hitters"},
		{"key=src,threshold=5kpps,action=limit", Event{CutsOff: "a peer"}, "192.0.2.1 is a heavy hitter, and is rate-limited to 5kpps, since less would cut off a peer"},
	} {
		spec, err := Parse(c.spec)
		if err != nil {
			t.Fatal(err)
		}
		c.e.Spec, c.e.Flow = spec, sketch.Flow{Key: key.Source(netip.MustParsePrefix("192.0.2.1/32"))}
		if got := c.e.String(); got != c.want {
			t.Errorf("%+v is %q, want %q", c.e, got, c.want)
		}
	}
}
