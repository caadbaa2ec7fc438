package membership

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/key"
	"weir/filter/weighted"
)

// Networks of IPv4 and IPv6, by whose class a key has extra bits.
const (
	Class4Bits = 16
	Class6Bits = 32
	// NumClasses is the number of classes. Networks that share one share its bits.
	NumClasses = 1 << classBits

	classBits = 11
)

// Classes has the extra bits of the keys of each class of networks, 0 … MaxExtra: such a key has
// First+Rest+extra bits, the k_e of its class (Bruck, Gao and Jiang, "Weighted Bloom filter", theorem
// 3.1). Networks that send much, and in which little is listed, have many. The last of its NumClasses+1
// elements is for keys without a class. A nil Classes has none: then all keys have First+Rest bits.
// bpf/classes.h is its twin.
//
// The number of a key's extra bits is a part of its hash, in bits 28 … 24, so that it is known wherever the
// hash is; 59 bits of it are left to distinguish keys. The first line, of up to maxClassedFirst bits, does not
// depend on them: programs look up the class of a key only if it passes that line.
type Classes []byte

const (
	classShift      = 24
	classMask       = 1<<5 - 1
	maxClassedFirst = 4
	leastClassed    = 5 // bits of any key
)

// ClassSide returns the side of a packet that determines the class of a shape's keys: the source, if
// its prefix is as long as a network, or else the destination; 0: they have none.
func ClassSide(s key.Shape) Gate {
	least := uint8(Class4Bits)
	if s.V6() {
		least = Class6Bits
	}
	switch {
	case s.SrcBits >= least:
		return GateSrc
	case s.DstBits >= least:
		return GateDst
	}
	return 0
}

// classOf returns the class of a serialised key, NumClasses if it has none.
func classOf(serialised []byte) int {
	shape := key.Shape{Fields: key.Fields(serialised[0]), SrcBits: serialised[1], DstBits: serialised[2]}
	at := addressOf(serialised, ClassSide(shape))
	if at == nil {
		return NumClasses
	}
	network := binary.BigEndian.Uint32(at)
	if !shape.V6() {
		network &= 0xffff << (32 - Class4Bits)
	}
	return int(network * 0x9E3779B1 >> (32 - classBits))
}

// addressOf returns the address of a serialised key on one side, nil for neither.
func addressOf(serialised []byte, side Gate) []byte {
	addr := serialised[4:]
	switch side {
	case GateSrc:
		return addr
	case GateDst:
		if n := len(serialised); n == key.LenV4Flow || n == key.LenV6Flow {
			return addr[len(addr)/2-2:] // after the source, before the ports
		}
		return addr
	}
	return nil
}

// in returns the hash of a key with the number of its extra bits in it.
func (c Classes) in(h uint64, serialised []byte) uint64 {
	if c == nil {
		return h
	}
	return h&^(classMask<<classShift) | uint64(c[classOf(serialised)])<<classShift
}

// Extra returns the number of extra bits that a key has by its class, given its [Set.Hash].
func (c Classes) Extra(h uint64) int {
	if c == nil {
		return 0
	}
	return int(h >> classShift & classMask)
}

// check fails unless a layout can have the classes.
func (c Classes) check(l *Layout) error {
	switch {
	case c == nil:
		return nil
	case len(c) != NumClasses+1:
		return fmt.Errorf("membership: %d classes, want %d and one without", len(c), NumClasses)
	case l.Mode != Approximate || l.First > maxClassedFirst || l.Rest > fpr.MaxFurther*fpr.MaxRest:
		return fmt.Errorf("membership: classes of keys with %d bits in the first line and %d in others, or in exact mode", l.First, l.Rest)
	case slices.Max(c) > MaxExtra:
		return fmt.Errorf("membership: %d extra bits of a class, the limit is %d", slices.Max(c), MaxExtra)
	}
	return nil
}

// ClassCounts has a number for each class.
type ClassCounts [NumClasses]float64

// Add counts a key, and reports whether it has a class.
func (c *ClassCounts) Add(k key.Key) bool {
	class := classOf(k.Append(make([]byte, 0, key.MaxLen)))
	if class < NumClasses {
		c[class]++
	}
	return class < NumClasses
}

// AddColumn counts the keys of a column.
func (c *ClassCounts) AddColumn(col Column) {
	if ClassSide(col.Shape) == 0 {
		return
	}
	size := col.Shape.KeyLen()
	for i := 0; i < len(col.Keys); i += size {
		c[classOf(col.Keys[i:i+size])]++
	}
}

func (c *ClassCounts) sum() (n float64) {
	for _, m := range c {
		n += m
	}
	return n
}

// Sightings are the unlisted elements of each class that were found because sets passed them. Where sets
// pass few, as in classes with many bits, few are found.
type Sightings struct {
	Found   ClassCounts
	Exposed ClassCounts // time, in any unit, times the rate at which sets passed elements of the class
}

// rates returns how many elements of each class come in a unit of time, and of all.
func (s *Sightings) rates() (of ClassCounts, all float64) {
	for i, n := range s.Found {
		if s.Exposed[i] > 0 {
			of[i] = n / s.Exposed[i]
		}
	}
	return of, of.sum()
}

// unknownShare is the share of elements that may come from any class, so that none is ruled out.
const unknownShare = 0.01

// shareOf returns the share of a class of which so many of all elements come in a unit of time.
func shareOf(rate, all float64) float64 { return (1-unknownShare)*rate/all + unknownShare/NumClasses }

// ClassShare describes the classes with one number of extra bits.
type ClassShare struct {
	Extra    int
	Classes  int     // their number
	Listed   float64 // of the listed keys, their share
	Elements float64 // of the elements that are not listed, their share

	// Predicted is the share of elements that would have these bits if each of them had not been found
	// when the bits were chosen: bits fit those that were found better than others.
	Predicted float64
}

// worthClasses is the largest quotient of the rates with and without classes: closer to 1, a change of
// traffic would soon make classes worse than none.
const worthClasses = 0.9

// PlanClasses gives classes extra bits, given the listed keys of each, the number of all listed keys, and
// which elements were found that are not listed. All keys have the same number of bits where that would
// not lower the share of such elements that are taken for listed ones by a tenth. Keys without a class have
// as many bits as without classes.
//
// [weighted.Universe.Optimal] gives k_e, which is bounded by the bits that all keys have and by
// [weighted.Dropping], and rounded to the nearest integer.
func (l *Layout) PlanClasses(listed *ClassCounts, found *Sightings, all int) {
	rates, sum := found.rates()
	if l.Mode != Approximate || l.Lines == 0 || sum == 0 || all == 0 {
		return
	}
	all = max(all, int(math.Ceil(listed.sum()))) // some may have been removed since they were counted
	l.Classes, l.ClassShares = nil, nil
	plain := fpr.BestCascade(all, l.Lines, fpr.MaxFurther)
	l.First, l.Rest = plain.First, plain.Rest
	p := &classPlan{
		listed: listed, found: found, rates: &rates, sum: sum, all: float64(all), without: float64(all) - listed.sum(), unclassed: plain.K(),
		k: optimal(listed, &rates, sum, float64(l.Lines)*cascade.LineBits),
	}
	best, rate := *l, worthClasses*l.FalsePositiveRate(all)
	for base := leastClassed; base <= min(plain.K(), maxClassedFirst+fpr.MaxFurther*fpr.MaxRest); base++ {
		next := *l
		next.First, next.Rest = maxClassedFirst, base-maxClassedFirst
		next.setClasses(p)
		if r := next.FalsePositiveRate(all); r < rate {
			best, rate = next, r
		}
	}
	*l = best
}

// classPlan determines the bits of classes.
type classPlan struct {
	listed    *ClassCounts
	found     *Sightings
	rates     *ClassCounts // of found
	sum       float64      // of rates
	all       float64      // listed keys
	without   float64      // of these, the keys without a class
	unclassed int          // bits of a key without a class
	k         []float64    // the optimum
}

// RateOf returns the share of these elements that are taken for listed ones. [Layout.FalsePositiveRate]
// is the same for the elements that the plan of the classes had.
func (l *Layout) RateOf(found *Sightings, n int) (rate float64) {
	rates, sum := found.rates()
	if l.Classes == nil || sum == 0 {
		return l.FalsePositiveRate(n)
	}
	passed := l.ClassRates(n)
	for i, r := range rates {
		rate += shareOf(r, sum) * passed[l.Classes[i]]
	}
	return rate
}

// setClasses sets the classes' bits beyond those that all keys have.
func (l *Layout) setClasses(p *classPlan) {
	least, most := float64(l.First+l.Rest), float64(weighted.Dropping.Most)
	bounded := func(i int, by float64) float64 { return min(max(p.k[i]+by, least), most) }
	// Where some are bounded, all others change until half of the bits are set again.
	low, high := -most, most
	for range 30 {
		by := (low + high) / 2
		bits := p.without * float64(p.unclassed)
		for i, n := range p.listed {
			bits += n * bounded(i, by)
		}
		if bits > float64(l.Lines)*cascade.LineBits*math.Ln2 {
			high = by
		} else {
			low = by
		}
	}
	l.Classes, l.ClassShares = make(Classes, NumClasses+1), nil
	var of [MaxExtra + 1]ClassShare
	for i, rate := range p.rates {
		extra := int(math.Round(bounded(i, low)) - least)
		without := extra
		if rate > 0 {
			others := shareOf(max(rate-1/p.found.Exposed[i], 0), p.sum)
			without = int(math.Round(bounded(i, low+math.Log2(others/shareOf(rate, p.sum)))) - least)
		}
		l.Classes[i] = byte(extra)
		of[extra].Classes++
		of[extra].Listed += p.listed[i] / p.all
		of[extra].Elements += rate / p.sum
		of[extra].Predicted += unknownShare / NumClasses
		of[without].Predicted += (1 - unknownShare) * rate / p.sum
	}
	unclassed := p.unclassed - int(least)
	l.Classes[NumClasses] = byte(unclassed)
	of[unclassed].Listed += p.without / p.all
	for extra, s := range of {
		if s.Extra = extra; s.Listed > 0 || s.Classes > 0 || s.Predicted > 0 {
			l.ClassShares = append(l.ClassShares, s)
		}
	}
}

// optimal returns the k_e of each class, a real number, +Inf where nothing is listed.
func optimal(listed, rates *ClassCounts, sum, m float64) []float64 {
	n := listed.sum()
	if n == 0 {
		return slices.Repeat([]float64{math.Inf(1)}, NumClasses)
	}
	u := make(weighted.Universe, NumClasses)
	for i, listed := range listed {
		others := shareOf(rates[i], sum) * n // only their proportion to those of other classes matters
		u[i] = weighted.Class{Count: listed + others, Frequency: 1, Likelihood: listed / (listed + others)}
	}
	return u.Optimal(m)
}
