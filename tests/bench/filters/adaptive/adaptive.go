// Package adaptive has filters that mend a false positive once it is reported to them, so that one
// element is not a false positive for ever. They are written to be read.
package adaptive

import (
	"math"
	"math/rand/v2"

	"weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/membership"
	"weir/filter/weighted"
)

// Filter answers whether a key may be in a set: always yes if it is.
type Filter interface {
	Contains(key uint64) bool
	Mend(key uint64) // which is a false positive
	Bits() int       // of the memory that look-ups read
}

// Kind makes a filter of keys in so many bits, or a little less.
type Kind struct {
	Name, Source string
	Weir         bool
	New          func(keys []uint64, bits int, seed uint64) Filter
}

// Kinds are all kinds.
var Kinds = []Kind{
	{"cascade and hot table, 4 KiB", "filter/cascade, filter/membership", true, newHot(4 << 10)},
	{"cascade and hot table, 16 KiB", "the same", true, newHot(16 << 10)},
	{"adaptive cuckoo, cyclic", "Mitzenmacher, Pontarelli, Reviriego, Adaptive Cuckoo Filters, ALENEX 2018", false, newCuckoo},
	{"cascade alone", "filter/cascade", false, newHot(0)},
}

// hot is a cascade with weights for single elements. Where a bucket is full, the one with the
// fewest mistakes goes, if it has fewer than the new one.
type hot struct {
	cascade *cascade.Filter
	slots   []uint64
	table   *membership.Hot
	times   map[uint64]int // mistakes of an element, by its hash: in the process, not for look-ups
	seed    uint64
	extra   int
	bits    int
}

func newHot(bytes int) func(keys []uint64, bits int, seed uint64) Filter {
	return func(keys []uint64, bits int, seed uint64) Filter {
		l := fpr.BestCascade(len(keys), uint32((bits-8*bytes)/fpr.LineBits), fpr.MaxFurther)
		f := &hot{
			cascade: cascade.New(make([]uint64, int(l.Lines)*cascade.LineWords), l.First, l.Rest),
			slots:   make([]uint64, bytes/8), times: make(map[uint64]int),
			seed: seed, extra: weighted.Dropping.Most - l.K(), bits: l.Bits() + 8*bytes,
		}
		f.table = membership.NewHot(f.slots)
		for _, k := range keys {
			f.cascade.Add(f.hash(k))
		}
		return f
	}
}

func (f *hot) hash(key uint64) uint64 { return hash.Nth(key^f.seed, 0) }
func (f *hot) Bits() int              { return f.bits }

func (f *hot) Contains(key uint64) bool {
	h := f.hash(key)
	return f.cascade.Contains(h) && f.cascade.ContainsExtra(h, f.table.Find(h))
}

// Mend enters the element with all extra bits, as the documentation of [membership.Hot] lays
// slots out.
func (f *hot) Mend(key uint64) {
	buckets := uint64(len(f.slots) / membership.BucketSlots)
	if buckets == 0 {
		return
	}
	h := f.hash(key)
	f.times[h>>5]++
	in, least := -1, f.times[h>>5]
	bucket := h % buckets * membership.BucketSlots
	for i, s := range f.slots[bucket:][:membership.BucketSlots] {
		if n := f.times[s&(1<<59-1)]; s == 0 || n < least {
			in, least = i, n
			if s == 0 {
				break
			}
		}
	}
	if in >= 0 {
		f.slots[bucket+uint64(in)] = uint64(f.extra)<<59 | h>>5
	}
}

// cuckoo is the adaptive cuckoo filter with four tables of single cells. A cell has a selector
// of one bit beside its fingerprint, which selects the function, of two, that computes it. The
// keys themselves lie in the same cells of a table elsewhere, which only Mend reads.
type cuckoo struct {
	cells        [tables][]uint16 // fingerprint, selector in the lowest bit
	keys         [tables][]uint64 // 0: empty, which a fingerprint that is kept for it would say
	fingerprints int              // bits of them
	seed         uint64
}

const (
	tables = 4
	load   = 0.95
)

func newCuckoo(keys []uint64, memory int, seed uint64) Filter {
	for ; ; seed++ { // until all keys find room
		each := int(math.Ceil(float64(len(keys)) / load / tables))
		f := &cuckoo{seed: seed, fingerprints: min(memory/(each*tables)-1, 15)}
		for i := range f.cells {
			f.cells[i], f.keys[i] = make([]uint16, each), make([]uint64, each)
		}
		if f.addAll(keys, rand.New(rand.NewPCG(seed, 1))) {
			return f
		}
	}
}

func (f *cuckoo) addAll(keys []uint64, r *rand.Rand) bool {
	for _, k := range keys {
		for moves := 0; k != 0; moves++ {
			if moves > 1000 {
				return false
			}
			table := r.IntN(tables)
			for t := range tables { // an empty one, if there is one
				if f.keys[t][f.cell(k, t)] == 0 {
					table = t
					break
				}
			}
			at := f.cell(k, table)
			k, f.keys[table][at] = f.keys[table][at], k
			f.set(table, at, 0)
		}
	}
	return true
}

func (f *cuckoo) cell(key uint64, table int) uint32 {
	return hash.Reduce(hash.Nth(key^f.seed, uint64(table)), uint32(len(f.cells[table])))
}

func (f *cuckoo) fingerprint(key, selector uint64) uint16 {
	return uint16(hash.Nth(key^f.seed, tables+selector)>>(64-f.fingerprints))<<1 | uint16(selector)
}

// set computes the fingerprint of a cell's key by a selector.
func (f *cuckoo) set(table int, at uint32, selector uint64) {
	f.cells[table][at] = f.fingerprint(f.keys[table][at], selector)
}

func (f *cuckoo) matches(key uint64, table int) (at uint32, ok bool) {
	at = f.cell(key, table)
	c := f.cells[table][at]
	return at, f.keys[table][at] != 0 && c == f.fingerprint(key, uint64(c&1))
}

func (f *cuckoo) Contains(key uint64) bool {
	for t := range tables {
		if _, ok := f.matches(key, t); ok {
			return true
		}
	}
	return false
}

// Mend has the cells that match take their other fingerprint.
func (f *cuckoo) Mend(key uint64) {
	for t := range tables {
		if at, ok := f.matches(key, t); ok && f.keys[t][at] != key {
			f.set(t, at, uint64(1-f.cells[t][at]&1))
		}
	}
}

func (f *cuckoo) Bits() int { return tables * len(f.cells[0]) * (f.fingerprints + 1) }

// Wrong returns the share of queries that are positive and should not be. Each false positive is
// reported to the filter at once.
func Wrong(f Filter, queries func(yield func(key uint64) bool)) float64 {
	all, wrong := 0, 0
	for key := range queries {
		all++
		if f.Contains(key) {
			wrong++
			f.Mend(key)
		}
	}
	return float64(wrong) / float64(all)
}

// Zipf returns queries for random keys by Zipf's distribution with an exponent of 1.1.
func Zipf(sources, queries int, seed uint64) func(yield func(key uint64) bool) {
	return func(yield func(key uint64) bool) {
		z := rand.NewZipf(rand.New(rand.NewPCG(seed, 2)), 1.1, 1, uint64(sources-1))
		for range queries {
			if !yield(hash.Nth(seed, z.Uint64())) {
				return
			}
		}
	}
}

// Repeated returns the queries of an adversary that looks for so many false positives among
// random keys, without reporting, and then asks for these in turns. It asks the filter itself.
func Repeated(f Filter, found, turns int, seed uint64) func(yield func(key uint64) bool) {
	var pool []uint64
	for i := uint64(0); len(pool) < found; i++ {
		if key := hash.Nth(seed, i); f.Contains(key) {
			pool = append(pool, key)
		}
	}
	return func(yield func(key uint64) bool) {
		for range turns {
			for _, key := range pool {
				if !yield(key) {
					return
				}
			}
		}
	}
}
