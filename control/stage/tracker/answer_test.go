package tracker

import (
	"net/netip"
	"testing"
	"time"

	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/verdict"
)

// An answer names the penalties that all of its packets meet, and some of those that a part may.
func TestMeeting(t *testing.T) {
	var all []verdict.Penalty
	for i := range 8000 {
		src := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
		all = append(all, verdict.Penalty{Flow: key.Source(netip.PrefixFrom(src, 32)), Penalty: penalty.Penalty{Until: time.Hour}})
	}
	flow := key.Key{
		Shape: key.Shape{Fields: key.FieldDstPort | key.FieldSrcPort | key.FieldProto, SrcBits: 32},
		Src:   netip.MustParseAddr("198.18.3.3"), Dst: netip.IPv4Unspecified(), Proto: 6, SrcPort: 1, DstPort: 53,
	}
	for _, c := range []struct {
		known      key.Key
		kept, more int
	}{
		{key.Destination(netip.MustParsePrefix("203.0.113.1/32")), 10, 7990},
		{key.Source(netip.MustParsePrefix("198.18.3.3/32")), 1, 0},
		{key.Source(netip.MustParsePrefix("192.0.2.1/32")), 0, 0},
		{key.Source(netip.MustParsePrefix("198.18.3.0/24")), 10, 246},
		{flow, 1, 0},
	} {
		if kept, more := meeting(all, c.known); len(kept) != c.kept || more != c.more {
			t.Errorf("%v: %d penalties and %d more, want %d and %d", c.known, len(kept), more, c.kept, c.more)
		}
	}
}
