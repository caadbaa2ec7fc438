package membership

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/hash"
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

// networkOf returns the first four bytes of the address of a serialised key's network.
func networkOf(serialised []byte) (network [4]byte, ok bool) {
	shape := key.Shape{Fields: key.Fields(serialised[0]), SrcBits: serialised[1], DstBits: serialised[2]}
	at := addressOf(serialised, ClassSide(shape))
	if at == nil {
		return network, false
	}
	n := Class6Bits / 8
	if !shape.V6() {
		n = Class4Bits / 8
	}
	copy(network[:n], at)
	return network, true
}

// classFactor derives the factor that places networks in classes from a secret: an odd number. With one of
// 2³¹ such factors, two networks share a class with a probability of at most 2/NumClasses (Dietzfelbinger
// et al., "A reliable randomized algorithm for the closest-pair problem", 1997, lemma 2.4), and no one who
// does not know it can choose entries whose networks share the class of another one.
func classFactor(s *hash.Secret) uint32 {
	return uint32(s.Sum(make([]byte, 4))) | 1 // no key has this length
}

// classOf returns the class of a network. The program multiplies its bytes as they are in memory.
func (l *Layout) classOf(network [4]byte) int {
	return int(binary.NativeEndian.Uint32(network[:]) * l.ClassFactor >> (32 - classBits))
}

// class returns the class of a serialised key, NumClasses if it has none.
func (l *Layout) class(serialised []byte) int {
	network, ok := networkOf(serialised)
	if !ok {
		return NumClasses
	}
	return l.classOf(network)
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

// withClass returns the hash of a key with the number of its extra bits in it.
func (l *Layout) withClass(h uint64, serialised []byte) uint64 {
	if l.Classes == nil {
		return h
	}
	return h&^(classMask<<classShift) | uint64(l.Classes[l.class(serialised)])<<classShift
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
	case l.ClassFactor%2 == 0:
		return fmt.Errorf("membership: classes of networks without an odd factor")
	case len(c) != NumClasses+1:
		return fmt.Errorf("membership: %d classes, want %d and one without", len(c), NumClasses)
	case l.Mode != Approximate || l.First > maxClassedFirst || l.Rest > fpr.MaxFurther*fpr.MaxRest:
		return fmt.Errorf("membership: classes of keys with %d bits in the first line and %d in others, or in exact mode", l.First, l.Rest)
	case slices.Max(c) > MaxExtra:
		return fmt.Errorf("membership: %d extra bits of a class, the limit is %d", slices.Max(c), MaxExtra)
	}
	return nil
}

// ClassCounts has a number for each class of a layout.
type ClassCounts [NumClasses]float64

// CountClasses counts the keys of a column in their classes.
func (l *Layout) CountClasses(c *ClassCounts, col Column) {
	if ClassSide(col.Shape) == 0 {
		return
	}
	size := col.Shape.KeyLen()
	for i := 0; i < len(col.Keys); i += size {
		c[l.class(col.Keys[i:i+size])]++
	}
}

func (c *ClassCounts) sum() (n float64) {
	for _, m := range c {
		n += m
	}
	return n
}

// unknownShare is the share of elements that may come from any class, so that none is ruled out.
const unknownShare = 0.01

// withUnknown returns the share of a class of all elements, of which it has a share of those that were found.
func withUnknown(share float64) float64 { return (1-unknownShare)*share + unknownShare/NumClasses }

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

const (
	// worthClasses is the largest quotient of the rates with and without classes: closer to 1, a change of
	// traffic would soon make classes worse than none.
	worthClasses = 0.9
	// provenLoss bounds how many times the rate without classes any class has, whatever is sent. Counted
	// rates differ from predicted ones by a hundredth.
	provenLoss = 1.04
	// trustedLoss is the bound where the periods agree that classes win much.
	trustedLoss = 2
	// honestShare is the share of the elements found in the most honest period that is assumed not to be forged.
	honestShare = 1. / 3
)

// PlanClasses gives classes extra bits, given the listed keys of each, the number of all listed keys, and
// which elements were found that are not listed. All keys have the same number of bits where that would
// not lower the share of such elements that are taken for listed ones by a tenth. Keys without a class have
// as many bits as without classes.
//
// [weighted.Universe.Optimal] gives k_e, which is bounded by the bits that all keys have and by
// [weighted.Dropping], and rounded to the nearest integer.
//
// # What an adversary can do
//
// Packets that are not authenticated say which elements there are, so the senders of forged sources may choose
// the shares of all classes. Let r(q) = Σ q_e r_e be the rate of traffic with the shares q, and r the rate
// without classes, in the same memory.
//
// Every class has at least k bits, and what passes more bits passes the first k of them. So for any q
//
//	r(q) ≤ max r_e ≤ r_k ≤ 1.04 r
//
// where r_k is the rate of k bits among all bits that are set, those of classes with more bits, too. This
// bounds what classes gain: a listed key can have only 0.07 bits more, on average, before r_k exceeds 1.05 r.
//
// Where the gain is large, r_k may be 2 r. This needs [MaxPeriods] periods, in each of which the elements
// that were found, with the shares q_p, have r(q_p) ≤ 1.04 r/3, three standard errors included, and each
// element with the bits that were chosen without it. If in one period a third or more was honest, with the
// shares h, then q_p = a·h + (1-a)·g with a ≥ 1/3, whatever g was forged, and so
//
//	r(h) ≤ r(q_p)/a ≤ 1.04 r
func (l *Layout) PlanClasses(listed *ClassCounts, found *Sightings, all int) {
	if l.Mode != Approximate || l.Lines == 0 || all == 0 {
		return
	}
	shares := l.shares(found.Periods)
	if shares == nil {
		return
	}
	all = max(all, int(math.Ceil(listed.sum()))) // some may have been removed since they were counted
	l.Classes, l.ClassShares = nil, nil
	plain := fpr.BestCascade(all, l.Lines, fpr.MaxFurther)
	l.First, l.Rest = plain.First, plain.Rest
	rate := l.FalsePositiveRate(all)
	p := &classPlan{
		listed: listed, found: shares, all: float64(all), without: float64(all) - listed.sum(), unclassed: plain.K(),
		k: optimal(listed, &shares.of, float64(l.Lines)*cascade.LineBits),
	}
	if len(found.Periods) == MaxPeriods {
		next, of := l.planClasses(p, all, trustedLoss*rate)
		trusted := next.FalsePositiveRate(all) < worthClasses*rate
		for i := range found.Periods {
			one := next.shares(found.Periods[i : i+1])
			trusted = trusted && one != nil && one.atMost(of, next.ClassRates(all)) <= provenLoss*honestShare*rate
		}
		if trusted {
			*l = next
			return
		}
	}
	if next, _ := l.planClasses(p, all, provenLoss*rate); next.FalsePositiveRate(all) < worthClasses*rate {
		*l = next
	}
}

// planClasses returns the layout with the bits of classes that have the lowest rate, if no class has more than
// the limit; and those bits that an element would find which were chosen without it. Without such a layout it
// returns l.
func (l *Layout) planClasses(p *classPlan, all int, limit float64) (best Layout, of Classes) {
	best, rate := *l, math.Inf(1)
	for base := leastClassed; base <= min(p.unclassed, maxClassedFirst+fpr.MaxFurther*fpr.MaxRest); base++ {
		next := *l
		next.First, next.Rest = maxClassedFirst, base-maxClassedFirst
		most := float64(weighted.Dropping.Most)
		half := p.byBits(base, float64(l.Lines)*cascade.LineBits*math.Ln2)
		low, high := -most, most
		for range 16 {
			by := (low + high) / 2
			next.setClasses(p, by)
			if next.ClassRates(all)[0] > limit {
				high = by
			} else {
				low = by
			}
		}
		for _, by := range []float64{low, min(low, half)} {
			without := next.setClasses(p, by)
			if next.ClassRates(all)[0] > limit {
				continue
			}
			if r := next.FalsePositiveRate(all); r < rate {
				best, of, rate = next, without, r
			}
		}
	}
	return best, of
}

// classPlan determines the bits of classes.
type classPlan struct {
	listed    *ClassCounts
	found     *classShares
	all       float64   // listed keys
	without   float64   // of these, the keys without a class
	unclassed int       // bits of a key without a class
	k         []float64 // the optimum
}

// bounded returns the bits of a class, by more than the optimum.
func (p *classPlan) bounded(i, base int, by float64) float64 {
	return min(max(p.k[i]+by, float64(base)), float64(weighted.Dropping.Most))
}

// byBits returns by how many bits the optimum changes where some classes are bounded, until all keys have that
// many.
func (p *classPlan) byBits(base int, all float64) (by float64) {
	low, high := -float64(weighted.Dropping.Most), float64(weighted.Dropping.Most)
	for range 30 {
		by = (low + high) / 2
		bits := p.without * float64(p.unclassed)
		for i, n := range p.listed {
			bits += n * p.bounded(i, base, by)
		}
		if bits > all {
			high = by
		} else {
			low = by
		}
	}
	return low
}

// RateOf returns the share of these elements that are taken for listed ones. [Layout.FalsePositiveRate]
// is the same for the elements that the plan of the classes had.
func (l *Layout) RateOf(found *Sightings, n int) (rate float64) {
	shares := l.shares(found.Periods)
	if l.Classes == nil || shares == nil {
		return l.FalsePositiveRate(n)
	}
	return shares.rate(l.Classes, l.ClassRates(n))
}

// setClasses sets the classes' bits beyond those that all keys have, by more than the optimum. It returns those
// that the classes would have without one of their elements, that with the largest share.
func (l *Layout) setClasses(p *classPlan, by float64) (without Classes) {
	base := l.First + l.Rest
	extra := func(i int, by float64) byte { return byte(int(math.Round(p.bounded(i, base, by))) - base) }
	l.Classes, l.ClassShares = make(Classes, NumClasses+1), nil
	without = make(Classes, NumClasses+1)
	var of [MaxExtra + 1]ClassShare
	for i, share := range p.found.of {
		l.Classes[i] = extra(i, by)
		found := l.Classes[i]
		without[i] = found
		if share > 0 {
			less := func(others float64) byte {
				return extra(i, by+math.Log2(withUnknown(max(others, 0))/withUnknown(share)))
			}
			found = less(share * (1 - 1/max(p.found.number[i], 1)))
			without[i] = less(share - p.found.most[i])
		}
		of[l.Classes[i]].Classes++
		of[l.Classes[i]].Listed += p.listed[i] / p.all
		of[l.Classes[i]].Elements += share
		of[l.Classes[i]].Predicted += unknownShare / NumClasses
		of[found].Predicted += (1 - unknownShare) * share
	}
	unclassed := p.unclassed - base
	l.Classes[NumClasses] = byte(unclassed)
	of[unclassed].Listed += p.without / p.all
	for extra, s := range of {
		if s.Extra = extra; s.Listed > 0 || s.Classes > 0 || s.Predicted > 0 {
			l.ClassShares = append(l.ClassShares, s)
		}
	}
	return without
}

// optimal returns the k_e of each class, a real number, +Inf where nothing is listed.
func optimal(listed, shares *ClassCounts, m float64) []float64 {
	n := listed.sum()
	if n == 0 {
		return slices.Repeat([]float64{math.Inf(1)}, NumClasses)
	}
	u := make(weighted.Universe, NumClasses)
	for i, listed := range listed {
		others := withUnknown(shares[i]) * n // only their proportion to those of other classes matters
		u[i] = weighted.Class{Count: listed + others, Frequency: 1, Likelihood: listed / (listed + others)}
	}
	return u.Optimal(m)
}
