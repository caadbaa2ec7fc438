package measure

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/cilium/ebpf"

	"weir/tests/bench/probe"
)

// notOnCores are contenders of options without a result on two cores: some are blind to what
// is sent, and some forget, which takes a pause of both.
var notOnCores = []string{bare, weirApprox, weirScansNew, weirFirstNew}

// cores measures two CPUs at once against one: two wires with the same program, lists,
// counters and banks, as two queues of one interface have, each sent and received on a
// CPU of its own. What the two share in memory costs here and nowhere else. The base
// shows how far the machine itself is from two.
func (s *session) cores() (err error) {
	if runtime.NumCPU() < 2 {
		s.logf("  left out: there is one CPU")
		return nil
	}
	b, err := s.lists.make(setRandom, s.usual)
	if err != nil {
		return err
	}
	kinds, err := optional()
	if err != nil {
		return err
	}
	kinds = slices.DeleteFunc(kinds, func(k kind) bool { return slices.Contains(notOnCores, k.name) })
	c, err := s.enterAll(b, kinds)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	pairs := make(map[string][]*wire)
	for _, name := range c.names {
		second, err := newWire()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, second.Close()) }()
		p, err := c.by[name].(interface {
			program() (*ebpf.Program, error)
		}).program()
		if err == nil {
			err = second.attach(p)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		pairs[name] = []*wire{c.wireOf[name], second}
	}
	var senders []*probe.Generator
	for i := range 2 {
		g, err := probe.NewGenerator(s.keys, i*probe.KeysLen/2)
		if err != nil {
			return err
		}
		defer g.Close()
		senders = append(senders, g)
	}
	for _, listed := range []float64{0, 1} {
		if err := s.keys.Set(b.draw(listed, 0)); err != nil {
			return err
		}
		mpps := make(series)
		scaling, err := s.turns(c.names[0], c.names, func(name string) (float64, error) {
			one, both, err := s.oneAndBoth(c.by[name], pairs[name], senders)
			mpps[name] = append(mpps[name], both)
			return both / one, err
		})
		if err != nil {
			return err
		}
		for _, name := range c.names {
			s.add(Result{
				Benchmark: "cores", Contender: name, Set: b.set, Entries: b.n(), ListedShare: listed,
				Rounds: len(scaling[name]), Spread: spread(scaling[name]),
				Mpps: mpps.median(name), Scaling: scaling.median(name),
			})
		}
	}
	return nil
}

// oneAndBoth returns the rate of one CPU, the mean of both alone, and of both at once,
// in million packets a second.
func (s *session) oneAndBoth(of contender, wires []*wire, senders []*probe.Generator) (one, both float64, err error) {
	for i, w := range wires {
		ns, _, err := s.turn(of, false, func(n int) (float64, error) { return w.sendOn(i, senders[i], n) })
		if err != nil {
			return 0, 0, err
		}
		one += 1000 / ns / float64(len(wires))
	}
	_, sent, err := s.turn(of, false, func(n int) (float64, error) {
		ns, errs := make([]float64, len(wires)), make([]error, len(wires))
		var wg sync.WaitGroup
		for i, w := range wires {
			wg.Go(func() { ns[i], errs[i] = w.sendOn(i, senders[i], n) })
		}
		wg.Wait()
		sum := 0.
		for _, each := range ns {
			sum += 1000 / each
		}
		both += sum * float64(n)
		return 1, errors.Join(errs...)
	})
	return one, both / float64(sent), err
}
