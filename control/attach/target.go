// Package attach keeps a program on interfaces: it attaches, replaces, adopts
// and detaches, and follows interfaces that come, go and change their names. It reads and
// describes what is pinned beside programs: the metadata of an attachment, and by that its
// counters.
package attach

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"weir/control/engine"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// What names interfaces, and how and where programs are attached and pinned there.
type (
	Interface = netif.Target
	Hook      = hooks.Hook
	Pins      = loader.Pins
)

// DefaultPins is where programs are pinned, unless a configuration says otherwise.
const DefaultPins = loader.DefaultPins

// Target names the interfaces to filter: one interface, or a glob with *, ? and
// [ ] that also covers interfaces created later.
type Target struct {
	netif.Target
	XDP      hooks.Hook
	Required bool // Start fails without the interface, instead of waiting for it
}

// specialise makes an engine's programs that are loaded with an interface's stats from now on
// those of the interface.
func specialise(e *engine.Generation, i netif.Target, s *loader.Stats) error {
	s.For(i)
	return e.Follow(i, s)
}

// expand returns the targets with globs replaced by the interfaces that exist.
// An interface that several targets cover is there once, as the first has it.
func expand(targets []Target) ([]Target, error) {
	var all []Target
	add := func(t Target) {
		if !slices.ContainsFunc(all, func(o Target) bool { return o.Target == t.Target }) {
			all = append(all, t)
		}
	}
	for _, t := range targets {
		if !t.Glob() {
			add(t)
			continue
		}
		names, err := t.Interfaces()
		if err != nil && !IsAbsent(err) {
			return nil, err
		}
		for _, name := range names {
			if ok, err := path.Match(t.Iface, name); err != nil {
				return nil, fmt.Errorf("interfaces %q: %w", t.Iface, err)
			} else if ok {
				found := t
				found.Iface = name
				add(found)
			}
		}
	}
	return all, nil
}

// IsAbsent reports whether an error says that an interface does not exist.
func IsAbsent(err error) bool {
	return errors.Is(err, netif.ErrNoInterface) || errors.Is(err, netif.ErrNoNetns)
}
