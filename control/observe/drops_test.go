package observe

import (
	"net/netip"
	"testing"
	"time"

	"weir/filter/verdict"
	"weir/tests/long"
)

func flow(n int) DroppedFlow {
	return DroppedFlow{Remote: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), Reason: verdict.Blocked, List: "feed", Out: n%2 == 1}
}

// second returns a second in which each of the flows has 10 packets.
func second(at time.Time, flows ...int) DropInterval {
	i := empty(at)
	i.End = at.Add(time.Second)
	for _, n := range flows {
		i.Flows[flow(n)] = DropCount{Packets: 10, Bytes: 600, Least: 9}
		i.Packets, i.Bytes, i.Lists["feed"] = i.Packets+10, i.Bytes+600, i.Lists["feed"]+10
	}
	return i
}

func TestHistory(t *testing.T) {
	var h DropHistory
	began := time.Date(2026, 1, 1, 12, 0, 5, 0, time.UTC)
	if i := h.Since(began, began); i.Packets != 0 || len(i.Flows) != 0 {
		t.Errorf("an empty history has %+v", i)
	}
	now := began
	for n := range 2 * 3600 { // source 1 all the time, 2 in the last half hour, 3 in the last 90 s
		flows := []int{1}
		if n >= 2*3600-1800 {
			flows = append(flows, 2)
		}
		if n >= 2*3600-90 {
			flows = append(flows, 3)
		}
		h.Add(second(now, flows...))
		now = now.Add(time.Second)
	}
	for _, c := range []struct {
		last    time.Duration
		slack   int // seconds that a slice is longer
		seconds [3]int
	}{
		{time.Minute, 10, [3]int{60, 60, 60}},
		{5 * time.Minute, 60, [3]int{300, 300, 90}},
		{50 * time.Minute, 60, [3]int{3000, 1800, 90}},
		{24 * time.Hour, 120, [3]int{3600, 1800, 90}},
	} {
		i := h.Since(now.Add(-c.last), now)
		for n, want := range c.seconds {
			got := i.Flows[flow(n+1)]
			if s := int(got.Packets / 10); s < want || s > want+c.slack || got.Least != got.Packets*9/10 || got.Bytes != got.Packets*60 {
				t.Errorf("last %v: source %d has %+v, want %d to %d seconds of 10", c.last, n+1, got, want, want+c.slack)
			}
		}
		if length := i.End.Sub(i.Begin); length < min(c.last, Keep) || length > min(c.last, Keep)+time.Duration(c.slack)*time.Second {
			t.Errorf("last %v: %v", c.last, length)
		}
		if i.Lists["feed"] != i.Packets {
			t.Errorf("last %v: %d of list feed, %d in all", c.last, i.Lists["feed"], i.Packets)
		}
	}
	if len(h.slices) > 75 {
		t.Errorf("%d slices", len(h.slices))
	}
}

// However many sources there are, few are kept: the largest.
func TestHistoryIsBounded(t *testing.T) {
	long.Unraced(t)
	var h DropHistory
	now, n := time.Unix(0, 0), 100
	for range 60 {
		flows := []int{1, 1 << 20}
		for range 3 * maxFlows {
			n++
			flows = append(flows, n)
		}
		i := second(now, flows...)
		i.Flows[flow(1)] = DropCount{Packets: 1000}
		h.Add(i)
		now = now.Add(time.Second)
	}
	kept := 0
	for _, s := range h.slices {
		kept += len(s.Flows)
	}
	if most := (len(h.slices) + 3) * maxFlows; kept > most {
		t.Errorf("%d flows are kept, more than %d", kept, most)
	}
	i := h.Since(now.Add(-time.Hour), now)
	if got := i.Flows[flow(1)].Packets; got != 60*1000 {
		t.Errorf("%d packets of the largest source", got)
	}
	if got, want := i.Packets, uint64(60*(3*maxFlows+2)*10); got != want {
		t.Errorf("%d packets in all, want %d", got, want)
	}
	t.Logf("%d slices, %d flows", len(h.slices), kept)
}

// Last finds the last drop of the flows that match, also in slices that were joined.
func TestLast(t *testing.T) {
	var h DropHistory
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	blocked, limited := DroppedFlow{Remote: a, Reason: verdict.Blocked, List: "drop"}, DroppedFlow{Remote: a, Reason: verdict.RateLimited}
	add := func(at time.Duration, flows map[DroppedFlow]DropCount) {
		h.Add(DropInterval{Begin: start.Add(at), End: start.Add(at + time.Second), Flows: flows})
	}
	of := func(addr netip.Addr) func(DroppedFlow) bool {
		return func(f DroppedFlow) bool { return f.Remote == addr }
	}
	if _, ok := h.Last(of(a)); ok {
		t.Error("found in an empty history")
	}
	add(0, map[DroppedFlow]DropCount{blocked: {Packets: 3}})
	add(10*time.Minute, map[DroppedFlow]DropCount{blocked: {Packets: 2}, limited: {Packets: 7}})
	for i := range 20 {
		add(time.Duration(15+i)*time.Minute, map[DroppedFlow]DropCount{{Remote: b}: {Packets: 1}})
	}
	l, ok := h.Last(of(a))
	if !ok || l.Time != start.Add(10*time.Minute+time.Second) || l.Flow != limited || l.All.Packets != 12 || l.Monitored != 0 {
		t.Errorf("%+v, %t", l, ok)
	}
	monitored := blocked
	monitored.Monitor = true
	add(40*time.Minute, map[DroppedFlow]DropCount{monitored: {Packets: 4}})
	if l, _ := h.Last(of(a)); l.Flow != monitored || l.All.Packets != 16 || l.Monitored != 4 {
		t.Errorf("with monitor mode: %+v", l)
	}
	if _, ok := h.Last(of(netip.MustParseAddr("192.0.2.3"))); ok {
		t.Error("found what was never dropped")
	}
}
