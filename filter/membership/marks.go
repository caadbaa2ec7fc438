package membership

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// Marks4 is the IPv4 marker of one side: a bit for each of the 2^24 /24
// networks, set if any entry covers part of it.
type Marks4 []uint64

// NewMarks4 returns a marker without marks.
func NewMarks4() Marks4 { return make(Marks4, mark4Words) }

// Mark marks all /24 networks that overlap a prefix, given by the number of its
// first network (the upper 24 bits of an address) and its length in bits.
func (m Marks4) Mark(first uint32, length uint8) {
	n := uint32(1)
	if length < mark4Bits {
		n <<= mark4Bits - length
	}
	for i := first; i < first+n; {
		mask, step := uint64(1)<<(i%64), uint32(1)
		if i%64 == 0 && first+n-i >= 64 {
			mask, step = math.MaxUint64, 64
		}
		if w := &m[i/64]; *w&mask != mask {
			atomic.StoreUint64(w, *w|mask)
		}
		i += step
	}
}

// Marked reports whether a network is marked.
func (m Marks4) Marked(net uint32) bool { return m[net/64]>>(net%64)&1 != 0 }

// Count returns the number of marked networks.
func (m Marks4) Count() int {
	n := 0
	for _, w := range m {
		n += bits.OnesCount64(w)
	}
	return n
}
