package measure

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"weir/tests/bench/probe"
)

// contender is one way to filter packets by a list.
type contender interface {
	// prepare reads the list's text file into the set that packets are looked up in.
	prepare(*blocklist) error
	// enforce makes the list active on the wire.
	enforce() error
	// catch makes it drop and count all packets on the wire, listed or not, so that
	// contenders differ in the lookup alone.
	catch() error
	// received returns the numbers of packets since catch: all, and listed.
	received() (all, listed uint64, err error)
	Close() error
}

// updater is a contender whose active list can change.
type updater interface {
	contender
	// update adds and removes addresses. The changes are active when it returns.
	update(add, remove []uint32) error
}

// beginner is a contender for which time is in intervals.
type beginner interface {
	contender
	// begin begins one.
	begin() error
}

// looper is a contender whose lookups run in a loop in the kernel.
type looper interface {
	contender
	// bench returns its programs and the name of the loop for a list.
	bench(*blocklist) (*probe.Programs, string, error)
}

// place is where a contender runs.
type place struct {
	ctx  context.Context // for steps that take minutes
	wire *wire           // nil: in loops only
	keys *probe.Keys
	like *weir // the kind's twin, prepared
}

// kind is a sort of contender.
type kind struct {
	name     string
	make     func(place) contender
	most     int      // entries; more do not fit, or take minutes
	prefixes int      // most entries of a list with prefixes; 0: addresses only
	slow     bool     // measured with fewer packets and lookups
	fixed    bool     // its list cannot change, or only one entry at a time
	blind    bool     // has no list: a baseline for the others
	silent   bool     // counts no packets
	wireOnly bool     // measured in packets alone
	twin     string   // has as much memory as this one, of weir
	tools    []string // have to be installed
}

// The names of contenders.
const (
	xdpDrop     = "xdp-drop"
	bare        = "bare" // drops every packet and does nothing else
	oneLine     = "one-line"
	oneBucket   = "one-bucket"
	weirExact   = "weir-exact"
	weirUsual   = "weir-usual"
	weirApprox  = "weir-approx"
	kernelHash  = "kernel-hash"
	kernelBloom = "kernel-bloom"
	kernelLPM   = "kernel-lpm"
	nftables    = "nftables"
	ipset       = "ipset"
	xdpFilter   = "xdp-filter"
)

const unbounded = 1 << 32

// kinds lists all contenders. The first is the base of ratios: it parses, counts and drops
// without a lookup. Nanoseconds are counted from the second. The next two take weir's lean
// path, and read one 64-byte line of as much memory as weir has in approximate mode, and in
// exact mode: the least that any filter of that size costs.
var kinds = []kind{
	{name: xdpDrop, fixed: true, blind: true, make: newDrop, most: unbounded, prefixes: unbounded},
	{name: bare, fixed: true, blind: true, silent: true, wireOnly: true, make: newBare, most: unbounded, prefixes: unbounded},
	{name: oneLine, fixed: true, blind: true, make: newLine, most: unbounded, prefixes: unbounded, twin: weirApprox},
	{name: oneBucket, fixed: true, blind: true, make: newLine, most: unbounded, prefixes: unbounded, twin: weirExact},
	{name: weirExact, make: newWeir(exact), most: unbounded, prefixes: unbounded},
	{name: weirUsual, make: newWeir(usual), most: unbounded, prefixes: unbounded, wireOnly: true},
	{name: weirApprox, make: newWeir(approximate), most: unbounded, prefixes: unbounded},
	{name: kernelHash, make: newHash, most: 10_000_000},
	{name: kernelBloom, fixed: true, make: newBloom, most: 10_000_000},
	{name: kernelLPM, slow: true, make: newTrie, most: 2_000_000, prefixes: 1_000_000},
	{name: nftables, slow: true, make: newNftables, most: 2_000_000, prefixes: 250_000, tools: []string{"nft"}},
	{name: ipset, slow: true, make: newIPSet, most: 2_000_000, prefixes: 250_000, tools: []string{"ipset", "iptables-restore"}},
	{name: xdpFilter, slow: true, fixed: true, make: newXDPFilter, most: 10_000, tools: []string{"xdp-filter"}},
}

// takes reports whether the kind is measured with a list.
func (k kind) takes(b *blocklist) bool {
	if b.prefixes {
		return b.n() <= k.prefixes
	}
	return b.n() <= k.most
}

// contenders are prepared with one list. Names are in the order of kinds.
type contenders struct {
	names  []string
	by     map[string]contender
	wireOf map[string]*wire
	kind   map[string]kind
	warm   int // frames before each turn that are not measured: see blocklist.warm
}

func newContenders() *contenders {
	return &contenders{by: make(map[string]contender), wireOf: make(map[string]*wire), kind: make(map[string]kind)}
}

// field prepares the contenders that take a list, each on its own wire or for
// loops only. Names select some of them.
func (s *session) field(b *blocklist, onWire bool, names ...string) (_ *contenders, err error) {
	c := newContenders()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	chosen := slices.DeleteFunc(s.kinds(), func(k kind) bool {
		return !k.takes(b) || len(names) > 0 && !slices.Contains(names, k.name) || k.wireOnly && !onWire
	})
	slices.SortStableFunc(chosen, func(a, b kind) int { return strings.Compare(a.twin, b.twin) }) // twins follow
	for _, k := range chosen {
		if err := s.ctx.Err(); err != nil {
			return nil, err
		}
		p := place{ctx: s.ctx, keys: s.keys}
		if k.twin != "" {
			p.like, _ = c.by[k.twin].(*weir)
			if p.like == nil {
				continue
			}
		}
		if err := s.join(c, k, p, b, onWire); err != nil {
			return nil, fmt.Errorf("%s: %w", k.name, err)
		}
	}
	order := func(name string) int { return slices.IndexFunc(kinds, func(k kind) bool { return k.name == name }) }
	slices.SortFunc(c.names, func(a, b string) int { return order(a) - order(b) })
	return c, nil
}

// join adds a contender of a kind, prepared with a list.
func (s *session) join(c *contenders, k kind, p place, b *blocklist, onWire bool) error {
	one, err := c.enter(k, p, onWire)
	if err != nil {
		return err
	}
	if _, ok := one.(looper); !ok && !onWire {
		return nil
	}
	return one.prepare(b)
}

// enter adds a contender of a kind, with or without a wire.
func (c *contenders) enter(k kind, p place, onWire bool) (contender, error) {
	if onWire {
		w, err := newWire()
		if err != nil {
			return nil, err
		}
		c.wireOf[k.name], p.wire = w, w
	}
	one := k.make(p)
	if _, ok := one.(looper); ok || onWire {
		c.names = append(c.names, k.name)
		c.by[k.name], c.kind[k.name] = one, k
	}
	return one, nil
}

// Close closes all contenders and their wires.
func (c *contenders) Close() error {
	var errs []error
	for _, one := range c.by {
		errs = append(errs, one.Close())
	}
	for _, w := range c.wireOf {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}

// kinds returns the kinds that can be measured on this machine.
func (s *session) kinds() (here []kind) {
	for _, k := range kinds {
		missing := len(k.tools) > 0 && !s.Peers
		for _, tool := range k.tools {
			_, err := exec.LookPath(tool)
			missing = missing || err != nil
		}
		if !missing {
			here = append(here, k)
		}
	}
	return here
}
