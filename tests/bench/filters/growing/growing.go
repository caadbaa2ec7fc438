// Package growing has filters that grow with their set. They are written to be read.
package growing

import (
	"math"

	"weir/filter/bloom"
	"weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/hash"
)

// Filter is a set that grows.
type Filter interface {
	Add(key uint64)
	Contains(key uint64) bool
	Bits() int // of its memory now
	Peak() int // of its memory at most, while it grew
}

// Kind makes a filter for a number of keys at first, with a rate of false positives of 2^-r.
type Kind struct {
	Name, Source string
	Weir         bool
	Keys         bool // growing takes the keys
	New          func(first, r int, seed uint64) Filter
}

// Kinds are all kinds.
var Kinds = []Kind{
	{"a new cascade at each doubling", "filter/cascade", true, true, newAnew},
	{"scalable Bloom", "Almeida, Baquero, Preguiça, Hutchison, Scalable Bloom Filters, Inf. Proc. Letters 2007", false, false, newScalable},
	{"InfiniFilter", "Dayan, Bercea, Reviriego, Pagh, InfiniFilter: Expanding Filters to Infinity and Beyond, SIGMOD 2023; of fixed width", false, false, newInfini},
}

// anew makes a filter for twice the keys when it is full, from all of them.
type anew struct {
	cascade  *cascade.Filter
	keys     []uint64
	room, r  int
	seed     uint64
	now, top int
}

func newAnew(first, r int, seed uint64) Filter {
	f := &anew{room: first, r: r, seed: seed}
	f.build()
	return f
}

func (f *anew) build() {
	lines := uint32(1)
	for l := fpr.BestCascade(f.room, lines, fpr.MaxFurther); l.Rate(f.room) > math.Exp2(-float64(f.r)); l = fpr.BestCascade(f.room, lines, fpr.MaxFurther) {
		lines += lines/32 + 1
	}
	l := fpr.BestCascade(f.room, lines, fpr.MaxFurther)
	f.cascade = cascade.New(make([]uint64, int(l.Lines)*cascade.LineWords), l.First, l.Rest)
	f.top = max(f.top, f.now+l.Bits()) // both are there until packets ask the new one
	f.now = l.Bits()
	for _, k := range f.keys {
		f.cascade.Add(hash.Nth(k^f.seed, 0))
	}
}

func (f *anew) Add(key uint64) {
	if len(f.keys) == f.room {
		f.room *= 2
		f.build()
	}
	f.keys = append(f.keys, key)
	f.cascade.Add(hash.Nth(key^f.seed, 0))
}

func (f *anew) Contains(key uint64) bool { return f.cascade.Contains(hash.Nth(key^f.seed, 0)) }
func (f *anew) Bits() int                { return f.now }
func (f *anew) Peak() int                { return f.top }

// scalable is a series of filters, each for twice as many keys as the last one, and of half its
// rate, so that the sum of all rates stays below the wanted one.
type scalable struct {
	filters []*bloom.Filter
	left    int // keys that the last one has room for
	first   int
	rate    float64
	seed    uint64
}

func newScalable(first, r int, seed uint64) Filter {
	return &scalable{first: first, rate: math.Exp2(-float64(r)), seed: seed}
}

func (f *scalable) Add(key uint64) {
	if f.left == 0 {
		i := len(f.filters)
		f.left = f.first << max(0, i-1) // as many as all before: the set doubles
		g, err := bloom.For(uint64(f.left), f.rate*math.Exp2(-float64(i+1)))
		if err != nil {
			panic(err) // cannot happen for the sizes of the comparison
		}
		f.filters = append(f.filters, bloom.New(g, f.seed))
	}
	f.left--
	f.filters[len(f.filters)-1].AddHash(hash.Nth(key^f.seed, 0))
}

func (f *scalable) Contains(key uint64) bool {
	h := hash.Nth(key^f.seed, 0)
	for _, b := range f.filters {
		if b.ContainsHash(h) {
			return true
		}
	}
	return false
}

func (f *scalable) Bits() (bits int) {
	for _, b := range f.filters {
		bits += int(b.M())
	}
	return bits
}

func (f *scalable) Peak() int { return f.Bits() }

// infini is a quotient filter in which fingerprints have different lengths: when the table
// doubles, each moves its lowest bit into its place, and entries of then on have whole ones. Its
// runs are slices here, and its slots are counted as published: the fingerprint's bits, one to
// end it in unary, and three of a quotient filter, at a load of 0.8 at most. A fingerprint that
// has no bits left, an entry that matches all of its place, would leave for a second table after
// as many doublings as it has bits, which are more than here.
type infini struct {
	runs     [][]print
	log      int // of the number of places
	width, n int
	seed     uint64
	top      int
}

// print is a fingerprint, of its upper bits.
type print struct {
	bits uint64
	len  int
}

const infiniLoad = 0.8

func newInfini(first, r int, seed uint64) Filter {
	f := &infini{width: r + 1, seed: seed} // one more, for what doublings take
	for infiniLoad*float64(int(1)<<f.log) < float64(first) {
		f.log++
	}
	f.runs = make([][]print, 1<<f.log)
	return f
}

// of returns the place of a hash, its first bits from below, and all bits behind them.
func (f *infini) of(key uint64) (place, rest uint64) {
	h := hash.Nth(key^f.seed, 0)
	return h & (1<<f.log - 1), h >> f.log
}

func (f *infini) Add(key uint64) {
	if float64(f.n) >= infiniLoad*float64(len(f.runs)) {
		f.double()
	}
	place, rest := f.of(key)
	f.runs[place] = append(f.runs[place], print{rest & (1<<f.width - 1), f.width})
	f.n++
}

func (f *infini) double() {
	before := f.Bits()
	runs := make([][]print, 2*len(f.runs))
	for place, run := range f.runs {
		for _, p := range run {
			if p.len == 0 { // it may be in either half
				runs[place] = append(runs[place], p)
				runs[place+len(f.runs)] = append(runs[place+len(f.runs)], p)
				continue
			}
			to := place + int(p.bits&1)*len(f.runs)
			runs[to] = append(runs[to], print{p.bits >> 1, p.len - 1})
		}
	}
	f.runs = runs
	f.log++
	f.top = max(f.top, before+f.Bits())
}

func (f *infini) Contains(key uint64) bool {
	place, rest := f.of(key)
	for _, p := range f.runs[place] {
		if rest&(1<<p.len-1) == p.bits {
			return true
		}
	}
	return false
}

func (f *infini) Bits() int { return len(f.runs) * (f.width + 1 + 3) }
func (f *infini) Peak() int { return max(f.top, f.Bits()) }
