package measure

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"weir/control/engine"
	"weir/filter/hash"
	"weir/filter/membership"
	"weir/filter/sketch"
	"weir/tests/bench/probe"
)

// heavy measures what heavy hitters cost a packet on the wire: the tracker, and
// the hot table learned from it. A million entries are listed, and no packet.
// Sources follow Zipf's law, or are all different, more than any flow memory has
// room for. It also measures how well a bank finds the heavy hitters.
func (s *session) heavy() (err error) {
	const (
		n      = million
		frames = 4 << 20
		plain  = "plain"
	)
	b, err := s.lists.make(setRandom, n)
	if err != nil {
		return err
	}
	names := []string{plain, "hot", "tracker"}
	c := newContenders()
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, name := range names {
		config := engine.Config{Mode: membership.Approximate, BitsPerKey: 14}
		switch name {
		case "hot":
			config.Hot = 1 << 16
		case "tracker":
			config.Parts, config.Seed = []engine.Part{sources}, hash.Seed{1}
		}
		one, err := c.enter(kind{name: name, make: newWeir(configuration{config: config})}, place{ctx: s.ctx, keys: s.keys}, true)
		if err == nil {
			err = one.prepare(b)
		}
		if err == nil {
			err = one.catch()
		}
		if err != nil {
			return err
		}
	}
	hot := c.by["hot"].(*weir).generation.Block
	for i := range uint32(1 << 16) {
		if err := hot.SetWeight(source(b.outside(i, nil)), 8); err != nil && !errors.Is(err, membership.ErrHotFull) {
			return err
		}
	}
	g, err := probe.NewGenerator(s.keys, 0)
	if err != nil {
		return err
	}
	defer g.Close()
	for _, exponent := range []float64{1.1, 0} {
		s.logf("  Zipf %g", exponent)
		random := rand.New(rand.NewPCG(5, 6))
		zipf := rand.NewZipf(random, max(exponent, 1.1), 1, 1<<22)
		err := s.keys.Set(func() [4]byte {
			i := random.Uint64N(1 << 31)
			if exponent > 0 {
				i = zipf.Uint64()
			}
			return wireOrder(b.outside(uint32(i), nil))
		})
		if err != nil {
			return err
		}
		all, err := s.turns(names[0], names, func(name string) (float64, error) {
			w := c.by[name].(*weir)
			if err := w.begin(); err != nil { // each round is an interval
				return 0, err
			}
			before, _, _ := w.received()
			ns, err := c.wireOf[name].send(g, frames)
			if err != nil {
				return 0, err
			}
			after, _, _ := w.received()
			if after-before < frames*99/100 {
				return 0, fmt.Errorf("%d of %d frames arrived", after-before, frames)
			}
			return ns, nil
		})
		if err != nil {
			return err
		}
		for _, name := range names {
			// The cost is small beside the changes of the machine from round to round,
			// so it is the difference within a round.
			ns := all.median(name)
			s.add(Result{
				Benchmark: "heavy", Contender: name, Set: b.set, Entries: n, Zipf: exponent,
				Rounds: len(all[name]), Spread: spread(all.ratios(name, plain)),
				NS: ns, NetNS: median(all.beyond(name, plain)), Mpps: 1000 / ns,
			})
		}
	}
	return s.found()
}

// found measures how well one bank of 256 KB finds the flows above 0.01 % of ten
// million packets of a million flows, in its first interval. It uses the Go twin
// of the kernel's code.
func (s *session) found() error {
	const flows, packets, threshold, memory = million, 10 * million, 1000, 256 << 10
	counting := sources.In[0].Tracker
	counting.Secret, counting.Geometry = hash.NewSecret(hash.Seed{1}), sketch.PlanGeometry(memory).WithCold()
	for _, exponent := range []float64{0.9, 1.1, 1.3} {
		if err := s.ctx.Err(); err != nil {
			return err
		}
		s.logf("  heavy hitters, Zipf %g", exponent)
		m, err := sketch.NewMultistage(counting, sketch.Threshold{Units: threshold})
		if err != nil {
			return err
		}
		draw := zipfFlows(flows, exponent)
		truth := make([]uint32, flows)
		for range packets {
			f := draw()
			truth[f]++
			k := source(address(uint32(f)))
			m.CountKey(k, counting.Hash(k), 64)
		}
		found, wrong := 0, 0
		heavy := make(map[uint32]bool)
		for f, n := range truth {
			if n >= threshold {
				heavy[address(uint32(f))] = true
			}
		}
		for f := range m.Heavy() {
			if heavy[hostOrder(f.Key.Src.As4())] {
				found++
			} else {
				wrong++
			}
		}
		missed := len(heavy) - found
		s.add(Result{
			Benchmark: "heavy", Contender: "sketch", Set: "flows", Entries: flows, Zipf: exponent,
			F1: 2 * float64(found) / float64(2*found+wrong+missed),
		})
	}
	return nil
}
