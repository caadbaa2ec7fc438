package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
)

type random struct{ *rand.Rand }

func newRandom(t testing.TB) random {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	return random{rand.New(rand.NewPCG(seed, 0))}
}

// addr is one of a small world, in which entries and packets meet often, and
// prefixes cover each other.
func (r random) addr(v6 bool) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 5: byte(r.IntN(4)), 7: byte(r.IntN(2)), 15: byte(r.IntN(64))})
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(8)), byte(r.IntN(256))})
}

func (r random) prefix() netip.Prefix {
	v6 := r.IntN(3) == 0
	lengths := []int{22, 24, 24, 27, 28, 30, 31, 32, 32, 32, 32}
	if v6 {
		lengths = []int{48, 64, 122, 126, 127, 128, 128, 128}
	}
	return netip.PrefixFrom(r.addr(v6), lengths[r.IntN(len(lengths))]).Masked()
}

func (r random) tuple() key.Tuple {
	v6 := r.IntN(3) == 0
	t := key.Tuple{Src: r.addr(v6), Dst: r.addr(v6), Proto: []uint8{1, 6, 17}[r.IntN(3)]}
	if t.HasPorts = t.Proto != 1; t.HasPorts {
		t.SrcPort, t.DstPort = uint16(r.IntN(2)), uint16(r.IntN(3))
	}
	return t
}

// flow is an entry of one of a few shapes.
func (r random) flow() key.Key {
	t := r.tuple()
	t.HasPorts = true
	shapes := []key.Shape{
		{SrcBits: 32, DstBits: 32, Fields: key.FieldProto | key.FieldDstPort},
		{DstBits: 24, Fields: key.FieldDstPort}, {SrcBits: 28, DstBits: 28},
	}
	if t.Src.Is6() {
		shapes = []key.Shape{
			{SrcBits: 128, DstBits: 128, Fields: key.FieldV6 | key.FieldProto | key.FieldDstPort},
			{SrcBits: 64, DstBits: 64, Fields: key.FieldV6 | key.FieldDstPort},
		}
	}
	k, _ := shapes[r.IntN(len(shapes))].Of(t)
	return k
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

// store puts all entries into a new store.
func (o *oracle) store(t testing.TB) *Store {
	t.Helper()
	s := NewStore()
	for i, l := range o.lists {
		var e list.Entries
		for k := range o.entries[i] {
			e.Flows = append(e.Flows, k) // which takes any key as it is
		}
		if _, err := s.AddList(l, e); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// check compares a generation with the oracle and with one that is built anew,
// packet by packet. attributed: also the list that a match is attributed to,
// which depends on the levels where entries of both sides match.
func (o *oracle) check(t *testing.T, g *Generation, r random, attributed bool) {
	t.Helper()
	fresh, err := Reference(o.store(t), Config{Policy: g.Policy, Mode: g.Block.Mode})
	if err != nil {
		t.Fatal(err)
	}
	for range 1500 {
		tuple := r.tuple()
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
			r := newRandom(t)
			for range 4 {
				testApplyAgainstOracle(t, c.mode, c.directions, r)
			}
		})
	}
}

func testApplyAgainstOracle(t *testing.T, mode membership.Mode, directions [4]Direction, r random) {
	lists := []List{{Name: "a"}, {Name: "b"}, {Name: "c"}, {Name: "allow", Allow: true}}
	for i, d := range directions {
		lists[i].Direction = d
	}
	sources := directions == [4]Direction{}
	o := newOracle(lists)
	// draw gives the keys of an entry.
	draw := func(l int) []key.Key {
		if r.IntN(4) == 0 && !sources {
			return []key.Key{r.flow()}
		}
		return lists[l].Keys(r.prefix())
	}
	for range 400 {
		l := r.IntN(len(lists))
		for _, k := range draw(l) {
			o.entries[l][k] = true
		}
	}
	g, err := Reference(o.store(t), Config{Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	o.check(t, g, r, sources)
	rebuilt := 0
	for range 30 {
		var changes []Change
		change := func(l int, k key.Key, add bool) {
			changes = append(changes, Change{uint16(l + 1), add, k})
		}
		want := 0
		touched := make(map[Change]bool)
		for range r.IntN(40) {
			l := r.IntN(len(lists))
			for _, k := range draw(l) {
				// A batch says of an entry one thing.
				if c := (Change{List: uint16(l + 1), Key: k}); touched[c] {
					continue
				} else {
					touched[c] = true
				}
				add := r.IntN(3) > 0
				if !add && r.IntN(4) > 0 { // rather one that is there
					for have := range o.entries[l] {
						if c := (Change{List: uint16(l + 1), Key: have}); !touched[c] {
							touched[c] = true
							k = have
						}
						break
					}
				}
				change(l, k, add)
				if o.entries[l][k] != add {
					want++
				}
				if add {
					o.entries[l][k] = true
				} else {
					delete(o.entries[l], k)
				}
			}
		}
		r.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		n, err := g.Apply(changes)
		if n != want {
			t.Fatalf("%d entries changed, want %d", n, want)
		}
		if err != nil {
			// What does not fit is in the store at least.
			if !errors.Is(err, membership.ErrNoRoom) {
				t.Fatal(err)
			}
			rebuilt++
			if g, err = Reference(g.store, Config{Mode: mode}); err != nil {
				t.Fatal(err)
			}
		}
		o.check(t, g, r, sources)
	}
	t.Logf("%d of 30 batches took a new generation", rebuilt)
}

// A mistake of the allow lists would let through what is listed: they make none,
// whatever the mode.
func TestApproximateLetsNothingListedThrough(t *testing.T) {
	s := NewStore()
	addr := func(first byte, i int) netip.Addr {
		return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	var allow []key.Key
	for i := range 10_000 {
		allow = append(allow, key.Source(netip.PrefixFrom(addr(11, i), 32)))
	}
	for _, l := range []struct {
		List
		keys []key.Key
	}{{List{Name: "block"}, []key.Key{key.Source(netip.MustParsePrefix("10.0.0.0/8"))}}, {List{Name: "allow", Allow: true}, allow}} {
		if _, err := s.AddList(l.List, list.Entries{Flows: l.keys}); err != nil {
			t.Fatal(err)
		}
	}
	g, err := Reference(s, Config{Mode: membership.Approximate, BitsPerKey: 4})
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
	s := NewStore()
	if _, err := s.AddList(List{Name: "block"}, list.Entries{Flows: []key.Key{wide, source("198.51.100.1/32")}}); err != nil {
		t.Fatal(err)
	}
	g, err := Reference(s, Config{})
	if err != nil {
		t.Fatal(err)
	}
	listed := func(k key.Key) bool {
		_, ok := g.Block.Lookup(k.Hash(g.Block.Seed))
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
		if n, err := g.Apply([]Change{{1, false, c.removed}, {1, true, c.added}}); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		if waits != c.waits || listed(c.removed) || !listed(c.added) {
			t.Errorf("%v for %v: waited %d times, want %d", c.added, c.removed, waits, c.waits)
		}
	}
}

// Errors leave what is listed listed: whatever found no room, and is removed
// later, takes nothing with it.
func TestApplyWithoutRoom(t *testing.T) {
	for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
		t.Run(mode.String(), func(t *testing.T) {
			source := func(i int) key.Key {
				return key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
			}
			s := NewStore()
			var e list.Entries
			const n = 1000
			for i := range n {
				e.Flows = append(e.Flows, source(i))
			}
			if _, err := s.AddList(List{Name: "block"}, e); err != nil {
				t.Fatal(err)
			}
			g, err := Reference(s, Config{Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			stillListed := func() {
				t.Helper()
				for i := range n {
					if o := g.Decide(packet.Frame(key.Tuple{Src: source(i).Src, Dst: source(i).Src, Proto: 1})); o.Action != verdict.Drop {
						t.Fatalf("%v is no longer listed: %+v", source(i), o)
					}
				}
			}
			var add, remove []Change
			for i := n; i < n+20_000; i++ {
				add = append(add, Change{1, true, source(i)})
				remove = append(remove, Change{1, false, source(i)})
			}
			changed, err := g.Apply(add)
			if changed != len(add) || !errors.Is(err, membership.ErrNoRoom) {
				t.Fatalf("%d of %d entries changed: %v", changed, len(add), err)
			}
			stillListed()
			if changed, err = g.Apply(remove); changed != len(remove) {
				t.Fatalf("%d of %d entries changed: %v", changed, len(remove), err)
			}
			stillListed()
			// In the next generation, all is as it was.
			if g, err = Reference(s, Config{Mode: mode}); err != nil {
				t.Fatal(err)
			}
			stillListed()
			if g.Block.Len() != n {
				t.Errorf("%d keys, want %d", g.Block.Len(), n)
			}
		})
	}
}

// To build a generation is to plan the levels of its store anew, by which those
// before can no longer tell the keys of their sets.
func TestApplyToFormer(t *testing.T) {
	r := newRandom(t)
	o := newOracle([]List{{Name: "block"}})
	for range 400 {
		o.entries[0][key.Source(r.prefix())] = true
	}
	s := o.store(t)
	former, err := Reference(s, Config{Mode: membership.Approximate})
	if err != nil {
		t.Fatal(err)
	}
	var remove []Change
	for k := range o.entries[0] {
		if k.SrcBits < uint8(k.MaxBits()) { // the levels will be others
			remove = append(remove, Change{1, false, k})
			delete(o.entries[0], k)
		}
	}
	if n, err := former.Apply(remove[:len(remove)/2]); n != len(remove)/2 || err != nil {
		t.Fatalf("%d changes, %v", n, err)
	}
	if _, err := Reference(s, Config{Mode: membership.Approximate}); err != nil {
		t.Fatal(err)
	}
	if n, err := former.Apply(remove[len(remove)/2:]); n != len(remove)-len(remove)/2 || !errors.Is(err, membership.ErrNoRoom) {
		t.Fatalf("%d changes, %v", n, err)
	}
	o.check(t, former, r, false)
}

func TestApplyNoRoom(t *testing.T) {
	prefix := func(s string) key.Key { return key.Source(netip.MustParsePrefix(s)) }
	s := NewStore()
	var e list.Entries
	for i := range 10 {
		e.Flows = append(e.Flows, key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32)))
	}
	if _, err := s.AddList(List{Name: "block"}, e); err != nil {
		t.Fatal(err)
	}
	flow, _ := key.Shape{DstBits: 32, Fields: key.FieldDstPort}.Of(key.Tuple{Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.1"), HasPorts: true})
	for name, k := range map[string]key.Key{
		"a family that is not in use":  prefix("2001:db8::/32"),
		"a side that is not in use":    key.Destination(netip.MustParsePrefix("192.0.2.1/32")),
		"a shape that is not in use":   flow,
		"a prefix of too many entries": prefix("10.0.0.0/8"),
	} {
		g, err := Reference(s, Config{})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			add     bool
			changed int
		}{{true, 1}, {true, 0}, {false, 1}, {false, 0}} {
			if n, err := g.Apply([]Change{{1, c.add, k}}); n != c.changed || c.add && c.changed > 0 && !errors.Is(err, membership.ErrNoRoom) {
				t.Errorf("%s, add %t: %d changes, %v", name, c.add, n, err)
			}
		}
	}
	g, err := Reference(s, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range []uint16{0, 2} {
		if _, err := g.Apply([]Change{{l, true, prefix("192.0.2.77/32")}}); err == nil {
			t.Errorf("list %d exists", l)
		}
	}
	// A short prefix that fits is expanded to the level in use.
	if _, err := g.Apply([]Change{{1, true, prefix("198.51.100.0/24")}}); err != nil || g.Block.Len() != 10+256 {
		t.Errorf("%d keys, %v", g.Block.Len(), err)
	}
}

// A prefix at the levels that were planned stands for just the addresses that
// it covers.
func TestExpansionAgainstOracle(t *testing.T) {
	r := newRandom(t)
	for range 30 {
		o := newOracle([]List{{Name: "a"}, {Name: "b"}})
		// Many of one length, so that the rare ones are expanded.
		for range 1000 {
			o.entries[0][key.Source(netip.PrefixFrom(r.addr(false), 32))] = true
		}
		for range 20 {
			o.entries[r.IntN(2)][key.Source(r.prefix())] = true
		}
		s := o.store(t)
		g, err := Reference(s, Config{})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(s.block.src4.levels); n > 3 {
			t.Errorf("levels %v: none is expanded", s.block.src4.levels)
		}
		o.check(t, g, r, true)
	}
}

// A match is attributed to the longest prefix that holds it, and among lists
// that have that, to the first.
func TestAttribution(t *testing.T) {
	source := func(s string) key.Key { return key.Source(netip.MustParsePrefix(s)) }
	s := NewStore()
	for i, entries := range [][]string{{"10.0.0.0/22", "10.0.0.9/32"}, {"10.0.0.0/24", "10.0.0.9/32"}, {"10.0.0.0/24", "10.0.0.8/31"}} {
		var e list.Entries
		for _, p := range entries {
			e.Flows = append(e.Flows, source(p))
		}
		if _, err := s.AddList(List{Name: fmt.Sprint(i + 1)}, e); err != nil {
			t.Fatal(err)
		}
	}
	g, err := Reference(s, Config{})
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
	apply := func(c ...Change) {
		t.Helper()
		if n, err := g.Apply(c); n != len(c) || err != nil {
			t.Fatalf("%d changes, %v", n, err)
		}
	}
	check("at first", map[string]int{"10.0.0.9": 1, "10.0.0.8": 3, "10.0.0.1": 2, "10.0.1.1": 1, "10.0.4.0": 0})
	apply(Change{1, false, source("10.0.0.9/32")})
	check("without list 1's address", map[string]int{"10.0.0.9": 2, "10.0.0.8": 3})
	apply(Change{2, false, source("10.0.0.9/32")}, Change{2, false, source("10.0.0.0/24")})
	check("without list 2", map[string]int{"10.0.0.9": 3, "10.0.0.8": 3, "10.0.0.1": 3, "10.0.1.1": 1})
	apply(Change{3, false, source("10.0.0.8/31")}, Change{3, false, source("10.0.0.0/24")}, Change{2, true, source("10.0.0.8/32")})
	check("without list 3", map[string]int{"10.0.0.9": 1, "10.0.0.8": 2, "10.0.0.1": 1})
	apply(Change{1, false, source("10.0.0.0/22")})
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
	everything := list.Entries{V4: []list.V4Prefix{list.V4(0, 0)}, V6: []netip.Prefix{netip.MustParsePrefix("::/0")}}
	for d := Source; d <= Both; d++ {
		s := NewStore()
		l := List{Name: "everything", Direction: d}
		n, err := s.AddList(l, everything)
		if err != nil {
			t.Fatal(err)
		}
		g, err := Reference(s, Config{})
		if err != nil {
			t.Fatalf("%v: %v", d, err)
		}
		for _, src := range []string{"192.0.2.1", "2001:db8::1"} {
			a := netip.MustParseAddr(src)
			frame := packet.Frame(key.Tuple{Src: a, Dst: a, Proto: 47})
			if o := g.Decide(frame); o.Reason != verdict.Blocked || o.List != int(n) {
				t.Errorf("%v: a packet from %v: %+v", d, a, o)
			}
		}
		var remove []Change
		for _, k := range l.Keys(netip.MustParsePrefix("0.0.0.0/0")) {
			remove = append(remove, Change{List: n, Key: k})
		}
		if n, err := g.Apply(remove); n != 1 || err != nil {
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
	s := NewStore()
	if _, err := s.AddList(List{Name: "many", Direction: Both}, e); err != nil {
		t.Fatal(err)
	}
	g, err := Reference(s, Config{})
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
