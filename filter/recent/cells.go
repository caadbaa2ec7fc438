package recent

import (
	"fmt"
	"math"
	"math/bits"

	"weir/filter/hash"
)

// Kind is a kind of filter that remembers the items of a stream.
type Kind uint8

// The kinds of filters. All but Bloom are from package stable, with their cells in one
// cache line: see [Cells].
const (
	Bloom  Kind = iota // two generations of a Bloom filter
	Stable             // the stable Bloom filter, SBF: importance makes no difference
	IBF2C              // the importance-aware filter with two classes, IBF-2C
	IBFMC              // the importance-aware filter with many classes, IBF-MC
)

var kinds = [...]string{Bloom: "bloom", Stable: "stable", IBF2C: "ibf-2c", IBFMC: "ibf-mc"}

// String returns the name of the kind.
func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// MarshalText returns the name of the kind.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the name of a kind.
func (k *Kind) UnmarshalText(text []byte) error {
	for i, name := range kinds {
		if string(text) == name {
			*k = Kind(i)
			return nil
		}
	}
	return fmt.Errorf("unknown filter %q: want bloom, stable, ibf-2c or ibf-mc", text)
}

// ByImportance reports whether the kind remembers important items longer.
func (k Kind) ByImportance() bool { return k == IBF2C || k == IBFMC }

// MaxLevel is the highest level of an item, the paper's M = 2^d − 1.
const MaxLevel = 7

// Value returns the value to which an item of a level, from 1 to MaxLevel, raises its cells.
func (k Kind) Value(level int) int {
	switch half := (MaxLevel + 1) / 2; {
	case k == IBFMC:
		return level
	case k == IBF2C && level < half:
		return half
	}
	return MaxLevel
}

// Sinks returns the number of words of a line that an item sinks: the fewest with which at
// most 8 % of new items are taken for known ones where all levels are equally frequent.
func (k Kind) Sinks() int {
	switch k {
	case Bloom:
		return 0
	case IBFMC:
		return 1
	}
	return 2
}

const (
	lineWords = 8
	cellBits  = 3
	wordCells = 64 / cellBits
	lowest    = 0x1249249249249249 // the lowest bit of each cell of a word
)

// Cells is a filter that forgets the oldest and least important items as others come,
// instead of by the generation: SBF, IBF-2C or IBF-MC. bpf/first.h is its twin.
//
// It differs from package stable in this:
//
//   - An item has its K = 4 cells in one cache line, as filters in the kernel do, in four
//     words of 21 cells each. A line forgets by the items that it has itself.
//   - For an item one or two whole words of its line sink, all cells of a word at once,
//     instead of P = 21 or 42 random ones. The probability that a cell sinks is the same.
//   - Nothing sinks for an item whose cells all have at least half of its value, which it
//     raises only. With many packets of each flow, a sink for each would forget other flows
//     by the number of packets.
type Cells struct {
	kind  Kind
	lines uint32
	words []uint64
	sunk  uint64
}

// NewCells returns an empty filter of this many lines of 64 bytes each.
func NewCells(kind Kind, lines uint32) *Cells {
	return &Cells{kind: kind, lines: lines, words: make([]uint64, lineWords*int(lines))}
}

// Observe remembers the item with hash h. It reports whether it was remembered before, and
// whether others sank for it.
func (c *Cells) Observe(h uint64, level int) (known, entered bool) {
	line := c.words[lineWords*hash.Reduce(h, c.lines):][:lineWords]
	value := uint64(c.kind.Value(level))
	least := uint64(MaxLevel)
	for i := range Bits {
		word, shift := place(h, i)
		least = min(least, line[word]>>shift&MaxLevel)
	}
	if entered = 2*least < value; entered {
		first := hash.Nth(h, c.sunk) >> 61
		for i := range c.kind.Sinks() {
			sink(&line[(int(first)+i*lineWords/2)%lineWords])
		}
		c.sunk++
	}
	for i := range Bits {
		word, shift := place(h, i)
		if line[word]>>shift&MaxLevel < value {
			line[word] = line[word]&^(MaxLevel<<shift) | value<<shift
		}
	}
	return least > 0, entered
}

// place returns the word of an item's i-th cell in its line, and its lowest bit there.
func place(h uint64, i int) (word int, shift uint) {
	return int((h>>36 + uint64(i)) % lineWords), uint(cellBits * (h >> (9 * i) & 511 * wordCells >> 9))
}

// sink decrements all cells of a word that are not zero.
func sink(word *uint64) { *word -= occupied(*word) }

// occupied returns the lowest bit of each cell of a word that is not zero.
func occupied(word uint64) uint64 { return (word | word>>1 | word>>2) & lowest }

// Words returns the two halves of the filter's words. The caller must not change them.
func (c *Cells) Words() [2][]uint64 {
	half := len(c.words) / 2
	return [2][]uint64{c.words[:half], c.words[half:]}
}

// Turn does nothing: cells sink by themselves.
func (c *Cells) Turn() {}

// FullCells is the probability from which on [Cells] are full: too many of the new items are
// taken for known ones, and so many cells are high that few items sink others. The filter
// then needs a [Sink].
const FullCells = 0.5

// Sink decrements all cells of a filter that are not zero.
func Sink(words []uint64) {
	for i := range words {
		sink(&words[i])
	}
}

// Missed returns the probability that a new item is taken for a known one in a filter with
// these words, of which it reads at most some thousands.
func Missed(words []uint64) float64 {
	const most = 512
	lines := len(words) / lineWords
	n := min(lines, most)
	var sum float64
	for i := range n {
		line := words[lineWords*(i*lines/n):][:lineWords]
		var share [lineWords]float64
		for j, w := range line {
			share[j] = float64(bits.OnesCount64(occupied(w))) / wordCells
		}
		for start := range lineWords {
			p := 1.0
			for j := range Bits {
				p *= share[(start+j)%lineWords]
			}
			sum += p
		}
	}
	return sum / float64(lineWords*n)
}

// Levels is a distribution of items over the levels: entry i is the probability of level i.
type Levels [MaxLevel + 1]float64

// Uniform returns the distribution in which all levels have equal probability, as in the
// paper's analysis.
func Uniform() (l Levels) {
	for i := 1; i <= MaxLevel; i++ {
		l[i] = 1.0 / MaxLevel
	}
	return l
}

// Chain is the Markov chain of a cell's value, as in section III of the paper, for an item
// of its line.
type Chain struct {
	kind Kind
	up   [MaxLevel + 1]float64 // the probability that the cell is raised to v or more
	down float64               // that it sinks
	v    [MaxLevel + 1]float64 // stationary distribution
	sank float64               // share of the items that sink others
}

// NewChain returns the chain of a kind of [Cells] for new items of these levels.
func (k Kind) NewChain(levels Levels) *Chain {
	c := &Chain{kind: k}
	const has = float64(Bits) / (lineWords * wordCells)
	var sum float64
	for level := 1; level <= MaxLevel; level++ {
		sum += levels[level]
		for v := 1; v <= k.Value(level); v++ {
			c.up[v] += has * levels[level]
		}
	}
	for v := range c.up {
		c.up[v] /= sum
	}
	p := float64(k.Sinks()) / lineWords
	// An item sinks nothing if all its cells happen to have half of its value, which
	// depends on the distribution itself.
	c.sank = 1
	for range 100 {
		c.down = p * c.sank * (1 - has)
		c.settle()
		sank := 0.0
		for level := 1; level <= MaxLevel; level++ {
			sank += levels[level] / sum * (1 - math.Pow(c.atLeast((k.Value(level)+1)/2), Bits))
		}
		c.sank = sank
	}
	return c
}

// settle computes the stationary distribution: as many cells sink from v to v − 1 as jump
// from below v to v or above.
func (c *Chain) settle() {
	c.v = [MaxLevel + 1]float64{1}
	below := 1.0
	for v := 1; v <= MaxLevel; v++ {
		c.v[v] = below * c.up[v] / c.down
		below += c.v[v]
	}
	for v := range c.v {
		c.v[v] /= below
	}
}

// atLeast returns the probability that a cell is at v or above.
func (c *Chain) atLeast(v int) (p float64) {
	for _, x := range c.v[v:] {
		p += x
	}
	return p
}

// Missed returns the probability that a new item is taken for a known one: (1 − V₀)^K.
func (c *Chain) Missed() float64 { return math.Pow(c.atLeast(1), Bits) }

// Forgotten returns the probability that an item of a level is taken for a new one after
// this many others, 1 − (1 − Pr₀)^K, in a filter of this many lines. The number of them in
// the item's line has Poisson's distribution.
func (c *Chain) Forgotten(level int, others float64, lines uint32) float64 {
	mean := others / float64(lines)
	const settled = 2000 // items, after which nothing is left of one
	if mean > settled {
		return 1 - c.Missed()
	}
	var at [MaxLevel + 1]float64
	for v, p := range c.v {
		at[max(v, c.kind.Value(level))] += p
	}
	var sum float64
	for n := 0.0; n <= mean+8*math.Sqrt(mean)+10; n++ {
		factorial, _ := math.Lgamma(n + 1)
		weight := math.Exp(-mean - factorial)
		if n > 0 {
			weight = math.Exp(n*math.Log(mean) - mean - factorial)
		}
		sum += weight * (1 - math.Pow(1-at[0], Bits))
		c.step(&at)
	}
	return sum
}

// step lets one item come to the line.
func (c *Chain) step(at *[MaxLevel + 1]float64) {
	var next [MaxLevel + 1]float64
	below := 0.0
	for v := 0; v <= MaxLevel; v++ {
		stay := at[v]
		if v > 0 {
			next[v-1] += c.down * at[v]
			stay -= c.down * at[v]
		}
		above := 0.0
		if v < MaxLevel {
			above = c.up[v+1]
		}
		next[v] += stay - above*at[v]
		// From below v to exactly v.
		next[v] += below * (c.up[v] - above)
		below += at[v]
	}
	*at = next
}
