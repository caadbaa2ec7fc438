package observe

import (
	"reflect"
	"slices"
	"testing"

	"weir/control/export"
	"weir/control/observe/events"
	"weir/control/observe/traffic"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// All packets that are dropped and have events are sampled.
func TestDroppable(t *testing.T) {
	all := verdict.Policy{DropMalformed: true, DropNotIP: true, DropLooped: true}
	for _, r := range events.Reasons() {
		if drops := all.Action(r) == verdict.Drop; drops != slices.Contains(droppable, r) {
			t.Errorf("%v may be dropped: %v", r, drops)
		}
	}
}

// What was dropped is sent to the last packet, and what passes is not.
func TestGather(t *testing.T) {
	in := make(chan events.Event, 3000)
	for n := range 2500 {
		e := events.Event{Index: 7, Reason: verdict.Blocked, List: "bad", Dropped: n%2 == 0, Frame: []byte{byte(n)}, OneIn: 2, Length: 60}
		e.Out = true
		in <- e
	}
	in <- events.Event{Lost: 5}
	close(in)
	var packets, lost, batches int
	gather(in, func(b export.Batch) {
		batches++
		for _, p := range b.Samples.Packets {
			want := export.Sample{Interface: 7, Out: true, Reason: verdict.Blocked, List: "bad", Length: 60, Frame: []byte{byte(2 * packets)}, OneIn: 2}
			if !reflect.DeepEqual(p, want) {
				t.Fatalf("%+v, want %+v", p, want)
			}
			packets++
		}
		lost += int(b.Samples.Lost)
		if len(b.Samples.Packets) > sampleBatch {
			t.Errorf("a batch of %d", len(b.Samples.Packets))
		}
	})
	if packets != 1250 || lost != 5 || batches < 2 {
		t.Errorf("%d packets and %d lost in %d batches", packets, lost, batches)
	}
}

func TestInterfaces(t *testing.T) {
	in, out, gone := netif.Target{Iface: "a"}, netif.Target{Iface: "a", Out: true}, netif.Target{Iface: "b"}
	count := func(of netif.Target, passed, dropped uint64) traffic.Interface {
		return traffic.Interface{Target: of, Counts: []traffic.Count{
			{Reason: "clean", Counter: loader.Counter{Packets: passed, Bytes: 100 * passed}},
			{Reason: "blocked", Drops: true, Counter: loader.Counter{Packets: dropped, Bytes: 60 * dropped}},
		}}
	}
	all := interfaces([]traffic.Interface{count(gone, 1, 1), count(in, 3, 4), count(out, 5, 6)}, func(t netif.Target) uint32 {
		return map[string]uint32{"a": 9}[t.Iface]
	})
	if len(all) != 1 || all[0].Index != 9 || all[0].Name != "a" || *all[0].In != (export.Traffic{Bytes: 540, Passed: 3, Dropped: 4}) || *all[0].Out != (export.Traffic{Bytes: 860, Passed: 5, Dropped: 6}) {
		t.Errorf("%+v", all)
	}
}
