package list

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"weir/filter/key"
)

// world returns the keys that the tests below draw from: addresses, prefixes
// and flows of both families, few enough that draws coincide.
func world() (all []key.Key) {
	for _, p := range []string{"192.0.2.1/32", "192.0.2.0/31", "192.0.2.0/24", "192.0.3.0/24", "0.0.0.0/0", "2001:db8::1/128", "2001:db8::/32", "2001:db8:1::/48", "::/0"} {
		p := netip.MustParsePrefix(p)
		all = append(all, key.Source(p), key.Destination(p))
	}
	for i := range 64 {
		a := netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})
		all = append(all, key.Source(netip.PrefixFrom(a, 32)))
		k, _ := key.Shape{SrcBits: 32, Fields: key.FieldDstPort}.Of(key.Tuple{Src: a, Dst: a, HasPorts: true, DstPort: uint16(i % 3)})
		all = append(all, k)
	}
	return all
}

type model map[key.Key]bool

func (m model) set() *Set { return SetOf(slices.Collect(maps.Keys(m))...) }

// equal reports whether a set has exactly the keys of a model.
func (m model) equal(s *Set) bool {
	if s.Len() != len(m) {
		return false
	}
	for _, k := range world() {
		if s.Has(k) != m[k] {
			return false
		}
	}
	// All iterates in order, over Len values.
	ascending := func(n int, p Sorted[V4Prefix]) bool {
		all := slices.Collect(p.All())
		middle := V4(192<<24|2<<8|1, 32)
		low, high := p.Split(func(q V4Prefix) bool { return q >= middle })
		if !slices.Equal(slices.Concat(slices.Collect(low.All()), slices.Collect(high.All())), all) || low.Len()+high.Len() != n || low.Has(middle) || high.Has(middle) != p.Has(middle) {
			return false
		}
		return len(all) == n && slices.IsSorted(all) && len(slices.Compact(all)) == n
	}
	for _, p := range []Sorted[V4Prefix]{s.V4.Plain, s.V4.Src, s.V4.Dst} {
		if !ascending(p.Len(), p) {
			return false
		}
	}
	return true
}

func draw(r *rand.Rand, all []key.Key, n int) model {
	m := model{}
	for range n {
		m[all[r.IntN(len(all))]] = true
	}
	return m
}

// Any sequence of deltas results in the same set as building it at once, and
// leaves the original sets unchanged.
func TestApplyAgainstModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	all := world()
	for _, most := range []int{1, 5, 100} {
		m := draw(r, all, r.IntN(100))
		s := m.set()
		for range 300 {
			before, set := maps.Clone(m), s
			add, remove := draw(r, all, r.IntN(most+1)), draw(r, all, r.IntN(most+1))
			want := 0
			for k := range remove {
				if m[k] && !add[k] {
					delete(m, k)
					want++
				}
			}
			for k := range add {
				if !m[k] {
					m[k] = true
					want++
				}
			}
			next, changed := s.Apply(Delta{Add: add.set(), Remove: remove.set()})
			if !m.equal(next) || changed != want {
				t.Fatalf("%d changes, want %d; %d entries, want %d", changed, want, next.Len(), len(m))
			}
			if !before.equal(set) {
				t.Fatal("Apply changed the set that it was called for")
			}
			for _, old := range []*Set{set, before.set(), nil} {
				d := next.Diff(old)
				if back, n := old.Apply(d); !m.equal(back) || n != d.Len() {
					t.Fatalf("a difference of %d entries changed %d", d.Len(), n)
				}
				// Applied to another set, it does there what it says.
				other := draw(r, all, 30)
				got, _ := other.set().Apply(d)
				for _, k := range all {
					if want := d.Add.Has(k) || other[k] && !d.Remove.Has(k); got.Has(k) != want {
						t.Fatalf("%v: %t, want %t", k, got.Has(k), want)
					}
				}
			}
			for bits := range 33 {
				has := false
				for k := range m {
					if p, _ := PrefixOf(k); !k.Tuple() && !k.V6() && p.Bits() == bits {
						has = true
					}
				}
				if has && !next.V4.Lengths.Has(bits) {
					t.Fatalf("no length %d", bits)
				}
			}
			s = next
		}
	}
}

// The difference between a set and the result of Apply contains exactly the
// changes, even if few entries of a large set change.
func TestDiffOfLargeSets(t *testing.T) {
	var e Entries
	for i := range 100_000 {
		e.V4 = append(e.V4, V4(uint32(i*7919)%1_000_003, 32))
	}
	old := e.Set()
	s := old
	for i := range 1000 {
		s, _ = s.Apply(Delta{
			Add:    Entries{V4: []V4Prefix{V4(uint32(2_000_000+i), 32)}}.Set(),
			Remove: Entries{V4: []V4Prefix{V4(uint32(i*7919)%1_000_003, 32)}}.Set(),
		})
	}
	if d := s.Diff(old); d.Add.Len() != 1000 || d.Remove.Len() != 1000 {
		t.Errorf("%d added, %d removed", d.Add.Len(), d.Remove.Len())
	}
	if same, n := old.Apply(s.Diff(old)); same != s || n != 2000 {
		t.Errorf("applying the difference results in another set, with %d changes", n)
	}
}

func TestUnion(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		m := model{}
		var sets []*Set
		for range r.IntN(4) {
			one := draw(r, world(), r.IntN(40))
			maps.Copy(m, one)
			sets = append(sets, one.set(), nil)
		}
		if !m.equal(Union(sets...)) {
			t.Fatal("the union differs")
		}
	}
}

// The prefixes of both families agree with netip.
func TestPrefixTypes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		a, b := netip.PrefixFrom(randomAddr(r), 0), netip.PrefixFrom(randomAddr(r), 0)
		if a.Addr().Is4() != b.Addr().Is4() {
			continue
		}
		most := a.Addr().BitLen()
		a, b = netip.PrefixFrom(a.Addr(), r.IntN(most+1)).Masked(), netip.PrefixFrom(b.Addr(), r.IntN(most+1)).Masked()
		if a.Addr().Is4() {
			testPrefix(t, r, V4Of, a, b)
		} else {
			testPrefix(t, r, V6Of, a, b)
		}
	}
}

// IPv4 addresses that are written as IPv6 stay prefixes of IPv6.
func TestAddMapped(t *testing.T) {
	p := netip.MustParsePrefix("::ffff:192.0.2.0/120")
	var e Entries
	e.Add(key.Source(p))
	e.Add(key.Source(netip.MustParsePrefix("192.0.2.0/24")))
	if len(e.V4) != 1 || e.V4[0].Prefix().String() != "192.0.2.0/24" || !slices.Equal(e.V6, []netip.Prefix{p}) {
		t.Errorf("%v and %v", e.V4, e.V6)
	}
}

func randomAddr(r *rand.Rand) netip.Addr {
	if r.IntN(2) == 0 {
		return randomV4(r)
	}
	return randomV6(r)
}

func testPrefix[P Prefix[P]](t *testing.T, r *rand.Rand, of func(netip.Prefix) P, a, b netip.Prefix) {
	t.Helper()
	p, q := of(a), of(b)
	if p.Prefix() != a || p.Bits() != a.Bits() || p.Compare(q) != a.Compare(b) {
		t.Fatalf("%v is %v; order to %v %d, want %d", a, p.Prefix(), b, p.Compare(q), a.Compare(b))
	}
	if p.Key(true) != key.Source(a) || p.Key(false) != key.Destination(a) {
		t.Fatalf("keys of %v: %v, %v", a, p.Key(true), p.Key(false))
	}
	if serial := p.Key(true).Append(nil); !slices.Equal(p.AppendAddr(nil), serial[key.HeadLen:]) {
		t.Fatalf("%v: address % x, serialised % x", a, p.AppendAddr(nil), serial)
	}
	short := r.IntN(a.Bits() + 1)
	if want, _ := a.Addr().Prefix(short); p.Cut(short).Prefix() != want {
		t.Fatalf("%v cut to %d: %v", a, short, p.Cut(short).Prefix())
	}
	long := min(a.Bits()+r.IntN(9), a.Addr().BitLen())
	n, next := 0, a.Addr()
	for c := range p.Children(long) {
		got := c.Prefix()
		if got != netip.PrefixFrom(next, long) {
			t.Fatalf("child %d of %v at /%d: %v, want %v", n, a, long, got, next)
		}
		n, next = n+1, lastOf(got).Next()
	}
	if n != 1<<(long-a.Bits()) {
		t.Fatalf("%v has %d children of length %d", a, n, long)
	}
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func randomV4(rng *rand.Rand) netip.Addr { return V4(rng.Uint32(), 32).Prefix().Addr() }

func randomV6(rng *rand.Rand) netip.Addr {
	var b [16]byte
	for i := range b {
		if rng.IntN(3) > 0 {
			b[i] = byte(rng.Uint32())
		}
	}
	return netip.AddrFrom16(b)
}
