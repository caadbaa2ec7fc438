// Package icarus finds packets that go round in circles by a small Bloom filter
// that every packet carries (Whitaker and Wetherall, "Forwarding without loops
// in Icarus", 2002; Broder and Mitzenmacher's survey, section 7.1).
//
// Every node of a domain has a mask of k of the filter's m bits. A node ORs its
// mask into the filters of the packets that it forwards. A packet whose filter
// does not change has been here before, or the nodes that it has passed happen
// to cover the mask: a false alarm, whose probability FalseAlarm gives exactly.
// The published analysis takes the classic formula of the false-positive rate,
// which does not hold for filters as small as these.
package icarus

import (
	"fmt"
	"math/bits"
	"slices"

	"weir/filter/hash"
)

// Sizes are the filter sizes in bits for which there is room in a packet.
var Sizes = []int{64, 128, 256}

// Filter is a filter or a mask of up to 256 bits; shorter ones leave the last
// words zero. Bit i is bit i mod 64, counted from the least significant, of
// word i/64.
type Filter [4]uint64

// Mask is the mask of the node with the given id in a filter of size bits (64,
// 128 or 256): k distinct bits, of which the first are hash.Reduce(hash.Nth(h,
// i), size) for h = hash.Nth(seed, id) and i = 0, 1, …, repetitions left out.
// The seed is the domain's secret. It fails on another size, or unless 1 ≤ k ≤
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

// Len is the number of bits that are set.
func (f Filter) Len() int {
	n := 0
	for _, w := range f {
		n += bits.OnesCount64(w)
	}
	return n
}

// Trace is what a packet carries where several nodes in a row must suspect a
// loop before one acts on it.
type Trace struct {
	Filter    Filter
	Unchanged uint8 // nodes in a row that did not change the filter
}

// Visit passes a node: it ORs the node's mask in and reports whether this was
// the confirm-th node in a row, or a later one, that changed nothing. With
// confirm = 1 the first revisit is reported; a packet in a loop is reported
// confirm − 1 nodes later.
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
