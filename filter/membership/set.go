// Package membership answers whether a packet is listed: markers, the cascade,
// the weights of hot elements and the fingerprint table, and the set that
// combines them for all shapes in use. It is bit-exact with the data plane
// (bpf/set.h and the headers that it includes), and works on the kernel's own
// memory as well as on the heap.
package membership

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/key"
)

// ErrNoRoom says that a key cannot be added in place: the set has reached its
// capacity, or the key's shape is not in use. The answer is to build the next
// generation.
var ErrNoRoom = errors.New("membership: no room for the key in this layout")

// Set holds listed keys, each with the number of its list. It is safe for one
// writer beside any number of readers in the kernel; readers in Go must not run
// beside a writer.
type Set struct {
	Layout
	// Listed reports whether a key is listed. In exact mode NewSet takes the
	// table's word; an approximate set cannot tell, and whoever knows its keys
	// must say so before SetWeight.
	Listed func(key.Key) bool

	cascade *Cascade
	table   *Table
	marks4  [2]Marks4 // sources, destinations
	marks6  *Cascade
	hot     *Hot
	raised  map[uint64]int // extra bits that are set for a listed key, by its hash
	keys    map[key.Shape]int
	len     int
}

// NewSet makes an empty set over memory that has the layout's sizes and is
// zero. A nil *Set is empty and can be asked.
func NewSet(l Layout, m Memory) (*Set, error) {
	if len(m.Lines) != int(l.Lines)*LineWords || len(m.Buckets) != int(l.Buckets)*BucketSlots ||
		len(m.Marks4) != l.Mark4Sides()*mark4Words || len(m.Marks6) != int(l.Mark6Lines)*LineWords ||
		len(m.Hot) != int(l.HotBuckets)*BucketSlots {
		return nil, fmt.Errorf("membership: memory does not have the layout's sizes")
	}
	if n := l.HotBuckets; n != 0 && (n < MinHotBuckets || bits.OnesCount32(n) != 1) {
		return nil, fmt.Errorf("membership: %d hot buckets are not a power of two from %d on", n, MinHotBuckets)
	}
	s := &Set{
		Layout:  l,
		cascade: NewCascade(m.Lines, l.First, l.Rest),
		table:   NewTable(m.Buckets),
		marks6:  NewCascade(m.Marks6, MaxLineBits, 0),
		hot:     NewHot(m.Hot),
		raised:  make(map[uint64]int),
		keys:    make(map[key.Shape]int),
	}
	if l.Mode == Exact {
		s.Listed = func(k key.Key) bool {
			_, ok := s.table.Find(k.Hash(l.Seed))
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

// Len is the number of keys.
func (s *Set) Len() int {
	if s == nil {
		return 0
	}
	return s.len
}

// Keys is the number of keys of a shape.
func (s *Set) Keys(shape key.Shape) int {
	if s == nil {
		return 0
	}
	return s.keys[shape]
}

// Match gives the number of the first list, in the order of the layout's
// shapes, that holds a key of the packet: 0 in approximate mode.
func (s *Set) Match(t key.Tuple) (list int, ok bool) {
	if s == nil || s.Lines == 0 {
		return 0, false
	}
	address, flow := s.V4, s.V4Flow
	if t.Src.Is6() {
		address, flow = s.V6, s.V6Flow
	}
	open := s.open(t)
	for _, shapes := range [...][]GatedShape{address, flow} {
		for _, g := range shapes {
			if g.Gate&open == 0 {
				continue
			}
			k, ok := g.Of(t)
			if !ok {
				continue
			}
			if list, ok := s.Lookup(k.Hash(s.Seed)); ok {
				return list, true
			}
		}
	}
	return 0, false
}

// Lookup is Match for the hash of one key.
func (s *Set) Lookup(h uint64) (list int, ok bool) {
	if !s.cascade.Contains(h) || !s.cascade.ContainsExtra(h, s.hot.Find(h)) {
		return 0, false
	}
	if s.Mode == Approximate {
		return 0, true
	}
	l, ok := s.table.Find(h)
	return int(l), ok
}

// open gives the gates that the packet's marks open.
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
	return s.marks6.Contains(mark6(a, side).Hash(s.Seed))
}

func net24(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

// mark6 is the key under which an IPv6 network is marked.
func mark6(a netip.Addr, side int) key.Key {
	p := netip.PrefixFrom(a, Mark6Bits)
	if side == 0 {
		return key.Source(p)
	}
	return key.Destination(p)
}

// Add lists a key, under a list number of 1 … MaxList, and takes effect at
// once. It fails with ErrNoRoom, ErrFull or ErrCollision, and then changes
// nothing. A key that is listed already must not be added again.
func (s *Set) Add(k key.Key, list uint16) error {
	gate, ok := s.gate(k.Shape)
	if !ok || s.len >= s.Capacity {
		return ErrNoRoom
	}
	serialised := k.Append(make([]byte, 0, key.MaxLen))
	h := hash.Sum(s.Seed, serialised)
	if s.Mode == Exact {
		if err := s.table.Insert(h, list); err != nil {
			return err
		}
	}
	s.cascade.Add(h)
	s.raise(h, s.hot.Find(h))
	s.mark(serialised, gate)
	s.keys[k.Shape]++
	s.len++
	return nil
}

// SetList changes the list number of a key that is listed.
func (s *Set) SetList(k key.Key, list uint16) {
	if s.Mode == Exact {
		s.table.SetList(k.Hash(s.Seed), list)
	}
}

// Remove takes a listed key out, and reports false where the table shows that
// it was not listed. In approximate mode the key must have been added. Its mark
// stays until the next generation: a stale mark costs a probe, no more.
func (s *Set) Remove(k key.Key) bool {
	h := k.Hash(s.Seed)
	if s.Mode == Exact && !s.table.Delete(h) {
		return false
	}
	s.cascade.Remove(h)
	s.lower(h, 0)
	s.keys[k.Shape]--
	s.len--
	return true
}

// mark marks what a serialised key touches on the side of its gate.
func (s *Set) mark(serialised []byte, g Gate) {
	k := serialised
	side, bits, addr := 0, k[1], k[4:]
	switch g {
	case GateAlways:
		return
	case GateDst:
		side, bits = 1, k[2]
		if len(k) == key.LenV4Flow || len(k) == key.LenV6Flow {
			addr = addr[len(addr)/2-2:] // behind the source, before the ports
		}
	}
	if key.Fields(k[0])&key.FieldV6 == 0 {
		s.marks4[side].Mark(uint32(addr[0])<<16|uint32(addr[1])<<8|uint32(addr[2]), bits)
		return
	}
	h := mark6(netip.AddrFrom16([16]byte(addr)), side).Hash(s.Seed)
	if !s.marks6.Contains(h) {
		s.marks6.Add(h)
	}
}

// Load is how full the structures are, from 0 to 1: of the cascade's bits and
// of the table's slots.
func (s *Set) Load() (cascade, table float64) {
	if s.Len() == 0 {
		return 0, 0
	}
	set, all := s.cascade.Bits()
	if s.table.Cap() > 0 {
		table = float64(s.table.Len()) / float64(s.table.Cap())
	}
	return float64(set) / float64(all), table
}
