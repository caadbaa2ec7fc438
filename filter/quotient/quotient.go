// Package quotient is an exact set of keys of 32 to 34 bits with list numbers, in 2
// to 6 bytes an entry: of IPv4 addresses, and prefixes of all lengths. Most lookups
// read one cache line.
//
// It rests on quotienting: Knuth, "The art of computer programming", volume 3,
// 1973, section 6.4, exercise 13; Cleary, "Compact hash tables using bidirectional
// linear probing", 1984. A keyed bijection takes the place of a hash. The position
// of an entry expresses a part of the image, the quotient, so that only the
// remainder is stored; both together are the image, and the image is the key.
// There are no false positives. bpf/quotient.h is the twin, which reads the set.
//
// # Layout
//
// All arithmetic is unsigned. For keys of K bits, modulo 2^K, with four secret
// constants, of which the multipliers are odd, the image p of a key k is
//
//	p = (k ^ Xor) * Mul[0]
//	p = (p ^ p >> 16) * Mul[1]
//	p = (p ^ p >> 15) * Mul[2]
//
// The set has L lines, each of eight 64-bit words in the CPU's byte order, 8L words in all:
//
//	first     = p * 8L >> K                           (64 bits)
//	r         = bit length of ceil(2^K / 8L) - 1
//	remainder = p & (2^r - 1)
//	s         = remainder * 0x9e3779b1                (32 bits)
//	second    = first ^ ((s >> 26 & 7) | 1)
//
// The images of one first word are at most 2^r consecutive integers, so that no two
// have the same remainder. An entry is in its first or second word, which are of one
// line, or in the spill. A word consists of N lanes of W bits from the lowest bit up,
// N×W being 1×63, 2×31, 3×21, 4×15 or 5×12:
//
//	lane = list << (r + 1) | in second word << r | remainder
//
// An empty lane is 0; lists count from 1.
//
// Bit 63 of a word is set if the spill contains an entry whose first word it is.
// Bits between the lanes and bit 63 are 0.
//
// The spill has B buckets, each of eight 64-bit slots. An entry is in either bucket:
//
//	slot    = list << 48 | p        0 if empty
//	bucket1 = first * 0x9e3779b1 * B >> 32            (32 bits, then 64)
//	bucket2 = bucket1 + 1 + (first * 0x85ebca6b * (B - 1) >> 32), less B if not below B
//
// A set whose lines exceed the near cache can have a front that fits it, F words of
// 64 bits: a Bloom filter with one word for each entry, which is read before the
// lines. An absent key with one of these bits unset needs no line:
//
//	word = p * F >> K                                 (64 bits)
//	t    = p * 0x85ebca6b                             (32 bits)
//	bits = t >> 26, t >> 20 & 63, t >> 14 & 63
//
// # Concurrency
//
// One writer changes the set beside any number of readers, with one atomic store of
// 64 bits for each step. A reader loads the first word, then the second, then the
// spill if bit 63 of the first word is set as it was loaded. A present entry moves
// only from its first word to its second, the copy before the original is
// overwritten; chains of such moves begin at the far end. Into the spill go new
// entries and those in their first word: slot, bit 63, then the lane is overwritten.
// Nothing moves back, but by [Set.Compact], which leaves the copy in the spill until
// all readers have ended that were there. A present entry is therefore found at
// every instant, and an absent one never: a lane or slot is always that of one
// entry.
//
// Bits of the front are set before an entry is added. A removed one's stay: they only
// cost a read.
//
// The list numbers of two words must not be combined with OR. An entry may move and
// change its list between the two loads.
package quotient

import (
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
)

// Errors of updates. They leave the set unchanged.
var (
	// ErrFull means that neither the line nor the spill has room for an entry. The
	// remedy is the next generation: a larger layout, or the same with another key.
	ErrFull = errors.New("quotient: set full")
	// ErrList means that a list number is 0 or too high for the layout.
	ErrList = errors.New("quotient: list number does not fit into a lane")
)

// Entry is a listed key.
type Entry struct {
	Key  uint64 // below 2^KeyBits
	List uint16 // 1 … MaxList
}

// The slots of the spill, and of the memory of Fill.
const (
	listShift = 48
	imageMask = 1<<listShift - 1
)

// slot returns the form of an entry in the spill.
func slot(p uint64, list uint16) uint64 { return uint64(list)<<listShift | p }

// Set is an exact set of keys with list numbers. Lookup is safe for
// concurrent use, also beside one goroutine that calls the other methods.
type Set struct {
	lines   []uint64
	spill   []uint64
	front   []uint64 // empty: none
	layout  Layout
	secret  Secret
	len     int
	inSpill int

	// Constants of Lookup, from the layout.
	numWords   uint64
	numBuckets uint64
	keyBits    uint
	keyMask    uint64 // the bits of a key
	remMask    uint64 // the bits of a remainder
	inSecond   uint64 // the bit of a lane whose entry is in its second word
	listBit    uint   // the lowest one of the list number
	ones       uint64 // the lowest bit of each lane
	rems       uint64 // the bits of each lane below its list number
	lows       uint64 // all bits but the highest of each lane
	highs      uint64 // the highest bit of each lane
	laneMask   uint64 // the lowest lane
	shift      [3]uint
	lanes      int
}

// New returns an empty set in memory of its own.
func New(l Layout, secret Secret) (*Set, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	return NewAt(l, secret, make([]uint64, l.Lines*lineWords), make([]uint64, l.Buckets*bucketSlots), make([]uint64, l.Front))
}

// NewAt returns an empty set over the given memory, which may be a kernel map's.
// It must be zero, begin at a multiple of 64 bytes to be fast, and have the
// layout's sizes.
func NewAt(l Layout, secret Secret, lines, spill, front []uint64) (*Set, error) {
	if err := l.validate(); err != nil {
		return nil, err
	}
	if !secret.valid() {
		return nil, errors.New("quotient: even multiplier in secret")
	}
	if len(lines) != l.Lines*lineWords || len(spill) != l.Buckets*bucketSlots || len(front) != l.Front {
		return nil, fmt.Errorf("quotient: memory for %d words of lines, %d of spill and %d of front: want %d, %d and %d",
			len(lines), len(spill), len(front), l.Lines*lineWords, l.Buckets*bucketSlots, l.Front)
	}
	w, _ := l.width()
	s := &Set{
		lines: lines, spill: spill, front: front, layout: l, secret: l.Cut(secret),
		numWords: uint64(l.Words()), numBuckets: uint64(l.Buckets),
		keyBits:  uint(l.KeyBits),
		keyMask:  1<<l.KeyBits - 1,
		remMask:  l.InSecond() - 1,
		inSecond: l.InSecond(),
		listBit:  uint(l.ListBit()),
		laneMask: 1<<w.bits - 1,
		// A shift by 63 clears all lanes.
		shift: [3]uint{uint(w.bits), uint(min(2*w.bits, 63)), uint(min(4*w.bits, 63))},
		lanes: w.lanes,
	}
	s.ones = l.Repeat(1)
	s.rems = l.Repeat(s.remMask | s.inSecond)
	s.lows = l.Repeat(s.laneMask >> 1)
	s.highs = l.Repeat(1 << (w.bits - 1))
	return s, nil
}

// Layout returns the geometry.
func (s *Set) Layout() Layout { return s.layout }

// Secret returns the secret.
func (s *Set) Secret() Secret { return s.secret }

// KeyOf returns the key whose image is p.
func (s *Set) KeyOf(p uint64) uint64 { return s.inverter().key(p) }

// Len returns the number of entries.
func (s *Set) Len() int { return s.len }

// InSpill returns the number of entries in the spill.
func (s *Set) InSpill() int { return s.inSpill }

// Bytes returns the memory of lines, spill and front.
func (s *Set) Bytes() int { return s.layout.Bytes() }

// Lookup returns the list number of a key.
func (s *Set) Lookup(k uint64) (list uint16, ok bool) {
	p := s.permute(k)
	if len(s.front) > 0 {
		word, bits := s.inFront(p)
		if atomic.LoadUint64(&s.front[word])&bits != bits {
			return 0, false
		}
	}
	first, second := s.candidates(p)
	// In this order: an entry moves from its first word to its second or to the
	// spill, never back.
	w1 := atomic.LoadUint64(&s.lines[first])
	w2 := atomic.LoadUint64(&s.lines[second])
	want := p & s.remMask * s.ones
	// One word after the other. An OR of both would mix two list numbers if the
	// entry moved and changed its list between the loads.
	list = s.match(w1, want)
	if list == 0 {
		list = s.match(w2, want+s.inSecond*s.ones)
	}
	if list == 0 && w1&spilled != 0 {
		list = s.lookupSpill(p)
	}
	return list, list != 0
}

// inFront returns the word and the bits of an image in the front.
func (s *Set) inFront(p uint64) (word, bits uint64) {
	t := uint32(p) * 0x85ebca6b
	return p * uint64(len(s.front)) >> (s.keyBits & 63), 1<<(t>>26) | 1<<(t>>20&63) | 1<<(t>>14&63)
}

// setFront sets the bits of an image in the front.
func (s *Set) setFront(p uint64) {
	if len(s.front) > 0 {
		word, bits := s.inFront(p)
		atomic.OrUint64(&s.front[word], bits)
	}
}

// candidates returns the two words of a line that may contain p. They differ.
func (s *Set) candidates(p uint64) (first, second uint64) {
	first = p * s.numWords >> (s.keyBits & 63)
	return first, first ^ apart(p&s.remMask)
}

// apart returns the two words of an entry, of which either is the other one XOR this. It depends
// on the remainder alone, so that a lane of the second word says which the first is.
func apart(remainder uint64) uint64 {
	return uint64(uint32(remainder)*0x9e3779b1>>26&7 | 1)
}

// match returns the list number in the lane of w whose bits below it are those
// repeated in want, or 0. An empty lane of a first word matches remainder 0 with list 0,
// so that lanes must be joined by OR.
func (s *Set) match(w, want uint64) uint16 {
	// No carry leaves a lane: the bits below the list number are fewer than the lane's.
	differ := (w^want)&s.rems + s.lows
	equal := ^differ & s.highs
	v := w & (equal<<1 - equal>>((s.shift[0]-1)&63)) // the lanes that match
	v |= v >> (s.shift[0] & 63)
	v |= v >> (s.shift[1] & 63)
	v |= v >> (s.shift[2] & 63)
	return uint16(v & s.laneMask >> (s.listBit & 63))
}

// All returns the entries in no particular order. It must not run beside
// updates.
func (s *Set) All() iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		v := s.inverter()
		for word, w := range s.lines {
			for w &^= spilled; w != 0; w >>= s.shift[0] {
				lane := w & s.laneMask
				if lane != 0 && !yield(Entry{v.key(s.image(word, lane)), uint16(lane >> s.listBit)}) {
					return
				}
			}
		}
		for _, slot := range s.spill {
			if slot != 0 && !yield(Entry{v.key(slot & imageMask), uint16(slot >> listShift)}) {
				return
			}
		}
	}
}

// start returns the lowest image whose first word this is.
func (s *Set) start(word uint64) uint64 {
	return (word<<s.keyBits + s.numWords - 1) / s.numWords
}

// image returns the image in a lane of a word: the only one of its first word with the lane's
// remainder.
func (s *Set) image(word int, lane uint64) uint64 {
	first, remainder := uint64(word), lane&s.remMask
	if lane&s.inSecond != 0 {
		first ^= apart(remainder)
	}
	start := s.start(first)
	return start + (remainder-start)&s.remMask
}
