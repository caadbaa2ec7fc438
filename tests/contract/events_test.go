package contract

import (
	"bytes"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/observe/events"
	"weir/control/replay"
	"weir/control/stage/loop"
	"weir/control/stage/tracker"
	"weir/filter/hash"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
)

// everything requests events of all reasons, including those without any.
func everything(oneIn uint32) loader.Sampling {
	s := loader.Sampling{Frames: true, Until: loader.Monotonic() + time.Hour}
	for i := range s.OneIn {
		s.OneIn[i] = oneIn
	}
	return s
}

// drain returns the events since the last call.
func drain(t *testing.T, s *loader.Stats) (all []loader.Event) {
	t.Helper()
	if err := s.Events(func(e *loader.Event) {
		e.Frame = slices.Clone(e.Frame)
		all = append(all, *e)
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// eventful is a program for which frames of all reasons that events have exist.
func eventful(t testing.TB, p verdict.Policy) *replay.Kernel {
	t.Helper()
	lab.Root(t)
	var lists []engine.List
	for _, l := range []struct {
		engine.List
		prefix string
	}{
		{engine.List{Name: "one"}, "192.0.2.0/24"},
		{engine.List{Name: "two"}, "2001:db8::/32"},
		{engine.List{Name: "ours", Allow: true}, "192.0.2.64/26"},
	} {
		var e list.Entries
		addPrefix(&e, netip.MustParsePrefix(l.prefix))
		l.Contents = e.Set()
		lists = append(lists, l.List)
	}
	c := engine.Config{Policy: p}
	sources := trackersOfAllKinds()[:1]
	sources[0].Punishes = true
	c.Seed = hash.Seed{1}
	c.Parts = []engine.Part{&tracker.Part{In: sources}, &loop.Part{Node: mustNode(t, 1, icarus.Geometry{Size: 64, K: 6, Confirm: 1}), Drop: p.DropLooped}}
	g, k := engines(t, lists, c)
	n, table := penalties(t, g, k.Stats())
	until := loader.Monotonic() + time.Hour
	for source, rate := range map[string]float64{"198.51.100.1": 0, "198.51.100.2": 1e-9} {
		tr := tracker.Of(g)[0]
		table.Set(tr.Hash(tr.Key(key.Tuple{Src: netip.MustParseAddr(source)})), penalty.Penalty{Until: until, Rate: rate})
	}
	n.SetPenalized(table.Len())
	return k
}

// Each reason has its events, which describe the packet, and the others have
// none.
func TestEvents(t *testing.T) {
	onOneCPU(t)
	udp := func(src, dst string) []byte {
		return packet.Frame(key.Tuple{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 0xf053})
	}
	with := func(frame []byte, at int, b ...byte) []byte { copy(frame[at:], b); return frame }
	bearing := func(frame []byte) []byte { // the filter that eventful's node has inserted
		pkt, _ := mustNode(t, 1, icarus.Geometry{Size: 64, K: 6, Confirm: 1}).Insert(frame[14:], 1500)
		return slices.Concat(frame[:14], pkt)
	}
	const to4, to6 = "203.0.113.1", "2001:db9::1"
	cases := []struct {
		policy verdict.Policy
		frame  []byte
		want   verdict.Reason
		list   int32 // where the reason has one
	}{
		{frame: udp("192.0.2.1", to4), want: verdict.Blocked, list: 1},
		{frame: udp("2001:db8::7", to6), want: verdict.Blocked, list: 2},
		{frame: append(udp("192.0.2.1", to4), bytes.Repeat([]byte{7, 8, 9}, 300)...), want: verdict.Blocked, list: 1},
		{frame: udp("192.0.2.65", to4), want: verdict.Allowed, list: 3},
		{policy: verdict.Policy{Monitor: true}, frame: udp("192.0.2.1", to4), want: verdict.WouldBlock, list: 1},
		{policy: verdict.Policy{Monitor: true}, frame: udp("198.51.100.1", to4), want: verdict.WouldBlock, list: -1},
		{frame: udp("198.51.100.1", to4), want: verdict.Heavy},
		{frame: udp("198.51.100.2", to4), want: verdict.RateLimited},
		{frame: bearing(udp("198.51.100.9", to4)), want: verdict.Looped},
		{frame: udp("198.51.100.9", to4)[:37], want: verdict.Truncated},
		{frame: udp("198.51.100.9", to4)[:15], want: verdict.Truncated},
		{policy: verdict.Policy{DropMalformed: true}, frame: with(udp("198.51.100.9", to4), 14, 0x41), want: verdict.Malformed},
		{frame: with(slices.Insert(udp("2001:dba::9", to6), 54, bytes.Repeat([]byte{60, 0, 0, 0, 0, 0, 0, 0}, packet.MaxExtHeaders+1)...), 18, 1, 0, 60), want: verdict.Unparsed},
		{frame: slices.Insert(udp("198.51.100.9", to4), 12, bytes.Repeat([]byte{0x81, 0, 0, 0}, packet.MaxVLANTags+1)...), want: verdict.Overtagged},
		{frame: udp("198.51.100.9", to4), want: verdict.Clean},
		{frame: with(udp("198.51.100.9", to4), 12, 8, 6), want: verdict.ARP},
		{frame: with(udp("198.51.100.9", to4), 12, 0x88, 0xe7), want: verdict.NotIP},
		{frame: with(udp("192.0.2.1", to4), 34, 0, 67, 0, 68), want: verdict.DHCP},
		{
			policy: verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 17, Port: 0xf053}}},
			frame:  udp("192.0.2.1", to4), want: verdict.Failsafe,
		},
	}
	seen := make(map[verdict.Reason]bool)
	programs := make(map[string]*replay.Kernel) // by policy
	for _, c := range cases {
		policy := fmt.Sprint(c.policy)
		if programs[policy] == nil {
			programs[policy] = eventful(t, c.policy)
		}
		k := programs[policy]
		t.Run(c.want.String(), func(t *testing.T) {
			k.Stats().Sample(loader.Sampling{})
			if _, err := k.Decide(c.frame); err != nil { // unsampled; uses up a rate limit
				t.Fatal(err)
			}
			if all := drain(t, k.Stats()); len(all) != 0 {
				t.Errorf("not sampled, and %d events", len(all))
			}
			k.Stats().Sample(everything(1))
			before := loader.Monotonic()
			if o, err := k.Decide(c.frame); err != nil || o.Reason != c.want {
				t.Fatalf("%+v, %v, want %v", o, err, c.want)
			}
			all := drain(t, k.Stats())
			if !slices.Contains(events.Reasons(), c.want) {
				if len(all) != 0 {
					t.Errorf("%+v", all)
				}
				return
			}
			seen[c.want] = true
			if len(all) != 1 {
				t.Fatalf("%d events", len(all))
			}
			e := all[0]
			if e.Time < before || e.Time > loader.Monotonic() || e.OneIn != 1 || e.Interface == 0 {
				t.Errorf("%+v, at %v to %v", e, before, loader.Monotonic())
			}
			if verdict.Reason(e.Packet.Reason) != c.want || int(e.Packet.Len) != len(c.frame) || c.list != 0 && e.Packet.List != c.list {
				t.Errorf("%+v, want %v, list %d, %d bytes", e.Packet, c.want, c.list, len(c.frame))
			}
			p, _ := packet.Parse(c.frame)
			if p.HasAddresses != (e.Packet.Family != 0) {
				t.Errorf("addresses %t, family %d", p.HasAddresses, e.Packet.Family)
			} else if got := engine.TupleOf(&e.Packet); p.HasAddresses && got != p.Tuple {
				t.Errorf("%+v, want %+v", got, p.Tuple)
			}
			if want := c.frame[:min(len(c.frame), events.FrameSize)]; !bytes.Equal(e.Frame, want) {
				t.Errorf("% x\nwant\n% x", e.Frame, want)
			}
		})
	}
	for _, r := range events.Reasons() {
		if !seen[r] && r != verdict.Policed && r != verdict.Reply && r != verdict.Pattern { // see TestPoliceByConfiguration, TestReplies and TestPatternEvents
			t.Errorf("no event of %v", r)
		}
	}
}

// The control plane may change the sampling at any time.
func TestSampling(t *testing.T) {
	onOneCPU(t)
	k := eventful(t, verdict.Policy{})
	stats := k.Stats()
	send := func(n int) []loader.Event {
		t.Helper()
		for range n {
			frame := packet.Frame(key.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17})
			if o, err := k.Decide(frame); err != nil || o.Reason != verdict.Blocked {
				t.Fatalf("%+v, %v", o, err)
			}
		}
		return drain(t, stats)
	}
	only := func(r verdict.Reason) loader.Sampling {
		s := loader.Sampling{Until: math.MaxInt64}
		s.OneIn[r] = 1
		return s
	}
	over := everything(1)
	over.Until = loader.Monotonic()
	for _, c := range []struct {
		name string
		set  *loader.Sampling
		want int
	}{
		{"at first", nil, 0},
		{"this reason", new(only(verdict.Blocked)), 3},
		{"another reason", new(only(verdict.Heavy)), 0},
		{"all", new(everything(1)), 3},
		{"the time is over", &over, 0},
		{"none", new(loader.Sampling{}), 0},
	} {
		if c.set != nil {
			stats.Sample(*c.set)
		}
		if got := send(3); len(got) != c.want {
			t.Errorf("%s: %d events, want %d", c.name, len(got), c.want)
		}
	}

	stats.Sample(only(verdict.Blocked))
	if all := send(1); len(all) != 1 || len(all[0].Frame) != 0 {
		t.Errorf("%d events, %+v, want one without a frame", len(all), all)
	}

	// One in 16: within six deviations of the binomial distribution.
	const packets, oneIn = 16_000, 16
	stats.Sample(everything(oneIn))
	all := send(packets)
	const want = packets / oneIn
	if off := math.Abs(float64(len(all) - want)); off > 6*math.Sqrt(want) {
		t.Errorf("%d events of %d packets, one in %d", len(all), packets, oneIn)
	}
	if len(all) > 0 && all[0].OneIn != oneIn {
		t.Errorf("%d in an event, want %d", all[0].OneIn, oneIn)
	}
	if n := stats.EventsLost(); n != 0 {
		t.Errorf("%d events are lost, and all were read", n)
	}
}

// Nothing is lost without being counted.
func TestLostEvents(t *testing.T) {
	onOneCPU(t)
	k := eventful(t, verdict.Policy{})
	k.Stats().Sample(everything(1))
	frame := packet.Frame(key.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17})
	const packets = 4000
	send := func() {
		for range packets {
			if _, err := k.Decide(frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	send()
	lost := int(k.Stats().EventsLost())
	read := len(drain(t, k.Stats()))
	t.Logf("%d of %d events are kept", read, packets)
	if lost == 0 || read < events.Limit/10 || read+lost != packets {
		t.Errorf("%d read, %d lost of %d", read, lost, packets)
	}
	if all := drain(t, k.Stats()); len(all) != 0 {
		t.Errorf("%d events more", len(all))
	}
	// There is room again.
	send()
	if n := len(drain(t, k.Stats())); n != read {
		t.Errorf("%d read the second time, %d the first", n, read)
	}
}
