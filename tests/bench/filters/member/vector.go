package member

import "math"

// vectorLoad is how full the vector quotient filter is planned (section 5: up to 0.93 to 0.95).
const vectorLoad = 0.93

// Blocks of the vector quotient filter are lines of 64 bytes (section 4.1).
var (
	vector8  = pocket{quotients: 80, slots: 48, width: 8, first: 128, size: 8}
	vector16 = pocket{quotients: 36, slots: 28, width: 16, first: 64, size: 8}
)

// vectorKind is the vector quotient filter of Pandey et al.
var vectorKind = Kind{
	Name:    "vector quotient",
	Source:  "Pandey et al., Vector Quotient Filters, SIGMOD 2021, sections 3 and 4",
	Changes: "add, delete",
	Bits: func(n int, r float64) float64 {
		if r > 16 {
			return math.Inf(1)
		}
		return float64(vectorBlocks(n, r)*512) / float64(n)
	},
	Rate: func(n int, r float64) float64 {
		p := vectorOf(r)
		each := float64(n) / float64(vectorBlocks(n, r)*p.quotients) // remainders of a quotient
		return -math.Expm1(-2 * each * exp2(float64(p.width)))
	},
	Build: func(keys []uint64, r float64, seed uint64) (Filter, error) {
		return retry(seed, func(seed uint64) (Filter, bool) {
			f := newVector(vectorOf(r), vectorBlocks(len(keys), r), seed)
			for _, k := range keys {
				if !f.add(k) {
					return nil, false
				}
			}
			return f, true
		})
	},
}

func vectorOf(r float64) *pocket {
	if r <= 8 {
		return &vector8
	}
	return &vector16
}

func vectorBlocks(n int, r float64) int {
	return int(math.Ceil(float64(n) / float64(vectorOf(r).slots) / vectorLoad))
}

// vector puts each fingerprint into the emptier of two blocks. As in the cuckoo filter, the
// other block follows from the fingerprint, so that a delete cannot take that of another key.
type vector struct {
	memory
	*pocket
	blocks int
	seed   uint64
}

func newVector(p *pocket, blocks int, seed uint64) *vector {
	f := &vector{newMemory(blocks * 512), p, blocks, seed}
	for b := range blocks {
		p.clear(&f.memory, b*p.size)
	}
	return f
}

// place returns a key's fingerprint and the words at which its blocks begin.
func (f *vector) place(key uint64) (quotient int, remainder uint64, first, second int) {
	h := mix(key, f.seed)
	remainder = h & (1<<f.width - 1)
	quotient = int(h >> f.width & 0xffff * uint64(f.quotients) >> 16)
	first = reduce(h, f.blocks)
	second = reduce(mix(uint64(quotient)<<f.width|remainder, f.seed), f.blocks) - first
	if second < 0 {
		second += f.blocks
	}
	return quotient, remainder, first * f.size, second * f.size
}

// add fails if both blocks are full.
func (f *vector) add(key uint64) bool {
	quotient, remainder, at, second := f.place(key)
	n := f.count(f.head(&f.memory, at))
	if m := f.count(f.head(&f.memory, second)); m < n {
		at, n = second, m
	}
	if n == f.slots {
		return false
	}
	f.pocket.add(&f.memory, at, quotient, remainder)
	return true
}

func (f *vector) Contains(key uint64) bool {
	quotient, remainder, first, second := f.place(key)
	if i, _, _ := f.find(&f.memory, first, quotient, remainder); i >= 0 {
		return true
	}
	i, _, _ := f.find(&f.memory, second, quotient, remainder)
	return i >= 0
}

func (f *vector) Delete(key uint64) {
	quotient, remainder, first, second := f.place(key)
	for _, at := range []int{first, second} {
		if i, _, _ := f.find(&f.memory, at, quotient, remainder); i >= 0 {
			f.remove(&f.memory, at, quotient, i)
			return
		}
	}
}

func (f *vector) Bits() int            { return f.blocks * 512 }
func (f *vector) Reads(key uint64) int { return f.watch(func() { f.Contains(key) }) }
