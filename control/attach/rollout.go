package attach

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/control/engine"
	"weir/loader"
	"weir/loader/netif"
)

// Rollout is the next engine with its programs loaded, ready to replace those of
// the current one.
type Rollout struct {
	m        *Manager
	engine   *engine.Generation
	metadata Metadata
	targets  []Target            // nil: those of the manager stay
	loads    []*managedInterface // whose programs are to be loaded
	programs map[*managedInterface]*loader.Program

	ahead     []*ahead // for interfaces that Follow is to begin with
	kinds     []wanted // of programs that are to be preloaded
	preloaded []*preloaded
}

// ahead is a program for an interface that is not filtered yet, loaded before Follow attaches it.
type ahead struct {
	netif.Target
	engine   *engine.Generation
	prepared *loader.Preparation
	program  *loader.Program // nil: it could not be loaded
}

func (a *ahead) Close() error {
	var err error
	if a.program != nil {
		err = a.program.Close()
	}
	return errors.Join(err, a.prepared.Close())
}

// Prepare plans a rollout and loads its programs.
func (m *Manager) Prepare(e *engine.Generation, d Metadata, targets []Target) (*Rollout, error) {
	r, err := m.Plan(e, d, targets)
	if err != nil {
		return nil, err
	}
	if err := r.Load(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Plan returns the rollout of an engine for the interfaces that are filtered, whose programs
// are still to be loaded: all that is likely to fail comes before the first interface changes.
// Interfaces that the targets no longer cover are released by Commit. Without targets,
// those of the manager stay. None comes or goes until the rollout is committed
// or closed.
func (m *Manager) Plan(e *engine.Generation, d Metadata, targets []Target) (*Rollout, error) {
	if _, err := expand(targets); err != nil {
		return nil, err
	}
	for _, i := range m.interfaces {
		at := slices.IndexFunc(targets, func(t Target) bool { return t.Covers(i.Target) })
		if at >= 0 && i.XDP != targets[at].XDP && i.Attachment != nil {
			return nil, fmt.Errorf("%s: changing from %v to %v would leave it unfiltered for a moment: detach it first", i.Target, i.XDP, targets[at].XDP)
		}
	}
	r := &Rollout{
		m: m, engine: e, metadata: d, targets: targets,
		programs: make(map[*managedInterface]*loader.Program),
	}
	if err := r.plan(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// plan sets what is particular to the program of each interface.
func (r *Rollout) plan() error {
	for _, i := range r.m.interfaces {
		if i.Attachment == nil || i.Replaced() || r.engine.For(i.Target) == nil { // of none, Commit detaches
			continue
		}
		r.loads = append(r.loads, i)
		if err := specialise(r.engine, i.Target, i.Stats()); err != nil {
			return err
		}
		if _, err := r.engine.Continue(i.Target, i.Stats(), nil); err != nil {
			return err
		}
	}
	r.planAhead()
	return nil
}

// planAhead prepares what Commit and Follow would else have to load: programs for interfaces
// that the targets add, and those that wait for interfaces. What fails here is left to them.
func (r *Rollout) planAhead() {
	targets, lost := r.targets, []netif.Target(nil)
	if targets == nil {
		targets, lost = r.m.targets, r.m.lost
	}
	known := make(map[netif.Target]bool)
	for _, i := range r.m.interfaces {
		known[i.Target] = i.Attachment != nil
	}
	if r.targets != nil {
		found, _ := expand(targets)
		for _, t := range found {
			if known[t.Target] || r.m.hotplug.has(t.Target) || r.engine.For(t.Target) == nil {
				continue
			}
			if a := r.m.prepareAhead(r.engine, t); a != nil {
				r.ahead, known[t.Target] = append(r.ahead, a), true
			}
		}
	}
	r.kinds = r.m.hotplug.wantedBy(r.engine, targets, func(t netif.Target) bool { return known[t] || slices.Contains(lost, t) })
}

// prepareAhead returns what a program for a new interface is loaded with, or nil.
func (m *Manager) prepareAhead(e *engine.Generation, t Target) *ahead {
	before, err := m.find(t.Target)
	if err != nil {
		return nil
	}
	if before.Attachment != nil { // its counters go on
		before.Close()
		return nil
	}
	p, err := m.Pins.Prepare(t.Target, t.XDP)
	if err != nil {
		return nil
	}
	if specialise(e, t.Target, p.Stats()) != nil {
		p.Close()
		return nil
	}
	return &ahead{Target: t.Target, engine: e, prepared: p}
}

// Load loads the programs, on all CPUs: the verifier takes tens of milliseconds for
// each. It may be called in another goroutine than the manager's other methods.
func (r *Rollout) Load() error {
	var all sync.Mutex // guards r.programs
	var loads errgroup.Group
	loads.SetLimit(runtime.GOMAXPROCS(0))
	for _, i := range r.loads {
		loads.Go(func() error {
			p, err := r.engine.For(i.Target).Load(i.Stats())
			if err != nil {
				return fmt.Errorf("%s: %w", i.Target, err)
			}
			r.m.progress()
			all.Lock()
			defer all.Unlock()
			r.programs[i] = p
			return nil
		})
	}
	for _, a := range r.ahead {
		loads.Go(func() error {
			a.program, _ = r.engine.For(a.Target).Load(a.prepared.Stats()) // Follow says why not
			r.m.progress()
			return nil
		})
	}
	for _, k := range r.kinds {
		for range k.n {
			loads.Go(func() error {
				p, err := preload(r.engine, k.kind, k.like, r.metadata)
				if err != nil {
					return nil // refill says why
				}
				r.m.progress()
				all.Lock()
				defer all.Unlock()
				r.preloaded = append(r.preloaded, p)
				return nil
			})
		}
	}
	return loads.Wait()
}

// close closes the programs that were not used.
func (r *Rollout) close() error {
	var errs []error
	for _, p := range r.programs {
		errs = append(errs, p.Close())
	}
	for _, a := range r.ahead {
		errs = append(errs, a.Close())
	}
	for _, p := range r.preloaded {
		errs = append(errs, p.Close())
	}
	r.programs, r.ahead, r.preloaded = nil, nil, nil
	return errors.Join(errs...)
}

// Close gives up a rollout that was not committed.
func (r *Rollout) Close() error {
	r.m.writeDevices()
	return r.close()
}

// Commit replaces the programs, with one update of each link. When it fails, the
// current engine stays active everywhere, or the error says where it does not.
func (r *Rollout) Commit() error {
	m := r.m
	var replaced []*managedInterface
	for _, i := range m.interfaces {
		p := r.programs[i]
		if p == nil {
			continue
		}
		delete(r.programs, i)
		m.progress()
		err := i.Replace(p)
		if errors.Is(err, loader.ErrSevered) || errors.Is(err, loader.ErrReplaced) {
			continue // Follow will see
		}
		if err == nil {
			replaced = append(replaced, i)
			i.engine = nil
			continue
		}
		m.writeDevices()
		stuck, bad := m.restore(replaced)
		for _, i := range stuck {
			bad = errors.Join(bad, m.describe(i, r.metadata))
		}
		what := "the old lists stay active"
		if len(stuck) > 0 {
			what += ", but on " + names(stuck) + " the new ones are"
		}
		return fmt.Errorf("%s: %w", what, errors.Join(err, bad, r.close()))
	}
	m.engine, m.metadata = r.engine, r.metadata
	if r.targets != nil {
		m.targets = r.targets
	}
	for _, i := range replaced {
		m.progress()
		if err := m.describe(i, r.metadata); err != nil {
			m.Log.Warn(err.Error())
		}
	}
	if r.targets != nil {
		m.retarget(r.targets)
	}
	m.dropAhead()
	m.ahead, r.ahead = r.ahead, nil
	m.hotplug.expect(m.ahead)
	m.hotplug.add(r.preloaded)
	r.preloaded = nil
	m.refill()
	return r.close()
}

// restore brings the current engine back. Where that fails, the next one sticks.
func (m *Manager) restore(interfaces []*managedInterface) (stuck []*managedInterface, err error) {
	for _, i := range interfaces {
		p, bad := m.load(m.engine, i.Target, i.Stats())
		if bad == nil {
			bad = i.Replace(p)
		}
		if bad == nil || errors.Is(bad, loader.ErrSevered) || errors.Is(bad, loader.ErrReplaced) {
			continue
		}
		stuck, err = append(stuck, i), errors.Join(err, bad)
	}
	return stuck, err
}

// Check returns why targets cannot be followed, nil if they can.
func (m *Manager) Check(targets []Target) error {
	_, err := expand(targets)
	return err
}

// Retarget names the targets again that the manager has, with the same engine: interfaces that
// it has given up, or could not attach to, are filtered again, if that is possible by now.
func (m *Manager) Retarget(targets []Target) { m.retarget(targets) }

// retarget changes what is to be filtered. Interfaces that are no longer covered
// are released.
func (m *Manager) retarget(targets []Target) {
	m.targets = targets
	m.lost = nil // who names an interface again wants it filtered again
	m.hotplug.setTargets(m.engine, targets, nil, m.interfaces)
	m.interfaces = slices.DeleteFunc(m.interfaces, func(i *managedInterface) bool {
		if at := slices.IndexFunc(targets, func(t Target) bool { return t.Covers(i.Target) }); at >= 0 {
			if i.Attachment == nil {
				i.XDP, i.retry = targets[at].XDP, time.Time{} // which may mend it
			}
			return false
		}
		m.hotplug.forget(i)
		m.release(i)
		return true
	})
}

// Problems returns, for each interface of the targets that is not filtered, why.
func (m *Manager) Problems() (all []string) {
	for _, i := range m.Interfaces() {
		switch i.Condition {
		case Unpinned:
			all = append(all, fmt.Sprintf("%s is %s: %s", i.Target, i.Condition.Says(), i.Problem))
		case Unfiltered:
			all = append(all, fmt.Sprintf("%s is not filtered: %s", i.Target, strings.TrimSpace(i.Problem)))
		case Absent, Gone:
			all = append(all, fmt.Sprintf("%s is not filtered: it is %s, weir waits for it", i.Target, i.Condition.Says()))
		}
	}
	return all
}
