package membership

import (
	"encoding/binary"
	"maps"
	"math"

	"weir/filter/key"
)

// Sightings are unlisted elements that were found because sets passed them, in periods of time. Each period
// teaches as much as any other, so that what is sent in one of them has a bounded effect.
type Sightings struct {
	Periods []Period // the latest comes last
}

// Period has the elements that were found in a time, by network: the first four bytes of its address.
type Period struct {
	Networks map[uint32]Sighting
	Exposed  float64 // that a network has in which nothing was found yet
}

// Sighting counts the elements of a network. Where sets pass few, as in classes with many bits, few are found.
type Sighting struct {
	Found   float64
	Exposed float64 // time, in any unit, times the rate at which sets passed elements of the network
}

// MaxPeriods is the number of periods of which the program learns.
const MaxPeriods = 8

// Copy returns a copy, which does not change with s.
func (s Sightings) Copy() (c Sightings) {
	for _, p := range s.Periods {
		p.Networks = maps.Clone(p.Networks)
		c.Periods = append(c.Periods, p)
	}
	return c
}

// maxNetworks bounds the memory of a period.
const maxNetworks = 4096

// IsFull reports whether no more elements count: otherwise those of networks that came first would.
func (p *Period) IsFull() bool { return len(p.Networks) >= maxNetworks }

// Add counts an element, and reports whether it has a network, and the period room.
func (p *Period) Add(k key.Key) bool {
	network, ok := networkOf(k.Append(make([]byte, 0, key.MaxLen)))
	if !ok || p.IsFull() {
		return false
	}
	n := binary.BigEndian.Uint32(network[:])
	s, known := p.Networks[n]
	if p.Networks == nil {
		p.Networks = make(map[uint32]Sighting)
	}
	if !known {
		s.Exposed = p.Exposed
	}
	s.Found++
	p.Networks[n] = s
	return true
}

// Expose says that a set with the layout and n keys has passed elements for some time.
func (p *Period) Expose(l *Layout, n int, time float64) {
	rates := l.ClassRates(n)
	rate := func(class int) float64 {
		if l.Classes == nil {
			return rates[0]
		}
		return rates[l.Classes[class]]
	}
	for network, s := range p.Networks {
		s.Exposed += time * rate(l.classOf(networkAt(network)))
		p.Networks[network] = s
	}
	p.Exposed += time * rate(NumClasses)
}

// Found returns the number of elements.
func (p *Period) Found() (n float64) {
	for _, s := range p.Networks {
		n += s.Found
	}
	return n
}

// networkAt returns the network of a key of Networks.
func networkAt(n uint32) (network [4]byte) {
	binary.BigEndian.PutUint32(network[:], n)
	return network
}

// classShares says how elements are spread over the classes of a layout.
type classShares struct {
	of     ClassCounts // the classes' shares, whose sum is 1
	number ClassCounts // of elements that were found
	most   ClassCounts // the largest share of a single element
}

// shares returns how the elements are spread, the mean of those periods in which some were found; nil: of none.
func (l *Layout) shares(periods []Period) *classShares {
	var s classShares
	n := 0.
	for _, p := range periods {
		var of, most ClassCounts
		for network, seen := range p.Networks {
			if seen.Exposed > 0 {
				class := l.classOf(networkAt(network))
				of[class] += seen.Found / seen.Exposed
				s.number[class] += seen.Found
				most[class] = max(most[class], 1/seen.Exposed)
			}
		}
		if sum := of.sum(); sum > 0 {
			n++
			for i := range of {
				s.of[i] += of[i] / sum
				s.most[i] = max(s.most[i], most[i]/sum)
			}
		}
	}
	if n == 0 {
		return nil
	}
	for i := range s.of {
		s.of[i] /= n
		s.most[i] /= n
	}
	return &s
}

// atMost returns the share of the elements that a set passes, given the rates of each number of extra bits, and
// three standard errors more: few elements say little of those that come next.
func (s *classShares) atMost(c Classes, passed []float64) float64 {
	mean, square, n := 0., 0., s.number.sum()
	for i, share := range s.of {
		mean += share * passed[c[i]]
		square += share * passed[c[i]] * passed[c[i]]
	}
	return mean + 3*math.Sqrt(max(square-mean*mean, 0)/n)
}

// rate returns the share of the elements that a set passes, given the rates of each number of extra bits.
func (s *classShares) rate(c Classes, passed []float64) (rate float64) {
	for i, share := range s.of {
		rate += withUnknown(share) * passed[c[i]]
	}
	return rate
}
