// Package membership implements the set of listed keys: markers, the cascade,
// the weights of hot elements and the fingerprint table, combined for all
// shapes in use. It is bit-exact with the data plane (bpf/set.h, bpf/marker.h,
// bpf/hot.h), and works on kernel memory as well as on the heap.
package membership

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"

	"weir/filter/cascade"
	"weir/filter/cuckoo"
	"weir/filter/key"
	"weir/filter/quotient"
)

// ErrNoRoom means that a key cannot be added in place: the set is at capacity,
// or the key's shape is not in use. The next generation must be built.
var ErrNoRoom = errors.New("membership: no room for the key in this layout")

// ErrFull means that a table is full. The remedy is the next generation, larger and with
// another secret.
var ErrFull = cuckoo.ErrFull

const (
	// MaxList is the highest number of a list.
	MaxList = cuckoo.MaxList
	// BucketSlots is the number of slots of a bucket, of all tables.
	BucketSlots = cuckoo.BucketSlots
)

// Set is a set of listed keys, each with the number of its list. In the kernel,
// any number of readers may run concurrently with one writer; in Go, readers
// must not run concurrently with a writer. A nil *Set is empty.
type Set struct {
	Layout
	// Listed reports whether a key is listed. In exact mode NewSet uses the
	// table. An approximate set does not know; the caller must set Listed
	// before it calls SetWeight.
	Listed func(key.Key) bool

	memory   Memory        // of all structures
	prefixes *quotient.Set // nil: none
	dir      *directory    // of prefixes; nil: none
	reach    *reach        // nil: none
	cascade  *cascade.Filter
	table    *cuckoo.Table
	marks4   [2]Marks4 // sources, destinations
	marks6   *cascade.Filter
	hot      *Hot
	raised   map[uint64]int // extra bits that are set for a listed key, by its hash
	keys     map[key.Shape]int
	len      int
}

// NewSet returns an empty set over memory that has the layout's sizes and is
// zero. It fails if the sizes differ.
func NewSet(l Layout, m Memory) (*Set, error) {
	if len(m.Lines) != int(l.Lines)*cascade.LineWords || len(m.Buckets) != int(l.Buckets)*BucketSlots ||
		len(m.Marks4) != l.mark4Sides()*mark4Words || len(m.Marks6) != int(l.Mark6Lines)*cascade.LineWords ||
		len(m.Hot) != int(l.HotBuckets)*BucketSlots ||
		len(m.Prefixes) != l.Prefixes.Lines*cascade.LineWords || len(m.Spill) != l.Prefixes.Buckets*BucketSlots ||
		len(m.Front) != l.Prefixes.Front || len(m.Directory) != l.Directory.Words() || len(m.Reach) != l.Reach.Words() {
		return nil, fmt.Errorf("membership: memory does not match the layout")
	}
	if n := l.HotBuckets; n != 0 && (n < MinHotBuckets || bits.OnesCount32(n) != 1) {
		return nil, fmt.Errorf("membership: %d hot buckets, want a power of two, at least %d", n, MinHotBuckets)
	}
	if err := l.Classes.check(&l); err != nil {
		return nil, err
	}
	s := &Set{
		Layout:  l,
		memory:  m,
		dir:     newDirectory(&l, m.Directory),
		reach:   newReach(l.Reach, m.Reach),
		cascade: cascade.New(m.Lines, l.First, l.Rest),
		table:   cuckoo.Over(m.Buckets),
		marks6:  cascade.NewGrowing(m.Marks6, cascade.MaxLineBits, 0),
		hot:     NewHot(m.Hot),
		raised:  make(map[uint64]int),
		keys:    make(map[key.Shape]int),
	}
	if l.Prefixes.Lines > 0 {
		var err error
		if s.prefixes, err = quotient.NewAt(l.Prefixes.Layout, l.Prefixes.Secret, m.Prefixes, m.Spill, m.Front); err != nil {
			return nil, err
		}
	}
	if l.Mode == Exact {
		s.Listed = func(k key.Key) bool {
			if !s.Hashed(k.Shape) {
				_, ok := s.lookupPrefix(k)
				return ok
			}
			_, ok := s.table.Lookup(k.Hash(l.Secret))
			return ok
		}
	}
	if l.Mark4Src {
		s.marks4[0] = m.Marks4[:mark4Words]
	}
	if l.Mark4Dst {
		s.marks4[1] = m.Marks4[mark4Words:]
	}
	return s, nil
}

// Len returns the number of keys.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return s.len
}

// hashed returns the number of keys in cascade and table.
func (s *Set) hashed() int {
	if s.prefixes == nil {
		return s.len
	}
	return s.len - s.prefixes.Len()
}

// Keys returns the number of keys of a shape in cascade and table.
func (s *Set) Keys(shape key.Shape) int {
	if s == nil {
		return 0
	}
	return s.keys[shape]
}

// Match returns the list number of the first shape, in the layout's order, with
// a key that matches the packet: 0 in approximate mode.
func (s *Set) Match(t key.Tuple) (list int, ok bool) {
	for list = range s.Matches(t) {
		return list, true
	}
	return 0, false
}

// Matches iterates over the list numbers of all shapes with a key that matches the packet, in
// the layout's order.
func (s *Set) Matches(t key.Tuple) iter.Seq[int] {
	return func(yield func(int) bool) {
		if s.Len() == 0 {
			return
		}
		address, flow := s.V4, s.V4Flow
		if t.Src.Is6() {
			address, flow = s.V6, s.V6Flow
		}
		open, lengths := s.open(t), s.dir.open(t)
		for _, shapes := range [...][]GatedShape{address, flow} {
			for _, g := range shapes {
				if g.Gate&open == 0 || !s.Hashed(g.Shape) && !s.dir.isOpen(lengths, g.Shape) {
					continue
				}
				k, ok := g.Of(t)
				if !ok {
					continue
				}
				if list, ok := s.Lookup(k); ok && !yield(list) {
					return
				}
			}
		}
	}
}

// MatchAll is like [Set.Match], for all packets that match k. It consults the
// shapes that match on nothing that k leaves open.
func (s *Set) MatchAll(k key.Key) (list int, ok bool) {
	if s == nil {
		return 0, false
	}
	known := *s
	for _, shapes := range []*[]GatedShape{&known.V4, &known.V4Flow, &known.V6, &known.V6Flow} {
		var within []GatedShape
		for _, g := range *shapes {
			if g.Within(k.Shape) {
				within = append(within, g)
			}
		}
		*shapes = within
	}
	return known.Match(key.Tuple{
		Src: k.Src, Dst: k.Dst, Proto: k.Proto, HasPorts: k.Ports(), SrcPort: k.SrcPort, DstPort: k.DstPort,
	})
}

// Lookup is like [Set.Match], for one key.
func (s *Set) Lookup(k key.Key) (list int, ok bool) {
	if !s.Hashed(k.Shape) {
		l, ok := s.lookupPrefix(k)
		return int(l), ok
	}
	return s.lookup(s.Hash(k))
}

// Hash returns the hash of a key, which has the number of its class's bits in it.
func (s *Set) Hash(k key.Key) uint64 { return s.hash(k.Append(make([]byte, 0, key.MaxLen))) }

func (s *Set) hash(serialised []byte) uint64 {
	return s.withClass(s.Secret.Sum(serialised), serialised)
}

// Passes reports whether the cascade passes a key, whatever its weight.
func (s *Set) Passes(k key.Key) bool {
	if !s.Hashed(k.Shape) {
		return false
	}
	h := s.Hash(k)
	return s.cascade.Contains(h) && s.cascade.ContainsExtra(h, s.Classes.Extra(h))
}

func (s *Set) lookup(h uint64) (list int, ok bool) {
	if !s.cascade.Contains(h) || !s.cascade.ContainsExtra(h, max(s.hot.Find(h), s.Classes.Extra(h))) {
		return 0, false
	}
	if s.Mode == Approximate {
		return 0, true
	}
	l, ok := s.table.Lookup(h)
	return int(l), ok
}

// open returns the gates that the packet's marks open.
func (s *Set) open(t key.Tuple) Gate {
	open := GateAlways
	gates := s.Gates(t.Src.Is6())
	if gates&GateSrc != 0 && s.marked(t.Src, 0) {
		open |= GateSrc
	}
	if gates&GateDst != 0 && s.marked(t.Dst, 1) {
		open |= GateDst
	}
	return open
}

func (s *Set) marked(a netip.Addr, side int) bool {
	if a.Is4() {
		return s.marks4[side].Marked(net24(a))
	}
	return s.marks6.Contains(mark6(a, side).Hash(s.Secret))
}

func net24(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

// mark6 returns the key that marks an IPv6 network.
func mark6(a netip.Addr, side int) key.Key {
	p := netip.PrefixFrom(a, Mark6Bits)
	if side == 0 {
		return key.Source(p)
	}
	return key.Destination(p)
}

// Add adds a key with a list number of 1 … MaxList. The change takes effect
// immediately. Add returns ErrNoRoom or ErrFull, and then changes nothing. A
// key must not be added twice.
func (s *Set) Add(k key.Key, list uint16) error {
	gate, ok := s.gate(k.Shape)
	if !ok {
		return ErrNoRoom
	}
	if !s.Hashed(k.Shape) {
		if err := s.putPrefix(k, list); err != nil {
			return err
		}
		s.len++
		return nil
	}
	if s.hashed() >= s.Capacity {
		return ErrNoRoom
	}
	serialised := k.Append(make([]byte, 0, key.MaxLen))
	h := s.hash(serialised)
	if s.Mode == Exact {
		if err := s.table.Add(h, list); err != nil {
			return err
		}
	}
	s.mark(serialised, gate)
	s.cascade.Add(h)
	s.cascade.AddExtra(h, 0, s.Classes.Extra(h))
	s.raise(h, s.hot.Find(h))
	s.keys[k.Shape]++
	s.len++
	return nil
}

// SetList changes the list number of a listed key.
func (s *Set) SetList(k key.Key, list uint16) {
	switch {
	case !s.Hashed(k.Shape):
		_ = s.putPrefix(k, list)
	case s.Mode == Exact:
		s.table.SetList(k.Hash(s.Secret), list)
	}
}

// Remove removes a key, and reports false if the table shows that it is not
// listed. In approximate mode the key must have been added. Its mark stays
// until the next generation, what the directory has of it until Tidy: they only cost
// probes.
func (s *Set) Remove(k key.Key) bool {
	if !s.Hashed(k.Shape) {
		p := prefixOf(k)
		if s.prefixes == nil || !s.prefixes.Remove(s.Prefixes.key(p)) {
			return false
		}
		s.dir.remove(p)
		s.len--
		return true
	}
	h := s.Hash(k)
	if s.Mode == Exact && !s.table.Remove(h) {
		return false
	}
	s.cascade.Remove(h)
	if _, shared := s.table.Lookup(h); !shared { // else Settle lowers it
		s.lower(h, 0)
	}
	s.cascade.RemoveExtra(h, 0, s.Classes.Extra(h))
	s.keys[k.Shape]--
	s.len--
	return true
}

// mark marks the networks that a serialised key covers on the side of its gate, and those that it
// reaches.
func (s *Set) mark(serialised []byte, g Gate) {
	k := serialised
	s.reach.add(k)
	side, bits, addr := 0, k[1], addressOf(k, g)
	switch g {
	case GateAlways:
		return
	case GateDst:
		side, bits = 1, k[2]
	}
	if key.Fields(k[0])&key.FieldV6 == 0 {
		s.marks4[side].Mark(uint32(addr[0])<<16|uint32(addr[1])<<8|uint32(addr[2]), bits)
		return
	}
	h := mark6(netip.AddrFrom16([16]byte(addr)), side).Hash(s.Secret)
	if !s.marks6.Contains(h) {
		s.marks6.Add(h)
	}
}

// Load returns the fractions of set bits in the cascade and of used slots in
// the table.
func (s *Set) Load() (cascade, table float64) {
	if s.Len() == 0 {
		return 0, 0
	}
	if set, all := s.cascade.Bits(); all > 0 {
		cascade = float64(set) / float64(all)
	}
	if s.table.Cap() > 0 {
		table = float64(s.table.Len()) / float64(s.table.Cap())
	}
	return cascade, table
}
