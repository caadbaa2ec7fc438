// Package member has filters that weir does not use, and weir's own behind the same interface,
// to compare them. They are written to be read, and for keys of 64 bits in memory of one
// process: nothing here is made for packets.
package member

import (
	"errors"
	"math"
	"math/bits"
	"slices"
	"sort"
)

// Filter answers whether a key may be in a set: always yes if it is.
type Filter interface {
	Contains(key uint64) bool
	Bits() int            // of all memory that a look-up may read
	Reads(key uint64) int // lines of 64 bytes that Contains reads of it
}

// Deleter is a filter from which a key of the set can be deleted.
type Deleter interface {
	Filter
	Delete(key uint64)
}

// Kind is a kind of filter. Its size follows from r: the aim is a rate of false positives of
// 2^-r. A kind that has only some sizes takes the nearest.
type Kind struct {
	Name, Source string
	Weir         bool                           // weir has it
	Changes      string                         // in place: "add", "add, delete", or none
	Bits         func(n int, r float64) float64 // an entry, for n entries; +Inf if there is no such size
	Rate         func(n int, r float64) float64 // predicted
	Build        func(keys []uint64, r float64, seed uint64) (Filter, error)
}

// Fit returns the highest r, in steps of an eighth up to 32, with which n entries take so many
// bits each at most, or 0 if there is none.
func (k Kind) Fit(n int, budget float64) float64 {
	return float64(sort.Search(32*8, func(i int) bool { return k.Bits(n, float64(i+1)/8) > budget })) / 8
}

// Kinds are all kinds, those that weir has first.
var Kinds = []Kind{cascadeKind, bloomKind, countingKind, quotientKind, exactKind,
	xorKind, fuseKind, ribbonKind, cuckooKind, vectorKind, prefixKind}

var errFull = errors.New("member: no room, with any seed")

// retry builds with one seed after the other, until everything finds room.
func retry(seed uint64, build func(seed uint64) (Filter, bool)) (Filter, error) {
	for i := range uint64(20) {
		if f, ok := build(seed + i); ok {
			return f, nil
		}
	}
	return nil, errFull
}

// mix hashes a key: the finalizer of MurmurHash3, as the library for xor filters does.
func mix(key, seed uint64) uint64 {
	h := key + seed
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// reduce maps a hash uniformly onto 0…n−1, by its upper bits.
func reduce(h uint64, n int) int {
	high, _ := bits.Mul64(h, uint64(n))
	return int(high)
}

// memory has the words of a filter. While it is watched, it notes the lines that are read.
type memory struct {
	words   []uint64
	watched bool
	lines   []uint64
}

func newMemory(bits int) memory { return memory{words: make([]uint64, (bits+63)/64)} }

func (m *memory) at(i int) uint64 {
	if m.watched {
		m.note(uint64(i) / 8)
	}
	return m.words[i]
}

func (m *memory) note(line uint64) {
	if !slices.Contains(m.lines, line) {
		m.lines = append(m.lines, line)
	}
}

// watch returns how many lines a look-up reads.
func (m *memory) watch(lookUp func()) int {
	m.watched, m.lines = true, m.lines[:0]
	lookUp()
	m.watched = false
	return len(m.lines)
}

// get returns the value of at most 64 bits, from a bit on.
func (m *memory) get(bit, width int) uint64 {
	i, o := bit/64, bit%64
	v := m.at(i) >> o
	if o+width > 64 {
		v |= m.at(i+1) << (64 - o)
	}
	return v & (1<<width - 1)
}

// set changes it.
func (m *memory) set(bit, width int, v uint64) {
	i, o := bit/64, bit%64
	mask := uint64(1<<width - 1)
	m.words[i] = m.words[i]&^(mask<<o) | v<<o
	if o+width > 64 {
		m.words[i+1] = m.words[i+1]&^(mask>>(64-o)) | v>>(64-o)
	}
}

// exp2 is 2^-r.
func exp2(r float64) float64 { return math.Exp2(-r) }

// Lines returns how many lines look-ups read on average.
func Lines(f Filter, keys []uint64) float64 {
	sum := 0
	for _, k := range keys {
		sum += f.Reads(k)
	}
	return float64(sum) / float64(len(keys))
}
