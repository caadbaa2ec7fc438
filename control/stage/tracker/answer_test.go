package tracker

import (
	"net/netip"
	"testing"
	"time"

	"weir/control/quantity"
	"weir/filter/key"
	"weir/filter/penalty"
	"weir/filter/sketch"
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

// An answer about a flow with a rate limit has what the flow offers in a second, in the limit's unit.
func TestLimited(t *testing.T) {
	flow := key.Source(netip.MustParsePrefix("192.0.2.1/32"))
	for _, c := range []struct {
		unit quantity.Unit
		want float64
	}{{quantity.Packets, 300}, {quantity.Bytes, 45_000}} {
		spec := Spec{Key: "src32", Action: Limit, Limit: quantity.Rate{Value: 100, Unit: c.unit}}
		p := &punished{Flow: sketch.Flow{Key: flow, Hash: 7}, active: true}
		report := &Report{Interval: 10 * time.Second, Flows: []Flow{
			{Flow: sketch.Flow{Hash: 6, Packets: 1, Bytes: 1}}, {Flow: sketch.Flow{Key: flow, Hash: 7, Packets: 3000, Bytes: 450_000}},
		}}
		of := &tracker{Watched: Watched{Spec: spec}, penal: map[uint64]*punished{7: p}, last: report}
		r := &Runner{in: side{Watcher: &Watcher{trackers: []*tracker{of}}}}
		by, unit, offered := r.Limited(flow, 100)
		if by != "src32" || unit != of.Counts().String() || offered == nil || *offered != c.want {
			t.Errorf("%v: limited by %q, in %q, offered %v, want %v", c.unit, by, unit, offered, c.want)
		}
		if by, _, _ := r.Limited(flow, 99); by != "" {
			t.Errorf("%v: at another rate, limited by %q", c.unit, by)
		}
		of.last = nil
		if by, _, offered := r.Limited(flow, 100); by != "src32" || offered != nil {
			t.Errorf("%v: before the first interval, limited by %q, offered %v", c.unit, by, offered)
		}
	}
}
