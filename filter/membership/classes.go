package membership

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

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
// 3.1). Networks that send much, and in which little is listed, have many. It has NumClasses
// elements, or none: then all keys have First+Rest bits. bpf/classes.h is its twin.
//
// The number of a key's extra bits is a part of its hash, in bits 28 … 24, so that it is known wherever the
// hash is. The first line, of up to maxClassedFirst bits, does not depend on them: programs look up the
// class of a key only if it passes that line.
type Classes []byte

const (
	classShift      = 24
	classMask       = 1<<5 - 1
	maxClassedFirst = 4
	leastClassed    = 5 // bits of any key
)

// ClassSide returns the side of a packet by which the keys of a shape have a class: the source, if
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

// classOf returns the class of a serialised key, if it has one.
func classOf(serialised []byte) (class int, ok bool) {
	shape := key.Shape{Fields: key.Fields(serialised[0]), SrcBits: serialised[1], DstBits: serialised[2]}
	at := addressOf(serialised, ClassSide(shape))
	if at == nil {
		return 0, false
	}
	network := binary.BigEndian.Uint32(at)
	if !shape.V6() {
		network &= 0xffff << (32 - Class4Bits)
	}
	return int(network * 0x9E3779B1 >> (32 - classBits)), true
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
	h &^= classMask << classShift
	if class, ok := classOf(serialised); ok {
		h |= uint64(c[class]) << classShift
	}
	return h
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
	case len(c) != NumClasses:
		return fmt.Errorf("membership: %d classes, want %d", len(c), NumClasses)
	case l.Mode != Approximate || l.First > maxClassedFirst:
		return fmt.Errorf("membership: classes of keys with %d bits in the first line, or in exact mode", l.First)
	case slices.Max(c) > MaxExtra:
		return fmt.Errorf("membership: %d extra bits of a class, the limit is %d", slices.Max(c), MaxExtra)
	}
	return nil
}

// ClassCounts has a number for each class.
type ClassCounts [NumClasses]float64

// Add counts n keys like one, if it has a class.
func (c *ClassCounts) Add(k key.Key, n float64) {
	if class, ok := classOf(k.Append(make([]byte, 0, key.MaxLen))); ok {
		c[class] += n
	}
}

// AddColumn counts the keys of a column.
func (c *ClassCounts) AddColumn(col Column) {
	if ClassSide(col.Shape) == 0 {
		return
	}
	size := col.Shape.KeyLen()
	for i := 0; i < len(col.Keys); i += size {
		class, _ := classOf(col.Keys[i : i+size])
		c[class]++
	}
}

// ClassShare describes the classes with one number of extra bits.
type ClassShare struct {
	Extra    int
	Classes  int     // their number
	Listed   float64 // of the listed keys, their share
	Elements float64 // of the elements that are not listed, as far as they were known
}

// worthClasses is the factor by which classes must lower the rate: else a change of traffic
// would soon make them worse than none.
const worthClasses = 0.9

// unknownShare is the share of elements that may come from any class, so that none is ruled out.
const unknownShare = 0.01

// PlanClasses gives classes extra bits, given the listed keys of each, the number of all listed keys, and
// how many elements were found in each that are not listed. All keys have the same number of bits where
// that would not lower the share of such elements that are taken for listed ones by a tenth.
//
// [weighted.Universe.Optimal] gives k_e, which is bounded by the bits that all keys have and by
// [weighted.Dropping], and rounded to the nearest integer.
func (l *Layout) PlanClasses(listed, elements *ClassCounts, all int) {
	share := elements.shares()
	if l.Mode != Approximate || l.Lines == 0 || share == nil || all == 0 {
		return
	}
	all = max(all, int(math.Ceil(listed.sum()))) // some may have been removed since they were counted
	l.Classes, l.ClassShares = nil, nil
	plain := fpr.BestCascade(all, l.Lines, fpr.MaxFurther)
	l.First, l.Rest = plain.First, plain.Rest
	best, rate := *l, worthClasses*l.FalsePositiveRate(all)
	for base := leastClassed; base <= plain.K(); base++ {
		next := *l
		next.First, next.Rest = maxClassedFirst, base-maxClassedFirst
		next.setClasses(listed, elements, all)
		if r := next.FalsePositiveRate(all); r < rate {
			best, rate = next, r
		}
	}
	*l = best
}

// RateOf returns the share of elements that are taken for listed ones, as [Layout.FalsePositiveRate], for
// these elements of each class instead of those by which it was planned.
func (l *Layout) RateOf(elements *ClassCounts, n int) (rate float64) {
	share := elements.shares()
	if l.Classes == nil || share == nil {
		return l.FalsePositiveRate(n)
	}
	var of [MaxExtra + 1]float64
	for i, extra := range l.Classes {
		of[extra] += share[i]
	}
	for extra, s := range of {
		if s > 0 {
			rate += s * l.HotFalsePositiveRate(n, extra)
		}
	}
	return rate
}

// shares returns the share of each class, nil if there are no elements.
func (c *ClassCounts) shares() *ClassCounts {
	seen := c.sum()
	if seen == 0 {
		return nil
	}
	var share ClassCounts
	for i, n := range c {
		share[i] = shareOf(n, seen)
	}
	return &share
}

// shareOf returns the share of a class in which n of all elements were found.
func shareOf(n, seen float64) float64 { return (1-unknownShare)*n/seen + unknownShare/NumClasses }

func (c *ClassCounts) sum() (n float64) {
	for _, m := range c {
		n += m
	}
	return n
}

// setClasses sets the classes' bits beyond those that all keys have. Bits that are chosen by the elements
// that were found fit these better than others. So each of them is predicted to have the bits that its
// class would have without it.
func (l *Layout) setClasses(listed, elements *ClassCounts, all int) {
	k := optimal(listed, elements.shares(), float64(l.Lines)*LineBits)
	least, most := float64(l.First+l.Rest), float64(weighted.Dropping.Most)
	bounded := func(i int, by float64) float64 { return min(max(k[i]+by, least), most) }
	// Where some are bounded, all others change until half of the bits are set again.
	low, high := -most, most
	for range 30 {
		by := (low + high) / 2
		bits := (float64(all) - listed.sum()) * least
		for i, n := range listed {
			bits += n * bounded(i, by)
		}
		if bits > float64(l.Lines)*LineBits*math.Ln2 {
			high = by
		} else {
			low = by
		}
	}
	l.Classes, l.ClassShares = make(Classes, NumClasses), nil
	var of [MaxExtra + 1]ClassShare
	of[0].Listed = 1 - listed.sum()/float64(all)
	seen := elements.sum()
	for i, n := range elements {
		extra := int(math.Round(bounded(i, low)) - least)
		without := int(math.Round(bounded(i, low+math.Log2(shareOf(max(n-1, 0), seen)/shareOf(n, seen)))) - least)
		l.Classes[i] = byte(extra)
		of[extra].Classes++
		of[extra].Listed += listed[i] / float64(all)
		of[without].Elements += n / seen
	}
	for extra, s := range of {
		if s.Extra = extra; s.Listed > 0 || s.Elements > 0 {
			l.ClassShares = append(l.ClassShares, s)
		}
	}
}

// optimal returns the k_e of each class, a real number, +Inf where nothing is listed.
func optimal(listed, share *ClassCounts, m float64) []float64 {
	n := listed.sum()
	if n == 0 {
		return slices.Repeat([]float64{math.Inf(1)}, NumClasses)
	}
	u := make(weighted.Universe, NumClasses)
	for i, listed := range listed {
		others := share[i] * n // only their proportion to those of other classes matters
		u[i] = weighted.Class{Count: listed + others, Frequency: 1, Likelihood: listed / (listed + others)}
	}
	return u.Optimal(m)
}
