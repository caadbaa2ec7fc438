package measure

import (
	"errors"
	"fmt"

	"weir/tests/bench/probe"
)

// wire measures packets on veth pairs, generator and receiver on one core: none
// listed, some, and all. Each contender parses, looks up, counts and drops every
// packet.
func (s *session) wire() error {
	s.logf("wire")
	return s.sets(s.wireOf)
}

func (s *session) wireOf(b *blocklist) (err error) {
	c, err := s.field(b, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, name := range c.names {
		if err := c.by[name].catch(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	g, err := probe.NewGenerator(s.keys)
	if err != nil {
		return err
	}
	defer g.Close()
	for _, listed := range []float64{0, 0.01, 0.5, 1} {
		if err := s.keys.Set(b.draw(listed, s.Zipf)); err != nil {
			return err
		}
		names := c.names
		if listed < 1 {
			names = without(names, xdpFilter) // whose unlisted packets go up the stack
		}
		all, err := s.onWire(c, g, names, listed)
		if err != nil {
			return err
		}
		for _, name := range names {
			ratios := all.ratios(name, xdpDrop)
			mpps := all.median(name)
			s.add(Result{
				Benchmark: "wire", Contender: name, Set: b.set, Entries: b.n(), ListedShare: listed, Zipf: s.Zipf,
				Rounds: len(ratios), Spread: spread(ratios), NS: 1000 / mpps, Mpps: mpps, Ratio: median(ratios),
			})
		}
	}
	return nil
}

func without(names []string, name string) (rest []string) {
	for _, n := range names {
		if n != name {
			rest = append(rest, n)
		}
	}
	return rest
}

// onWire returns the rates of contenders in million packets a second, and checks
// their counters against the packets sent and the share listed.
func (s *session) onWire(c *contenders, g *probe.Generator, names []string, listed float64) (series, error) {
	type count struct{ sent, all, listed uint64 }
	counts := make(map[string]*count)
	for _, name := range names {
		all, listed, err := c.by[name].received()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		counts[name] = &count{0, all, listed}
	}
	figures, err := s.turns(names, func(name string) (float64, error) {
		n := s.frames
		if c.kind[name].slow {
			n = slowly(n)
		}
		ns, err := c.wireOf[name].send(g, n)
		counts[name].sent += uint64(n)
		return 1000 / ns, err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		all, found, err := c.by[name].received()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		n := counts[name]
		all, found = all-n.all, found-n.listed
		if all < n.sent*99/100 {
			return nil, fmt.Errorf("%s: %d of %d frames arrived", name, all, n.sent)
		}
		if !c.kind[name].blind {
			if err := checkShare(found, all, listed); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return figures, nil
}
