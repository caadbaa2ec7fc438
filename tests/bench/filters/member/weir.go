package member

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sort"

	"weir/filter/bloom"
	lines "weir/filter/cascade"
	"weir/filter/counting"
	fingerprints "weir/filter/cuckoo"
	"weir/filter/fpr"
	"weir/filter/membership"
	"weir/filter/quotient"
)

// cascadeKind is the filter of approximate mode: a blocked Bloom filter, with a key's bits in
// two lines or more. To delete, the daemon has four bits of counter for each bit, which packets
// do not read and which are not counted here.
var cascadeKind = Kind{
	Name:    "cascade (approximate mode)",
	Source:  "filter/membership, after Putze, Sanders, Singler, JEA 2009, section 3",
	Weir:    true,
	Changes: "add, delete with counters in the daemon",
	Bits:    func(n int, r float64) float64 { return float64(cascadeOf(n, r).Bits()) / float64(n) },
	Rate:    func(n int, r float64) float64 { return cascadeOf(n, r).Rate(n) },
	Build: func(keys []uint64, r float64, seed uint64) (Filter, error) {
		l := cascadeOf(len(keys), r)
		f := &cascade{words: make([]uint64, l.Lines*lines.LineWords), layout: l, seed: seed}
		f.Filter = lines.New(f.words, l.First, l.Rest)
		for _, k := range keys {
			f.Add(mix(k, seed))
		}
		return f, nil
	},
}

// cascadeOf returns the least cascade with a rate.
func cascadeOf(n int, r float64) fpr.CascadeLayout {
	best := func(lines int) fpr.CascadeLayout { return fpr.BestCascade(n, uint32(lines), fpr.MaxFurther) }
	return best(1 + sort.Search(n, func(i int) bool { return best(i+1).Rate(n) <= exp2(r) }))
}

type cascade struct {
	*lines.Filter
	words  []uint64
	layout fpr.CascadeLayout
	seed   uint64
	lines  []*lines.Filter // the same words, for each line of a key but the last
}

func (f *cascade) Contains(key uint64) bool { return f.Filter.Contains(mix(key, f.seed)) }
func (f *cascade) Delete(key uint64)        { f.Remove(mix(key, f.seed)) }
func (f *cascade) Bits() int                { return f.layout.Bits() }

// Reads counts the lines that pass: the next is read then.
func (f *cascade) Reads(key uint64) int {
	if f.lines == nil {
		for rest := 0; rest < f.layout.Rest; rest += lines.MaxLineBits {
			f.lines = append(f.lines, lines.New(f.words, f.layout.First, rest))
		}
	}
	for i, l := range f.lines {
		if !l.Contains(mix(key, f.seed)) {
			return i + 1
		}
	}
	return len(f.lines) + 1
}

// bloomKind is the standard Bloom filter.
var bloomKind = Kind{
	Name:    "Bloom",
	Source:  "filter/bloom; Broder, Mitzenmacher, Internet Mathematics 2004, section 2.1",
	Weir:    true,
	Changes: "add",
	Bits:    func(n int, r float64) float64 { return float64(bloomOf(n, r).M()) / float64(n) },
	Rate:    func(n int, r float64) float64 { return bloomOf(n, r).FalsePositiveRate(uint64(n)) },
	Build: func(keys []uint64, r float64, seed uint64) (Filter, error) {
		f := &standard{bloom.New(bloomOf(len(keys), r), 0), seed}
		for _, k := range keys {
			f.AddHash(mix(k, seed))
		}
		return f, nil
	},
}

// bloomOf returns the least geometry with a rate.
func bloomOf(n int, r float64) bloom.Geometry {
	of := func(m int) bloom.Geometry {
		g, err := bloom.Standard(uint32(m), bloom.OptimalK(uint32(m), uint64(n)))
		if err != nil {
			panic(fmt.Sprintf("member: %v", err)) // m and k are in their ranges
		}
		return g
	}
	least := max(1, int(bloom.Bits(uint64(n), exp2(r))))
	return of(least + sort.Search(n, func(i int) bool { return of(least+i).FalsePositiveRate(uint64(n)) <= exp2(r) }))
}

type standard struct {
	*bloom.Filter
	seed uint64
}

func (f *standard) Contains(key uint64) bool { return f.ContainsHash(mix(key, f.seed)) }
func (f *standard) Bits() int                { return int(f.M()) }

func (f *standard) Reads(key uint64) int {
	h := mix(key, f.seed)
	return probes(f.Geometry, h, 1, func(bit uint32) bool { return f.Words()[bit/64]>>(bit%64)&1 == 1 })
}

// probes returns how many different lines are read before a position is found empty. A
// position takes so many bits.
func probes(g bloom.Geometry, h uint64, bits uint32, set func(position uint32) bool) int {
	var m memory
	for i := range g.K() {
		position := g.Position(h, i)
		m.note(uint64(position) * uint64(bits) / 512)
		if !set(position) {
			break
		}
	}
	return len(m.lines)
}

// countingKind is the counting filter as published, of counters alone: packets would read these, of
// four bits. That of filter/counting has bits, too, which say the same of the set.
var countingKind = Kind{
	Name:    "counting",
	Source:  "filter/counting; Fan, Cao, Almeida, Broder, ToN 2000, section V",
	Weir:    true,
	Changes: "add, delete",
	Bits:    func(n int, r float64) float64 { return 4 * bloomKind.Bits(n, r) },
	Rate:    bloomKind.Rate,
	Build: func(keys []uint64, r float64, seed uint64) (Filter, error) {
		f := &counters{counting.New(bloomOf(len(keys), r), 0), seed, nil}
		for _, k := range keys {
			f.AddHash(mix(k, seed))
		}
		return f, nil
	},
}

type counters struct {
	*counting.Filter
	seed uint64
	bits *bloom.Filter
}

func (f *counters) Contains(key uint64) bool { return f.ContainsHash(mix(key, f.seed)) }
func (f *counters) Bits() int                { return 4 * int(f.M()) }

func (f *counters) Delete(key uint64) {
	_ = f.RemoveHash(mix(key, f.seed)) // of a key of the set, it cannot fail
}

// Reads must not be called before a change.
func (f *counters) Reads(key uint64) int {
	if f.bits == nil {
		f.bits = f.Filter.Bits()
	}
	words := f.bits.Words()
	return probes(f.Geometry, mix(key, f.seed), 4, func(i uint32) bool { return words[i/64]>>(i%64)&1 == 1 })
}

// quotientKind is the exact set of IPv4 addresses, which only keys of 32 bits can have.
var quotientKind = Kind{
	Name:    "quotient set (exact, IPv4)",
	Source:  "filter/quotient, after Cleary, IEEE ToC 1984",
	Weir:    true,
	Changes: "add, delete",
	Bits:    func(n int, _ float64) float64 { return 8 * float64(quotient.Plan(32, n, 1).Bytes()) / float64(n) },
	Rate:    func(int, float64) float64 { return 0 },
	Build: func(keys []uint64, _ float64, seed uint64) (Filter, error) {
		entries := make([]quotient.Entry, len(keys))
		for i, k := range keys {
			entries[i] = quotient.Entry{Key: k, List: 1}
		}
		l := quotient.Plan(32, len(keys), 1)
		lines := make([]uint64, l.Lines*8)
		secret := l.Cut(quotient.Secret{Xor: mix(1, seed), Mul: [3]uint64{mix(2, seed) | 1, mix(3, seed) | 1, mix(4, seed) | 1}})
		s, err := quotient.NewAt(l, secret, lines, make([]uint64, l.Buckets*8), nil)
		if err != nil {
			return nil, err
		}
		inLines, err := quotient.NewAt(l, secret, lines, make([]uint64, l.Buckets*8), nil)
		if err != nil {
			return nil, err
		}
		return &exactSet{s, inLines, lines}, s.Fill(slices.Values(entries))
	},
}

type exactSet struct {
	*quotient.Set
	inLines *quotient.Set // the same lines, without the spill
	lines   []uint64
}

func (f *exactSet) Contains(key uint64) bool {
	_, ok := f.Lookup(key)
	return ok
}

func (f *exactSet) Delete(key uint64) { f.Set.Remove(key) }
func (f *exactSet) Bits() int         { return 8 * f.Bytes() }

// Reads finds the first word of a key as the documentation of the package says.
// If something of the word is in the spill, and the key is not in the line, it may be in
// either bucket there.
func (f *exactSet) Reads(key uint64) int {
	secret := f.Secret()
	p := uint32(key^secret.Xor) * uint32(secret.Mul[0])
	p = (p ^ p>>16) * uint32(secret.Mul[1])
	p = (p ^ p>>15) * uint32(secret.Mul[2])
	word := f.lines[uint64(p)*uint64(f.Layout().Words())>>32]
	if _, ok := f.inLines.Lookup(key); ok || word>>63 == 0 {
		return 1
	}
	return 3
}

// exactKind is exact mode for keys of any length, as of IPv6 and flows: a cascade in one line,
// and a table of fingerprints of 48 bits, which confirms.
var exactKind = Kind{
	Name:    "cascade and table (exact, others)",
	Source:  "filter/membership; Broder, Mitzenmacher, section 2.3",
	Weir:    true,
	Changes: "add, delete",
	Bits: func(n int, _ float64) float64 {
		return float64(512*exactLines(n)+64*membership.BucketSlots*exactBuckets(n)) / float64(n)
	},
	Rate: func(n int, _ float64) float64 { return fpr.Fingerprint(n, uint32(exactBuckets(n))) },
	Build: func(keys []uint64, _ float64, seed uint64) (Filter, error) {
		f := &confirmed{
			cascade: lines.New(make([]uint64, exactLines(len(keys))*lines.LineWords), membership.ExactBits, 0),
			slots:   make([]uint64, exactBuckets(len(keys))*membership.BucketSlots),
			seed:    seed,
			all:     512*exactLines(len(keys)) + 64*membership.BucketSlots*exactBuckets(len(keys)),
		}
		f.table = fingerprints.Over(f.slots)
		for _, k := range keys {
			h := mix(k, seed)
			f.cascade.Add(h)
			if err := f.table.Add(h, 1); err != nil {
				return nil, err
			}
		}
		return f, nil
	},
}

func exactLines(n int) int { return (membership.ExactBitsPerKey*n + 511) / 512 }

func exactBuckets(n int) int {
	return int(math.Ceil(float64(n) / membership.TableFill / membership.BucketSlots))
}

type confirmed struct {
	cascade *lines.Filter
	table   *fingerprints.Table
	slots   []uint64
	seed    uint64
	all     int
}

func (f *confirmed) Contains(key uint64) bool {
	h := mix(key, f.seed)
	if !f.cascade.Contains(h) {
		return false
	}
	_, ok := f.table.Lookup(h)
	return ok
}

func (f *confirmed) Delete(key uint64) {
	h := mix(key, f.seed)
	f.cascade.Remove(h)
	f.table.Remove(h)
}

func (f *confirmed) Bits() int { return f.all }

// Reads is by design: the line of the cascade, and for a key that passes the two buckets. A key that
// is present is found in the first of them, but for one in twenty.
func (f *confirmed) Reads(key uint64) int {
	switch h := mix(key, f.seed); {
	case !f.cascade.Contains(h):
		return 1
	case f.Contains(key):
		return 2
	}
	return 3
}

// Key returns one of 2^32 keys, each once: they are as random as those of an attack are not,
// and fit into what all kinds take.
func Key(i uint32, seed uint64) uint64 {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], i*0x9e3779b1)
	x := binary.LittleEndian.Uint32(b[:]) ^ uint32(seed)
	x = (x ^ x>>16) * 0x85ebca6b
	x = (x ^ x>>13) * 0xc2b2ae35
	return uint64(x ^ x>>16)
}
