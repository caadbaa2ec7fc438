package contract

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage/police"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
)

// limits draws limits of sources in the small world, which contain each other. Their rates are so low that
// nothing but what may arrive at once passes, and some have ended.
func (r random) limits(n int) (all []police.Source) {
	for range n {
		v6 := r.IntN(2) == 0
		lengths := []int{0, 8, 20, 24, 27, 31, 32}
		if v6 {
			lengths = []int{0, 20, 48, 63, 64, 120, 127, 128}
		}
		s := police.Source{Prefix: netip.PrefixFrom(r.addr(v6), r.pick(lengths...)).Masked(), Rate: quantity.Rate{Value: 1e-3, Unit: quantity.Unit(r.pick(int(quantity.Packets), int(quantity.Bytes)))}}
		if r.IntN(6) == 0 {
			s.Until = time.Now().Add(-time.Second)
		}
		if !slices.ContainsFunc(all, func(o police.Source) bool { return o.Prefix == s.Prefix }) {
			all = append(all, s)
		}
	}
	return all
}

// Programs hold sources to their limits as the twin does, beside all else, by XDP and by TC, and
// count the packets that they hold back.
func TestLimits(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	seen := make(map[verdict.Reason]int)
	unseen := func() (all []verdict.Reason) {
		for _, r := range []verdict.Reason{verdict.Clean, verdict.RateLimited, verdict.Blocked, verdict.Allowed, verdict.WouldBlock} {
			if seen[r] == 0 {
				all = append(all, r)
			}
		}
		return all
	}
	// A few seeds need more rounds to have all reasons.
	rounds := long.Or(8, 24)
	for i := 0; i < rounds || i < 4*rounds && unseen() != nil; i++ {
		lists := []engine.List{{Name: "block", Contents: r.entries(100 * (i % 2)).Set()}, {Name: "allow", Allow: true, Contents: r.entries(50 * (i / 2 % 2)).Set()}}
		c, limits := r.config(i), r.limits([]int{12, 4, 1}[i%3])
		c.Parts = []engine.Part{police.NewSources(limits)}
		round := newRound(t)
		g, k := engines(round, lists, c)
		if i%4 == 3 {
			e := tcEntries(round, lists, c, "in")
			g, k = e[0].Generation, e[0].Kernel
		}
		held := 0
		for range 1500 {
			frame := packet.Frame(r.tuple())
			o, err := agree(g, k, frame)
			if err != nil {
				t.Fatalf("%v: % x; %v", err, frame, limits)
			}
			if seen[o.Reason]++; o.Reason == verdict.RateLimited {
				held++
			}
		}
		counted := 0
		for _, s := range limits {
			n, err := s.Held(g.Kernel())
			if err != nil {
				t.Fatal(err)
			}
			counted += int(n.Packets)
		}
		// What an allow list lets pass, or a block list drops, is above its rate all the same.
		if counted < held {
			t.Errorf("%d packets are counted as held back, and %d were", counted, held)
		}
		round.end()
	}
	t.Log(seen)
	for _, r := range unseen() {
		t.Errorf("no packet left as %v: the test is too narrow", r)
	}
}

// Limits that are changed in a generation hold at once, those that stay go on, and those that are
// ended hold nothing back.
func TestLimitsFollow(t *testing.T) {
	lab.Root(t)
	rate := quantity.Rate{Value: 1e-3, Unit: quantity.Packets}
	source := func(prefix string) police.Source {
		return police.Source{Prefix: netip.MustParsePrefix(prefix), Rate: rate}
	}
	part := police.NewSources([]police.Source{source("192.0.2.0/24"), source("2001:db8::1/128")})
	g, k := engines(t, nil, engine.Config{Parts: []engine.Part{part}})
	passed := func(src, dst string) (n int) {
		t.Helper()
		for range 100 {
			tuple := newRandom(t).tuple()
			tuple.Src, tuple.Dst, tuple.Proto, tuple.HasPorts, tuple.SrcPort, tuple.DstPort = netip.MustParseAddr(src), netip.MustParseAddr(dst), 6, true, 1000, 2000
			o, err := k.Decide(packet.Frame(tuple))
			if err != nil {
				t.Fatal(err)
			}
			if o.Action == verdict.Pass {
				n++
			}
		}
		return n
	}
	want := func(when string, four, beside, six int) {
		t.Helper()
		got := fmt.Sprint(passed("192.0.2.7", "192.0.2.1"), passed("198.51.100.7", "192.0.2.1"), passed("2001:db8::1", "2001:db8::2"))
		if got != fmt.Sprint(four, beside, six) {
			t.Errorf("%s: %s of 100 packets passed, want %d %d %d", when, got, four, beside, six)
		}
	}
	want("at first", 10, 100, 10)
	follow := func(all ...police.Source) {
		t.Helper()
		if err := part.Follow(g.Kernel(), all); err != nil {
			t.Fatal(err)
		}
	}
	follow(source("192.0.2.0/24"), source("198.51.100.0/25"))
	want("one is new, and one has ended", 0, 10, 100)
	if n, err := source("192.0.2.0/24").Held(g.Kernel()); err != nil || n != (loader.Counter{Packets: 190, Bytes: n.Bytes}) || n.Bytes < 190*34 {
		t.Errorf("%+v are held back, %v", n, err)
	}
	wider := source("192.0.2.0/24")
	wider.Rate.Value = 100e9
	follow(wider, source("198.51.100.0/25"))
	want("one has another rate", 100, 0, 100)
}

// What a penalty drops is neither let through by a limit nor charged to it.
func TestLimitBesidePenalty(t *testing.T) {
	lab.Root(t)
	c := engine.Config{Parts: []engine.Part{
		&tracker.Part{In: []tracker.Counting{{Punishes: true, Tracker: sketch.Tracker{
			V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: key.FieldV6, SrcBits: 128}, Geometry: sketch.Geometry{Lines: 100, Buckets: 9},
		}}}},
		police.NewSources([]police.Source{{Prefix: netip.MustParsePrefix("192.0.2.0/24"), Rate: quantity.Rate{Value: 1e-3, Unit: quantity.Packets}}}),
	}}
	g, k := engines(t, nil, c)
	m, table := penalties(t, g, k.Stats())
	from := func(src string) key.Tuple {
		return key.Tuple{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("192.0.2.1"), Proto: 6, HasPorts: true, SrcPort: 1000, DstPort: 2000}
	}
	of := tracker.Of(g)[0]
	if !table.Set(of.Hash(of.Key(from("192.0.2.7"))), penalty.Penalty{Until: loader.Monotonic() + time.Hour}) {
		t.Fatal("there is no room for a penalty")
	}
	m.SetPenalized(table.Len())
	left := func(src string, n int) map[verdict.Reason]int {
		seen := make(map[verdict.Reason]int)
		for range n {
			o, err := k.Decide(packet.Frame(from(src)))
			if err != nil {
				t.Fatal(err)
			}
			seen[o.Reason]++
		}
		return seen
	}
	if seen := left("192.0.2.7", 100); seen[verdict.Heavy] != 100 {
		t.Errorf("packets of a penalty left as %v", seen)
	}
	if seen := left("192.0.2.8", 100); seen[verdict.Clean] != 10 || seen[verdict.RateLimited] != 90 {
		t.Errorf("packets beside a penalty left as %v", seen)
	}
}
