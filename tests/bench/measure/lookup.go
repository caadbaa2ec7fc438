package measure

import (
	"fmt"
	"runtime"

	"weir/control/engine"
	"weir/filter/fpr"
	"weir/filter/membership"
	"weir/tests/bench/probe"
)

const (
	// With cold caches a round is coldBursts bursts of coldBurst lookups each, which
	// find few of each other's lines in a large filter.
	coldBursts = 8
	coldBurst  = 8192
	// somePrefixesLen is the size of the generated list of prefixes.
	somePrefixesLen = 200_000
)

// sets calls fn with the lists for lookups and packets: random addresses of each
// size, prefixes, and the feeds.
func (s *session) sets(fn func(*blocklist) error) error {
	return s.eachList([]string{setRandom}, mostAsked, fn)
}

// mostAsked is the size up to which lists are looked up; larger ones are only loaded.
const mostAsked = 20_000_000

// eachList calls fn with lists of some sets in each size up to a most, then with the
// lists of fixed size.
func (s *session) eachList(sets []string, most int, fn func(*blocklist) error) error {
	do := func(b *blocklist, err error) error {
		if err != nil {
			return err
		}
		s.logf("  %s, %d entries", b.set, b.n())
		if err := fn(b); err != nil {
			return fmt.Errorf("%s, %d entries: %w", b.set, b.n(), err)
		}
		return nil
	}
	for _, n := range s.Entries {
		for _, set := range sets {
			if n > most {
				continue
			}
			if err := do(s.lists.make(set, n)); err != nil {
				return err
			}
		}
	}
	if s.prefixes > 0 {
		if err := do(s.lists.make(setPrefixes, s.prefixes)); err != nil {
			return err
		}
	}
	for _, path := range s.Feeds {
		if err := do(s.lists.read(path)); err != nil {
			return err
		}
	}
	return nil
}

// lookup measures lookups in a loop in the kernel, with no key listed and with all
// listed, with warm and with cold caches; and false-positive rates.
func (s *session) lookup() error {
	if err := s.sets(s.lookupIn); err != nil {
		return err
	}
	return s.rates()
}

func (s *session) lookupIn(b *blocklist) error {
	c, err := s.field(b, false)
	if err != nil {
		return err
	}
	defer c.Close()
	for _, listed := range []float64{0, 1} {
		if err := s.keys.Set(b.draw(listed, 0)); err != nil {
			return err
		}
		for _, cold := range []bool{false, true} {
			if cold && b.n() < million {
				continue // a burst warms the caches up
			}
			all, err := s.turns(c.names[0], c.names, func(name string) (float64, error) {
				n := s.lookups
				if c.kind[name].slow {
					n = slowly(n)
				}
				if c.kind[name].blind {
					return loop(c.by[name].(looper), b, n, nil, cold)
				}
				return loop(c.by[name].(looper), b, n, &listed, cold)
			})
			if err != nil {
				return err
			}
			for _, name := range c.names[1:] {
				s.add(Result{
					Benchmark: "lookup", Contender: name, Set: b.set, Entries: b.n(), ListedShare: listed, Cold: cold,
					Rounds: len(all[name]), Spread: spread(all.ratios(name, xdpDrop)),
					NS: all.median(name), NetNS: max(0.1, median(all.beyond(name, xdpDrop))),
				})
			}
		}
	}
	return nil
}

// loop returns the time of a lookup. It checks the hits against the share of
// listed keys, if that is given: wrong answers are not worth timing.
func loop(c looper, b *blocklist, n int, listed *float64, cold bool) (ns float64, err error) {
	p, name, err := c.bench(b)
	if err != nil {
		return 0, err
	}
	if _, _, err := p.Hits(); err != nil {
		return 0, err
	}
	if !cold {
		ns, err = p.Loop(name, n)
	} else {
		for range coldBursts {
			evict()
			var burst float64
			if burst, err = p.Loop(name, coldBurst); err != nil {
				break
			}
			ns += burst / coldBursts
		}
	}
	if err != nil {
		return 0, err
	}
	hits, asked, err := p.Hits()
	if err != nil || listed == nil {
		return ns, err
	}
	return ns, checkShare(uint64(hits), uint64(asked), *listed)
}

// checkShare returns an error unless hits of n lookups are plausible where a share
// of the keys is listed. Bloom filters add false positives, and a burst is a
// sample of the keys.
func checkShare(hits, n uint64, listed float64) error {
	share := float64(hits) / float64(n)
	const sample = 0.02
	if low := listed - sample; share < low || listed == 1 && share < 1 || share > listed+sample+0.05 {
		return fmt.Errorf("%d of %d lookups are hits, but a share of %g is listed", hits, n, listed)
	}
	return nil
}

// large is memory larger than the caches, allocated when needed.
var large []uint64

// evict empties the caches by reading twice the size of the last level.
func evict() {
	if large == nil {
		large = make([]uint64, 2*max(lastLevelCache(), 32<<20)/8)
		for i := range large {
			large[i] = 1 // otherwise all pages are one page of zeros
		}
	}
	const line = 8 // words
	sum := uint64(0)
	for i := 0; i < len(large); i += line {
		sum += large[i]
	}
	runtime.KeepAlive(sum)
}

// rates measures false-positive rates of approximate filters in the kernel.
func (s *session) rates() error {
	const n = million
	b, err := s.lists.make(setRandom, n)
	if err != nil {
		return err
	}
	for _, bits := range []float64{10, 12, 14, 16} {
		s.logf("  false positives at %g bits a key", bits)
		config := engine.Config{Mode: membership.Approximate, BitsPerKey: bits}
		w := &weir{place: place{keys: s.keys}, configuration: configuration{config: config}}
		err := w.prepare(b)
		if err != nil {
			return err
		}
		p, name, err := w.bench(b)
		next := uint32(0)
		hits, asked := 0, 0
		for err == nil && hits < s.wrong {
			if err = s.ctx.Err(); err != nil {
				break
			}
			if err = s.keys.Set(func() [4]byte { next++; return wireOrder(b.outside(next, nil)) }); err != nil {
				break
			}
			if _, err = p.Loop(name, probe.KeysLen); err != nil {
				break
			}
			var more, of int
			more, of, err = p.Hits()
			hits, asked = hits+more, asked+of
		}
		layout := w.generation.Block.Layout
		if err := w.Close(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
		_, optimum := fpr.BestK(int(bits*n), n)
		s.add(Result{
			Benchmark: "lookup", Contender: weirApprox, Set: b.set, Entries: n, BitsPerKey: bits,
			FalsePositive: float64(hits) / float64(asked), Predicted: layout.FalsePositiveRate(n), Optimum: optimum,
		})
	}
	return nil
}
