// Package cascade implements the blocked Bloom filter that sets of listed keys begin with.
// A key's bits are in one cache line or more: Putze, Sanders and Singler, "Cache-, hash- and
// space-efficient Bloom filters", 2007. bpf/cascade.h is the twin.
package cascade

import (
	"iter"
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"

	"weir/filter/hash"
	"weir/filter/internal/nibble"
	"weir/filter/internal/parallel"
)

// Geometry of a line, the same as in bpf/cascade.h.
const (
	LineWords   = 8   // 64-bit words in a line
	LineBits    = 512 // bits in a line
	MaxLineBits = 6   // bits of one key in one line
)

// Filter is a blocked Bloom filter in lines of 64 bytes. A key's first bits
// lie in distinct words of one line; the rest, if any, MaxLineBits each in further,
// independent lines, each of which is read only if the last passes. bpf/cascade.h is its twin and
// documents which bits of a hash select a key's bits; package fpr predicts its
// false-positive rate (fpr.CascadeLayout).
//
// A key may have extra bits. They follow the rest: they fill up its last line
// to MaxLineBits, then take further lines, line i being selected by the i-th
// hash derived from the key's.
//
// Its words may be kernel memory: writes are atomic stores, ordered so that no
// present key ever tests absent. Calls that write must be serialised.
//
// Deletion takes a counter for each bit, of 4 bits. No query reads them, so they are on
// the heap: memory of the kernel has the bits alone. A process that goes on with the words
// of another one counts its keys again; see Adopt. Of ten million keys of 10 bits, counters
// take 5 bytes each, and 10,000 changes some 20 ms. Without them, the lines of a deleted key
// can be computed from all keys that have bits there. To find these takes a pass over the
// list for each batch of changes, 60 times as long, or an index by lines, of 10 bytes a key
// that has bits in two. Counters of 2 bits, with a table of those that are too small, take 3.5
// bytes, which did not seem worth the second structure. Fingerprints instead of bits need
// neither, but 15 bits a key in the kernel for the rate of 10.
type Filter struct {
	words       []uint64
	lines       uint32
	first, rest int
	counters    *nibble.Array // one for each bit; nil: nothing is deleted
}

// New returns a cascade over words, which must be zero and a multiple of
// LineWords. A key sets first (1 … MaxLineBits) bits in the first line and rest
// (0 …) in further lines. A cascade without words is always empty and
// cannot be added to.
func New(words []uint64, first, rest int) *Filter {
	c := NewGrowing(words, first, rest)
	c.counters = nibble.New(64 * uint64(len(words)))
	return c
}

// NewGrowing is New of one from which nothing is removed.
func NewGrowing(words []uint64, first, rest int) *Filter {
	return &Filter{words: words, lines: uint32(len(words) / LineWords), first: first, rest: rest}
}

// Contains reports whether the key with hash h may be present.
func (c *Filter) Contains(h uint64) bool {
	if c.lines == 0 || !c.testLine(h, c.first) {
		return false
	}
	i := uint64(0)
	for rest := c.rest; rest > 0; rest -= MaxLineBits {
		if i++; !c.testLine(hash.Nth(h, i), min(rest, MaxLineBits)) {
			return false
		}
	}
	return true
}

// testLine tests the given number of bits of h in its line without a branch
// between them. The loop of testBits is unrolled here: it would take half as
// long again.
func (c *Filter) testLine(h uint64, bits int) bool {
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

// ContainsExtra reports whether the given number of extra bits of the key with
// hash h are set.
func (c *Filter) ContainsExtra(h uint64, extra int) bool {
	for i, b := range behind(c.rest, c.rest+extra) {
		if !c.testBits(hash.Nth(h, i), b) {
			return false
		}
	}
	return true
}

// testBits is like testLine, for any range of a line's bits.
func (c *Filter) testBits(h uint64, b bitRange) bool {
	base := c.line(h)
	for j := b.from; j < b.to; j++ {
		if i, bit := place(base, h, j); c.words[i]>>bit&1 == 0 {
			return false
		}
	}
	return true
}

// Add adds the key with hash h.
func (c *Filter) Add(h uint64) {
	c.addBits(h, bitRange{0, c.first})
	c.addBehind(h, 0, c.rest)
}

// AddExtra sets the extra bits from…to−1 of the key with hash h.
func (c *Filter) AddExtra(h uint64, from, to int) { c.addBehind(h, c.rest+from, c.rest+to) }

// Remove undoes one Add of the key with hash h, which must have been made.
func (c *Filter) Remove(h uint64) {
	c.removeBits(h, bitRange{0, c.first})
	c.removeBehind(h, 0, c.rest)
}

// RemoveExtra undoes one AddExtra, which must have been made, possibly in
// several calls.
func (c *Filter) RemoveExtra(h uint64, from, to int) { c.removeBehind(h, c.rest+from, c.rest+to) }

// bitRange is the bits from…to−1 of a key in one line.
type bitRange struct{ from, to int }

// behind splits the bits from…to−1 after the first line into those of each
// line, numbered from 1.
func behind(from, to int) iter.Seq2[uint64, bitRange] {
	return func(yield func(uint64, bitRange) bool) {
		for from < to {
			line := from / MaxLineBits
			start := line * MaxLineBits
			end := min(to, start+MaxLineBits)
			if !yield(uint64(line+1), bitRange{from - start, end - start}) {
				return
			}
			from = end
		}
	}
}

func (c *Filter) addBehind(h uint64, from, to int) {
	for i, b := range behind(from, to) {
		c.addBits(hash.Nth(h, i), b)
	}
}

func (c *Filter) removeBehind(h uint64, from, to int) {
	for i, b := range behind(from, to) {
		c.removeBits(hash.Nth(h, i), b)
	}
}

// line returns the index of the first word of the line of h.
func (c *Filter) line(h uint64) uint64 { return uint64(hash.Reduce(h, c.lines)) * LineWords }

// place returns the word, and the bit in it, of bit j of h in the line that
// starts at base.
func place(base, h uint64, j int) (word, bit uint64) {
	return base + (h>>36+uint64(j))%LineWords, h >> (6 * j) & 63
}

func (c *Filter) addBits(h uint64, b bitRange) {
	base := c.line(h)
	for j := b.from; j < b.to; j++ {
		i, bit := place(base, h, j)
		if c.counters == nil || c.counters.Inc(i*64+bit) {
			c.set(i, bit)
		}
	}
}

func (c *Filter) removeBits(h uint64, b bitRange) {
	base := c.line(h)
	for j := b.from; j < b.to; j++ {
		i, bit := place(base, h, j)
		if c.counters.Dec(i*64 + bit) {
			c.clear(i, bit)
		}
	}
}

func (c *Filter) set(i, bit uint64)   { atomic.StoreUint64(&c.words[i], c.words[i]|1<<bit) }
func (c *Filter) clear(i, bit uint64) { atomic.StoreUint64(&c.words[i], c.words[i]&^(1<<bit)) }

// Count adds keys to the counters alone, given their hashes in ascending order of the
// uppermost byte; see [Partition].
func (c *Filter) Count(hashes []uint64) {
	c.countBits(hashes, bitRange{0, c.first})
	c.CountBehind(hashes, 0, c.rest)
}

// CountBehind is like Count, for the bits from…to−1 after the first line.
func (c *Filter) CountBehind(hashes []uint64, from, to int) {
	if len(hashes) == 0 {
		return
	}
	for line, b := range behind(from, to) {
		further := make([]uint64, len(hashes))
		parallel.Ranges(len(hashes), func(from, to int) {
			for i := from; i < to; i++ {
				further[i] = hash.Nth(hashes[i], line)
			}
		})
		further, _ = Partition(further, nil)
		c.countBits(further, b)
	}
}

// countBits counts the bits of hashes, the lines divided among the cores.
func (c *Filter) countBits(hashes []uint64, b bitRange) {
	parallel.Ranges(int(c.lines), func(from, to int) {
		// Of the partitions at both ends, some hashes are in the lines of others.
		begin := sort.Search(len(hashes), func(i int) bool { return c.lastLine(hashes[i]) >= from })
		for _, h := range hashes[begin:] {
			base := c.line(h)
			switch line := int(base / LineWords); {
			case line < from:
				continue
			case line >= to:
				if c.firstLine(h) >= to {
					return
				}
				continue
			}
			for j := b.from; j < b.to; j++ {
				i, bit := place(base, h, j)
				c.counters.Inc(i*64 + bit)
			}
		}
	})
}

const partitions = 256

// Partition sorts hashes, and lists along with them, by their upper bits. Lines
// and first buckets grow with the upper bits, so filling in that order stays
// within a region that fits into the cache.
func Partition(hashes []uint64, lists []uint16) ([]uint64, []uint16) {
	var next [partitions + 1]int
	for _, h := range hashes {
		next[h>>56+1]++
	}
	for i := range partitions {
		next[i+1] += next[i]
	}
	h2, l2 := make([]uint64, len(hashes)), make([]uint16, len(lists))
	for i, h := range hashes {
		j := next[h>>56]
		next[h>>56]++
		h2[j] = h
		if lists != nil {
			l2[j] = lists[i]
		}
	}
	return h2, l2
}

// firstLine and lastLine return the lines of the least and of the largest hash with the
// uppermost byte of h.
func (c *Filter) firstLine(h uint64) int { return int(hash.Reduce(h&^(1<<56-1), c.lines)) }
func (c *Filter) lastLine(h uint64) int  { return int(hash.Reduce(h|(1<<56-1), c.lines)) }

// SetCounted sets the bits of all keys that were counted, and returns the number of bits
// that were not set, and of others that are.
func (c *Filter) SetCounted() (missing, surplus int) {
	for i, w := range c.words {
		want := c.counters.Bits(uint64(i))
		missing += bits.OnesCount64(want &^ w)
		surplus += bits.OnesCount64(w &^ want)
		if want&^w != 0 {
			atomic.StoreUint64(&c.words[i], w|want)
		}
	}
	return missing, surplus
}

// ClearUncounted clears the bits that no key needs that was counted.
func (c *Filter) ClearUncounted() {
	for i, w := range c.words {
		if want := c.counters.Bits(uint64(i)); w != want {
			atomic.StoreUint64(&c.words[i], want)
		}
	}
}

// Saturated returns the number of counters that have reached their highest value, so that
// their bits are never cleared.
func (c *Filter) Saturated() uint64 { return c.counters.Saturated() }

// Equal reports whether two cascades with counters have the same bits and the same counters.
func (c *Filter) Equal(o *Filter) bool {
	return slices.Equal(c.words, o.words) && slices.Equal(c.counters.Words(), o.counters.Words())
}

// Bits returns the number of set bits and of all bits.
func (c *Filter) Bits() (set, all uint64) {
	for _, w := range c.words {
		set += uint64(bits.OnesCount64(w))
	}
	return set, 64 * uint64(len(c.words))
}

// Density returns the probability that the n bits of a random hash are all set
// in its line, given the words of a cascade. The product of the densities of
// the first line and of the rest is the actual false-positive rate of the
// cascade, as opposed to the planned one.
func Density(words []uint64, n int) float64 {
	var sum float64
	for i := range words {
		line, all := words[i-i%LineWords:], 1.
		for j := range n {
			all *= float64(bits.OnesCount64(line[(i+j)%LineWords])) / 64
		}
		sum += all
	}
	return sum / float64(len(words))
}
