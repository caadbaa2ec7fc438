package netns

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/loader"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// Numbers of bits change continuously, under load: those of listed elements, of
// which not one packet passes, and of others, which are blocked from the moment
// at which they are listed, even if they are hot.
func TestWeightsUnderLoad(t *testing.T) {
	const (
		flooding = 2 // so few that each meets the load just while it changes
		others   = 5000
		hot      = 500
		least    = 20 // times, which may take longer
	)
	span := long.Or(300*time.Millisecond, time.Second) // of each of two ways to change
	eachHook(t, func(t *testing.T, xdp hooks.Hook) {
		r := seed.Secrets(t)
		l := lab.New(t)
		c := engine.Config{Mode: membership.Approximate} // an exact set has no weights for addresses
		c.Hot = hot
		g := build(t, lists(addresses(0, flooding+others), nil), c)
		a := attachGeneration(t, l, xdp, g)
		f := startLoad(t, l, addresses(0, flooding))
		tx := l.A.Sender(t)

		weigh := func(k key.Key, extra int) {
			if err := g.Block.SetWeight(k, extra); err != nil && !errors.Is(err, membership.ErrHotFull) {
				t.Fatal(err)
			}
		}
		publish := func(k key.Key, extra int) {
			for h := range g.Block.Weights() {
				if h != g.Block.Hash(k) {
					g.Block.Cool(h)
				}
			}
			weigh(k, extra)
			if g.Block.Unsettled() {
				loader.Grace()
				g.Block.Settle()
			}
		}
		extra := func() int { return 1 + r.IntN(membership.MaxExtra) }

		// Of all elements, and mostly of those that are under load, more and
		// fewer; then of one.
		rounds, added := 0, flooding+others
		goOn := func(begin time.Time, done int) bool {
			took := time.Since(begin)
			return took < span || done < least && took < 20*span
		}
		for begin := time.Now(); goOn(begin, rounds); rounds++ {
			for range 1000 {
				weigh(address(r.IntN(flooding)), extra()-1)
				if r.IntN(10) == 0 {
					weigh(address(r.IntN(2*(flooding+others))), extra()-1)
				}
			}
			publish(address(r.IntN(flooding)), extra())

			if g.Block.Len() == g.Block.Planned() {
				continue
			}
			k := address(added)
			weigh(k, extra())
			if _, err := g.Apply([]engine.Change{{List: 1, Delta: list.Delta{Add: list.SetOf(k)}}}); err != nil {
				t.Fatal(err)
			}
			if err := tx.TrySend(l.Numbered(frameFrom(k), addedFrame|uint64(added))); err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Fatal(err)
			}
			added++
		}
		// All extra bits of an element, and none, in turn: set bits are cleared
		// each time.
		changed := 0
		for begin := time.Now(); goOn(begin, changed); {
			publish(address(0), membership.MaxExtra)
			publish(address(0), 0)
			changed += 2
		}
		t.Logf("%d rounds, then %d changes of one weight", rounds, changed)
		if rounds < least || changed < least {
			t.Error("too few changes for the test to say anything")
		}
		f.await(t, 1000)
		f.stop(t, a)
		f.hasPassed(t, 0)
	})
}
