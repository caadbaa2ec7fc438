package attach

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"weir/control/engine"
	"weir/loader"
	"weir/loader/hooks"
	"weir/loader/netif"
)

// hotplug attaches programs to interfaces the moment the kernel reports them,
// mostly before they are up. It waits for nothing: not for the verifier, since
// its programs are loaded already, nor for the manager's goroutine, which may be
// building an engine, nor for the lock of the pins, since each interface has a
// goroutine of its own. The manager takes in later what it has attached.
type hotplug struct {
	pins    loader.Pins
	log     *slog.Logger
	changed chan struct{} // the manager has something to look at

	watches map[string]watch // by namespace; the manager's goroutine alone uses them
	reports atomic.Uint64    // of changes, by the kernel

	attaching sync.WaitGroup                // the goroutines
	mu        sync.Mutex                    // guards what follows; never held while waiting for the pins
	pending   map[netif.Target]*netif.Iface // interfaces that a goroutine works on, and what was reported of them since
	targets   []Target                      // none: nothing is attached to any more
	kinds     []kind                        // of the targets
	lost      []netif.Target
	ahead     []netif.Target                      // the manager has a program for them, and is to attach it
	known     map[netif.Target]*loader.Attachment // those the manager has, or is to take in
	preloaded []*preloaded
	arrived   []*managedInterface  // to be taken in
	failed    map[netif.Target]int // index of the interface that a preloaded program did not fit
}

// watch is a subscription to a namespace, by its inode number.
type watch struct {
	inode  uint64
	cancel context.CancelFunc
}

// preloaded is a program that waits for an interface.
type preloaded struct {
	kind
	stats    *loader.Stats
	program  *loader.Program
	engine   *engine.Generation
	metadata []byte
}

// kind has the properties that interfaces share which one preloaded program fits.
type kind struct {
	out, tc      bool
	byDispatcher bool
	parts        uint64 // of stages: engine.Generation.Kind
}

func kindOf(e *engine.Generation, t Target) kind {
	return kind{out: t.Out, tc: t.XDP == hooks.TC, byDispatcher: t.XDP.ByDispatcher(), parts: e.Kind(t.Target)}
}

func (p *preloaded) Close() error { return errors.Join(p.program.Close(), p.stats.Close()) }

// maxPreloaded is the number of programs that wait for new interfaces: these may
// come in pairs, as veths do.
const maxPreloaded = 2

// maxFailed bounds the interfaces that are remembered since attaching to them failed: containers may
// come and go at any rate, under new names.
const maxFailed = 1024

func newHotplug(c Config) *hotplug {
	return &hotplug{
		pins: c.Pins, log: c.Log, changed: make(chan struct{}, 1),
		watches: make(map[string]watch), pending: make(map[netif.Target]*netif.Iface),
		known: make(map[netif.Target]*loader.Attachment), failed: make(map[netif.Target]int),
	}
}

// watch subscribes to the namespaces of targets, and leaves those that are gone:
// a namespace cannot end while it is watched.
func (h *hotplug) watch(targets []Target) {
	exists := make(map[string]bool)
	for _, t := range targets {
		if _, done := exists[t.Netns]; done {
			continue
		}
		inode, err := t.Namespace()
		if exists[t.Netns] = err == nil; err != nil || h.watches[t.Netns].inode == inode {
			continue
		}
		if old, ok := h.watches[t.Netns]; ok {
			old.cancel()
		}
		// The name stands for another namespace now: its interfaces are to be looked for again.
		h.reports.Add(1)
		ctx, cancel := context.WithCancel(context.Background()) // until stop
		if err := t.Follow(ctx.Done(), func(i *netif.Iface) { h.notice(t.Netns, i) }); err != nil {
			h.log.Debug(err.Error()) // FollowInterval will do
			cancel()
			continue
		}
		h.watches[t.Netns] = watch{inode, cancel}
	}
	for name, w := range h.watches {
		if !exists[name] {
			w.cancel()
			delete(h.watches, name)
		}
	}
}

// isWatching reports whether the kernel reports what changes in the namespaces of all targets.
func (h *hotplug) isWatching(targets []Target) bool {
	return !slices.ContainsFunc(targets, func(t Target) bool { _, watched := h.watches[t.Netns]; return !watched })
}

// notice handles an interface that has come or changed, or, where it is nil, one
// that has gone.
func (h *hotplug) notice(netns string, i *netif.Iface) {
	h.reports.Add(1)
	attaching := false
	for _, out := range []bool{false, true} {
		attaching = i != nil && h.attach(netif.Target{Netns: netns, Iface: i.Name, Out: out}, i) || attaching
	}
	if !attaching {
		h.wake()
	}
}

// wake makes the manager look.
func (h *hotplug) wake() {
	select {
	case h.changed <- struct{}{}:
	default: // it has yet to look
	}
}

// attach attaches a program to an interface, if one waits for it, then wakes the
// manager; it reports whether it does. Where that fails, the manager will find
// the interface without a program, try again, and log why.
func (h *hotplug) attach(t netif.Target, i *netif.Iface) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.targets) == 0 {
		return false
	}
	if _, busy := h.pending[t]; busy {
		h.pending[t] = i
		return true
	}
	if a := h.known[t]; a != nil {
		h.start(t, func() {
			if err := a.Reattach(i); err != nil {
				h.log.Debug(err.Error())
			}
		})
		return true
	}
	at := slices.IndexFunc(h.targets, func(o Target) bool { return o.Covers(t) })
	if at < 0 || h.failed[t] == i.Index || slices.Contains(h.lost, t) {
		return false
	}
	fits := slices.IndexFunc(h.preloaded, func(p *preloaded) bool { return p.kind == h.kinds[at] })
	if fits < 0 {
		return false
	}
	p, xdp := h.preloaded[fits], h.targets[at].XDP
	h.preloaded = slices.Delete(h.preloaded, fits, fits+1)
	h.start(t, func() {
		a, err := h.pins.Attach(t, i, xdp, p.metadata, p.program)
		h.mu.Lock()
		defer h.mu.Unlock()
		if err != nil {
			if len(h.failed) >= maxFailed {
				clear(h.failed) // of names that do not come back
			}
			h.failed[t], h.preloaded = i.Index, append(h.preloaded, p)
			h.log.Debug(err.Error())
			return
		}
		delete(h.failed, t)
		h.known[t] = a
		h.arrived = append(h.arrived, &managedInterface{Target: t, XDP: xdp, Attachment: a, engine: p.engine, parts: p.parts})
	})
	return true
}

// start calls fn for an interface in a goroutine, which then handles what was
// reported meanwhile.
func (h *hotplug) start(t netif.Target, fn func()) {
	h.pending[t] = nil
	h.attaching.Go(func() {
		fn()
		h.mu.Lock()
		next := h.pending[t]
		delete(h.pending, t)
		h.mu.Unlock()
		if next == nil || !h.attach(t, next) {
			h.wake()
		}
	})
}

// arrivals returns the interfaces that were attached to, for the manager to take
// in.
func (h *hotplug) arrivals() (all []*managedInterface) {
	h.mu.Lock()
	defer h.mu.Unlock()
	all, h.arrived = h.arrived, nil
	return all
}

// setTargets sets what an engine is to filter, and what is filtered.
func (h *hotplug) setTargets(e *engine.Generation, targets []Target, lost []netif.Target, interfaces []*managedInterface) {
	kinds := make([]kind, len(targets))
	for i, t := range targets {
		kinds[i] = kindOf(e, t)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.targets, h.kinds, h.lost = slices.Clone(targets), kinds, slices.Clone(lost)
	clear(h.known)
	for _, i := range slices.Concat(interfaces, h.arrived) {
		if i.Attachment != nil {
			h.known[i.Target] = i.Attachment
		}
	}
	for t := range h.failed {
		if !slices.ContainsFunc(h.targets, func(o Target) bool { return o.Covers(t) }) {
			delete(h.failed, t)
		}
	}
}

// has reports whether hotplug has attached to an interface, is about to, or
// knows it.
func (h *hotplug) has(t netif.Target) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, busy := h.pending[t]
	return busy || h.known[t] != nil
}

// forget makes sure that the program is not put back on an interface, unless
// that has happened since the manager looked, or is under way.
func (h *hotplug) forget(i *managedInterface) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, busy := h.pending[i.Target]; busy {
		return false
	}
	if i.Attachment != nil {
		if index, err := i.Index(); err != nil || index != i.index {
			return false
		}
	}
	delete(h.known, i.Target)
	delete(h.failed, i.Target)
	return true
}

// wanted is how many programs of a kind are to be preloaded, and for a target of which.
type wanted struct {
	kind
	like netif.Target
	n    int
}

// wantedBy returns what an engine is to preload for targets: for interfaces that may come and
// have no program kept for them.
func (h *hotplug) wantedBy(e *engine.Generation, targets []Target, known func(netif.Target) bool) []wanted {
	kinds := make([]kind, len(targets))
	for i, t := range targets {
		kinds[i] = kindOf(e, t)
	}
	n, like := count(targets, kinds, known)
	var all []wanted
	for k, n := range n {
		all = append(all, wanted{k, like[k], n})
	}
	return all
}

// wanted is how many programs are to be preloaded, and for which targets.
func (h *hotplug) wanted() (n map[kind]int, like map[kind]netif.Target) {
	return count(h.targets, h.kinds, func(t netif.Target) bool {
		return h.known[t] != nil || slices.Contains(h.lost, t) || slices.Contains(h.ahead, t)
	})
}

// count counts the programs that are to wait for interfaces.
func count(targets []Target, kinds []kind, known func(netif.Target) bool) (n map[kind]int, like map[kind]netif.Target) {
	n, like = make(map[kind]int), make(map[kind]netif.Target)
	for i, t := range targets {
		k := kinds[i]
		like[k] = t.Target
		switch {
		case t.Glob():
			n[k] = maxPreloaded
		case !known(t.Target):
			n[k] = min(n[k]+1, maxPreloaded)
		}
	}
	return n, like
}

// add adds programs that a rollout has loaded. refill closes those that are too many.
func (h *hotplug) add(loaded []*preloaded) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.preloaded = slices.Concat(loaded, h.preloaded)
}

// expect sets the interfaces that the manager has programs for.
func (h *hotplug) expect(all []*ahead) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ahead = nil
	for _, a := range all {
		if a.program != nil {
			h.ahead = append(h.ahead, a.Target)
		}
	}
}

// refill preloads the programs that are wanted, of the current engine.
func (h *hotplug) refill(e *engine.Generation, m Metadata) error {
	h.mu.Lock()
	wanted, like := h.wanted()
	missing := maps.Clone(wanted)
	for _, p := range h.preloaded {
		if p.engine == e {
			missing[p.kind]--
		}
	}
	h.mu.Unlock()
	var loaded []*preloaded
	var err error
	for k, n := range missing {
		for ; n > 0 && err == nil; n-- {
			var p *preloaded
			if p, err = preload(e, k, like[k], m); err == nil {
				loaded = append(loaded, p)
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	// One of an earlier engine is better than none while the next is loaded.
	h.preloaded = slices.DeleteFunc(slices.Concat(loaded, h.preloaded), func(p *preloaded) bool {
		surplus := p.engine != e || wanted[p.kind] == 0
		if surplus {
			p.Close()
		} else {
			wanted[p.kind]--
		}
		return surplus
	})
	return err
}

func preload(e *engine.Generation, k kind, t netif.Target, m Metadata) (_ *preloaded, err error) {
	p := &preloaded{kind: k, engine: e}
	if p.metadata, err = m.At(t).Encode(); err != nil {
		return nil, err
	}
	if p.stats, err = loader.NewStats(0); err != nil {
		return nil, err
	}
	if k.tc {
		p.stats.UseTC(true)
	}
	if k.byDispatcher {
		p.stats.UseDispatcher()
	}
	p.stats.For(t)
	if p.program, err = e.For(t).Load(p.stats); err != nil {
		return nil, errors.Join(err, p.stats.Close())
	}
	return p, nil
}

// stop ends hotplug. It returns what was still to be taken in.
func (h *hotplug) stop() []*managedInterface {
	for _, w := range h.watches {
		w.cancel()
	}
	h.mu.Lock()
	h.targets = nil
	h.mu.Unlock()
	h.attaching.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.preloaded {
		p.Close()
	}
	h.preloaded = nil
	clear(h.known)
	arrived := h.arrived
	h.arrived = nil
	return arrived
}
