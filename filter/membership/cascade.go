package membership

import (
	"sync/atomic"

	"weir/filter/counting"
	"weir/filter/hash"
)

// Geometry of a line, the same as in bpf/cascade.h.
const (
	LineWords   = 8   // 64-bit words in a line
	LineBits    = 512 // bits in a line
	MaxLineBits = 6   // bits of one key in one line
)

// Cascade is a Bloom filter in lines of 64 bytes. A key's first bits lie in
// distinct words of one line; the rest, if any, in a second, independent line
// that is read only when the first passes. bpf/cascade.h is its twin and
// describes which bits of a hash place a key; package fpr predicts its
// false-positive rate (fpr.CascadeLayout).
//
// Its words may be the kernel's own memory: writes are atomic stores in an
// order in which no key that is present ever tests absent. There must be one
// writer at a time.
type Cascade struct {
	words       []uint64
	lines       uint32
	first, rest int
	shadow      *counting.Nibbles // a counter for each bit: what makes deletion possible
}

// NewCascade makes a cascade over words, which must be zero and a multiple of
// LineWords. Bits per key: first (1 … MaxLineBits) in the first line and rest
// (0 … MaxLineBits) in the second. A cascade without words is empty for good.
func NewCascade(words []uint64, first, rest int) *Cascade {
	return &Cascade{
		words: words, lines: uint32(len(words) / LineWords), first: first, rest: rest,
		shadow: counting.NewNibbles(uint64(len(words)) * 64),
	}
}

// Contains reports whether the key with hash h may be present.
func (c *Cascade) Contains(h uint64) bool {
	return c.lines != 0 && c.testLine(h, c.first) &&
		(c.rest == 0 || c.testLine(hash.Nth(h, 1), c.rest))
}

// testLine tests so many bits of h in its line, without a branch between them.
// The loop of addLine is written out here: it would take half as long again.
func (c *Cascade) testLine(h uint64, bits int) bool {
	base := int(hash.Reduce(h, c.lines)) * LineWords
	line := (*[LineWords]uint64)(c.words[base : base+LineWords])
	start := h >> 36
	all := line[start%LineWords] >> (h & 63)
	switch bits {
	case 6:
		all &= line[(start+5)%LineWords] >> (h >> 30 & 63)
		fallthrough
	case 5:
		all &= line[(start+4)%LineWords] >> (h >> 24 & 63)
		fallthrough
	case 4:
		all &= line[(start+3)%LineWords] >> (h >> 18 & 63)
		fallthrough
	case 3:
		all &= line[(start+2)%LineWords] >> (h >> 12 & 63)
		fallthrough
	case 2:
		all &= line[(start+1)%LineWords] >> (h >> 6 & 63)
	}
	return all&1 != 0
}

// Add makes the key with hash h present.
func (c *Cascade) Add(h uint64) {
	c.addLine(h, c.first)
	if c.rest > 0 {
		c.addLine(hash.Nth(h, 1), c.rest)
	}
}

// Remove takes back one Add of the key with hash h, which must have been made.
func (c *Cascade) Remove(h uint64) {
	c.removeLine(h, c.first)
	if c.rest > 0 {
		c.removeLine(hash.Nth(h, 1), c.rest)
	}
}

func (c *Cascade) addLine(h uint64, bits int) {
	base := uint64(hash.Reduce(h, c.lines)) * LineWords
	for j, start := 0, h>>36; j < bits; j++ {
		i, bit := base+(start+uint64(j))%LineWords, h>>(6*j)&63
		if c.shadow.Inc(i*64 + bit) {
			atomic.StoreUint64(&c.words[i], c.words[i]|1<<bit)
		}
	}
}

func (c *Cascade) removeLine(h uint64, bits int) {
	base := uint64(hash.Reduce(h, c.lines)) * LineWords
	for j, start := 0, h>>36; j < bits; j++ {
		i, bit := base+(start+uint64(j))%LineWords, h>>(6*j)&63
		if c.shadow.Dec(i*64 + bit) {
			atomic.StoreUint64(&c.words[i], c.words[i]&^(1<<bit))
		}
	}
}

// Bits is the number of bits that are set, and of all bits.
func (c *Cascade) Bits() (set, all uint64) {
	return c.shadow.Nonzero(), c.shadow.Len()
}
