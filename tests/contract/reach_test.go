package contract

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/replay"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
)

// spread draws an address of few hosts in many networks, which lists have in part. Sources and
// destinations have no network in common, and the halves of 32 bits of IPv6 differ.
func (r random) spread(v6, dst bool) netip.Addr {
	side := byte(0)
	if dst {
		side = 8
	}
	if v6 {
		return netip.AddrFrom16([16]byte{0x20, side + byte(r.IntN(4)), 0x40 + byte(r.IntN(2)), byte(r.IntN(8)), 4: byte(r.IntN(2)), 15: byte(r.IntN(4))})
	}
	return netip.AddrFrom4([4]byte{side + byte(1+16*r.IntN(8)), byte(r.IntN(4)), byte(r.IntN(2)), byte(r.IntN(8))})
}

// spreadEntries returns n entries of these addresses, some of them flows: of few shapes, as the
// lean path has them, or of any length.
func (r random) spreadEntries(n int, any bool) []key.Key {
	var all []key.Key
	for i := range n {
		v6 := r.IntN(2) == 0
		a := r.spread(v6, r.IntN(4) == 0)
		bits := a.BitLen()
		switch {
		case i%16 == 0:
			t := key.Tuple{Src: r.spread(v6, false), Dst: r.spread(v6, true), Proto: 6, HasPorts: true, SrcPort: 1234, DstPort: 443}
			s := key.Shape{Fields: key.FieldDstPort, DstBits: uint8(bits), SrcBits: uint8(r.pick(0, 16))}
			if v6 {
				s.Fields |= key.FieldV6
			}
			k, _ := s.Of(t)
			all = append(all, k)
			continue
		case i%8 == 1 && any && v6:
			bits = r.pick(20, 31, 48, 64, 124)
		case i%8 == 1 && any:
			bits = r.pick(12, 16, 20, 31)
		case i%8 == 1 && !v6:
			bits = 20
		}
		all = append(all, key.Source(netip.PrefixFrom(a, bits).Masked()))
	}
	return all
}

// distant returns entries that no packet of these addresses matches.
func distant() (all []key.Key) {
	for _, p := range []string{"203.0.113.1/32", "192.168.0.0/16", "2a00:1::1/128", "2a00:2::/32"} {
		all = append(all, key.Source(netip.MustParsePrefix(p)))
	}
	return all
}

// Allow lists with none, some or all of the entries of block lists decide as in the
// reference, also after changes in place.
func TestAllowedAmongListed(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	small := sketch.Geometry{Lines: 100, Buckets: 9}
	for i := range long.Or(24, 96) {
		overlap := []string{"none", "some", "all"}[i%3]
		mode := membership.Mode(i / 3 % 2)
		t.Run(fmt.Sprintf("%d: %s, %v", i, overlap, mode), func(t *testing.T) {
			blocked := r.spreadEntries(300, false)
			allowed := distant()
			switch overlap {
			case "some":
				allowed = append(allowed, blocked[:100]...)
				allowed = append(allowed, r.spreadEntries(r.pick(0, 20), true)...)
			case "all":
				allowed = append(allowed, blocked...)
			}
			c := engine.Config{Mode: mode, BitsPerKey: 64, Policy: verdict.Policy{Monitor: i%8 == 7}} // without false positives
			if i%4 == 1 {
				c.Parts = append(c.Parts, &tracker.Part{In: []tracker.Counting{{Tracker: sketch.Tracker{
					V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: key.FieldV6, SrcBits: 64}, Geometry: small,
				}}}})
			}
			lists := []engine.List{
				{Name: "one", Direction: engine.Direction(r.pick(int(engine.Source), int(engine.Both)))},
				{Name: "other"},
				{Name: "allowed", Allow: true, Direction: engine.Direction(r.pick(int(engine.Source), int(engine.Destination), int(engine.Both)))},
			}
			if overlap == "all" {
				lists[2].Direction = lists[0].Direction
			}
			lists[0].Contents, lists[1].Contents, lists[2].Contents = list.SetOf(blocked[:150]...), list.SetOf(blocked[150:]...), list.SetOf(allowed...)
			if mode == membership.Exact && i%4 == 2 {
				web := &verdict.Rule{Ports: []verdict.PortRange{{Proto: 6, First: 443, Last: 443}}}
				lists[0].Rule = &verdict.Rule{Trial: true}
				lists[1].Rule = web
				if overlap == "some" {
					lists[2].Rule = web
				}
			}
			g, kernel := engines(t, lists, c)
			few := len(g.Block.V6)+len(g.Block.V6Flow) <= 4
			if why := g.General(); (mode == membership.Exact || lists[0].Direction == engine.Source) && (why != nil || !few) {
				t.Fatalf("general path: %q, of IPv6 %t", why, !few)
			}
			seen := map[verdict.Reason]int{}
			compare := func() {
				t.Helper()
				for range 1500 {
					v6 := r.IntN(2) == 0
					p := key.Tuple{Src: r.spread(v6, false), Dst: r.spread(v6, true), Proto: uint8(r.pick(6, 6, 17)), HasPorts: true, SrcPort: 1234, DstPort: uint16(r.pick(443, 80))}
					o, err := agree(g, kernel, packet.Frame(p))
					if err != nil {
						t.Fatalf("%v: %v", p, err)
					}
					seen[o.Reason]++
				}
			}
			compare()
			if n := seen[verdict.Allowed]; (n > 0) != (overlap != "none") {
				t.Errorf("%d packets are allowed", n)
			}
			drop := verdict.Blocked
			if c.Monitor {
				drop = verdict.WouldBlock
			}
			if n := seen[drop]; (n > 0) != (overlap != "all") {
				t.Errorf("%d packets are blocked", n)
			}
			for range 10 {
				var changes []engine.Change
				for n := range uint16(3) {
					come := slices.DeleteFunc(r.spreadEntries(10, false), func(k key.Key) bool { return k.Tuple() || int(k.SrcBits) < k.MaxBits() })
					change := engine.Change{List: n + 1, Delta: list.Delta{Add: list.SetOf(come...)}}
					if n == 2 && r.IntN(2) == 0 {
						change.Remove = list.SetOf(allowed[r.IntN(len(allowed))])
					}
					changes = append(changes, change)
				}
				if _, err := g.Apply(changes); err != nil {
					t.Fatal(err)
				}
				compare()
			}
			t.Log(slices.Sorted(maps.Keys(seen)), seen)
		})
	}
}

// While entries of allow lists and block lists come and go in place, what both have passes at every
// instant, and what only block lists have is dropped.
func TestAllowedBesideChanges(t *testing.T) {
	lab.Root(t)
	const (
		allowed = 200
		listed  = 2000
		coming  = 200 // at a time
	)
	sources := func(from, to int) (all []key.Key) {
		for i := from; i < to; i++ {
			all = append(all, source(i))
		}
		return all
	}
	// What comes is both next to what is there and elsewhere.
	later := append(sources(listed, listed+coming/2), sources(allowed, allowed+coming/2)...)
	g, kernel := engines(t, []engine.List{
		{Name: "block", Contents: list.SetOf(sources(0, listed)...)},
		{Name: "more", Contents: list.SetOf(sources(0, 2)...)},
		{Name: "allow", Allow: true, Contents: list.SetOf(sources(0, allowed)...)},
	}, engine.Config{})
	beside, err := replay.NewKernel(g, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer beside.Close()
	var (
		done   atomic.Bool
		rounds atomic.Int64
		wg     sync.WaitGroup
	)
	defer wg.Wait()
	defer done.Store(true)
	wg.Go(func() {
		for !done.Load() {
			for i := range listed {
				if i >= allowed && i < allowed+coming/2 {
					continue // comes and goes
				}
				want := verdict.Blocked
				if i < allowed {
					want = verdict.Allowed
				}
				if o, err := beside.Decide(from(source(i))); err != nil || o.Reason != want {
					t.Errorf("%v leaves with %+v (%v), want %v", source(i), o, err, want)
					return
				}
			}
			rounds.Add(1)
		}
	})
	check := func(k key.Key, want verdict.Reason) {
		t.Helper()
		if o, err := kernel.Decide(from(k)); err != nil || o.Reason != want {
			t.Errorf("%v: %+v (%v), want %v", k, o, err, want)
		}
	}
	apply := func(add, remove []key.Key, lists ...uint16) {
		t.Helper()
		var changes []engine.Change
		for _, n := range lists {
			changes = append(changes, engine.Change{List: n, Delta: list.Delta{Add: list.SetOf(add...), Remove: list.SetOf(remove...)}})
		}
		if _, err := g.Apply(changes); err != nil {
			t.Fatal(err)
		}
	}
	few := long.Or(int64(3), 30)
	for start := time.Now(); (rounds.Load() < few && time.Since(start) < time.Minute) && !t.Failed(); {
		apply(later, nil, 3)
		check(later[0], verdict.Clean)
		check(later[coming-1], verdict.Allowed)
		apply(later, nil, 2)
		check(later[0], verdict.Allowed)
		apply(nil, later, 3)
		check(later[0], verdict.Blocked)
		check(later[coming-1], verdict.Blocked)
		apply(later, nil, 3)
		apply(nil, later, 2, 3)
		check(later[0], verdict.Clean)
		check(later[coming-1], verdict.Blocked)
	}
	if rounds.Load() < few && !t.Failed() {
		t.Error("too few lookups for the test to say anything")
	}
}
