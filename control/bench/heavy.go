package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"weir/control/generation"
	"weir/control/heavy"
	"weir/control/playground"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/sketch"
)

// heavy measures what heavy hitters cost a packet on the wire: the tracker, and
// the hot table that is learned from it. The traffic is clean, a million
// entries are listed, and sources come as Zipf has them, or each but once in a
// million, which no flow memory holds.
func (r *Report) heavy(o Options) (err error) {
	const (
		n      = 1_000_000
		frames = 4 << 20 // the time of a round comes in ticks of some ms
	)
	o.logf("heavy: trackers and hot elements over clean traffic")
	p, err := playground.New("weir-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	store, err := randomStore(n)
	if err != nil {
		return err
	}
	spec, err := heavy.Parse("key=src")
	if err != nil {
		return err
	}
	plain := generation.Config{Mode: membership.Approximate, BitsPerKey: 14}
	hot, tracker := plain, plain
	hot.Hot = 1 << 16
	tracker.Trackers, tracker.TrackerSeed = []generation.Tracker{spec.Tracker()}, 1
	runners := make(map[string]runner)
	for name, c := range map[string]generation.Config{"plain": plain, "hot": hot, "tracker": tracker} {
		built, err := newContenders(store, c, 0, 0, 0)
		if err != nil {
			return err
		}
		defer built.Close()
		runners[name] = runner{built, "weir"}
	}
	w, err := newWires(p, frames, runners)
	if err != nil {
		return err
	}
	defer w.Close()
	random := rand.New(rand.NewPCG(5, 6))
	zipf := rand.NewZipf(random, 1.1, 1, 1<<22)
	for i := range uint32(hot.Hot) {
		k := key.Source(netip.PrefixFrom(netip.AddrFrom4(wireOrder(address(n+i))), 32))
		if err := runners["hot"].generation.Block.SetWeight(k, 8); err != nil && !errors.Is(err, membership.ErrHotFull) {
			return err
		}
	}
	clean := func(i uint64) [4]byte { return wireOrder(address(uint32(n) + uint32(i))) }
	for traffic, next := range map[string]func() [4]byte{
		"Zipf 1.1": func() [4]byte { return clean(zipf.Uint64()) },
		"uniform":  func() [4]byte { return clean(random.Uint64N(1 << 31)) },
	} {
		for _, c := range runners {
			c.SetKeys(next)
		}
		names := []string{"plain", "hot", "tracker"}
		m, err := series(o.Rounds, names, func(name string) (float64, error) {
			c := runners[name]
			// Each round is an interval, in which 0.1 % of the packets are heavy.
			c.generation.Watch(c.Stats(), func(n generation.Counting) {
				for _, b := range n.Banks(0, n.Counting(0)) {
					b.Reset()
					b.Admit(sketch.Threshold{Units: frames / 1000}.Admission(0, 1))
				}
			})
			return w.measure(name)
		})
		if err != nil {
			return fmt.Errorf("%s: %w", traffic, err)
		}
		// What a contender costs beyond another is small against how much the
		// machine changes from round to round: the difference is that within one.
		cost := make(map[string]float64)
		for _, name := range names {
			beyond := make([]float64, len(m[name]))
			for i, mpps := range m[name] {
				beyond[i] = 1000/mpps - 1000/m["plain"][i]
			}
			cost[name] = median(beyond)
			mpps := median(m[name])
			r.Results = append(r.Results, Result{
				Benchmark: "heavy", Contender: name, Entries: n, Traffic: traffic,
				NS: 1000 / mpps, NetNS: cost[name], Mpps: mpps,
			})
		}
		r.atMost("a hot table of 64k elements, clean traffic, "+traffic+", ns a packet", cost["hot"], 2)
		r.atMost("one tracker, "+traffic+", ns a packet", cost["tracker"], 25)
	}
	return nil
}
