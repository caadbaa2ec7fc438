package counting

import (
	"math"
	"math/rand/v2"

	"weir/filter/bloom"
	"weir/filter/hash"
)

// SpaceCode is the multi-resolution space-code Bloom filter of Kumar, Xu, Li and Wang
// (Space-Code Bloom Filter for Efficient Traffic Flow Measurement, 2003; section 9 of the
// survey): a multiset in bits, for the multiplicity of all elements and not of the large
// ones alone. An insertion draws one of several groups of hash functions and sets its k
// bits; how often an element was inserted is estimated from the number of groups whose
// bits are all set. Many insertions set all groups, so further levels, of a filter each,
// take one in Sampling, one in Sampling², … insertions. Concurrent queries are safe; a change must not run concurrently with anything else.
type SpaceCode struct {
	seed   uint64
	groups int
	levels []*bloom.Filter
	random *rand.Rand
}

// Sampling is how many fewer insertions each level of a [SpaceCode] takes than the one
// before.
const Sampling = 4

// NewSpaceCode returns an empty filter of levels of geometry g, with a number of groups of
// hash functions. The seed selects these, and the source draws groups.
func NewSpaceCode(g bloom.Geometry, seed uint64, groups, levels int, source rand.Source) *SpaceCode {
	s := &SpaceCode{seed: seed, groups: groups, random: rand.New(source)}
	for range levels {
		s.levels = append(s.levels, bloom.New(g, seed))
	}
	return s
}

// Add adds the element b once.
func (s *SpaceCode) Add(b []byte) { s.AddHash(hash.Sum(s.seed, b)) }

// AddHash adds the element with the 64-bit hash h once.
func (s *SpaceCode) AddHash(h uint64) {
	sample := s.random.Uint64()
	for i, f := range s.levels {
		if float64(sample) >= math.Ldexp(s.taken(i), 64) {
			return
		}
		f.AddHash(s.group(h, i, s.random.IntN(s.groups)))
	}
}

// taken is the share of the insertions that a level takes.
func (s *SpaceCode) taken(level int) float64 { return math.Pow(Sampling, -float64(level)) }

// group is the hash of an element in a group.
func (s *SpaceCode) group(h uint64, level, group int) uint64 {
	return hash.Nth(h, uint64(1+level*s.groups+group))
}

// Count estimates how often the element b was added.
func (s *SpaceCode) Count(b []byte) float64 { return s.CountHash(hash.Sum(s.seed, b)) }

// CountHash estimates how often the element with the 64-bit hash h was added: the
// number under which the groups that are set are likeliest, 0 included.
func (s *SpaceCode) CountHash(h uint64) float64 {
	set := make([]float64, len(s.levels))
	wrong := make([]float64, len(s.levels)) // probability that a group is set by other elements
	for i, f := range s.levels {
		wrong[i] = math.Pow(f.FillRatio(), float64(f.K()))
		for g := range s.groups {
			if f.ContainsHash(s.group(h, i, g)) {
				set[i]++
			}
		}
	}
	// The groups of a level are taken to be drawn independently of one another.
	likelihood := func(n float64) (sum float64) {
		for i := range s.levels {
			clear := math.Exp(n*math.Log1p(-s.taken(i)/float64(s.groups))) * (1 - wrong[i])
			if set[i] > 0 {
				sum += set[i] * math.Log(1-clear)
			}
			if rest := float64(s.groups) - set[i]; rest > 0 {
				sum += rest * math.Log(clear)
			}
		}
		return sum
	}
	// It has one maximum, which is searched for by the logarithm of n.
	low, high := math.Log(0.5), math.Log(s.most())
	for high-low > 1e-4 {
		a, b := low+(high-low)/3, high-(high-low)/3
		if likelihood(math.Exp(a)) < likelihood(math.Exp(b)) {
			low = a
		} else {
			high = b
		}
	}
	n := math.Exp((low + high) / 2)
	if likelihood(0) >= likelihood(n) {
		return 0
	}
	return n
}

// most is the largest estimate: as many insertions as set all groups of the last level.
func (s *SpaceCode) most() float64 {
	harmonic := 0.0
	for i := range s.groups {
		harmonic += 1 / float64(i+1)
	}
	return float64(s.groups) * harmonic / s.taken(len(s.levels)-1)
}
