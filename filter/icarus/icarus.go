// Package icarus detects packets in routing loops with a small Bloom filter
// that every packet carries (Whitaker and Wetherall, "Forwarding without loops
// in Icarus", 2002; Broder and Mitzenmacher's survey, section 7.1).
//
// Every node of a domain has a mask of k of the filter's m bits, which it ORs
// into the filters of the packets that it forwards. If that does not change a
// packet's filter, the packet has been here before, or the masks of the nodes
// it passed happen to cover this one: a false alarm, whose exact probability
// [FalseAlarm] returns. The published analysis uses the classic formula of the
// false-positive rate, which does not apply to filters this small.
//
// bpf/loop.h is the twin.
package icarus

import (
	"fmt"
	"math/bits"
	"slices"

	"weir/filter/hash"
)

// Sizes are the possible filter sizes in bits.
var Sizes = []int{64, 128, 256}

// Filter is a filter or a mask of up to 256 bits; shorter ones leave the last
// words zero. Bit i is bit i mod 64, counted from the least significant, of
// word i/64. The zero Filter is empty.
type Filter [4]uint64

// Mask returns the mask of the node with the given id in a filter of size bits
// (64, 128 or 256): k distinct bits, the first of hash.Reduce(hash.Nth(h, i),
// size) for h = hash.Nth(seed, id) and i = 0, 1, …, without repetitions. The
// seed is the domain's secret. It fails on another size, or unless 1 ≤ k ≤
// size/2.
func Mask(seed, id uint64, size, k int) (Filter, error) {
	if err := check(size, k); err != nil {
		return Filter{}, err
	}
	var f Filter
	h := hash.Nth(seed, id)
	for i := uint64(0); k > 0; i++ {
		bit := hash.Reduce(hash.Nth(h, i), uint32(size))
		if w := &f[bit/64]; *w>>(bit%64)&1 == 0 {
			*w |= 1 << (bit % 64)
			k--
		}
	}
	return f, nil
}

func check(size, k int) error {
	if !slices.Contains(Sizes, size) {
		return fmt.Errorf("icarus: filter of %d bits, want one of %d", size, Sizes)
	}
	if k < 1 || k > size/2 {
		return fmt.Errorf("icarus: masks of %d bits in %d, want 1 to %d", k, size, size/2)
	}
	return nil
}

// Visit ORs a node's mask into the filter and reports whether it changed. An
// unchanged filter suggests that the packet has passed the node before.
func (f *Filter) Visit(mask Filter) (changed bool) {
	before := *f
	for i, w := range mask {
		f[i] |= w
	}
	return *f != before
}

// Len returns the number of set bits.
func (f Filter) Len() int {
	n := 0
	for _, w := range f {
		n += bits.OnesCount64(w)
	}
	return n
}

// Trace is the state that a packet carries if several consecutive nodes must
// suspect a loop before one acts on it. The zero Trace belongs to a packet that
// has passed no node.
type Trace struct {
	Filter    Filter
	Unchanged uint8 // consecutive nodes that did not change the filter
}

// Visit ORs a node's mask in and reports whether at least confirm consecutive
// nodes, this one included, changed nothing. With confirm = 1 the first revisit
// is reported; otherwise a packet in a loop is reported confirm − 1 nodes
// later.
func (t *Trace) Visit(mask Filter, confirm int) (loop bool) {
	if t.Filter.Visit(mask) {
		t.Unchanged = 0
		return false
	}
	if t.Unchanged < 255 {
		t.Unchanged++
	}
	return int(t.Unchanged) >= confirm
}
