package fpr

import (
	"fmt"
	"math"
	"math/bits"
)

// Geometry of a line, shared by every cascade: one cache line of 512 bits,
// eight words of 64.
const (
	LineBits  = 512
	lineWords = 8
	wordBits  = LineBits / lineWords
)

// MaxRest is the maximum number of bits that a key sets in one line after the
// first. Further bits take further lines.
const MaxRest = 6

// ApproxFirst and ExactFirst are the numbers of bits that a key sets in its
// first line: in approximate mode, in which a second line follows, and in exact
// mode, in which a table confirms and there is only one line.
const (
	ApproxFirst = 5
	ExactFirst  = 5
)

// CascadeLayout is the geometry of weir's cascade, a blocked Bloom filter: one
// array of lines, and the number of bits that a key sets in them.
//
// A key chooses a line and sets First bits in it, one in each of First
// consecutive words (modulo 8) starting from a random one. Rest further bits go
// to independently chosen lines of the same array in the same manner, MaxRest
// to a line and the remainder to the last. All choices are uniform. First is
// 1…8, Rest 0 or more.
type CascadeLayout struct {
	Lines uint32 `json:"lines"`
	First int    `json:"first"`
	Rest  int    `json:"rest"`
}

// Members is a number of keys in a cascade that set the same number of bits:
// the layout's First, and Rest in further lines.
type Members struct {
	Keys int
	Rest int
}

// K returns the number of bits that a key sets and a query tests.
func (c CascadeLayout) K() int { return c.First + c.Rest }

// Bits returns the size of the array in bits.
func (c CascadeLayout) Bits() int { return int(c.Lines) * LineBits }

// Rate returns the probability that a key that is none of the n in the cascade
// tests positive. It panics if the layout is invalid.
//
// It is exact but for the dependence between the query's lines, an error of
// order 1/Lines. As for [Blocked], the rate of one line is an
// inclusion–exclusion over the sets of tested bits that stay clear, instead of
// a sum over the load of the line (Putze, Sanders and Singler 2007).
func (c CascadeLayout) Rate(n int) float64 {
	return c.RateAmong(Members{Keys: n, Rest: c.Rest})
}

// RateAmong returns the [CascadeLayout.Rate] of a query for the layout's bits
// if the members set other numbers of bits than the query tests, as in a
// weighted filter, in which k_e differs from key to key.
func (c CascadeLayout) RateAmong(members ...Members) float64 {
	return c.RatesAmong([]int{c.Rest}, members...)[0]
}

// RatesAmong returns the [CascadeLayout.RateAmong] of queries for First bits and each number of
// further ones.
func (c CascadeLayout) RatesAmong(rests []int, members ...Members) []float64 {
	load := c.load(members)
	first := c.pass(c.First, load)
	var lines [MaxRest + 1]float64 // the probability to pass a line, by the bits in it; 0: not computed yet
	rates := make([]float64, len(rests))
	for i, rest := range rests {
		rates[i] = first
		for _, bits := range restLines(rest) {
			if lines[bits] == 0 {
				lines[bits] = c.pass(bits, load)
			}
			rates[i] *= lines[bits]
		}
	}
	return rates
}

// FirstLine returns the probability that a key that is none of the n in the
// cascade passes the first line, so that a second one is read. It panics if the
// layout is invalid.
func (c CascadeLayout) FirstLine(n int) float64 {
	return c.pass(c.First, c.load([]Members{{Keys: n, Rest: c.Rest}}))
}

// MaxFurther is the maximum number of lines of a key after the first.
const MaxFurther = 3

// LowEnough is a rate that is low enough for any use. Lower ones are no better: BestCascade
// then prefers fewer lines of each key, so that more lines of the cascade may give a higher
// rate than fewer do, but none above LowEnough.
const LowEnough = 1e-10

// worthALine says that one more line of each key is worth its cost where it lowers the rate
// by a tenth.
const worthALine = 0.9

// BestCascade returns the layout with the lowest Rate for n keys in the given
// number of lines, among those of ApproxFirst bits in the first line and up to
// MaxRest in each of several further ones, at most MaxFurther. One more than the
// second is used where it lowers the rate by a tenth, and that is not [LowEnough] anyway.
func BestCascade(n int, lines uint32, further int) CascadeLayout {
	best := CascadeLayout{Lines: lines, First: ApproxFirst}
	rate := best.Rate(n)
	for used := range min(further, MaxFurther) {
		limit := rate
		if used > 0 {
			if rate < LowEnough {
				break
			}
			limit *= worthALine
		}
		for rest := used*MaxRest + 1; rest <= (used+1)*MaxRest; rest++ {
			c := CascadeLayout{Lines: lines, First: ApproxFirst, Rest: rest}
			if r := c.Rate(n); r < limit {
				best, rate, limit = c, r, r
			}
		}
	}
	return best
}

// restLines splits the bits after the first line into those of each line.
func restLines(rest int) []int {
	var lines []int
	for ; rest > 0; rest -= MaxRest {
		lines = append(lines, min(rest, MaxRest))
	}
	return lines
}

// lineLoad counts, by size, the groups of bits that keys have set in a random
// line.
type lineLoad [lineWords + 1]int

func (c CascadeLayout) load(members []Members) lineLoad {
	if c.Lines == 0 || c.First < 1 || c.First > lineWords || c.Rest < 0 {
		panic(fmt.Sprintf("fpr: invalid cascade %+v", c))
	}
	var load lineLoad
	for _, m := range members {
		if m.Keys < 0 || m.Rest < 0 {
			panic(fmt.Sprintf("fpr: invalid members %+v", m))
		}
		load[c.First] += m.Keys
		for _, bits := range restLines(m.Rest) {
			load[bits] += m.Keys
		}
	}
	return load
}

// pass returns the probability that q bits, tested in q consecutive words of
// one line, are all set:
//
//	Σ_S (−1)^|S| Π_b (1 − (1 − φ_b(S))/Lines)^load[b]
//
// over the subsets S of the q words, where φ_b(S) is the probability that a
// group of b bits set in the query's own line misses the tested bits in S.
func (c CascadeLayout) pass(q int, load lineLoad) float64 {
	var sum float64
	for s := range 1 << q {
		var log float64 // ln of the probability that the bits in S are clear
		for b, groups := range load {
			if groups > 0 {
				log += float64(groups) * math.Log1p((miss(uint8(s), b)-1)/float64(c.Lines))
			}
		}
		// The signs add up to 0, so the sum may run over the differences from
		// 1, which preserves the digits of an almost empty filter.
		if bits.OnesCount(uint(s))%2 == 0 {
			sum += math.Expm1(log)
		} else {
			sum -= math.Expm1(log)
		}
	}
	return min(max(sum, 0), 1) // rounding may leave −1e-16
}

// miss returns φ_b(S): of b bits in consecutive words from a random one on,
// each bit that falls in a word of S misses the tested one with probability
// 63/64.
func miss(s uint8, b int) float64 {
	var sum float64
	for start := range lineWords {
		cover := bits.RotateLeft8(uint8(1<<b-1), start)
		sum += math.Pow(1-1./wordBits, float64(bits.OnesCount8(s&cover)))
	}
	return sum / lineWords
}

// Fingerprint bounds the probability that weir's table confirms a key that is
// none of the n in its buckets, and exact mode drops it by mistake: the lower
// 48 bits of two 64-bit hashes must be equal, and the upper 16 must select the
// same bucket, the first or the second. The preceding cascade hardly lowers it,
// since it looks at the same bits. Above 2¹⁶ buckets the bound is n·2⁻⁶³, twice
// the probability that the whole hashes are equal.
func Fingerprint(n int, buckets uint32) float64 {
	if buckets == 0 {
		return 1
	}
	return 2 * float64(n) * math.Exp2(-48) * max(1/float64(buckets), math.Exp2(-16))
}
