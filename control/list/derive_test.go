package list

import (
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"weir/filter/key"
	"weir/tests/seed"
	"weir/tests/timed"
)

// member is an entry of a list whose prefixes are derived.
type member struct {
	p    netip.Prefix
	side byte // 's', 'd', or 'p': those of the list
	feed bool
}

func (m member) entries(e *Entries) {
	switch {
	case m.side == 's':
		e.Flows = append(e.Flows, key.Source(m.p))
	case m.side == 'd':
		e.Flows = append(e.Flows, key.Destination(m.p))
	case m.p.Addr().Is4():
		e.V4 = append(e.V4, V4Of(m.p))
	default:
		e.V6 = append(e.V6, m.p)
	}
}

// counted returns the derived prefixes, by counting the members of each.
func (d Derivation) counted(all map[member]bool, widenFeed bool) map[key.Key]int {
	type member struct {
		k  key.Key
		of netip.Prefix
	}
	seen := make(map[member]bool)
	note := func(m netip.Addr, side byte, bits, unit int) {
		p, _ := m.Prefix(bits)
		of, _ := m.Prefix(unit)
		if side == 's' || side == 'p' && d.Src {
			seen[member{key.Source(p), of}] = true
		}
		if side == 'd' || side == 'p' && d.Dst {
			seen[member{key.Destination(p), of}] = true
		}
	}
	for m := range all {
		a, unit := m.p.Addr(), 128
		if d.Prefix6 > 0 {
			unit = d.Prefix6
		}
		switch {
		case !m.p.IsSingleIP():
		case a.Is4():
			if d.V4 > 0 {
				note(a, m.side, d.V4, 32)
			}
		default:
			if d.V6 > 0 {
				note(a, m.side, d.V6, unit)
			}
			if d.Prefix6 > 0 && (!m.feed || widenFeed) {
				note(a, m.side, d.Prefix6, 128)
			}
		}
	}
	n := make(map[key.Key]int)
	for m := range seen {
		n[m.k]++
	}
	for k, members := range n {
		p, _ := PrefixOf(k)
		if p.Bits() != d.Prefix6 && members < d.At || p.Addr().Is4() && members < d.At {
			delete(n, k)
		}
	}
	return n
}

func (r random) member() member {
	m := member{side: "sdp"[r.IntN(3)], feed: r.IntN(2) == 0}
	if r.IntN(2) == 0 {
		m.p = netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, byte(r.IntN(3)), byte(r.IntN(12))}), 32)
	} else {
		m.p = netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0x20, 5: byte(r.IntN(2)), 7: byte(r.IntN(4)), 15: byte(r.IntN(3))}), 128)
	}
	if r.IntN(8) == 0 {
		m.p, _ = m.p.Addr().Prefix(8 + r.IntN(m.p.Bits()-8))
	}
	return m
}

type random struct{ *rand.Rand }

// Prefixes are derived as a count of all addresses says: at once, and change by change, down to
// an empty list.
func TestDerivation(t *testing.T) {
	r := random{seed.New(t)}
	derived, ended := 0, 0
	for range 60 {
		d := Derivation{V4: []int{0, 24, 30}[r.IntN(3)], V6: []int{0, 48}[r.IntN(2)], At: 2 + r.IntN(6), Prefix6: []int{0, 64}[r.IntN(2)], Src: r.IntN(3) > 0, Dst: r.IntN(2) == 0}
		widenFeed := r.IntN(2) == 0
		all := make(map[member]bool)
		feed, manual, before := &Set{}, &Set{}, (*Set)(nil)
		for round := range 12 {
			var add, remove [2]Entries // of manual entries, of the feed
			of := func(m member) int {
				if m.feed {
					return 1
				}
				return 0
			}
			for m := range all {
				if round == 11 || r.IntN(4) == 0 {
					m.entries(&remove[of(m)])
					delete(all, m)
				}
			}
			for range r.IntN(40) * min(1, 11-round) {
				if m := r.member(); !all[m] {
					all[m] = true
					m.entries(&add[of(m)])
				}
			}
			deltas := [2]Delta{{Add: add[0].Set(), Remove: remove[0].Set()}, {Add: add[1].Set(), Remove: remove[1].Set()}}
			manual, _ = manual.Apply(deltas[0])
			feed, _ = feed.Apply(deltas[1])
			now := Members{All: []*Set{feed, manual}, Widened: []*Set{manual}}
			if widenFeed {
				now.Widened = now.All
			}
			next := d.Change(before, now, deltas[0].Add, deltas[0].Remove, deltas[1].Add, deltas[1].Remove)
			want := d.counted(all, widenFeed)
			for name, got := range map[string]*Set{"at once": d.Prefixes(now), "after changes": next} {
				if got.Len() != len(want) {
					t.Fatalf("%s, %+v: %d prefixes, want %d", name, d, got.Len(), len(want))
				}
				for k := range got.All() {
					n, first, widened := d.Of(now, k, 1000, 1000)
					p, _ := PrefixOf(k)
					if n != want[k] || len(first) != n || widened != (p.Addr().Is6() && p.Bits() == 64) || !p.Contains(first[0]) {
						t.Fatalf("%s, %+v: %v of %d: %v, %v; want %d", name, d, k, n, first, widened, want[k])
					}
				}
			}
			ended += before.Len()
			before, derived = next, derived+next.Len()
		}
		if before.Len() > 0 {
			t.Fatalf("%+v: an empty list has %d prefixes", d, before.Len())
		}
	}
	if t.Log(derived, ended); derived < 500 {
		t.Errorf("%d prefixes were derived: the test is too narrow", derived)
	}
}

// Ten million entries are counted in one pass, and a change among them takes no time of theirs.
func TestDerivationOfMany(t *testing.T) {
	timed.Alone(t)
	const n = 10_000_000
	e := Entries{V4: make([]V4Prefix, n)}
	r := seed.New(t)
	for i := range e.V4 {
		e.V4[i] = V4(r.Uint32(), 32)
	}
	set := e.Set()
	d := Derivation{V4: 24, V6: 48, At: 4, Src: true}
	manual := SetOf(key.Source(netip.MustParsePrefix("192.0.2.1/32")))
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	derived := d.Prefixes(Members{All: []*Set{set, manual}})
	took := time.Since(began)
	began = time.Now()
	sum := 0
	for p := range set.V4.Plain.All() {
		sum += p.Bits()
	}
	pass := time.Since(began)
	runtime.ReadMemStats(&after)
	t.Logf("%d prefixes of %d entries in %v, where a pass takes %v; %d bytes allocated", derived.Len(), set.Len(), took, pass, after.TotalAlloc-before.TotalAlloc)
	if took > 2*time.Second || sum != 32*set.Len() {
		t.Errorf("%v for %d entries", took, set.Len())
	}
	next, _ := manual.Apply(Delta{Add: SetOf(key.Source(netip.MustParsePrefix("192.0.2.2/32")))})
	began = time.Now()
	const changes = 1000
	for range changes {
		derived = d.Change(derived, Members{All: []*Set{set, next}}, next)
	}
	if took := time.Since(began) / changes; took > time.Millisecond {
		t.Errorf("%v for a change", took)
	} else {
		t.Log(took, "a change")
	}
}
