// Package invertible implements invertible Bloom lookup tables (Goodrich and
// Mitzenmacher, 2011): Bloom filters whose cells are sums, so that the elements of
// a small set can be listed. The table of a large set minus that of another one is
// the table of their difference, whatever the sizes of the sets, which is how Eppstein,
// Goodrich, Uyeda and Varghese find it exactly (What's the Difference?, 2011).
package invertible

import (
	"fmt"
	"math"

	"weir/filter/hash"
)

// Each element has a cell in each of three parts; a cell has three words.
const (
	parts     = 3
	cellWords = 3
)

// load is the number of elements for each cell up to which all can practically always be
// listed; the threshold for three parts is 0.818. Below it, what fails is two elements
// with the same three cells: n²/2 pairs, each with a probability of 1/cells³, hence some
// two in a thousand tables at most, with minCells in each part.
const (
	load     = 0.72
	minCells = 1024
)

// Words returns the size of a table of which n elements can be listed, in words.
func Words(n int) int { return Cells(n) * cellWords }

// Cells returns the number of its cells.
func Cells(n int) int { return max(minCells, int(float64(n)/load)/parts+1) * parts }

// Failure returns the probability that the n elements of such a table cannot all be listed,
// which is that two of them have the same three cells.
func Failure(n int) float64 {
	pairs := float64(n) * float64(n-1) / 2
	return -math.Expm1(-pairs / math.Pow(float64(Cells(n)/parts), parts))
}

// Table is a table of 64-bit hashes, a multiset: one that was added twice must be
// removed twice. The hashes must be random, also where an adversary selects the elements. A Table is
// not safe for concurrent use.
type Table struct {
	words []uint64 // count, sum of the hashes, sum of their checks of each cell
	cells uint32   // of a part
}

// New returns a table over words as they are, of a size that [Words] returns; zeros are
// an empty table.
func New(words []uint64) (*Table, error) {
	if len(words) == 0 || len(words)%(parts*cellWords) != 0 {
		return nil, fmt.Errorf("invertible: %d words are no table", len(words))
	}
	return &Table{words, uint32(len(words) / (parts * cellWords))}, nil
}

// Add adds the element with hash h.
func (t *Table) Add(h uint64) { t.add(h, 1) }

// Remove removes the element with hash h, which need not be there: [Table.List] then has it
// among those that were removed more often than added.
func (t *Table) Remove(h uint64) { t.add(h, ^uint64(0)) }

// add adds the element with hash h a number of times, which may be negative.
func (t *Table) add(h, times uint64) {
	c := check(h)
	for p := range uint64(parts) {
		w := t.cell(h, p)
		w[0] += times
		w[1] += times * h
		w[2] += times * c
	}
}

// cell returns the cell of h in a part.
func (t *Table) cell(h, part uint64) *[cellWords]uint64 {
	i := (uint64(hash.Reduce(hash.Nth(h, part+1), t.cells)) + part*uint64(t.cells)) * cellWords
	return (*[cellWords]uint64)(t.words[i:])
}

// check distinguishes a cell of one element from one of several whose counts add up to one.
func check(h uint64) uint64 { return hash.Nth(h, parts+1) }

// Minus returns the table of the difference from another one of the same size.
func (t *Table) Minus(other *Table) *Table {
	d := &Table{make([]uint64, len(t.words)), t.cells}
	for i, w := range t.words {
		d.words[i] = w - other.words[i]
	}
	return d
}

// List empties the table, and returns its elements: those that were added more often
// than removed, and those that were removed more often. It reports false if they are too
// many to be listed, or the table is damaged.
func (t *Table) List() (added, removed []uint64, ok bool) {
	// A cell is looked at again when one of its elements has gone.
	var queue []uint64
	for i := range uint64(t.cells) * parts {
		queue = append(queue, i)
	}
	for most := len(t.words); len(queue) > 0; {
		w := (*[cellWords]uint64)(t.words[queue[len(queue)-1]*cellWords:])
		queue = queue[:len(queue)-1]
		times := w[0]
		if times != 1 && times != ^uint64(0) {
			continue
		}
		h := times * w[1]
		if times*w[2] != check(h) {
			continue
		}
		if times == 1 {
			added = append(added, h)
		} else {
			removed = append(removed, h)
		}
		if len(added)+len(removed) > most {
			return nil, nil, false // of a damaged table, elements may come and go for ever
		}
		t.add(h, -times)
		for p := range uint64(parts) {
			queue = append(queue, uint64(hash.Reduce(hash.Nth(h, p+1), t.cells))+p*uint64(t.cells))
		}
	}
	for _, w := range t.words {
		if w != 0 {
			return nil, nil, false
		}
	}
	return added, removed, true
}
