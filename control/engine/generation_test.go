package engine

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"weir/control/list"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/quotient"
	"weir/filter/verdict"
	"weir/tests/long"
	"weir/tests/world"
)

// needsNext reports whether an error of Apply means that the next generation is to be
// built.
func needsNext(err error) bool {
	return errors.Is(err, membership.ErrNoRoom) || errors.Is(err, membership.ErrFull)
}

// oracle holds entries as they were given, and asks them one by one.
type oracle struct {
	lists   []List
	entries []map[key.Key]bool // by list
}

func newOracle(lists []List) *oracle {
	o := &oracle{lists: lists}
	for range lists {
		o.entries = append(o.entries, make(map[key.Key]bool))
	}
	return o
}

func (o *oracle) matches(t key.Tuple, allow bool) (by []int) {
	for i, l := range o.lists {
		if l.Allow != allow {
			continue
		}
		for k := range o.entries[i] {
			if got, ok := k.Shape.Of(t); ok && got == k {
				by = append(by, i+1)
				break
			}
		}
	}
	return by
}

// rules returns the lists with their entries.
func (o *oracle) rules() []List {
	lists := slices.Clone(o.lists)
	for i := range lists {
		lists[i].Contents = list.SetOf(slices.Collect(maps.Keys(o.entries[i]))...)
	}
	return lists
}

// ofKeys returns lists with the entries of some keys.
func ofKeys(l List, keys ...key.Key) List {
	l.Contents = list.SetOf(keys...)
	return l
}

// add and remove are changes of a list by some keys.
func add(list uint16, keys ...key.Key) Change { return delta(list, keys, nil) }

func remove(list uint16, keys ...key.Key) Change { return delta(list, nil, keys) }

func delta(n uint16, add, remove []key.Key) Change {
	return Change{n, list.Delta{Add: list.SetOf(add...), Remove: list.SetOf(remove...)}}
}

// check compares a generation with the oracle and with one that is built anew,
// packet by packet. attributed: also the list that a match is attributed to,
// which depends on the levels where entries of both sides match.
func (o *oracle) check(t *testing.T, g *Generation, r world.Random, attributed bool) {
	t.Helper()
	fresh, err := Reference(o.rules(), Config{Policy: g.Policy, Mode: g.Block.Mode})
	if err != nil {
		t.Fatal(err)
	}
	for range 1500 {
		tuple := r.Tuple()
		frame := packet.Frame(tuple)
		got, want := g.Decide(frame), fresh.Decide(frame)
		blocked, allowed := o.matches(tuple, false), o.matches(tuple, true)
		reason := verdict.Clean
		switch {
		case len(blocked) > 0 && len(allowed) > 0:
			reason = verdict.Allowed
		case len(blocked) > 0:
			reason = verdict.Blocked
		}
		if g.Block.Mode == membership.Approximate {
			if reason == verdict.Blocked && got.Reason == verdict.Clean {
				t.Fatalf("%+v: %+v, but lists %v hold it", tuple, got, blocked)
			}
			continue
		}
		if got.Reason != reason || want.Reason != reason {
			t.Fatalf("%+v: %+v, built anew %+v, but lists %v block and %v allow it", tuple, got, want, blocked, allowed)
		}
		if got.Reason != verdict.Blocked {
			continue
		}
		if !slices.Contains(blocked, got.List) || attributed && got.List != want.List {
			t.Fatalf("%+v: list %d, built anew %d, of %v", tuple, got.List, want.List, blocked)
		}
	}
}

// After any changes, a generation answers as one that is built anew does.
func TestApplyAgainstOracle(t *testing.T) {
	long.Seconds(t)
	for _, c := range []struct {
		name       string
		mode       membership.Mode
		directions [4]Direction
	}{
		{"exact, sources", membership.Exact, [4]Direction{}},
		{"exact, all sides", membership.Exact, [4]Direction{Source, Destination, Both, Both}},
		{"approximate", membership.Approximate, [4]Direction{Source, Destination, Both, Both}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := world.New(t)
			for range long.Or(1, 4) {
				testApplyAgainstOracle(t, c.mode, c.directions, r)
			}
		})
	}
}

func testApplyAgainstOracle(t *testing.T, mode membership.Mode, directions [4]Direction, r world.Random) {
	lists := []List{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "allow", Allow: true}}
	for i, d := range directions {
		lists[i].Direction = d
	}
	sources := directions == [4]Direction{}
	o := newOracle(lists)
	// draw returns the keys of an entry.
	draw := func(l int) []key.Key {
		if r.IntN(4) == 0 && !sources {
			return []key.Key{r.Flow()}
		}
		return lists[l].Keys(r.Prefix())
	}
	for range 400 {
		l := r.IntN(len(lists))
		for _, k := range draw(l) {
			o.entries[l][k] = true
		}
	}
	g, err := Reference(o.rules(), Config{Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	o.check(t, g, r, sources)
	rebuilt := 0
	for range 30 {
		var changes []Change
		want := 0
		before := make([]map[key.Key]bool, len(lists))
		for l := range lists {
			before[l] = maps.Clone(o.entries[l])
		}
		for l := range lists {
			var adds, removes []key.Key
			touched := make(map[key.Key]bool) // a delta says one thing of an entry
			for range r.IntN(12) {
				for _, k := range draw(l) {
					isAdded := r.IntN(3) > 0
					if !isAdded && r.IntN(4) > 0 { // rather one that is there
						for have := range o.entries[l] {
							k = have
							break
						}
					}
					if touched[k] {
						continue
					}
					touched[k] = true
					if o.entries[l][k] != isAdded {
						want++
					}
					if isAdded {
						adds, o.entries[l][k] = append(adds, k), true
					} else {
						removes = append(removes, k)
						delete(o.entries[l], k)
					}
				}
			}
			changes = append(changes, delta(uint16(l+1), adds, removes))
		}
		r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		n, err := g.Apply(changes)
		if err != nil {
			if n != 0 || !needsNext(err) {
				t.Fatal(n, err)
			}
			// Nothing has changed.
			after := o.entries
			o.entries = before
			o.check(t, g, r, sources)
			o.entries = after
			rebuilt++
			next, n, err := With(g.Lists(), changes)
			if err != nil || n != want {
				t.Fatalf("%d entries changed, want %d: %v", n, want, err)
			}
			if g, err = Reference(next, Config{Mode: mode}); err != nil {
				t.Fatal(err)
			}
		} else if n != want {
			t.Fatalf("%d entries changed, want %d", n, want)
		}
		o.check(t, g, r, sources)
	}
	t.Logf("%d of 30 batches took a new generation", rebuilt)
}

// A mistake of the allow lists would let through what is listed: they make none,
// whatever the mode.
func TestApproximateLetsNothingListedThrough(t *testing.T) {
	addr := func(first byte, i int) netip.Addr {
		return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	var allow []key.Key
	for i := range 10_000 {
		allow = append(allow, key.Source(netip.PrefixFrom(addr(11, i), 32)))
	}
	g, err := Reference([]List{
		ofKeys(List{Name: "block"}, key.Source(netip.MustParsePrefix("10.0.0.0/8"))), ofKeys(List{Name: "allow", Allow: true}, allow...),
	}, Config{Mode: membership.Approximate, BitsPerKey: 4})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		listed := packet.Frame(key.Tuple{Src: addr(10, i), Dst: addr(10, 0), Proto: 1})
		if o := g.Decide(listed); o.Reason != verdict.Blocked {
			t.Fatalf("listed, and %+v", o)
		}
		allowed := packet.Frame(key.Tuple{Src: addr(11, i), Dst: addr(10, 0), Proto: 1})
		if o := g.Decide(allowed); o.Action != verdict.Pass {
			t.Fatalf("allowed, and %+v", o)
		}
	}
}

// A program that is under way while a prefix takes the place of another finds one of
// them, in whichever order it asks for them: between additions and removals, those
// that have begun before come to their end. What one packet cannot have both of does
// not wait.
func TestApplyLetsProgramsEnd(t *testing.T) {
	source := func(s string) key.Key { return key.Source(netip.MustParsePrefix(s)) }
	wide, narrow, other := source("192.0.0.0/16"), source("192.0.2.1/32"), source("192.0.2.2/32")
	g, err := Reference([]List{ofKeys(List{Name: "block"}, wide, source("198.51.100.1/32"))}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	listed := func(k key.Key) bool {
		_, ok := g.Block.Lookup(k)
		return ok
	}
	waits := 0
	for _, c := range []struct {
		removed, added key.Key
		waits          int
	}{{wide, narrow, 1}, {narrow, wide, 1}, {wide, narrow, 1}, {narrow, other, 0}} {
		asked := listed(c.added) // by a program that then stops for a while
		waits = 0
		g.grace = func() {
			waits++
			if !asked && !listed(c.removed) {
				t.Errorf("%v for %v: a program finds neither", c.added, c.removed)
			}
		}
		if n, err := g.Apply([]Change{delta(1, []key.Key{c.added}, []key.Key{c.removed})}); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		if waits != c.waits || listed(c.removed) || !listed(c.added) {
			t.Errorf("%v for %v: waited %d times, want %d", c.added, c.removed, waits, c.waits)
		}
	}
}

// A program that has found a block list's entry asks the allow lists next: where both entries are
// removed by one change, it still finds theirs.
func TestApplyAllowsMeanwhile(t *testing.T) {
	k := key.Source(netip.MustParsePrefix("192.0.2.1/32"))
	g, err := Reference([]List{ofKeys(List{Name: "block"}, k), ofKeys(List{Name: "allow", Allow: true}, k)}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	waits := 0
	g.grace = func() {
		waits++
		_, blocked := g.Block.Lookup(k)
		if _, allowed := g.Allow.Lookup(k); blocked || !allowed {
			t.Errorf("meanwhile it is blocked %v, allowed %v", blocked, allowed)
		}
	}
	if n, err := g.Apply([]Change{delta(1, nil, []key.Key{k}), delta(2, nil, []key.Key{k})}); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if _, allowed := g.Allow.Lookup(k); waits != 1 || allowed {
		t.Errorf("waited %d times; allowed %v", waits, allowed)
	}
}

// Changes that find no room change nothing, whether they fail at the first key or
// after many, and what comes after them is not held up.
func TestApplyWithoutRoom(t *testing.T) {
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		t.Run(mode.String(), func(t *testing.T) {
			source := func(i int) key.Key {
				return key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
			}
			var keys, more []key.Key
			const n = 1000
			for i := range n {
				keys = append(keys, source(i))
			}
			for i := n; i < n+20_000; i++ {
				more = append(more, source(i))
			}
			flow, _ := key.Shape{DstBits: 32, Fields: key.FieldDstPort}.Of(key.Tuple{Src: source(0).Src, Dst: source(0).Src, HasPorts: true})
			g, err := Reference([]List{ofKeys(List{Name: "block"}, keys...), {Name: "other"}}, Config{Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			listed := func(i int) bool {
				return g.Decide(packet.Frame(key.Tuple{Src: source(i).Src, Dst: source(i).Src, Proto: 1})).Action == verdict.Drop
			}
			unchanged := func() {
				t.Helper()
				for i := range n {
					if !listed(i) {
						t.Fatalf("%v is no longer listed", source(i))
					}
				}
				if g.Block.Len() != n || g.Lists()[0].Contents.Len() != n {
					t.Fatalf("%d keys of %d entries, want %d", g.Block.Len(), g.Lists()[0].Contents.Len(), n)
				}
			}
			cascade, _ := g.Block.Load()
			for range 3 {
				for _, c := range [][]Change{{delta(1, more, keys)}, {delta(1, append(more[:500:500], flow), keys), add(2, more[500])}} {
					if changed, err := g.Apply(c); changed != 0 || !needsNext(err) {
						t.Fatalf("%d entries changed: %v", changed, err)
					}
					unchanged()
				}
			}
			if now, _ := g.Block.Load(); now != cascade {
				t.Errorf("the cascade's load went from %v to %v", cascade, now)
			}
			if changed, err := g.Apply([]Change{delta(2, more[:500], nil), remove(1, keys[:500]...)}); changed != 1000 || err != nil {
				t.Fatalf("%d entries changed: %v", changed, err)
			}
			for i := range n + 500 {
				if i < 500 && mode == membership.Exact && listed(i) || i >= 500 && !listed(i) {
					t.Fatalf("%v: listed %t", source(i), listed(i))
				}
			}
		})
	}
}

// Each generation has secrets of its own, also of the same lists, and so has each direction,
// and each attempt to build one: what collides under one collides under no other.
func TestSecretsAreNew(t *testing.T) {
	network := netip.MustParsePrefix("192.0.2.0/24")
	lists := []List{ofKeys(List{Name: "in"}, key.Source(network)), ofKeys(List{Name: "out", Direction: Out}, key.Destination(network))}
	hashes, tables := make(map[uint64]bool), make(map[quotient.Secret]bool)
	const generations = 3
	for range generations {
		g, err := Reference(lists, Config{Outgoing: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, side := range []*Generation{g, g.Out()} {
			hashes[key.Source(network).Hash(side.Block.Secret)], tables[side.Block.Prefixes.Secret] = true, true
		}
	}
	if len(hashes) != 2*generations || len(tables) != 2*generations {
		t.Errorf("%d generations of two directions have %d secrets of hashes and %d of tables", generations, len(hashes), len(tables))
	}

	seeds := make(map[hash.Seed]bool)
	full := fmt.Errorf("block lists: %w", membership.ErrFull)
	_, err := attempt(func(s hash.Seed) (*Generation, error) { seeds[s] = true; return nil, full })
	if len(seeds) != attempts || !errors.Is(err, membership.ErrFull) {
		t.Errorf("%d seeds of %d attempts, %v", len(seeds), attempts, err)
	}
	tried := 0
	want := new(Generation)
	if g, err := attempt(func(hash.Seed) (*Generation, error) {
		if tried++; tried < attempts {
			return nil, full
		}
		return want, nil
	}); g != want || err != nil {
		t.Errorf("after %d attempts that found no room: %v", tried-1, err)
	}
	tried = 0
	if _, err := attempt(func(hash.Seed) (*Generation, error) { tried++; return nil, membership.ErrNoRoom }); tried != 1 || !errors.Is(err, membership.ErrNoRoom) {
		t.Errorf("%d attempts at what no seed mends, %v", tried, err)
	}
}

// A change that finds no room for incoming packets changes nothing for outgoing ones, whose
// set has room for it.
func TestApplyWithoutRoomInOneDirection(t *testing.T) {
	const few, many = 100, 20_000
	var sources, destinations []key.Key
	for i := range many + 2000 {
		a := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		sources, destinations = append(sources, key.Source(a)), append(destinations, key.Destination(a))
	}
	flow := func(i int) key.Key {
		a := sources[i].Src
		k, _ := key.Shape{DstBits: 32, Fields: key.FieldDstPort}.Of(key.Tuple{Src: a, Dst: a, HasPorts: true, DstPort: 53})
		return k
	}
	lists := []List{
		ofKeys(List{Name: "in"}, sources[:few]...),
		ofKeys(List{Name: "out", Direction: Out}, append(destinations[:many:many], flow(many))...),
		ofKeys(List{Name: "out, too", Direction: Out}, destinations[:few]...),
	}
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		t.Run(mode.String(), func(t *testing.T) {
			g, err := Reference(lists, Config{Mode: mode, Outgoing: true})
			if err != nil {
				t.Fatal(err)
			}
			verdicts := func() (got [][2]verdict.Outcome) {
				remote := netip.MustParseAddr("198.51.100.1")
				for _, k := range sources {
					a := k.Src
					in := packet.Frame(key.Tuple{Src: a, Dst: remote, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 53})
					out := packet.Frame(key.Tuple{Src: remote, Dst: a, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 53})
					got = append(got, [2]verdict.Outcome{g.Decide(in), g.Out().Decide(out)})
				}
				return got
			}
			before, keys := verdicts(), [2]int{g.Block.Len(), g.Out().Block.Len()}
			outgoing := []Change{
				delta(2, append(destinations[many:many+500:many+500], flow(many+1000)),
					append(destinations[few/2:2*few:2*few], flow(many))), // some stay on the other list
				delta(3, destinations[many+500:many+600], nil),
			}
			for name, incoming := range map[string]Change{
				"too many": delta(1, sources[many:], sources[:few]),
				"a shape":  delta(1, append(sources[many:many+10:many+10], flow(0)), sources[:few]),
			} {
				changes := slices.Concat(outgoing, []Change{incoming})
				if n, err := g.Apply(changes); n != 0 || !needsNext(err) {
					t.Fatalf("%s: %d entries changed: %v", name, n, err)
				}
				if now := [2]int{g.Block.Len(), g.Out().Block.Len()}; now != keys {
					t.Errorf("%s: %d keys of incoming and outgoing packets, want %d", name, now, keys)
				}
				for i, now := range verdicts() {
					if now != before[i] {
						t.Fatalf("%s: %v: %+v, want %+v", name, sources[i].Src, now, before[i])
					}
				}
				for i, l := range g.Out().Lists() {
					if l.Contents.Len() != lists[i].Contents.Len() {
						t.Errorf("%s: %d entries of outgoing packets in list %s, want %d", name, l.Contents.Len(), l.Name, lists[i].Contents.Len())
					}
				}
			}
			if n, err := g.Apply(append(outgoing, add(1, sources[many]))); n != 500+1+2*few-few/2+1+100+1 || err != nil {
				t.Errorf("a change for which both have room: %d entries, %v", n, err)
			}
		})
	}
}

func TestApplyNoRoom(t *testing.T) {
	prefix := func(s string) key.Key { return key.Source(netip.MustParsePrefix(s)) }
	var keys []key.Key
	for i := range 10 {
		keys = append(keys, key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32)))
	}
	lists := []List{ofKeys(List{Name: "block"}, keys...)}
	flow, _ := key.Shape{DstBits: 32, Fields: key.FieldDstPort}.Of(key.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.1"), HasPorts: true})
	g, err := Reference(lists, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for name, k := range map[string]key.Key{
		"a family that is not in use":  prefix("2001:db8::/32"),
		"a side that is not in use":    key.Destination(netip.MustParsePrefix("192.0.2.1/32")),
		"a shape that is not in use":   flow,
		"a prefix of too many entries": prefix("10.0.0.0/8"),
	} {
		if n, err := g.Apply([]Change{add(1, k, prefix("192.0.2.99/32"))}); n != 0 || !errors.Is(err, membership.ErrNoRoom) {
			t.Errorf("%s: %d changes, %v", name, n, err)
		}
		if n, err := g.Apply([]Change{remove(1, k)}); n != 0 || err != nil {
			t.Errorf("%s, removed: %d changes, %v", name, n, err)
		}
		if n, err := g.Apply([]Change{delta(1, []key.Key{prefix("192.0.2.98/32")}, []key.Key{k})}); n != 1 || err != nil {
			t.Errorf("%s, removed with an addition: %d changes, %v", name, n, err)
		}
		if n, err := g.Apply([]Change{remove(1, prefix("192.0.2.98/32"))}); n != 1 || err != nil {
			t.Errorf("%s: %d changes, %v", name, n, err)
		}
		if g.Block.Len() != 10 {
			t.Errorf("%s: %d keys", name, g.Block.Len())
		}
	}
	for _, l := range []uint16{0, 2} {
		if _, err := g.Apply([]Change{add(l, prefix("192.0.2.77/32"))}); err == nil {
			t.Errorf("list %d exists", l)
		}
	}
	// A short prefix that fits is expanded to the level in use.
	if _, err := g.Apply([]Change{add(1, prefix("198.51.100.0/24"))}); err != nil || g.Block.Len() != 10+256 {
		t.Errorf("%d keys, %v", g.Block.Len(), err)
	}
}

// A prefix at the levels that were planned stands for just the addresses that
// it covers.
func TestExpansionAgainstOracle(t *testing.T) {
	long.Seconds(t)
	r := world.New(t)
	for range 30 {
		o := newOracle([]List{{Name: "a"}, {Name: "b"}})
		// Many of one length, so that the rare ones are expanded.
		for range 1000 {
			o.entries[0][key.Source(netip.PrefixFrom(r.Addr(false), 32))] = true
		}
		for range 20 {
			o.entries[r.IntN(2)][key.Source(r.Prefix())] = true
		}
		g, err := Reference(o.rules(), Config{})
		if err != nil {
			t.Fatal(err)
		}
		if levels := g.index.block.src4.levels; len(levels) > 3 {
			t.Errorf("levels %v: none is expanded", levels)
		}
		o.check(t, g, r, true)
	}
}

// someShapes are flows of n combinations of prefix lengths that are stored as
// flows of fewer.
func someShapes(r world.Random, n int) []key.Key {
	var keys []key.Key
	for i := range n {
		t := r.Tuple()
		t.HasPorts = true
		s := key.Shape{Fields: key.FieldDstPort, SrcBits: uint8(24 + i%8), DstBits: uint8(22 + i/8)}
		if t.Src.Is6() {
			s.Fields, s.SrcBits, s.DstBits = s.Fields|key.FieldV6, s.SrcBits+96, s.DstBits+96
		}
		k, _ := s.Of(t)
		keys = append(keys, k)
	}
	return keys
}

// Flows of more shapes than a set can have are stored at fewer, and match just what
// they did, also after changes in place.
func TestManyShapesAgainstOracle(t *testing.T) {
	r := world.New(t)
	inPlace := 0
	for round := 0; round < 5 || inPlace == 0 && round < 100; round++ {
		o := newOracle([]List{{Name: "a"}, {Name: "b"}, {Name: "allow", Allow: true}})
		for n := range o.lists {
			for _, k := range slices.Concat(someShapes(r, 80), someShapes(r, 80), someShapes(r, 80)) {
				o.entries[n][k] = true
			}
		}
		g, err := Reference(o.rules(), Config{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(g.index.block.flows.levels.Stored); n <= 2*membership.MaxShapes {
			t.Errorf("%d shapes: none too many", n)
		}
		o.check(t, g, r, false)
		for range 10 {
			n := r.IntN(len(o.lists))
			fresh := someShapes(r, 80)
			var old []key.Key
			for k := range o.entries[n] {
				if old = append(old, k); len(old) == 100 {
					break
				}
			}
			if _, err := g.Apply([]Change{delta(uint16(n+1), fresh, old)}); errors.Is(err, membership.ErrNoRoom) {
				continue
			} else if err != nil {
				t.Fatal(err)
			}
			inPlace++
			for _, k := range old {
				delete(o.entries[n], k)
			}
			for _, k := range fresh {
				o.entries[n][k] = true
			}
			o.check(t, g, r, false)
		}
	}
	if inPlace == 0 {
		t.Error("no change was made in place")
	}
}

// A match is attributed to the longest prefix that holds it, and among lists
// that have that, to the first.
func TestAttribution(t *testing.T) {
	source := func(s string) key.Key { return key.Source(netip.MustParsePrefix(s)) }
	var lists []List
	for i, entries := range [][]string{{"10.0.0.0/22", "10.0.0.9/32"}, {"10.0.0.0/24", "10.0.0.9/32"}, {"10.0.0.0/24", "10.0.0.8/31"}} {
		l := ofKeys(List{Name: fmt.Sprint(i + 1)})
		for _, p := range entries {
			l.Contents, _ = l.Contents.Apply(add(1, source(p)).Delta)
		}
		lists = append(lists, l)
	}
	g, err := Reference(lists, Config{})
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, want map[string]int) {
		t.Helper()
		for a, list := range want {
			got := g.Decide(packet.Frame(key.Tuple{Src: netip.MustParseAddr(a), Dst: netip.MustParseAddr("192.0.2.1"), Proto: 1}))
			if got.List != list || (got.Reason == verdict.Blocked) != (list > 0) {
				t.Errorf("%s, %s: %+v, want list %d", when, a, got, list)
			}
		}
	}
	apply := func(want int, c ...Change) {
		t.Helper()
		if n, err := g.Apply(c); n != want || err != nil {
			t.Fatalf("%d changes, %v", n, err)
		}
	}
	check("at first", map[string]int{"10.0.0.9": 1, "10.0.0.8": 3, "10.0.0.1": 2, "10.0.1.1": 1, "10.0.4.0": 0})
	apply(1, remove(1, source("10.0.0.9/32")))
	check("without list 1's address", map[string]int{"10.0.0.9": 2, "10.0.0.8": 3})
	apply(2, remove(2, source("10.0.0.9/32"), source("10.0.0.0/24")))
	check("without list 2", map[string]int{"10.0.0.9": 3, "10.0.0.8": 3, "10.0.0.1": 3, "10.0.1.1": 1})
	apply(3, remove(3, source("10.0.0.8/31"), source("10.0.0.0/24")), add(2, source("10.0.0.8/32")))
	check("without list 3", map[string]int{"10.0.0.9": 1, "10.0.0.8": 2, "10.0.0.1": 1})
	apply(1, remove(1, source("10.0.0.0/22")))
	check("at last", map[string]int{"10.0.0.9": 0, "10.0.0.8": 2, "10.0.0.1": 0, "10.0.1.1": 0})
}

func TestDirection(t *testing.T) {
	for d := Source; d <= Both; d++ {
		var got Direction
		if err := got.UnmarshalText([]byte(d.String())); got != d || err != nil {
			t.Errorf("%v is read as %v, %v", d, got, err)
		}
	}
	if d := Both; d.UnmarshalText([]byte("up")) == nil || d != Both {
		t.Error("a direction up")
	}
}

// One prefix of no bits is one key, whichever the side.
func TestEverything(t *testing.T) {
	everything := list.Entries{V4: []list.V4Prefix{list.V4(0, 0)}, V6: []netip.Prefix{netip.MustParsePrefix("::/0")}}.Set()
	for d := Source; d <= Both; d++ {
		l := List{Name: "everything", Direction: d, Contents: everything}
		g, err := Reference([]List{l}, Config{})
		if err != nil {
			t.Fatalf("%v: %v", d, err)
		}
		for _, src := range []string{"192.0.2.1", "2001:db8::1"} {
			a := netip.MustParseAddr(src)
			frame := packet.Frame(key.Tuple{Src: a, Dst: a, Proto: 47})
			if o := g.Decide(frame); o.Reason != verdict.Blocked || o.List != 1 {
				t.Errorf("%v: a packet from %v: %+v", d, a, o)
			}
		}
		if n, err := g.Apply([]Change{remove(1, l.Keys(netip.MustParsePrefix("0.0.0.0/0"))...)}); n != 1 || err != nil {
			t.Errorf("%v: removing it again: %d changes, %v", d, n, err)
		}
	}
}

// More prefix lengths than a set can have are stored as fewer, longer ones.
func TestManyLengths(t *testing.T) {
	var e list.Entries
	for bits := 20; bits <= 128; bits++ {
		a := [16]byte{0x20, 1, byte(bits)}
		e.V6 = append(e.V6, netip.PrefixFrom(netip.AddrFrom16(a), bits).Masked())
	}
	g, err := Reference([]List{{Name: "many", Direction: Both, Contents: list.Entries{V6: slices.Clone(e.V6)}.Set()}}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range e.V6 {
		frame := packet.Frame(key.Tuple{Src: p.Addr(), Dst: netip.IPv6Unspecified(), Proto: 47})
		if o := g.Decide(frame); o.Reason != verdict.Blocked {
			t.Errorf("a packet from %v: %+v", p, o)
		}
	}
}

// Flows are found also behind those of a shape that has left the list.
func TestCoveringAfterRemoval(t *testing.T) {
	var stay, leave []key.Key
	tuple := key.Tuple{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), HasPorts: true}
	for tuple.DstPort = range uint16(20) {
		k, _ := key.Shape{SrcBits: 8, DstBits: 32, Fields: key.FieldDstPort}.Of(tuple)
		leave = append(leave, k)
	}
	for _, src := range []uint8{16, 32} {
		k, _ := key.Shape{SrcBits: src, DstBits: 32, Fields: key.FieldDstPort}.Of(tuple)
		stay = append(stay, k)
	}
	lists := []List{ofKeys(List{Name: "a"}, slices.Concat(leave, stay)...)}
	lists[0].Contents, _ = lists[0].Contents.Apply(list.Delta{Remove: list.SetOf(leave...)})
	if found := NewFinder(lists, false).Covering(tuple.Key()); len(found) != len(stay) {
		t.Errorf("found %v", found)
	}
}
