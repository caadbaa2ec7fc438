package member

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/FastFilter/xorfilter"
)

// xorKind is the xor filter, of the library by its authors, which has 8 bits.
var xorKind = Kind{
	Name:   "xor",
	Source: "Graf, Lemire, Xor Filters, JEA 2020, section 3 (FastFilter/xorfilter)",
	Bits: func(n int, r float64) float64 {
		if r > 8 {
			return math.Inf(1)
		}
		return 8 * 3 * math.Floor((32+math.Ceil(1.23*float64(n)))/3) / float64(n)
	},
	Rate: func(int, float64) float64 { return exp2(8) },
	Build: func(keys []uint64, _ float64, _ uint64) (Filter, error) {
		f, err := xorfilter.Populate(slices.Clone(keys))
		if err != nil {
			return nil, err
		}
		return library{f.Contains, 8 * len(f.Fingerprints)}, nil
	},
}

// fuseKind is the binary fuse filter of three segments, of the same library.
var fuseKind = Kind{
	Name:   "binary fuse",
	Source: "Graf, Lemire, Binary Fuse Filters, JEA 2022, section 3 (FastFilter/xorfilter)",
	Bits: func(n int, r float64) float64 {
		width := fuseWidth(r)
		return width * float64(fuseLength(n)) / float64(n)
	},
	Rate: func(_ int, r float64) float64 { return exp2(fuseWidth(r)) },
	Build: func(keys []uint64, r float64, _ uint64) (Filter, error) {
		switch keys := slices.Clone(keys); fuseWidth(r) {
		case 8:
			return fuse[uint8](keys, 8)
		case 16:
			return fuse[uint16](keys, 16)
		}
		return fuse[uint32](slices.Clone(keys), 32)
	},
}

func fuseWidth(r float64) float64 {
	switch {
	case r <= 8:
		return 8
	case r <= 16:
		return 16
	}
	return 32
}

// fuseLength returns the number of fingerprints, as the library computes it: that depends on
// the number of keys alone.
func fuseLength(n int) int {
	segment := 1 << min(18, int(math.Floor(math.Log(float64(n))/math.Log(3.33)+2.25)))
	capacity := math.Round(float64(n) * max(1.125, 0.875+0.25*math.Log(1e6)/math.Log(float64(n))))
	count := max(1, int(math.Ceil(capacity/float64(segment)))-2)
	return (count + 2) * segment
}

func fuse[T xorfilter.Unsigned](keys []uint64, width int) (Filter, error) {
	f, err := xorfilter.NewBinaryFuse[T](keys)
	if err != nil {
		return nil, err
	}
	return library{f.Contains, width * len(f.Fingerprints)}, nil
}

// library is a filter of the library. Its look-ups read three fingerprints in different thirds
// or segments, and so three lines, whatever they find.
type library struct {
	contains func(uint64) bool
	bits     int
}

func (f library) Contains(key uint64) bool { return f.contains(key) }
func (f library) Bits() int                { return f.bits }
func (f library) Reads(uint64) int         { return 3 }

// ribbonKind is the homogeneous ribbon filter, with 128 coefficients to a key.
var ribbonKind = Kind{
	Name: "ribbon",
	Source: "Dillinger et al., Fast Succinct Retrieval and Approximate Membership Using Ribbon, SEA 2022, " +
		"section 3 (homogeneous, w = 128)",
	Bits: func(n int, r float64) float64 {
		width := int(math.Ceil(r))
		return float64(ribbonRows(n, width)*width) / float64(n)
	},
	Rate: func(_ int, r float64) float64 { return exp2(math.Ceil(r)) },
	Build: func(keys []uint64, r float64, seed uint64) (Filter, error) {
		return newRibbon(keys, int(math.Ceil(r)), seed), nil
	},
}

const ribbonWidth = 128 // coefficients of a key

// ribbonRows returns the number of rows: the overhead of RocksDB's implementation by the same
// authors, so that hardly any key's equations use up all of theirs.
func ribbonRows(n, width int) int {
	rows := float64(n) * (1 + (4+0.25*float64(width))/ribbonWidth)
	return (int(math.Ceil(rows/ribbonWidth)) + 1) * ribbonWidth
}

// row is 128 coefficients, or as many bits of a column of the solution.
type row struct{ low, high uint64 }

func (a row) parity(b row) uint64 {
	return uint64(bits.OnesCount64(a.low&b.low^a.high&b.high)) & 1
}

func (a row) shiftRight(n int) row {
	if n >= 64 {
		return row{a.high >> (n - 64), 0}
	}
	return row{a.low>>n | a.high<<(64-n), a.high >> n}
}

func (a row) shiftLeft(n int) row {
	if n >= 64 {
		return row{0, a.low << (n - 64)}
	}
	return row{a.low << n, a.high<<n | a.low>>(64-n)}
}

// ribbon is a random solution of a system of linear equations over bits: a key's are that in
// each column, its coefficients times the rows from its first on are 0. Columns are stored in
// blocks of 128 rows, one after the other.
type ribbon struct {
	memory
	rows, width int
	seed        uint64
}

// place returns a key's first row and its coefficients.
func (f *ribbon) place(key uint64) (first int, c row) {
	h := mix(key, f.seed)
	return reduce(h, f.rows-ribbonWidth+1), row{mix(h, 1) | 1, mix(h, 2)}
}

func newRibbon(keys []uint64, width int, seed uint64) *ribbon {
	rows := ribbonRows(len(keys), width)
	f := &ribbon{newMemory(rows * width), rows, width, seed}
	// Gaussian elimination: row i has an equation whose first coefficient is its own.
	equations := make([]row, rows)
	for _, key := range keys {
		first, c := f.place(key)
		for c != (row{}) {
			n := bits.TrailingZeros64(c.low)
			if c.low == 0 {
				n = 64 + bits.TrailingZeros64(c.high)
			}
			first, c = first+n, c.shiftRight(n)
			if e := equations[first]; e != (row{}) {
				c.low, c.high = c.low^e.low, c.high^e.high
				continue
			}
			equations[first] = c
			break
		}
	}
	// Back substitution, from the last row on. after is, of each column, the rows behind the
	// present one. Rows without an equation are random.
	r := rand.New(rand.NewPCG(seed, 0))
	after := make([]row, width)
	for i := rows - 1; i >= 0; i-- {
		random := r.Uint64()
		for column := range after {
			a := after[column].shiftLeft(1)
			if e := equations[i]; e != (row{}) {
				a.low |= a.parity(e)
			} else {
				a.low |= random >> column & 1
			}
			after[column] = a
			if i%ribbonWidth == 0 {
				at := f.column(i/ribbonWidth, column)
				f.words[at], f.words[at+1] = a.low, a.high
			}
		}
	}
	return f
}

// column returns the word at which the column of a block begins.
func (f *ribbon) column(block, column int) int { return (block*f.width + column) * ribbonWidth / 64 }

func (f *ribbon) Contains(key uint64) bool {
	first, c := f.place(key)
	block, offset := first/ribbonWidth, first%ribbonWidth
	here, next := c.shiftLeft(offset), c.shiftRight(ribbonWidth-offset)
	for column := range f.width {
		at := f.column(block, column)
		parity := here.parity(row{f.at(at), f.at(at + 1)})
		if offset > 0 {
			at = f.column(block+1, column)
			parity ^= next.parity(row{f.at(at), f.at(at + 1)})
		}
		if parity != 0 {
			return false
		}
	}
	return true
}

func (f *ribbon) Bits() int            { return f.rows * f.width }
func (f *ribbon) Reads(key uint64) int { return f.watch(func() { f.Contains(key) }) }
