package observe

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/export"
	"weir/control/observe/traffic"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/seed"
)

// Every packet is in exactly one record of all packets, in whatever order counters,
// lists and sources become known, and however wrong these are. No list has more packets in
// records than it has matched.
func TestExportedOnce(t *testing.T) {
	random := seed.New(t)
	now := time.Now()
	for range 200 {
		x := Exports{Exporter: export.New(slog.New(slog.DiscardHandler)), interval: time.Hour, began: now, lists: make(map[string]loader.Counter)}
		x.clear()
		var want [verdict.NumReasons]loader.Counter
		got, hits, lists := make(map[string]loader.Counter), make(map[string]loader.Counter), make(map[string]uint64)
		take := func(b export.Batch) {
			for _, f := range b.All {
				n := got[f.Reason]
				got[f.Reason] = loader.Counter{Packets: n.Packets + f.Packets, Bytes: n.Bytes + f.Bytes}
				if lists[f.List] += f.Packets; f.List != "" && lists[f.List] > hits[f.List].Packets {
					t.Fatalf("%s: %d packets exported, %d matched", f.List, lists[f.List], hits[f.List].Packets)
				}
			}
		}
		for range 20 {
			var r traffic.Rates
			for _, reason := range []verdict.Reason{verdict.Clean, verdict.Blocked, verdict.WouldBlock, verdict.Heavy} {
				n := loader.Counter{Packets: random.Uint64N(100)}
				n.Bytes = n.Packets * (60 + random.Uint64N(1000))
				r.Grown[reason] = n
				want[reason] = loader.Counter{Packets: want[reason].Packets + n.Packets, Bytes: want[reason].Bytes + n.Bytes}
			}
			next := make(map[string]loader.Counter)
			for n := range 4 {
				name, more := fmt.Sprintf("list%d", n), random.Uint64N(60)
				next[name] = loader.Counter{Packets: hits[name].Packets + more, Bytes: hits[name].Bytes + 100*more}
			}
			hits = next
			monitor := random.IntN(4) == 0
			x.Second(now, r, random.IntN(4) > 0, func(r verdict.Reason) bool { return r == verdict.Blocked || r == verdict.Heavy }, ExportedLists{Hits: hits})
			for n := range random.IntN(8) {
				id := dropFlow{netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), verdict.Blocked, fmt.Sprintf("list%d", n%5)}
				addFlow(x.sources, id, export.Flow{List: id.list, Packets: random.Uint64N(50), Bytes: random.Uint64N(50_000)})
			}
			take(x.batch(now, monitor, false))
			x.clear()
		}
		take(x.batch(now, false, true))
		for i, n := range want {
			if r := verdict.Reason(i).String(); got[r] != n {
				t.Fatalf("%s: %+v exported, %+v counted", r, got[r], n)
			}
		}
	}
}

// Flows that are dropped are exported with the name of their list, the last one's too; those of
// a list that has no name, or a number that was another's, are left to the list's own record.
func TestExportedLists(t *testing.T) {
	now := time.Now()
	x := Exports{Exporter: export.New(slog.New(slog.DiscardHandler)), interval: time.Hour, began: now, lists: make(map[string]loader.Counter)}
	x.clear()
	source := netip.MustParseAddr("192.0.2.1")
	r := &tracker.Report{Role: tracker.Drops, Interval: time.Second}
	for list := range uint16(5) { // there are three
		f := sketch.Flow{Key: key.Key{Src: source}, Dst: source, Packets: 1, Bytes: 60}
		f.Cause = sketch.Cause{Reason: uint8(verdict.Blocked), List: list}
		r.Flows = append(r.Flows, tracker.Flow{Flow: f})
	}
	x.Report(now, r, []string{"first", "", "last"}, false)
	if len(x.sources) != 3 {
		t.Errorf("%v", x.sources)
	}
	for name, want := range map[string]uint64{"": 1, "first": 1, "last": 1} {
		if f := x.sources[dropFlow{source, verdict.Blocked, name}]; f.Packets != want || f.List != name {
			t.Errorf("list %q: %+v, want %d packets", name, f, want)
		}
	}
}

// Packets whose list is not known, as in approximate mode, have records of their sources.
func TestExportedSourcesOfUnknownLists(t *testing.T) {
	now := time.Now()
	x := Exports{Exporter: export.New(slog.New(slog.DiscardHandler)), interval: time.Hour, began: now, lists: make(map[string]loader.Counter)}
	x.clear()
	n := loader.Counter{Packets: 5, Bytes: 300}
	var r traffic.Rates
	r.Grown[verdict.Blocked] = n
	x.Second(now, r, true, func(r verdict.Reason) bool { return r == verdict.Blocked }, ExportedLists{Hits: map[string]loader.Counter{"": n}})
	source := netip.MustParseAddr("192.0.2.1")
	addFlow(x.sources, dropFlow{source, verdict.Blocked, ""}, export.Flow{Src: netip.PrefixFrom(source, 32), Packets: n.Packets, Bytes: n.Bytes})
	all := x.batch(now, false, false).All
	if len(all) != 1 || all[0].Src.Addr() != source || all[0].Packets != n.Packets {
		t.Errorf("%+v", all)
	}
}

// Records are of incoming packets: no list of outgoing ones is in them. What lists have matched is
// counted from one second to the next, and in monitor mode, or on trial, are the packets that they would block.
func TestExportedListsAreOfIncomingPackets(t *testing.T) {
	for _, c := range []struct {
		monitor bool
		trial   map[string]bool
		reason  verdict.Reason
	}{{false, nil, verdict.Blocked}, {true, nil, verdict.WouldBlock}, {false, map[string]bool{"in": true}, verdict.WouldBlock}} {
		now := time.Now()
		x := Exports{Exporter: export.New(slog.New(slog.DiscardHandler)), interval: time.Hour, began: now, lists: make(map[string]loader.Counter)}
		x.clear()
		for _, seconds := range []uint64{1, 2} {
			var r traffic.Rates
			r.Grown[c.reason] = loader.Counter{Packets: 100, Bytes: 6000}
			hits := map[string]loader.Counter{"in": {Packets: seconds * 30, Bytes: seconds * 1800}}
			for _, name := range []string{"out", "out" + api.ManualSuffix} {
				hits[name] = loader.Counter{Packets: seconds * 100, Bytes: seconds * 6000}
			}
			x.Second(now, r, false, func(r verdict.Reason) bool { return r == verdict.Blocked }, ExportedLists{Hits: hits, Out: map[string]bool{"out": true}, Trial: c.trial})
		}
		got, began := make(map[string]uint64), now
		now = now.Add(time.Hour)
		b := x.batch(now, c.monitor, false)
		if b.Time != now {
			t.Errorf("%+v: a batch of %v, want %v", c, b.Time, now)
		}
		for _, f := range b.All {
			if f.Begin != began || f.End != now {
				t.Errorf("%+v: from %v to %v, want %v to %v", c, f.Begin, f.End, began, now)
			}
			got[f.List] += f.Packets
			if f.Reason != c.reason.String() || f.Bytes != f.Packets*60 {
				t.Errorf("%+v: %+v", c, f)
			}
		}
		if want := map[string]uint64{"in": 60, "": 140}; !maps.Equal(got, want) {
			t.Errorf("%+v: exported by list: %v, want %v", c, got, want)
		}
	}
}
