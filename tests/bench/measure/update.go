package measure

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"weir/control/list"
)

// mostChanges is the number of changes in a round: half add an address, half
// remove one. At most one entry in fifty changes, as weir rebuilds a filter that
// changes more, which load measures.
const mostChanges = 10_000

// update measures changes of an active list. What one round adds, the next one
// removes.
func (s *session) update() error {
	for _, n := range s.Entries {
		if n > mostAsked {
			continue
		}
		b, err := s.lists.make(setRandom, n)
		if err != nil {
			return err
		}
		if err := s.updateOf(b); err != nil {
			return fmt.Errorf("%s, %d entries: %w", b.set, b.n(), err)
		}
	}
	return nil
}

func (s *session) updateOf(b *blocklist) (err error) {
	half := min(mostChanges, b.n()/50) / 2
	if half == 0 {
		return nil
	}
	s.logf("  %s, %d entries", b.set, b.n())
	var able []string
	for _, k := range s.kinds() {
		if !k.fixed && !k.wireOnly {
			able = append(able, k.name)
		}
	}
	c, err := s.field(b, true, able...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, name := range c.names {
		if err := c.by[name].enforce(); err != nil {
			return err
		}
	}
	fresh, listed := b.unlisted(half), make([]uint32, half)
	for i, at := range rand.New(rand.NewPCG(13, 14)).Perm(b.n())[:half] {
		listed[i] = b.entries[at].Addr()
	}
	back := make(map[string]bool) // the next round undoes the changes
	// A change takes as long as what it meets: times differ, also on a machine that is steady.
	all, err := s.turns("", c.names, func(name string) (float64, error) {
		add, remove := fresh, listed
		if back[name] {
			add, remove = remove, add
		}
		began := time.Now()
		err := c.by[name].(updater).update(add, remove)
		back[name] = !back[name]
		return time.Since(began).Seconds(), err
	})
	if err != nil {
		return err
	}
	for _, name := range c.names {
		s.add(Result{
			Benchmark: "update", Contender: name, Set: b.set, Entries: b.n(), Changes: 2 * half,
			Rounds: len(all[name]), Spread: spread(all[name]), Seconds: all.median(name),
		})
	}
	return nil
}

func single(addr uint32) list.V4Prefix { return list.V4(addr, 32) }
