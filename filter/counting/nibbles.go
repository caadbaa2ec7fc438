package counting

import "math/bits"

// Max is the value at which a 4-bit counter saturates.
const Max = 15

// low has the lowest bit of each of a word's sixteen counters set.
const low = 0x1111111111111111

// Nibbles is an array of 4-bit counters, sixteen to a 64-bit word. A counter
// that reaches Max stays there: the number of increments is no longer known, so
// no decrement may bring it back to zero (Broder and Mitzenmacher, section
// 2.5). A Nibbles is not safe for concurrent use.
type Nibbles struct {
	words []uint64
	n     uint64
}

// NewNibbles returns n counters, all zero.
func NewNibbles(n uint64) *Nibbles {
	return &Nibbles{words: make([]uint64, (n+15)/16), n: n}
}

// Len returns the number of counters.
func (c *Nibbles) Len() uint64 { return c.n }

// Get returns the value of counter i, 0…Max. Get, Inc and Dec require i < Len
// and may panic otherwise.
func (c *Nibbles) Get(i uint64) uint8 {
	return uint8(c.words[i>>4] >> (4 * (i & 15)) & Max)
}

// Inc increments counter i unless it is saturated, and reports whether it was
// zero before, which is when bit i of the accompanying filter must be set.
func (c *Nibbles) Inc(i uint64) (first bool) {
	w, shift := &c.words[i>>4], 4*(i&15)
	v := *w >> shift & Max
	if v < Max {
		*w += 1 << shift
	}
	return v == 0
}

// Dec decrements counter i unless it is saturated or zero, and reports whether
// it became zero, which is when bit i of the accompanying filter may be
// cleared.
func (c *Nibbles) Dec(i uint64) (last bool) {
	w, shift := &c.words[i>>4], 4*(i&15)
	v := *w >> shift & Max
	if 0 < v && v < Max {
		*w -= 1 << shift
	}
	return v == 1
}

// Nonzero returns the number of nonzero counters, in one pass.
func (c *Nibbles) Nonzero() uint64 {
	var n uint64
	for _, w := range c.words {
		n += uint64(bits.OnesCount64((w | w>>1 | w>>2 | w>>3) & low))
	}
	return n
}

// Saturated returns the number of counters that are stuck at Max, in one pass.
// Each is a bit of the filter that stays set until it is rebuilt.
func (c *Nibbles) Saturated() uint64 {
	var n uint64
	for _, w := range c.words {
		n += uint64(bits.OnesCount64(w & (w >> 1) & (w >> 2) & (w >> 3) & low))
	}
	return n
}

// Bits returns a bit for each of the counters 64i … 64i+63, the lowest for the first: 1 if
// the counter is not zero. There must be as many counters.
func (c *Nibbles) Bits(i uint64) (all uint64) {
	for j, w := range c.words[4*i : 4*i+4] {
		w = (w | w>>1 | w>>2 | w>>3) & low
		w = (w | w>>3) & 0x0303030303030303
		w = (w | w>>6) & 0x000f000f000f000f
		w = (w | w>>12) & 0x000000ff000000ff
		all |= ((w | w>>24) & 0xffff) << (16 * j)
	}
	return all
}
