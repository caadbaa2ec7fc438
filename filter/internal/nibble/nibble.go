// Package nibble has arrays of four-bit counters: a filter clears a bit when its counter is zero.
package nibble

import "math/bits"

// Max is the value at which a 4-bit counter saturates.
const Max = 15

// low has the lowest bit of each of a word's sixteen counters set.
const low = 0x1111111111111111

// Array is an array of 4-bit counters, sixteen to a 64-bit word. A counter
// that reaches Max stays there: the number of increments is no longer known, so
// no decrement may bring it back to zero (Broder and Mitzenmacher, section
// 2.5). A Array is not safe for concurrent use.
type Array struct {
	words []uint64
	n     uint64
}

// New returns n counters, all zero.
func New(n uint64) *Array {
	return &Array{words: make([]uint64, (n+15)/16), n: n}
}

// Over returns n counters over their words, sixteen to a word, of which it takes ownership. It
// reports false unless there are as many words as needed and the unused counters are zero.
func Over(words []uint64, n uint64) (*Array, bool) {
	if uint64(len(words)) != (n+15)/16 {
		return nil, false
	}
	if used := n % 16; used != 0 && words[len(words)-1]>>(4*used) != 0 {
		return nil, false
	}
	return &Array{words, n}, true
}

// Words returns the counters' words, which the caller must not change.
func (c *Array) Words() []uint64 { return c.words }

// Len returns the number of counters.
func (c *Array) Len() uint64 { return c.n }

// Get returns the value of counter i, 0…Max. Get, Inc and Dec require i < Len
// and may panic otherwise.
func (c *Array) Get(i uint64) uint8 {
	return uint8(c.words[i>>4] >> (4 * (i & 15)) & Max)
}

// Inc increments counter i unless it is saturated, and reports whether it was
// zero before, which is when bit i of the accompanying filter must be set.
func (c *Array) Inc(i uint64) (first bool) {
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
func (c *Array) Dec(i uint64) (last bool) {
	w, shift := &c.words[i>>4], 4*(i&15)
	v := *w >> shift & Max
	if 0 < v && v < Max {
		*w -= 1 << shift
	}
	return v == 1
}

// Saturated returns the number of counters that are stuck at Max, in one pass.
// Each is a bit of the filter that stays set until it is rebuilt.
func (c *Array) Saturated() uint64 {
	var n uint64
	for _, w := range c.words {
		n += uint64(bits.OnesCount64(w & (w >> 1) & (w >> 2) & (w >> 3) & low))
	}
	return n
}

// Bits returns a bit for each of the counters 64i … 64i+63, the lowest for the first: 1 if
// the counter is not zero. Counters beyond Len count as zero.
func (c *Array) Bits(i uint64) (all uint64) {
	words := c.words[4*i:]
	for j, w := range words[:min(4, len(words))] {
		w = (w | w>>1 | w>>2 | w>>3) & low
		w = (w | w>>3) & 0x0303030303030303
		w = (w | w>>6) & 0x000f000f000f000f
		w = (w | w>>12) & 0x000000ff000000ff
		all |= ((w | w>>24) & 0xffff) << (16 * j)
	}
	return all
}
