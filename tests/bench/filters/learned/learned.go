// Package learned has filters that know the traffic: weir's hot table, k_e by class, Ada-BF and
// stacked filters, at equal memory, with all that they have learned in it.
package learned

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"

	"weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/hash"
	"weir/filter/membership"
	"weir/filter/weighted"
)

// Networks is the number of networks of a Task. As a real list of a million addresses has
// about 15 in each network /16, a list of 40,000 has about 20 in each.
const Networks = 2048

// classBits is the memory of a network's class: the number of bits of its keys.
const classBits = 4

// Task is a list, and traffic whose sources are not on it. The network of a key is its lowest
// bits.
type Task struct {
	Listed  []uint64
	Sources []uint64
	Shares  []float64 // of all packets, by source
	Bits    int       // of memory, for everything

	order  []int                    // sources, by what was learned in one half of the packets, the hottest first
	shares []float64                // of the packets in the other half, for so many of the hottest
	class  [Networks]weighted.Class // of keys in a network, by both halves
	mass   [Networks]float64        // share of packets
	listed [Networks]float64
}

// Network returns the network of a key.
func Network(key uint64) int { return int(key % Networks) }

// NewTask makes lists and traffic. Sources have shares by Zipf's distribution. If
// networks differ, the listed addresses and the sources are each spread over them by Zipf's
// distribution with an exponent of 1, independently; if not, evenly.
func NewTask(listed, sources, bits, packets int, alpha float64, networksDiffer bool, seed uint64) *Task {
	r := rand.New(rand.NewPCG(seed, 1))
	t := &Task{Bits: bits, Shares: zipf(sources, alpha)}
	draw := func(n int) (keys []uint64) {
		order, weights := r.Perm(Networks), cumulated(zipf(Networks, 1))
		for range n {
			network := r.IntN(Networks)
			if networksDiffer {
				network = order[pick(weights, r.Float64())]
			}
			keys = append(keys, r.Uint64()/Networks*Networks+uint64(network))
		}
		return keys
	}
	t.Listed, t.Sources = draw(listed), draw(sources)
	t.learn(packets, r)
	return t
}

// learn counts sampled packets, in two halves.
func (t *Task) learn(packets int, r *rand.Rand) {
	cumulative := cumulated(t.Shares)
	var counts [2][]float64
	for half := range counts {
		counts[half] = make([]float64, len(t.Sources))
		for range packets / 2 {
			counts[half][pick(cumulative, r.Float64())]++
		}
	}
	for i, n := range counts[0] {
		if n > 0 {
			t.order = append(t.order, i)
		}
	}
	slices.SortStableFunc(t.order, func(a, b int) int { return int(counts[0][b] - counts[0][a]) })
	t.shares = append(t.shares, 0)
	sum := 0.0
	for _, i := range t.order {
		sum += counts[1][i] / float64(packets/2)
		t.shares = append(t.shares, sum)
	}
	var seen, seenPackets [Networks]float64
	for i, key := range t.Sources {
		if n := counts[0][i] + counts[1][i]; n > 0 {
			seen[Network(key)]++
			seenPackets[Network(key)] += n
		}
	}
	for _, key := range t.Listed {
		t.listed[Network(key)]++
	}
	for g := range t.class {
		n, l := seen[g]+1, t.listed[g] // one more that was not seen yet, with half a packet
		t.class[g] = weighted.Class{Count: n + l, Frequency: (seenPackets[g] + 0.5) / n, Likelihood: l / (n + l)}
		t.mass[g] = (seenPackets[g] + 0.5) / (float64(packets) + Networks/2)
	}
}

// FalseDrops returns the share of packets that a filter drops.
func (t *Task) FalseDrops(f Filter) (share float64) {
	for i, key := range t.Sources {
		if f.Contains(key) {
			share += t.Shares[i]
		}
	}
	return share
}

func zipf(n int, alpha float64) []float64 {
	shares, sum := make([]float64, n), 0.0
	for i := range shares {
		shares[i] = math.Pow(float64(i+1), -alpha)
		sum += shares[i]
	}
	for i := range shares {
		shares[i] /= sum
	}
	return shares
}

func cumulated(shares []float64) []float64 {
	sums, sum := make([]float64, len(shares)), 0.0
	for i, s := range shares {
		sum += s
		sums[i] = sum
	}
	return sums
}

func pick(cumulative []float64, x float64) int {
	return min(sort.SearchFloat64s(cumulative, x), len(cumulative)-1)
}

// Filter has all that is listed.
type Filter interface {
	Contains(key uint64) bool
	Bits() int // of all memory, with what was learned
}

// Kind makes filters within the bits of a task, and predicts the share of packets that they
// drop from what the task has learned.
type Kind struct {
	Name, Source string
	Weir         bool // weir has it in use
	New          func(t *Task, seed uint64) (f Filter, predicted float64)
}

// Kinds are all kinds.
var Kinds = []Kind{
	{"Bloom, nothing learned", "Broder, Mitzenmacher, section 2.1", false, newPlain},
	{"cascade, hot table of all hot sources", "Bruck, Gao, Jiang, Weighted Bloom Filter, 2006, section III", false,
		func(t *Task, seed uint64) (Filter, float64) { return newHot(t, seed, false) }},
	{"cascade and hot table (weir)", "the same, of those that the cascade passes; filter/membership", true,
		func(t *Task, seed uint64) (Filter, float64) { return newHot(t, seed, true) }},
	{"k_e by network", "Bruck, Gao, Jiang, theorem 3.1 as in filter/weighted, Optimal", false, newByClass},
	{"Ada-BF", "Dai, Shrivastava, NeurIPS 2020, section 3", false, newAda},
	{"stacked", "Deeds, Hentschel, Idreos, Stacked Filters, VLDB 2021, sections 2 and 3", false, newStacked},
}

// bitset is a Bloom filter in which each key has a number of bits of its own.
type bitset struct {
	words []uint64
	size  int
	seed  uint64
}

func newBitset(bits int, seed uint64) bitset {
	bits = max(1, bits)
	return bitset{make([]uint64, (bits+63)/64), bits, seed}
}

func (b bitset) position(key uint64, i int) int {
	return int(hash.Reduce(hash.Nth(key^b.seed, uint64(i)), uint32(b.size)))
}

func (b bitset) add(key uint64, k int) {
	for i := range k {
		p := b.position(key, i)
		b.words[p/64] |= 1 << (p % 64)
	}
}

func (b bitset) has(key uint64, k int) bool {
	for i := range k {
		if p := b.position(key, i); b.words[p/64]>>(p%64)&1 == 0 {
			return false
		}
	}
	return true
}

// best returns the best number of bits of a key in a Bloom filter that has so many for each, and
// the rate.
func best(bits float64) (k int, rate float64) {
	if bits <= 0 {
		return 0, 1
	}
	rate = 1
	for i := 1; i <= 24; i++ {
		if r := math.Pow(1-math.Exp(-float64(i)/bits), float64(i)); r < rate {
			k, rate = i, r
		}
	}
	return k, rate
}

// layered is a Bloom filter of a fixed number of bits for each key.
type layered struct {
	bitset
	k int
}

// fill returns a filter that has the keys, in so many bits for each.
func fill(keys []uint64, bits float64, seed uint64) layered {
	k, _ := best(bits)
	l := layered{newBitset(int(float64(max(1, len(keys)))*bits), seed), k}
	for _, key := range keys {
		l.add(key, k)
	}
	return l
}

func (l layered) Contains(key uint64) bool { return l.has(key, l.k) }
func (l layered) Bits() int                { return l.size }

func newPlain(t *Task, seed uint64) (Filter, float64) {
	bits := float64(t.Bits) / float64(len(t.Listed))
	_, rate := best(bits)
	return fill(t.Listed, bits, seed), rate
}

// hot is weir's cascade with its hot table, of 64 bytes for each eight elements at most.
type hot struct {
	cascade *cascade.Filter
	table   *membership.Hot
	slots   []uint64 // of the table
	seed    uint64
	base    int // bits of a key
	bits    int
}

// hotBits is the memory of a bucket of the hot table.
const hotBits = 64 * membership.BucketSlots

// newHot chooses how many sources are hot by the least rate that is predicted. The table has
// all of them, or only those that the cascade passes, as weir's has: to test more bits of the
// others changes nothing.
func newHot(t *Task, seed uint64, onlyPassing bool) (Filter, float64) {
	n := len(t.Listed)
	least, buckets, known := math.Inf(1), 0, 0
	for b := 0; b == 0 || b*hotBits < t.Bits/2; b = max(membership.MinHotBuckets, 2*b) {
		l := fpr.BestCascade(n, uint32((t.Bits-b*hotBits)/cascade.LineBits), fpr.MaxFurther)
		room := int(membership.HotFill * float64(b*membership.BucketSlots))
		if onlyPassing {
			room = int(float64(room) / l.Rate(n))
		}
		room = min(room, len(t.order))
		if rate := (1 - t.shares[room]) * l.Rate(n); rate < least {
			least, buckets, known = rate, b, room
		}
	}
	l := fpr.BestCascade(n, uint32((t.Bits-buckets*hotBits)/cascade.LineBits), fpr.MaxFurther)
	f := &hot{
		cascade: cascade.New(make([]uint64, l.Lines*cascade.LineWords), l.First, l.Rest),
		slots:   make([]uint64, buckets*membership.BucketSlots),
		seed:    seed,
		base:    l.K(),
		bits:    l.Bits() + buckets*hotBits,
	}
	f.table = membership.NewHot(f.slots)
	for _, key := range t.Listed {
		f.cascade.Add(f.hash(key))
	}
	for _, i := range t.order[:known] {
		if h := f.hash(t.Sources[i]); !onlyPassing || f.cascade.Contains(h) {
			f.heat(h)
		}
	}
	return f, least
}

// heat enters an element with all extra bits, as the documentation of [membership.Hot] lays slots out.
// Where its bucket is full, of hotter ones, it has none.
func (f *hot) heat(h uint64) {
	bucket := h % uint64(len(f.slots)/membership.BucketSlots) * membership.BucketSlots
	for i := range f.slots[bucket:][:membership.BucketSlots] {
		if slot := &f.slots[int(bucket)+i]; *slot == 0 {
			*slot = uint64(weighted.Dropping.Most-f.base)<<59 | h>>5
			return
		}
	}
}

func (f *hot) hash(key uint64) uint64 { return hash.Nth(key^f.seed, 0) }
func (f *hot) Bits() int              { return f.bits }

func (f *hot) Contains(key uint64) bool {
	h := f.hash(key)
	return f.cascade.Contains(h) && f.cascade.ContainsExtra(h, f.table.Find(h))
}

// classed has bits by the network of a key.
type classed struct {
	bitset
	k [Networks]uint8
}

func (f *classed) Contains(key uint64) bool { return f.has(key, int(f.k[Network(key)])) }
func (f *classed) Bits() int                { return f.size + Networks*classBits }

func newClassed(t *Task, k [Networks]uint8, seed uint64) *classed {
	f := &classed{newBitset(t.Bits-Networks*classBits, seed), k}
	for _, key := range t.Listed {
		f.add(key, int(k[Network(key)]))
	}
	return f
}

// rate predicts the share of packets that bits by network let through.
func (t *Task) rate(k [Networks]uint8) (share float64) {
	load := 0.0
	for g, n := range k {
		load += float64(n) * t.listed[g]
	}
	fill := 1 - math.Exp(-load/float64(t.Bits-Networks*classBits))
	powers := [1 << classBits]float64{1}
	for n := range len(powers) - 1 {
		powers[n+1] = powers[n] * fill
	}
	for g, n := range k {
		share += t.mass[g] * powers[n]
	}
	return share
}

// newByClass has the optimal bits for each network. No class has none: it would be dropped as
// a whole.
func newByClass(t *Task, seed uint64) (Filter, float64) {
	var k [Networks]uint8
	for g, bits := range weighted.Universe(t.class[:]).Optimal(float64(t.Bits - Networks*classBits)) {
		k[g] = uint8(weighted.Rounding{Least: 1, Most: 1<<classBits - 1}.Round(bits, 0))
	}
	return newClassed(t, k, seed), t.rate(k)
}

// newAda scores networks by their listed share, and sorts them into groups by it: from one to
// the next, the packets become fewer by a factor, and keys have a bit less. Factor and
// the most bits are those with the least predicted rate.
func newAda(t *Task, seed uint64) (Filter, float64) {
	order := make([]int, Networks)
	score := make([]float64, Networks)
	for g := range order {
		order[g] = g
		score[g] = t.listed[g] / (t.listed[g] + t.mass[g]*float64(len(t.Listed)))
	}
	sort.SliceStable(order, func(i, j int) bool { return score[order[i]] < score[order[j]] })
	var k [Networks]uint8
	least := math.Inf(1)
	for most := 2; most < 1<<classBits; most++ {
		for fewest := 1; fewest <= most; fewest++ {
			for factor := 1.0; factor <= 4; factor += 0.25 {
				if tried := t.groups(order, most, fewest, factor); t.rate(tried) < least {
					k, least = tried, t.rate(tried)
				}
			}
		}
	}
	return newClassed(t, k, seed), least
}

// groups divides networks, in their order, into groups of most bits, one less, and so on.
func (t *Task) groups(order []int, most, fewest int, factor float64) (k [Networks]uint8) {
	all := 0.0
	for bits := most; bits >= fewest; bits-- {
		all += math.Pow(factor, float64(bits))
	}
	bits, sum, end := most, 0.0, math.Pow(factor, float64(most))/all
	for _, g := range order {
		for sum >= end && bits > fewest {
			bits--
			end += math.Pow(factor, float64(bits)) / all
		}
		k[g] = uint8(bits)
		sum += t.mass[g]
	}
	return k
}

// stacked has three layers: what is listed; sources known to be unlisted, of those that pass
// the first; and what is listed, of that which passes the second. What is not in the second
// is listed, and what passes it if the third has it.
type stacked struct{ layers [3]layered }

// newStacked chooses sizes of layers, and how many sources are known, by the least rate.
func newStacked(t *Task, seed uint64) (Filter, float64) {
	n, all := float64(len(t.Listed)), float64(t.Bits)
	ideal := func(bits float64) float64 { return math.Exp(-bits * math.Ln2 * math.Ln2) }
	predict := func(rates [3]float64, hot float64) float64 {
		return rates[0] * ((1-hot)*(1-rates[1]+rates[1]*rates[2]) + hot*rates[2])
	}
	bits := [3]float64{all / n}
	least, known := ideal(bits[0]), 0
	for count := 64; len(t.order) > 0; count *= 2 {
		count = min(count, len(t.order))
		for second := 1.0; second <= 16; second++ {
			for third := 1.0; third <= 16; third++ {
				// The first layer has what the others leave: less, the more it lets through.
				first := all / n
				for range 10 {
					first = (all - n*ideal(second)*third - float64(count)*ideal(first)*second) / n
				}
				rate := predict([3]float64{ideal(first), ideal(second), ideal(third)}, t.shares[count])
				if first > 0 && rate < least {
					least, known, bits = rate, count, [3]float64{first, second, third}
				}
			}
		}
		if count == len(t.order) {
			break
		}
	}
	// Sizes of the small layers follow from how many keys they really get: a hundredth of the
	// memory is kept back, and the third has what the others leave.
	f := new(stacked)
	bits[0] -= all / n / 100
	f.layers[0] = fill(t.Listed, bits[0], seed)
	var hot, confused []uint64
	for _, i := range t.order[:known] {
		if key := t.Sources[i]; f.layers[0].Contains(key) {
			hot = append(hot, key)
		}
	}
	f.layers[1] = fill(hot, bits[1], seed+1)
	for _, key := range t.Listed {
		if f.layers[1].Contains(key) {
			confused = append(confused, key)
		}
	}
	f.layers[2] = fill(confused, float64(t.Bits-f.Bits())/float64(max(1, len(confused))), seed+2)
	var rates [3]float64
	for i, b := range bits {
		_, rates[i] = best(b)
	}
	return f, predict(rates, t.shares[known])
}

func (f *stacked) Contains(key uint64) bool {
	return f.layers[0].Contains(key) && (!f.layers[1].Contains(key) || f.layers[2].Contains(key))
}

func (f *stacked) Bits() int {
	return f.layers[0].Bits() + f.layers[1].Bits() + f.layers[2].Bits()
}
