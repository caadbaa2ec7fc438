package measure

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// precise is the relative half width of the confidence interval that ends the
// rounds.
const precise = 0.015

// While figures vary there are more rounds than Options.Rounds: at most mostRounds
// times as many, and none begins after patience for each contender.
const (
	mostRounds = 10
	patience   = 2500 * time.Millisecond
)

// unsteady is by how much the base's figure may differ from its median, as a share. In a round
// in which it differs more, the machine was in another state: as beside a busy core.
const unsteady = 0.2

// series are the figures of each contender, round by round.
type series map[string][]float64

// steady returns the rounds in which the base's figure was near its median; without a base, all.
func (s series) steady(base string) series {
	if base == "" {
		return s
	}
	of := make(series)
	usual := median(s[base])
	for i, v := range s[base] {
		if math.Abs(v/usual-1) > unsteady {
			continue
		}
		for name := range s {
			of[name] = append(of[name], s[name][i])
		}
	}
	return of
}

// turns lets contenders take turns until the median of each one's ratio to the
// first, round by round, is precise. The first round warms up and does not count,
// nor do those in which the base was not steady, if there is one. The order is random
// in each round, so that no contender always follows the same one. It begins again, a few times,
// where the base was steady in less than half of the rounds.
func (s *session) turns(base string, names []string, measure func(name string) (float64, error)) (series, error) {
	const attempts = 3
	for attempt := 1; ; attempt++ {
		all, err := s.rounds(base, names, measure)
		if err != nil {
			return nil, err
		}
		count := all.steady(base)
		n, rounds := len(count[names[0]]), len(all[names[0]])
		if 2*n >= rounds {
			s.logf("    %d rounds of %d, ± %.1f %%", n, rounds, 100*count.widest(names))
			return count, nil
		}
		err = fmt.Errorf("the machine is not steady: in %d of %d rounds, %s differs from its median by more than a fifth", rounds-n, rounds, base)
		if attempt == attempts {
			return nil, err
		}
		s.logf("    %v: measured again", err)
	}
}

// rounds returns the figures of all rounds.
func (s *session) rounds(base string, names []string, measure func(name string) (float64, error)) (series, error) {
	all := make(series)
	order := slices.Clone(names)
	random := rand.New(rand.NewPCG(11, 12))
	began := time.Now()
	more := func(i int) bool {
		if i > mostRounds*s.Rounds || time.Since(began) >= time.Duration(len(names))*patience {
			return false
		}
		count := all.steady(base)
		return len(count[names[0]]) < s.Rounds || !count.precise(names)
	}
	for i := 0; i <= s.Rounds || more(i); i++ {
		random.Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
		for _, name := range order {
			if err := s.ctx.Err(); err != nil {
				return nil, err
			}
			v, err := measure(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if i > 0 {
				all[name] = append(all[name], v)
			}
		}
	}
	return all, nil
}

// widest returns the widest confidence interval of a contender's ratio to the first.
func (s series) widest(names []string) (most float64) {
	for _, name := range names[1:] {
		most = max(most, spread(s.ratios(name, names[0])))
	}
	return most
}

func (s series) precise(names []string) bool { return s.widest(names) <= precise }

// median returns the median of a contender's figures.
func (s series) median(name string) float64 { return median(s[name]) }

// ratios returns the ratios of a contender's figures to another's of the same
// round, when the machine was in the same state.
func (s series) ratios(name, to string) []float64 {
	return s.pairs(name, to, func(a, b float64) float64 { return a / b })
}

// beyond returns how far a contender's figures exceed another's, round by round.
func (s series) beyond(name, base string) []float64 {
	return s.pairs(name, base, func(a, b float64) float64 { return a - b })
}

// times returns the nanoseconds of a packet for rates in million packets a second.
func (s series) times() series {
	ns := make(series)
	for name, rates := range s {
		for _, mpps := range rates {
			ns[name] = append(ns[name], 1000/mpps)
		}
	}
	return ns
}

func (s series) pairs(name, other string, fn func(a, b float64) float64) []float64 {
	v := slices.Clone(s[name])
	for i := range v {
		v[i] = fn(v[i], s[other][i])
	}
	return v
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

// spread returns half the width of the median's 95 % confidence interval, as a
// share of the median.
func spread(v []float64) float64 {
	if len(v) < 2 {
		return 0
	}
	return width(v) / median(v)
}

// width returns half the width of the median's 95 % confidence interval. The interval
// lies between two order statistics, valid for any distribution; fewer than six
// figures are all within it.
func width(v []float64) float64 {
	if len(v) < 2 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	out := outside(len(v))
	return (v[len(v)-1-out] - v[out]) / 2
}

// outside returns how many of n sorted figures lie outside the interval at either
// end: the greatest d for which the median is outside with a probability of at most
// 5 %, 2·P(Binomial(n, 1/2) ≤ d-1).
func outside(n int) int {
	p := 1.
	for range n {
		p /= 2
	}
	d, tail := 0, p
	for 2*tail <= 0.05 {
		d++
		p *= float64(n-d+1) / float64(d)
		tail += p
	}
	return max(0, d-1)
}
