package measure

import (
	"errors"
	"fmt"
	"math"

	"weir/tests/bench/probe"
)

// wire measures packets on veth pairs, generator and receiver on one core: none
// listed, some, and all. Each contender parses, looks up, counts and drops every
// packet.
func (s *session) wire() error {
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
	c.warm = b.warm()
	g, err := probe.NewGenerator(s.keys, 0)
	if err != nil {
		return err
	}
	defer g.Close()
	for _, listed := range []float64{0, 0.01, 0.5, 1} {
		if listed > 0 && listed < 1 && b.n() != million {
			continue // between the ends, one size shows enough
		}
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
		s.addRates(all, names, Result{Benchmark: "wire", Set: b.set, Entries: b.n(), ListedShare: listed, Zipf: s.Zipf})
	}
	return nil
}

// addRates adds results for contenders' rates, the first of which is the base. They are like
// what all have in common.
func (s *session) addRates(all series, names []string, common Result) {
	ns := all.times()
	for _, name := range names {
		x := common
		ratios := all.ratios(name, names[0])
		x.Contender, x.Rounds, x.Spread = name, len(ratios), spread(ratios)
		x.Mpps, x.Ratio = all.median(name), median(ratios)
		x.NS = 1000 / x.Mpps
		for _, each := range ns[name] {
			x.Times = append(x.Times, math.Round(100*each)/100)
		}
		if len(ns[bare]) > 0 && name != bare {
			beyond := ns.beyond(name, bare)
			x.BeyondNS, x.BeyondWidth = median(beyond), width(beyond)
		}
		s.add(x)
	}
}

// turn sends the frames of a turn, in as many intervals as the contender needs, and
// returns the time of one in nanoseconds and their number.
func (s *session) turn(one contender, slow bool, send func(frames int) (float64, error)) (ns float64, sent int, err error) {
	n := s.frames
	if slow {
		n = slowly(n)
	}
	step := n
	if w, ok := one.(*weir); ok && (w.recorded() != nil || w.forgets() != nil) {
		step = min(n, sliceLen)
	}
	for sent < n {
		if b, ok := one.(beginner); ok {
			if err := b.begin(); err != nil {
				return 0, sent, err
			}
		}
		each, err := send(step)
		if err != nil {
			return 0, sent, err
		}
		ns += each * float64(step)
		sent += step
	}
	return ns / float64(sent), sent, nil
}

func without(names []string, name string) (rest []string) {
	for _, n := range names {
		if n != name {
			rest = append(rest, n)
		}
	}
	return rest
}

// cleanAndListed measures contenders on the wire, with no packet listed and with all, and
// calls then after each with the rates and the results that were added.
func (s *session) cleanAndListed(benchmark string, c *contenders, b *blocklist, then func(all series, added []Result)) error {
	g, err := probe.NewGenerator(s.keys, 0)
	if err != nil {
		return err
	}
	defer g.Close()
	c.warm = b.warm()
	for _, listed := range []float64{0, 1} {
		if err := s.keys.Set(b.draw(listed, 0)); err != nil {
			return err
		}
		all, err := s.onWire(c, g, c.names, listed)
		if err != nil {
			return err
		}
		first := len(s.report.Results)
		s.addRates(all, c.names, Result{Benchmark: benchmark, Set: b.set, Entries: b.n(), ListedShare: listed})
		then(all, s.report.Results[first:])
	}
	return nil
}

// wireAttempts bounds how often contenders are measured on the wire where frames are lost.
const wireAttempts = 3

// A lostError says that frames were lost: beside other load, the receiving end of the wire may not
// get a processor before its queue is full.
type lostError struct {
	contender     string
	arrived, sent uint64
}

func (e *lostError) Error() string {
	return fmt.Sprintf("%s: %d of %d frames arrived", e.contender, e.arrived, e.sent)
}

// onWire returns the rates of contenders in million packets a second, and checks
// their counters against the packets sent and the share listed. A measurement that lost frames is
// repeated.
func (s *session) onWire(c *contenders, g *probe.Generator, names []string, listed float64) (series, error) {
	for attempt := 1; ; attempt++ {
		figures, err := s.onWireOnce(c, g, names, listed)
		var lost *lostError
		if !errors.As(err, &lost) || attempt == wireAttempts {
			return figures, err
		}
		s.logf("    %v: measured again", err)
	}
}

func (s *session) onWireOnce(c *contenders, g *probe.Generator, names []string, listed float64) (series, error) {
	type count struct{ sent, all, listed uint64 }
	counts := make(map[string]*count)
	for _, name := range names {
		all, listed, err := c.by[name].received()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		counts[name] = &count{0, all, listed}
	}
	figures, err := s.turns(names[0], names, func(name string) (float64, error) {
		send := func(n int) (float64, error) { return c.wireOf[name].send(g, n) }
		warm := c.warm
		if c.kind[name].slow {
			warm = slowly(warm)
		}
		if warm > 0 { // other contenders have had the caches since its last turn
			if _, err := send(warm); err != nil {
				return 0, err
			}
		}
		ns, n, err := s.turn(c.by[name], c.kind[name].slow, send)
		counts[name].sent += uint64(warm + n)
		return 1000 / ns, err
	})
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if c.kind[name].silent {
			continue
		}
		all, found, err := c.by[name].received()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		n := counts[name]
		all, found = all-n.all, found-n.listed
		if all < n.sent*99/100 {
			return nil, &lostError{name, all, n.sent}
		}
		if !c.kind[name].blind {
			// Beyond what was sent there may be a packet of the stack's own.
			if err := checkShare(found, min(all, n.sent), listed); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return figures, nil
}
