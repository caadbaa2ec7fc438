// Package forgers has a host's lists and honest sources, and those who forge sources to turn what
// the host learns against the honest ones.
package forgers

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

const (
	networks = 1000
	periods  = 8 // that are learned
)

// A World is a host with listed addresses and honest sources, each spread over networks /16 by
// Zipf's distribution, independently.
type World struct {
	*rand.Rand
	listed, honest []float64 // sums of the networks' shares
	ranks          []int     // networks, those in which most is listed first
	largest        int       // of honest sources
	forged         int
}

// New returns a host whose networks have shares by this exponent.
func New(r *rand.Rand, exponent float64) *World {
	w := &World{Rand: r, ranks: make([]int, networks)}
	spread := func(ranks []int) (sums []float64) {
		sum := 0.
		for _, rank := range ranks {
			sum += math.Pow(float64(rank+1), -exponent)
			sums = append(sums, sum)
		}
		return sums
	}
	ranks := r.Perm(networks)
	for network, rank := range ranks {
		w.ranks[rank] = network
	}
	w.listed = spread(ranks)
	ranks = r.Perm(networks)
	w.honest, w.largest = spread(ranks), slices.Index(ranks, 0)
	return w
}

// In returns an address of a network, 0 … 999.
func (w *World) In(network int) uint32 { return uint32(1<<28 | network<<16 | w.IntN(1<<16)) }

func (w *World) of(sums []float64) uint32 {
	network, _ := slices.BinarySearch(sums, w.Float64()*sums[networks-1])
	return w.In(network)
}

// Listed returns an address for the host's lists.
func (w *World) Listed() uint32 { return w.of(w.listed) }

// Honest returns the address of an honest source, which may be listed.
func (w *World) Honest() uint32 { return w.of(w.honest) }

// HonestShares returns the share of each network of the honest sources.
func (w *World) HonestShares() []float64 {
	shares := make([]float64, networks)
	for i := range shares {
		shares[i] = w.share(i)
	}
	return shares
}

func (w *World) share(network int) float64 {
	before := 0.
	if network > 0 {
		before = w.honest[network-1]
	}
	return (w.honest[network] - before) / w.honest[networks-1]
}

// A Forger sends from sources of its choice.
type Forger struct {
	Name   string
	source func(*World) uint32
	each   func(period int) int // forged sources for each honest one
}

// Found calls add with all sources that are learned, the honest ones and those of a forger, if any.
func (w *World) Found(honest int, f *Forger, add func(period int, source uint32)) {
	for period := range periods {
		for range honest / periods {
			add(period, w.Honest())
			if f == nil {
				continue
			}
			for range f.each(period) {
				w.forged++
				add(period, f.source(w))
			}
		}
	}
}

// All returns the forgers. Of the sources of one period at least, a third or more is honest.
func All() (all []Forger) {
	most := func(n int) func(*World) uint32 {
		return func(w *World) uint32 { return w.In(w.ranks[w.IntN(n)]) }
	}
	flood := func(period int) int { // of hours: all periods but one
		if period == 3 {
			return 2
		}
		return 10
	}
	always := func(int) int { return 2 }
	for _, n := range []int{1, 5, 20, 100} {
		all = append(all, Forger{fmt.Sprintf("from the %d most listed", n), most(n), flood},
			Forger{fmt.Sprintf("always from the %d most listed", n), most(n), always})
	}
	return append(all,
		Forger{"from the 20 least listed", func(w *World) uint32 { return w.In(w.ranks[networks-1-w.IntN(20)]) }, flood},
		Forger{"evenly", func(w *World) uint32 { return w.In(w.IntN(networks)) }, flood},
		Forger{"in proportion to the lists", (*World).Listed, flood},
		// Bits for those networks in which honest sources are rare, and much and little is listed; all that is
		// cheap at once, so that nothing is left for others; and another network in each period.
		Forger{"from half of all networks, the least listed", func(w *World) uint32 { return w.In(w.ranks[500+w.IntN(500)]) }, flood},
		Forger{"as honest sources do not", func(w *World) uint32 {
			for {
				if n := w.IntN(networks); w.Float64()*2/networks > w.share(n) {
					return w.In(n)
				}
			}
		}, always},
		Forger{"from one network after another", func(w *World) uint32 { return w.In(w.ranks[w.forged/500%networks]) }, flood},
		// A class that only the last period speaks of; a class for all but the network of most honest sources;
		// and networks that grow as if they came into use.
		Forger{"in the last period alone", most(20), func(period int) int {
			if period == periods-1 {
				return 30
			}
			return 0
		}},
		Forger{"as honest sources, but for their largest network", func(w *World) uint32 {
			for {
				if a := w.Honest(); int(a>>16&0xfff) != w.largest {
					return a
				}
			}
		}, always},
		Forger{"more in each period", most(100), func(period int) int { return 2 + 3*period }},
	)
}
