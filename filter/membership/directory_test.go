package membership

import (
	"fmt"
	"iter"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"weir/filter/key"
)

// directorySet returns an empty set of sources and, if dst, destinations, of prefixes of
// some lengths, with a directory.
func directorySet(t testing.TB, bits int, dst bool, lengths ...uint8) *Set {
	t.Helper()
	c := Census{Keys: make(map[key.Shape]int), Highest: 7}
	for _, length := range lengths {
		c.Keys[key.Shape{SrcBits: length}] = 5000
		if dst && length > 0 {
			c.Keys[key.Shape{DstBits: length}] = 5000
		}
	}
	l, err := PlanLayout(c, Exact, 0, secretOf(1))
	if err != nil {
		t.Fatal(err)
	}
	l = l.WithDirectory(bits)
	s, err := NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func prefixKey(p Prefix) key.Key {
	var b [4]byte
	for i := range b {
		b[i] = byte(p.Addr >> (24 - 8*i))
	}
	prefix := netip.PrefixFrom(netip.AddrFrom4(b), int(p.Bits))
	if p.Dst {
		return key.Destination(prefix)
	}
	return key.Source(prefix)
}

func randomPrefix(r random, s *Set) Prefix {
	shape := s.V4[r.IntN(len(s.V4))]
	p := Prefix{Bits: shape.SrcBits + shape.DstBits, Dst: shape.DstBits > 0, List: uint16(1 + r.IntN(7))}
	p.Addr = r.Uint32() &^ uint32(1<<(32-p.Bits)-1)
	return p
}

// within returns a random address that a prefix matches, its first or its last.
func (p Prefix) within(r random) netip.Addr {
	hosts := uint32(1<<(32-p.Bits) - 1)
	a := p.Addr | []uint32{0, hosts, r.Uint32() & hosts}[r.IntN(3)]
	return netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)})
}

// The word and the bits of an address are those that the documentation states, and with
// a directory a set matches what it matches without, also after removals and Tidy.
func TestDirectoryAgainstMap(t *testing.T) {
	r := newRandom(t)
	for _, test := range []struct {
		bits    int
		dst     bool
		lengths []uint8
	}{
		{9, false, []uint8{0, 5, 9, 14, 24, 32}},
		{12, true, []uint8{7, 12, 13, 20, 31, 32}},
		{16, true, []uint8{8, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 22, 24, 26, 28, 32}},
	} {
		t.Run(fmt.Sprintf("%d bits of %d lengths", test.bits, len(test.lengths)), func(t *testing.T) {
			s := directorySet(t, test.bits, test.dst, test.lengths...)
			without := s.Layout.WithDirectory(0)
			plain, err := NewSet(without, without.Alloc())
			if err != nil {
				t.Fatal(err)
			}
			var listed []Prefix
			check := func() {
				t.Helper()
				for range 3000 {
					var tuple key.Tuple
					p, q := randomPrefix(r, s), randomPrefix(r, s)
					if len(listed) > 0 && r.IntN(2) == 0 {
						p, q = listed[r.IntN(len(listed))], listed[r.IntN(len(listed))]
					}
					tuple.Src, tuple.Dst = p.within(r), q.within(r)
					got, ok := s.Match(tuple)
					want, found := plain.Match(tuple)
					if got != want || ok != found {
						t.Fatalf("%v → %v: list %d, %t; without a directory %d, %t", tuple.Src, tuple.Dst, got, ok, want, found)
					}
					opened := s.wordOpens(tuple)
					if open := s.dir.open(tuple); open != opened {
						t.Fatalf("%v → %v: lengths %#x are open, in the words %#x", tuple.Src, tuple.Dst, open, opened)
					}
					if ok && opened == 0 {
						t.Fatalf("%v → %v is listed, but the directory has not the bits of any length", tuple.Src, tuple.Dst)
					}
				}
			}
			change := func(n int) {
				for range n {
					if p := randomPrefix(r, s); p.Bits >= 12 || r.IntN(500) == 0 {
						if _, there := plain.Lookup(prefixKey(p)); there {
							continue
						}
						for _, set := range []*Set{s, plain} {
							if err := set.Add(prefixKey(p), p.List); err != nil {
								t.Fatal(err)
							}
						}
						listed = append(listed, p)
					}
				}
			}
			change(1000)
			check()
			for range 4 {
				r.Shuffle(len(listed), func(i, j int) { listed[i], listed[j] = listed[j], listed[i] })
				keep := len(listed) / 4
				for _, p := range listed[keep:] {
					if !s.Remove(prefixKey(p)) || !plain.Remove(prefixKey(p)) {
						t.Fatalf("%v was not there", p)
					}
				}
				listed = listed[:keep]
				check()
				change(1000)
			}
			if !s.dir.isStale(s.prefixes.Len()) || !s.NeedsCompaction() {
				t.Fatalf("%d prefixes removed of a directory for %d, and it is not stale", s.dir.stale, s.Len())
			}
			s.Tidy(func() {})
			fresh := newDirectory(&s.Layout, make([]uint64, s.Layout.Directory.Words()))
			for _, p := range listed {
				fresh.add(p)
			}
			if !slices.Equal(s.dir.words, fresh.words) {
				t.Error("after Tidy the directory differs from one of the prefixes listed")
			}
			check()
		})
	}
}

// wordOpens reads the directory as the documentation describes it, and returns the bits
// of the lengths that are open.
func (s *Set) wordOpens(t key.Tuple) uint64 {
	d := s.Layout.Directory
	open, base := uint64(0), 0
	for _, side := range []struct {
		in   bool
		addr netip.Addr
	}{{d.Src, t.Src}, {d.Dst, t.Dst}} {
		if !side.in {
			continue
		}
		a, rest := uint64(number(side.addr)), uint64(1)<<(32-d.Bits)
		word := s.dir.words[base+int(a/rest)]
		if word>>(a%rest*uint64(64-len(s.V4))/rest)&1 != 0 {
			open |= word
		}
		base += 1 << d.Bits
	}
	return open &^ (1<<(64-len(s.V4)) - 1)
}

// Renewed, a directory has the words that it had of the same prefixes, whichever sides and
// lengths the keys of the table stand for.
func TestRenewDirectory(t *testing.T) {
	r := newRandom(t)
	for _, shapes := range [][]key.Shape{
		{{SrcBits: 32}},
		{{DstBits: 32}},
		{{SrcBits: 32}, {DstBits: 32}},
		{{SrcBits: 32}, {SrcBits: 31}, {}},
		{{DstBits: 32}, {DstBits: 17}, {DstBits: 1}},
		{{DstBits: 24}, {SrcBits: 24}, {}},
	} {
		c := Census{Keys: make(map[key.Shape]int), Highest: 7}
		for _, s := range shapes {
			c.Keys[s] = 1000
		}
		l, err := PlanLayout(c, Exact, 0, secretOf(1))
		if err != nil {
			t.Fatal(err)
		}
		l = l.WithDirectory(11)
		s, err := NewSet(l, l.Alloc())
		if err != nil {
			t.Fatal(err)
		}
		for range 500 {
			p := randomPrefix(r, s)
			if _, there := s.Lookup(prefixKey(p)); there || p.Bits < 17 && r.IntN(200) > 0 {
				continue
			}
			if err := s.Add(prefixKey(p), p.List); err != nil {
				t.Fatal(err)
			}
		}
		want := slices.Clone(s.dir.words)
		s.dir.renew(s.allPrefixes())
		if !slices.Equal(s.dir.words, want) {
			t.Errorf("%v: the words are others", shapes)
		}
	}
}

// Beside readers, a directory is renewed without a moment at which a word lacks bits that
// prefixes need.
func TestRenewBesideReaders(t *testing.T) {
	s := directorySet(t, 16, true, 16, 24, 32)
	r := newRandom(t)
	for range 2000 {
		p := randomPrefix(r, s)
		if _, there := s.Lookup(prefixKey(p)); !there {
			if err := s.Add(prefixKey(p), p.List); err != nil {
				t.Fatal(err)
			}
		}
	}
	needed := slices.Clone(s.dir.words)
	var done atomic.Bool
	var lacking atomic.Uint64
	var reader sync.WaitGroup
	reader.Go(func() {
		for !done.Load() {
			for i, bits := range needed {
				lacking.Or(bits &^ atomic.LoadUint64(&s.dir.words[i]))
			}
		}
	})
	for range 50 {
		for i := range s.dir.words { // what removed prefixes have left
			atomic.StoreUint64(&s.dir.words[i], ^uint64(0))
		}
		s.dir.renew(s.allPrefixes())
	}
	done.Store(true)
	reader.Wait()
	if bits := lacking.Load(); bits != 0 {
		t.Errorf("a reader missed bits %#x", bits)
	}
}

// One short prefix opens its length and all parts of many networks: when it is removed, or
// could not be added, the directory is renewed, however many others are left.
func TestShortPrefixCloses(t *testing.T) {
	everything := Prefix{Bits: 1, List: 1}
	for name, leave := range map[string]func(t *testing.T, s *Set){
		"removed": func(t *testing.T, s *Set) {
			if err := s.Add(prefixKey(everything), 1); err != nil || !s.Remove(prefixKey(everything)) {
				t.Fatal(err)
			}
		},
		"not added": func(t *testing.T, s *Set) {
			if err := s.Add(prefixKey(everything), MaxList); err == nil {
				t.Fatal("a list that the lanes have no bits for")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRandom(t)
			s := directorySet(t, 12, false, 1, 24, 32)
			for s.Len() < 5000 {
				p := randomPrefix(r, s)
				if _, there := s.Lookup(prefixKey(p)); p.Bits > 1 && !there {
					if err := s.Add(prefixKey(p), p.List); err != nil {
						t.Fatal(err)
					}
				}
			}
			want := slices.Clone(s.dir.words)
			for range 100 { // long ones may come and go
				p := Prefix{Addr: r.Uint32(), Bits: 32, List: 1}
				if _, there := s.Lookup(prefixKey(p)); !there {
					if err := s.Add(prefixKey(p), 1); err != nil || !s.Remove(prefixKey(p)) {
						t.Fatal(err)
					}
				}
			}
			if s.NeedsCompaction() {
				t.Error("after 100 addresses the directory is to be renewed")
			}
			leave(t, s)
			if !s.NeedsCompaction() {
				t.Error("half of the addresses stay open")
			}
			s.Tidy(func() {})
			if !slices.Equal(s.dir.words, want) {
				t.Error("after Tidy the words are others than before")
			}
			if s.NeedsCompaction() {
				t.Error("after Tidy it is to be renewed again")
			}
		})
	}
}

// The planner expects of listed packets as many lookups as the directories of all sizes
// leave them, and of clean ones about as many.
func TestSpread(t *testing.T) {
	r := newRandom(t)
	all := make([]Prefix, 3000)
	s := directorySet(t, maxDirectoryBits, false, 32, 31, 30, 27, 24, 23, 22, 20, 16, 12)
	for i := range all {
		all[i] = randomPrefix(r, s)
		all[i].Addr &^= 0xc0000000 // so that some networks are crowded
	}
	spread := newSpread(s.lengthBits(), []iter.Seq[Prefix]{slices.Values(all[:1000]), slices.Values(all[1000:])}, 1)
	tuple := func(addr uint32) key.Tuple {
		return key.Tuple{Src: netip.AddrFrom4([4]byte{byte(addr >> 24), byte(addr >> 16), byte(addr >> 8), byte(addr)}), Dst: netip.IPv4Unspecified()}
	}
	position, lengths := 0, s.lengthBits()
	for _, p := range all {
		position += 1 + slices.IndexFunc(s.V4, func(s GatedShape) bool { return s.SrcBits == p.Bits })
	}
	if got, want := spread.lookupsOfAll(), float64(position)/float64(len(all)); got != want {
		t.Errorf("without a directory: %v lookups of a listed packet, want %v", got, want)
	}
	for size := maxDirectoryBits; size >= minDirectoryBits; size-- {
		set := directorySet(t, size, false, 32, 31, 30, 27, 24, 23, 22, 20, 16, 12)
		for _, p := range all {
			set.dir.add(p)
		}
		listed := 0
		for _, p := range all {
			listed += 1 + bits.OnesCount64(set.dir.open(tuple(p.Addr))&(lengths.of(p)-1))
		}
		if got, want := spread.lookups(), float64(listed)/float64(len(all)); got != want {
			t.Errorf("%d bits: %v lookups of a listed packet, want %v", size, got, want)
		}
		const asked = 100_000
		clean := 0
		for range asked {
			clean += bits.OnesCount64(set.dir.open(tuple(r.Uint32())))
		}
		// It has more parts, which long prefixes touch more rarely.
		most, parts := float64(clean)/asked, float64(set.dir.Parts())
		if got, least := spread.open(), most*parts/64; got < 0.95*least-0.01 || got > 1.05*most+0.01 {
			t.Errorf("%d bits: %v lookups of a clean packet, want %v to %v", size, got, least, most)
		}
		spread.halve()
	}
}

// A directory is planned for many lengths where it pays, for clean packets and listed
// ones, of a size in proportion to the entries.
func TestPlanDirectory(t *testing.T) {
	r := fixed(3)
	for name, c := range map[string]struct {
		lengths, n, near int
		clustered        bool
		least, most      int // bits; 0: none
	}{
		"one length":          {1, 100_000, 1 << 20, false, 0, 0},
		"two lengths":         {2, 100_000, 1 << 20, false, 0, 0},
		"many lengths":        {11, 200_000, 1 << 20, false, 16, 16},
		"unknown cache":       {11, 200_000, 0, false, 0, 0},
		"few prefixes":        {5, 2500, 1 << 20, false, 12, 14},
		"a handful":           {5, 20, 1 << 20, false, 9, 11},
		"near to each other":  {9, 200_000, 1 << 20, true, 9, 13},
		"all are open":        {4, 200_000, 1 << 20, true, 0, 0},
		"more than there are": {9, 5_000_000, 1 << 20, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			census := Census{Keys: make(map[key.Shape]int), NearCache: c.near, Highest: 1}
			for i := range c.lengths {
				census.Keys[key.Shape{SrcBits: uint8(32 - i)}] = c.n / c.lengths
			}
			seeds := [2]uint64{r.Uint64(), r.Uint64()}
			census.Prefixes = []iter.Seq[Prefix]{func(yield func(Prefix) bool) {
				r := rand.New(rand.NewPCG(seeds[0], seeds[1]))
				for range c.n {
					p := Prefix{Addr: r.Uint32(), Bits: uint8(32 - r.IntN(c.lengths))}
					if c.clustered {
						p.Addr &= 0x0f0fffff
					}
					p.Addr &^= 1<<(32-p.Bits) - 1
					if !yield(p) {
						return
					}
				}
			}}
			l, err := PlanLayout(census, Exact, 0, secretOf(1))
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d bits, %.2f bytes an entry", l.Directory.Bits, float64(8*l.Directory.Words())/float64(c.n))
			if b := l.Directory.Bits; b < c.least || b > c.most {
				t.Errorf("a directory of %d bits: want %d to %d", b, c.least, c.most)
			}
			if l.Directory.Bits > 0 && l.Prefixes.Front > 0 {
				t.Error("a front beside the directory")
			}
		})
	}
}
