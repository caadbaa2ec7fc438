package member

import "math"

// Geometry of the prefix filter: bins of 25 fingerprints, of 25 quotients and 8 bits, in half a
// line of 64 bytes, filled to 0.95 (sections 4 and 6.1). The bit before the remainders says that
// the bin has passed fingerprints on.
var prefixBin = pocket{quotients: 25, slots: 25, width: 8, first: 56, size: 4}

const (
	prefixLoad   = 0.95
	prefixPassed = 55 // bit of a bin
)

// prefixKind is the prefix filter of Even, Even and Morrison.
var prefixKind = Kind{
	Name:    "prefix",
	Source:  "Even, Even, Morrison, Prefix Filter, VLDB 2022, sections 3, 4 and 6",
	Changes: "add",
	Bits: func(n int, r float64) float64 {
		if r > 8 {
			return math.Inf(1)
		}
		return float64(prefixBins(n)*256+cuckooBuckets(prefixSpare(n))*cuckooSlots*prefixWidth) / float64(n)
	},
	Rate: func(n int, r float64) float64 {
		q := float64(n) / float64(prefixBins(n)*prefixBin.quotients) // remainders of a quotient, less those in the spare
		inBin := -math.Expm1(-q * (1 - prefixOverflow()) / 256)
		return inBin + prefixAsked()*2*cuckooSlots*cuckooLoad*exp2(prefixWidth)
	},
	Build: func(keys []uint64, _ float64, seed uint64) (Filter, error) {
		return retry(seed, func(seed uint64) (Filter, bool) {
			f := newPrefix(len(keys), seed)
			for _, k := range keys {
				if !f.add(k) {
					return nil, false
				}
			}
			return f, true
		})
	},
}

// prefixWidth is the width of the spare's fingerprints, with a rate of about 2^-9.
const prefixWidth = 12

func prefixBins(n int) int {
	return int(math.Ceil(float64(n) / float64(prefixBin.slots) / prefixLoad))
}

// prefixOverflow returns the expected share of keys that find their bin full: bins have a
// Poisson number of them.
func prefixOverflow() (share float64) {
	mean := float64(prefixBin.slots) * prefixLoad
	for i := prefixBin.slots + 1; i < 10*prefixBin.slots; i++ {
		share += float64(i-prefixBin.slots) * poisson(i, mean) / mean
	}
	return share
}

// prefixAsked returns the expected share of absent keys that the spare is asked for: those
// that are greater than what their bin has left.
func prefixAsked() (share float64) {
	mean := float64(prefixBin.slots) * prefixLoad
	for i := prefixBin.slots + 1; i < 10*prefixBin.slots; i++ {
		share += float64(i-prefixBin.slots+1) / float64(i+1) * poisson(i, mean)
	}
	return share
}

func poisson(i int, mean float64) float64 {
	lg, _ := math.Lgamma(float64(i + 1))
	return math.Exp(float64(i)*math.Log(mean) - mean - lg)
}

// prefixSpare returns the keys that the spare has room for: a tenth more than expected.
func prefixSpare(n int) int { return 64 + int(1.1*prefixOverflow()*float64(n)) }

// prefix has bins that keep their least fingerprints: of a full bin, the greatest goes to the
// spare, a cuckoo filter. A bin answers alone unless the key is greater than all in it.
type prefix struct {
	memory
	bins  int
	spare *cuckoo
	seed  uint64
}

func newPrefix(n int, seed uint64) *prefix {
	f := &prefix{newMemory(prefixBins(n) * 256), prefixBins(n), newCuckoo(cuckooBuckets(prefixSpare(n)), prefixWidth, seed), seed}
	for b := range f.bins {
		prefixBin.clear(&f.memory, b*prefixBin.size)
	}
	return f
}

func (f *prefix) place(key uint64) (at, quotient int, remainder uint64) {
	h := mix(key, f.seed)
	return reduce(h, f.bins) * prefixBin.size, int(h >> 8 & 0xffff * uint64(prefixBin.quotients) >> 16), h & 0xff
}

// passed is the key under which the spare has a fingerprint of a bin.
func passed(at, quotient int, remainder uint64) uint64 {
	return uint64(at)<<16 | uint64(quotient)<<8 | remainder
}

func (f *prefix) add(key uint64) bool {
	at, quotient, remainder := f.place(key)
	if prefixBin.count(prefixBin.head(&f.memory, at)) < prefixBin.slots {
		prefixBin.add(&f.memory, at, quotient, remainder)
		return true
	}
	f.words[at] &^= 1 << prefixPassed // while the string may change
	if q, slot, r := prefixBin.greatest(&f.memory, at); q > quotient || q == quotient && r > remainder {
		prefixBin.remove(&f.memory, at, q, slot)
		prefixBin.add(&f.memory, at, quotient, remainder)
		quotient, remainder = q, r
	}
	f.words[at] |= 1 << prefixPassed
	return f.spare.add(passed(at, quotient, remainder))
}

func (f *prefix) Contains(key uint64) bool {
	at, quotient, remainder := f.place(key)
	slot, low, _ := prefixBin.find(&f.memory, at, quotient, remainder)
	if slot >= 0 || low>>prefixPassed == 0 {
		return slot >= 0
	}
	q, _, r := prefixBin.greatest(&f.memory, at)
	return (quotient > q || quotient == q && remainder > r) && f.spare.Contains(passed(at, quotient, remainder))
}

func (f *prefix) Bits() int { return f.bins*256 + f.spare.Bits() }

func (f *prefix) Reads(key uint64) int {
	var spare int
	lines := f.watch(func() { spare = f.spare.watch(func() { f.Contains(key) }) })
	return lines + spare
}
