// Package sketch counts the traffic of every flow in memory that does not grow
// with the number of flows, and finds the heavy hitters.
//
// A Sketch is an array of counters, d of which belong to each flow. A flow's
// estimate is the least of its d counters, and is never too small. Updates are
// plain, as in the count-min sketch (Cormode and Muthukrishnan, "An improved data
// stream summary", 2005) or conservatively (Estan and Varghese, "New directions
// in traffic measurement and accounting", 2002; Broder and Mitzenmacher's
// survey, section 8.1). A Bank adds Estan and Varghese's flow memory to a
// conservative sketch: a flow whose estimate reaches a limit is counted exactly
// from then on.
//
// All data is in plain arrays addressed by hash.Nth, so that a program in the
// kernel can maintain the same counters bit for bit: bpf/tracker.h is the twin
// of Tracker and Bank, which work on kernel memory as well as on the heap.
package sketch

import (
	"fmt"
	"math"
	"math/bits"

	"weir/filter/hash"
)

// MaxRows is the maximum number of counters of a flow.
const MaxRows = 8

// golden is 2⁶⁴ divided by the golden ratio, an odd number.
const golden = 0x9e3779b97f4a7c15

// lineBytes is the size of a line of the TwoLines layout, one cache line.
const lineBytes = 64

// Counter is the width of a sketch's counters. Counters saturate. At 100 Gb/s
// (148.8 million packets, 12.5 GB per second) 32 bits suffice for 28 s of
// packets but 0.34 s of bytes, and 64 bits for 46 years of bytes. A Bank, which
// only compares with a limit of at most 2³¹, may count bytes in 32 bits.
type Counter interface{ uint32 | uint64 }

// Layout determines the positions of a flow's counters. Both layouts derive
// them from the 64-bit hash h of the flow's key.
type Layout uint8

const (
	// Rows is the standard layout: row i, of Width counters, contains the
	// flow's counter i at hash.Reduce(hash.Nth(h, i), Width). The rows are
	// independent, as the proven bounds require.
	Rows Layout = iota

	// TwoLines puts the counters of a flow in two lines of 64 bytes, one in
	// each half of the array, so that a packet costs two concurrent cache
	// misses: lines hash.Reduce(h<<16, Width/2) and hash.Reduce(z, Width/2) for
	// z = h·golden. A line is divided among half of the rows, and the position
	// within each part is taken from the low bits of h, and from bit 16 of z
	// on, the first row lowest. Two flows in one line share counters far more
	// often than two flows in one row, so the bounds for independent rows apply
	// only to two rows, one in each line: the lines are independent.
	TwoLines
)

// String returns the layout's name.
func (l Layout) String() string {
	switch l {
	case Rows:
		return "rows"
	case TwoLines:
		return "two lines"
	}
	return fmt.Sprintf("layout %d", uint8(l))
}

// Sketch is an array of counters that estimates, for each flow, the units
// (packets, bytes) that were added with its hash. It is not safe for concurrent
// use; the data plane has one per CPU.
type Sketch[C Counter] struct {
	layout   Layout
	rows     int
	width    uint32 // counters of a row, or lines of a half
	part     uint32 // TwoLines: counters that a row has in a line, a power of two
	shift    uint   // TwoLines: log2(part)
	counters []C
}

// New returns an empty sketch. A flow has rows counters, 1…MaxRows (4 is
// usual). In layout Rows width is the number of counters per row; in layout
// TwoLines it is the number of lines of 64 bytes, which must be even, and rows
// must be 2, 4 or 8. It fails if an argument is out of range.
func New[C Counter](layout Layout, rows, width int) (*Sketch[C], error) {
	if rows < 1 || rows > MaxRows {
		return nil, fmt.Errorf("sketch: %d rows, want 1 to %d", rows, MaxRows)
	}
	if width < 1 || width > math.MaxInt32 {
		return nil, fmt.Errorf("sketch: width %d, want 1 to %d", width, math.MaxInt32)
	}
	n := rows * width
	if layout == TwoLines {
		n = width * lanes[C]()
	}
	return Over(layout, rows, make([]C, n))
}

// Over returns a sketch over counters that are zero or were filled by a sketch
// of the same layout and rows; their number determines the width. It fails as
// New does, or if the counters do not divide into rows or lines.
func Over[C Counter](layout Layout, rows int, counters []C) (*Sketch[C], error) {
	if rows < 1 || rows > MaxRows {
		return nil, fmt.Errorf("sketch: %d rows, want 1 to %d", rows, MaxRows)
	}
	s := &Sketch[C]{layout: layout, rows: rows, counters: counters}
	each := rows // counters per unit of width
	switch layout {
	case Rows:
	case TwoLines:
		if rows < 2 || rows&(rows-1) != 0 {
			return nil, fmt.Errorf("sketch: %d rows, want 2, 4 or 8 in two lines", rows)
		}
		each = 2 * lanes[C]()
		s.part = uint32(each / rows)
		s.shift = uint(bits.TrailingZeros32(s.part))
	default:
		return nil, fmt.Errorf("sketch: unknown layout %d", layout)
	}
	width := len(counters) / each
	if width < 1 || width > math.MaxInt32 || len(counters)%each != 0 {
		return nil, fmt.Errorf("sketch: %d counters, want a multiple of %d, up to %d times", len(counters), each, math.MaxInt32)
	}
	s.width = uint32(width)
	return s, nil
}

// lanes returns the number of counters in a line.
func lanes[C Counter]() int {
	return lineBytes / width[C]()
}

// at returns the indices of the flow's counters.
func (s *Sketch[C]) at(h uint64, buf *[MaxRows]int) []int {
	at := buf[:s.rows]
	if s.layout == TwoLines {
		inLine := s.rows / 2
		// The first line uses bits of the hash that nothing else depends on,
		// the upper ones select a Bank's bucket; the second line needs other
		// ones, by Fibonacci hashing.
		z := h * golden
		for half, choice := range [2]struct {
			line uint64 // its upper 32 bits
			low  uint32 // four rows of at most four bits each
		}{{h << 16, uint32(h)}, {z, uint32(z) >> 16}} {
			line := (half*int(s.width) + int(hash.Reduce(choice.line, s.width))) * lanes[C]()
			low := choice.low
			for i := range inLine {
				at[half*inLine+i] = line + i*int(s.part) + int(low&(s.part-1))
				low >>= s.shift
			}
		}
		return at
	}
	for i := range at {
		at[i] = i*int(s.width) + int(hash.Reduce(hash.Nth(h, uint64(i)), s.width))
	}
	return at
}

// Add adds n units to all counters of the flow with hash h, as the count-min
// sketch does.
func (s *Sketch[C]) Add(h, n uint64) {
	var buf [MaxRows]int
	for _, j := range s.at(h, &buf) {
		s.counters[j] = plus(s.counters[j], n)
	}
}

// AddConservative adds n units to the flow with hash h by conservative update
// and returns the flow's new estimate: the flow had at most its least counter,
// hence now has at most that plus n, and counters above that sum stay as they
// are (survey, section 8.1 and Figure 2). No counter is higher than Add would
// have left it.
func (s *Sketch[C]) AddConservative(h, n uint64) uint64 {
	var buf [MaxRows]int
	at := s.at(h, &buf)
	c := plus(s.least(at), n)
	s.raise(at, c)
	return uint64(c)
}

func (s *Sketch[C]) raise(at []int, c C) {
	for _, j := range at {
		s.counters[j] = max(s.counters[j], c)
	}
}

// Estimate returns the number of units of the flow with hash h. It is never too
// small; ErrorBound bounds the probability that it is too large.
func (s *Sketch[C]) Estimate(h uint64) uint64 {
	var buf [MaxRows]int
	return uint64(s.least(s.at(h, &buf)))
}

func (s *Sketch[C]) least(at []int) C {
	c := s.counters[at[0]]
	for _, j := range at[1:] {
		c = min(c, s.counters[j])
	}
	return c
}

// Reset sets all counters to zero.
func (s *Sketch[C]) Reset() { clear(s.counters) }

// Counters returns the array of counters, not a copy, row by row or line by
// line.
func (s *Sketch[C]) Counters() []C { return s.counters }

// plus adds, and saturates.
func plus[C Counter](c C, n uint64) C {
	if n > uint64(^C(0)-c) {
		return ^C(0)
	}
	return c + C(n)
}

// Dimensions returns the rows and the width of the Rows layout for which an
// estimate exceeds the truth by more than epsilon·N with probability at most
// delta, N being the sum of all additions: width ⌈e/ε⌉ and ⌈ln 1/δ⌉ rows
// (Cormode and Muthukrishnan, Theorem 1). Both arguments are in (0, 1).
func Dimensions(epsilon, delta float64) (rows, width int) {
	return int(math.Ceil(-math.Log(delta))), int(math.Ceil(math.E / epsilon))
}

// ErrorBound bounds the probability that the estimate of one flow exceeds the
// truth by at least excess when other flows have added total: (total / (width ·
// excess))^rows. In each row the others leave total/width in the flow's counter
// on average, so that Markov's inequality applies, and the rows are
// independent. With excess T − s it is the probability that a flow of s units
// passes a multistage filter of threshold T (Estan and Varghese, Lemma 1).
//
// It is proven for layout Rows with either update. In layout TwoLines the rows
// of a line are not independent, and only the bound for two rows, one of each
// line, is proven: use rows = 2 and width = half of the lines · counters of
// each row in a line.
func ErrorBound(rows, width int, excess, total float64) float64 {
	return min(1, math.Pow(total/(float64(width)*excess), float64(rows)))
}

// PassingFlows bounds the expected number of flows that pass a multistage
// filter of the Rows layout in an interval, given the number of flows and their
// total units, and so the entries that a flow memory needs: the i-th largest
// flow has at most total/i units, and Lemma 1 of Estan and Varghese bounds the
// probability that it passes. (Their theorem bounds this sum by a closed form.)
func PassingFlows(rows, width, flows int, threshold, total float64) float64 {
	var passing float64
	for i := 1; i <= flows; i++ {
		if size := total / float64(i); size < threshold {
			passing += ErrorBound(rows, width, threshold-size, total)
		} else {
			passing++
		}
	}
	return passing
}
