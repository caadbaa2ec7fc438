package membership

import (
	"encoding/binary"
	"errors"
	"iter"
	"math/bits"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/quotient"
)

// Prefix is an IPv4 address or prefix that is listed as a source or as a
// destination. One of no bits matches all packets, and is a source.
type Prefix struct {
	Addr uint32 // in host order; host bits are zero
	List uint16
	Bits uint8
	Dst  bool
}

// PrefixLayout is the geometry of the table of IPv4 addresses and prefixes, which
// an exact set has instead of cascade and fingerprint table. Without lines, there
// is none.
//
// The key of a prefix is its address. If there are other lengths than 32, a 1 and
// then zeros follow the prefix, in 33 bits, so that no two lengths have a key in
// common. If sources and destinations are listed, a bit for the side comes first.
type PrefixLayout struct {
	quotient.Layout
	Secret   quotient.Secret
	Capacity int   // prefixes for which it is planned
	Shift    uint8 // of an address in its key: 1 if there are several lengths
}

// hasPrefixes reports whether keys of a shape are in the prefix table of an exact
// set.
func hasPrefixes(s key.Shape) bool { return !s.V6() && !s.Tuple() }

// Hashed reports whether keys of a shape are in cascade and table.
func (l *Layout) Hashed(s key.Shape) bool { return l.Mode != Exact || !hasPrefixes(s) }

// planPrefixes plans the prefix table.
func (l *Layout) planPrefixes(c Census) {
	var n int
	var src, dst, shorter bool
	for s, keys := range c.Keys {
		if l.Hashed(s) || keys == 0 {
			continue
		}
		n += keys
		src, dst = src || s.DstBits == 0, dst || s.DstBits > 0
		shorter = shorter || s.SrcBits+s.DstBits < 32
	}
	if n == 0 {
		return
	}
	keyBits := 32
	if shorter {
		keyBits++
		l.Prefixes.Shift = 1
	}
	if src && dst {
		keyBits++
	}
	l.Prefixes.Capacity = withRoom(n)
	l.Prefixes.Layout = quotient.Plan(keyBits, l.Prefixes.Capacity, c.Highest)
	front := l.Prefixes.WithFront(n) // a few more only cost reads
	// Nearer lines are as quick without a front; one that does not fit costs more than
	// it saves.
	if l.Prefixes.Bytes() > 2*c.NearCache && 8*front.Front <= c.NearCache*7/8 {
		l.Prefixes.Layout = front
	}
	l.Prefixes.Secret = bijection(l.Secret)
}

// bijection derives the prefix table's secret from that of the hash.
func bijection(secret *hash.Secret) quotient.Secret {
	if secret == nil {
		secret = new(hash.Secret) // only the geometry matters
	}
	part := func(n uint64) uint64 {
		return secret.Sum(binary.LittleEndian.AppendUint64([]byte("bijection..."), n))
	}
	return quotient.Secret{Xor: part(0), Mul: [3]uint64{part(1) | 1, part(2) | 1, part(3) | 1}}
}

// Tail returns the bits of a key that stand for a prefix's length and side.
func (l *PrefixLayout) Tail(bits uint8, dst bool) (tail uint64) {
	if l.Shift > 0 {
		tail = 1 << (32 - bits)
	}
	if dst && l.KeyBits > 32+int(l.Shift) {
		tail |= 1 << (l.KeyBits - 1)
	}
	return tail
}

func (l *PrefixLayout) key(p Prefix) uint64 {
	return uint64(p.Addr)<<l.Shift | l.Tail(p.Bits, p.Dst)
}

// prefix returns the prefix of an entry of the table.
func (l *PrefixLayout) prefix(e quotient.Entry) Prefix {
	p := Prefix{Addr: uint32(e.Key >> l.Shift), List: e.List, Bits: 32}
	p.Dst = e.Key>>(32+l.Shift) != 0
	if l.Shift > 0 {
		zeros := bits.TrailingZeros64(e.Key)
		p.Addr &^= uint32(1<<zeros - 1)
		p.Bits -= uint8(zeros)
	}
	return p
}

// prefixOf returns the prefix of a key in address form.
func prefixOf(k key.Key) Prefix {
	if k.DstBits > 0 {
		return Prefix{Addr: number(k.Dst), Bits: k.DstBits, Dst: true}
	}
	return Prefix{Addr: number(k.Src), Bits: k.SrcBits}
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func (s *Set) lookupPrefix(k key.Key) (list uint16, ok bool) {
	if s.prefixes == nil {
		return 0, false
	}
	return s.prefixes.Lookup(s.Prefixes.key(prefixOf(k)))
}

// putPrefix adds a prefix or changes its list.
func (s *Set) putPrefix(k key.Key, list uint16) error {
	p := prefixOf(k)
	s.dir.add(p) // first, so that it is found as soon as it is there
	s.reach.addPrefix(p)
	err := s.prefixes.Add(s.Prefixes.key(p), list)
	if err != nil {
		s.dir.remove(p)
	}
	switch {
	case errors.Is(err, quotient.ErrFull):
		return ErrFull
	case errors.Is(err, quotient.ErrList):
		return ErrNoRoom
	}
	return err
}

// NeedsCompaction reports whether it is time to Tidy, which makes room for more prefixes, and
// lookups quicker.
func (s *Set) NeedsCompaction() bool {
	return s.prefixes != nil && (s.prefixes.NeedsCompaction() || s.dir.isStale(s.prefixes.Len()))
}

// Tidy moves prefixes back from the spill, and reports whether it moved any. wait
// must return when every program has ended that was running when it was called.
func (s *Set) Tidy(wait func()) bool {
	if s.prefixes == nil {
		return false
	}
	if s.dir.isStale(s.prefixes.Len()) {
		s.dir.renew(s.allPrefixes())
	}
	return s.prefixes.Compact(wait) > 0
}

// allPrefixes returns the prefixes in the table. It must not run beside updates.
func (s *Set) allPrefixes() iter.Seq[Prefix] {
	return func(yield func(Prefix) bool) {
		for e := range s.prefixes.All() {
			p := s.Prefixes.prefix(e)
			p.Dst = p.Dst || !s.Directory.Src
			if !yield(p) {
				return
			}
		}
	}
}

// prefixes returns the keys of a column as prefixes.
func (c Column) prefixes() iter.Seq[Prefix] {
	return func(yield func(Prefix) bool) {
		for i, list := range c.Lists {
			k := c.Keys[i*key.LenV4:]
			p := Prefix{Addr: binary.BigEndian.Uint32(k[key.HeadLen:]), List: list, Bits: k[1]}
			if k[2] > 0 {
				p.Bits, p.Dst = k[2], true
			}
			if !yield(p) {
				return
			}
		}
	}
}

// fillPrefixes adds prefixes to an empty table.
func (s *Set) fillPrefixes(chunks []iter.Seq[Prefix]) error {
	entries := make([]iter.Seq[quotient.Entry], len(chunks))
	for i, chunk := range chunks {
		entries[i] = func(yield func(quotient.Entry) bool) {
			for p := range chunk {
				s.dir.add(p)
				s.reach.addPrefix(p)
				if !yield(quotient.Entry{Key: s.Prefixes.key(p), List: p.List}) {
					return
				}
			}
		}
	}
	if s.prefixes == nil {
		if len(chunks) > 0 {
			return ErrNoRoom
		}
		return nil
	}
	err := s.prefixes.Fill(entries...)
	s.len += s.prefixes.Len()
	if errors.Is(err, quotient.ErrFull) {
		return ErrFull
	}
	return err
}
