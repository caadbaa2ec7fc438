// Package stable detects duplicates in endless streams in constant memory, by
// forgetting.
//
// It implements the five filters that Boraskar, Gabale, Kulkarni and Kulkarni
// compare in "Importance-aware Bloom Filter", 2013: the standard Bloom filter, the
// stable Bloom filter (Deng and Rafiei 2006), and the importance-aware filters
// with two classes (IBF-2C), with many (IBF-MC), and with deletion by value
// (IBF-H). All are an array of m cells of d bits, K of which belong to an item.
// An item sets its cells to a level between 1 and M = 2^d − 1, and for every
// item P other cells are decremented, so that old and unimportant items fade
// and the false-positive rate converges instead of growing to 1.
//
// The code departs from the paper as follows:
//
//   - Algorithm 1 (IBF-2C) as printed raises a cell to M even for an unimportant
//     item once it is at M/2. Here an unimportant item raises its cells to
//     M/2 and leaves higher ones alone, as in the paper's text and Markov chain.
//   - M = 2^d − 1 is odd. M/2 is rounded up.
//   - In the proof of Theorem III.1, V_{M/2} must carry (1 − A + B), not
//     (1 − A − B). Stationary avoids the case distinction altogether.
//   - Theorems III.3 and III.7 call m·V₀ a fraction of zeros; it is their
//     number.
//   - With the parameters of Table III the stable false-positive rate
//     (1 − V₀)^K is far above the 20 % that section IV-A states.
//   - The paper counts a false negative if a cell was decremented to zero at any
//     time since the item arrived. A cell may have been set again by others since:
//     FalseNegative uses the cell's value at the time of the query.
package stable

import (
	"fmt"
	"math/rand/v2"

	"weir/filter/hash"
)

// Algorithm is one of the five combinations of an insertion and a deletion
// procedure in Table IV of the paper.
type Algorithm uint8

const (
	BF    Algorithm = iota // standard Bloom filter: cells of one bit, nothing is deleted
	SBF                    // stable: every item sets its cells to M, random cells are decremented
	IBF2C                  // two classes: M or M/2, random cells are decremented (Algorithm 1)
	IBFMC                  // many classes: the item's level, random cells are decremented (Algorithm 2)
	IBFH                   // many classes, cells are decremented with probability inverse to their value
)

// Algorithms lists all five, in the order of Table II.
var Algorithms = []Algorithm{BF, SBF, IBF2C, IBFMC, IBFH}

// String returns the paper's name.
func (a Algorithm) String() string {
	if names := [...]string{"BF", "SBF", "IBF-2C", "IBF-MC", "IBF-H"}; int(a) < len(names) {
		return names[a]
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

// Params are the parameters of a filter, named as in Table I.
type Params struct {
	Algorithm Algorithm
	Cells     int // m, at least 1
	Bits      int // d, bits of a cell, 1…8; 1 for BF
	K         int // cells of an item, at least 1
	P         int // cells decremented for each item, at least 1; 0 for BF
}

// Within returns the parameters that fill the given memory: as many cells of d
// bits (one bit for BF, which has no use for more) as fit.
func Within(a Algorithm, bytes, bits, k, p int) Params {
	if a == BF {
		bits, p = 1, 0
	}
	return Params{Algorithm: a, Cells: bytes * 8 / max(bits, 1), Bits: bits, K: k, P: p}
}

func (p Params) check() error {
	switch {
	case int(p.Algorithm) >= len(Algorithms):
		return fmt.Errorf("stable: unknown %v", p.Algorithm)
	case p.Cells < 1 || p.Cells > 1<<31:
		return fmt.Errorf("stable: %d cells, want 1 to %d", p.Cells, 1<<31)
	case p.Bits < 1 || p.Bits > 8 || p.Algorithm == BF && p.Bits != 1:
		return fmt.Errorf("stable: %v with cells of %d bits", p.Algorithm, p.Bits)
	case p.K < 1:
		return fmt.Errorf("stable: %d cells per item, want at least 1", p.K)
	case p.P < 0 || (p.P == 0) != (p.Algorithm == BF):
		return fmt.Errorf("stable: %v with %d decrements per item", p.Algorithm, p.P)
	}
	return nil
}

// M returns the largest value of a cell, 2^d − 1.
func (p Params) M() int { return 1<<p.Bits - 1 }

// Level maps an importance of 1…most uniformly onto the levels 1…M. It is the
// paper's function f, which the paper does not specify.
func (p Params) Level(importance, most int) int {
	return 1 + (importance-1)*p.M()/most
}

// sets returns the value to which an item of a level raises its cells.
func (p Params) sets(level int) int {
	switch p.Algorithm {
	case IBFMC, IBFH:
		return level
	case IBF2C:
		// f(imp) < M/2 in Algorithm 1, for odd M.
		if half := (p.M() + 1) / 2; level < half {
			return half
		}
	}
	return p.M()
}

// Filter is an array of cells. It is not safe for concurrent use.
type Filter struct {
	Params
	cells []byte // cell i in bits i·d… , least significant first, and a byte to spare
	rng   *rand.Rand
}

// New returns an empty filter that draws the cells to decrement from source. It
// fails if the parameters are out of range.
func New(p Params, source rand.Source) (*Filter, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	return &Filter{p, make([]byte, (p.Cells*p.Bits+7)/8+1), rand.New(source)}, nil
}

// A cell of at most 8 bits lies in two neighbouring bytes.

func (f *Filter) cell(i int) int {
	bit := i * f.Bits
	b := f.cells[bit>>3:]
	return (int(b[0]) | int(b[1])<<8) >> (bit & 7) & f.M()
}

func (f *Filter) setCell(i, v int) {
	bit := i * f.Bits
	b, shift := f.cells[bit>>3:], bit&7
	w := int(b[0]) | int(b[1])<<8
	w = w&^(f.M()<<shift) | v<<shift
	b[0], b[1] = byte(w), byte(w>>8)
}

// place returns the index of the item's i-th cell.
func (f *Filter) place(h uint64, i int) int {
	return int(hash.Reduce(hash.Nth(h, uint64(i)), uint32(f.Cells)))
}

// Contains reports whether the item with hash h appears to have occurred: all
// of its cells are nonzero. Both answers can be wrong, for BF only the positive
// one.
func (f *Filter) Contains(h uint64) bool {
	for i := range f.K {
		if f.cell(f.place(h, i)) == 0 {
			return false
		}
	}
	return true
}

// Add decrements P cells and then raises the cells of the item with hash h
// according to its level, 1…M (1 is the least important; BF and SBF ignore it).
// It panics on another level.
func (f *Filter) Add(h uint64, level int) {
	if level < 1 || level > f.M() && f.Algorithm != BF {
		panic(fmt.Sprintf("stable: level %d of an item, want 1 to %d", level, f.M()))
	}
	for range f.P {
		f.sink()
	}
	v := f.sets(level)
	for i := range f.K {
		if j := f.place(h, i); f.cell(j) < v {
			f.setCell(j, v)
		}
	}
}

// Observe returns a step of the paper's algorithms: it reports whether the item
// appears to have occurred before, and adds it.
func (f *Filter) Observe(h uint64, level int) (duplicate bool) {
	duplicate = f.Contains(h)
	f.Add(h, level)
	return duplicate
}

// maxDraws bounds the attempts to decrement one cell by value. In a nearly
// empty filter all may fail, and its few items stay.
const maxDraws = 64

// sink decrements one cell.
func (f *Filter) sink() {
	if f.Algorithm != IBFH {
		i := f.rng.IntN(f.Cells)
		if v := f.cell(i); v > 0 {
			f.setCell(i, v-1)
		}
		return
	}
	// Accepting a random cell with probability 1/v selects a nonzero cell with
	// probability inverse to its value (section IV-C).
	for range maxDraws {
		i := f.rng.IntN(f.Cells)
		if v := f.cell(i); v > 0 && f.rng.IntN(v) == 0 {
			f.setCell(i, v-1)
			return
		}
	}
}

// Zeros returns the fraction of cells at zero.
func (f *Filter) Zeros() float64 { return f.Values()[0] }

// Values returns the distribution of the cells' values: entry v is the fraction
// of cells with value v, 0…M.
func (f *Filter) Values() []float64 {
	d := make([]float64, f.M()+1)
	for i := range f.Cells {
		d[f.cell(i)]++
	}
	for v := range d {
		d[v] /= float64(f.Cells)
	}
	return d
}

// Bytes returns the size of the cells in bytes.
func (f *Filter) Bytes() int { return len(f.cells) - 1 }
