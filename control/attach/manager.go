package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/filter/hash"
	"weir/loader"
	"weir/loader/bpffs"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// FollowInterval is how often [Manager.Follow] is to be called where the kernel
// reports no change: a namespace that does not exist yet cannot be watched. Where it does, each
// second will do: others may have detached programs, or replaced a namespace.
const FollowInterval = 250 * time.Millisecond

const adoptedMessage = "adopted a program that was filtering already, counters go on" // logged

// goneFor is how long an interface that only a glob covers is waited for when it
// is gone: longer than whatever made it takes to restart. The next one may have
// any other name.
const goneFor = 10 * time.Second

// Config says how a manager attaches.
type Config struct {
	Pins     loader.Pins
	Takeover bool // replace a program whose process still runs
	Log      *slog.Logger
}

// Manager keeps an engine's program on the interfaces of its targets. One
// goroutine may use it; what has to be fast when an interface appears is done by
// goroutines of its own (see hotplug).
type Manager struct {
	Config
	targets     []Target
	engine      *engine.Generation
	metadata    Metadata
	interfaces  []*managedInterface
	found       map[netif.Target]*loader.Attachment // of Find: what they hold outlives its pins until Start is through
	ahead       []*ahead                            // programs for interfaces that Follow is to begin with
	leaving     leaving
	hotplug     *hotplug
	lost        []netif.Target // detached or taken over by others: not attached to again
	over        bool           // nothing is left to filter, nor to wait for
	unseen      string         // why interfaces cannot be listed, as last logged
	looked      look           // at the interfaces of the namespaces
	deviceError string         // why a program does not know other interfaces, as last logged
	unshared    bool           // the maps that all programs share may have lost their pins with an interface
	steps       atomic.Uint64
}

// Steps counts the programs that were loaded, attached or replaced. It may be called
// at any time: while it grows, the manager is alive.
func (m *Manager) Steps() uint64 { return m.steps.Load() }

func (m *Manager) progress() { m.steps.Add(1) }

// NewManager returns a manager that filters nothing yet.
func NewManager(c Config) *Manager { return &Manager{Config: c, hotplug: newHotplug(c)} }

// Inherited has the state that filtering programs pass on to their successors.
type Inherited struct {
	Programs []string  // that filter, by their interfaces
	Lists    []string  // whose sources have entries in them
	Unknown  bool      // one of them does not say which lists it has
	Seed     hash.Seed // of secrets whose memory goes on; zero: there is none
}

// Find looks for programs that filter on targets already. It fails where a
// required interface cannot exist, or the program belongs to another
// process that runs and is not to be taken over. It keeps the programs open, so that they filter on
// where their pins vanish, until Start ends, or Forget is called.
func (m *Manager) Find(targets []Target) (Inherited, error) {
	var all Inherited
	if err := m.Pins.Finish(); err != nil && !errors.Is(err, bpffs.ErrNoBPFFS) {
		return all, err
	}
	found, err := expand(targets)
	if err != nil {
		return all, err
	}
	for _, t := range found {
		p, err := m.find(t.Target)
		if !t.Required && errors.Is(err, netif.ErrNoNetns) {
			continue
		}
		if err != nil {
			return all, err
		}
		if p.Attachment == nil && m.Pins.IsOrphaned(t.Target, t.XDP) {
			all.Programs = append(all.Programs, t.Target.String())
			all.Unknown = true
		}
		if p.Attachment != nil {
			all.Programs = append(all.Programs, t.Target.String())
			for _, l := range p.Metadata.Lists {
				if l.Source != "" && l.Entries > 0 && !slices.Contains(all.Lists, l.Name) {
					all.Lists = append(all.Lists, l.Name)
				}
			}
		}
		if p.Attachment != nil && !t.Out && all.Seed == (hash.Seed{}) {
			all.Seed = p.Stats().TrackerSeed()
		}
		if p.Attachment != nil {
			if m.found == nil {
				m.found = make(map[netif.Target]*loader.Attachment)
			}
			m.found[t.Target] = p.Attachment
		}
	}
	return all, nil
}

// Forget closes what Find has kept open.
func (m *Manager) Forget() {
	for _, a := range m.found {
		a.Close() // if it fails, a map leaks
	}
	m.found = nil
}

// open opens the pins for an interface. Where they have vanished since Find, it makes them again.
func (m *Manager) open(t netif.Target) (*loader.Attachment, error) {
	a, err := m.Pins.Open(t)
	kept := m.found[t]
	if err == nil && !a.Severed() || kept == nil || kept.Severed() {
		return a, err
	}
	if err == nil { // part of them is left
		a.Close()
	}
	made, bad := kept.Repin()
	if bad != nil {
		return nil, errors.Join(err, bad)
	}
	if made > 0 {
		m.Log.Error("the pins have vanished in the middle of the start: made again", "interface", t.String(), "pins", made)
	}
	return m.Pins.Open(t)
}

// Filter opens the filter that is pinned for an interface of the targets, the first that
// has one. It returns nil where none has.
func (m *Manager) Filter(targets []Target) (*loader.Filter, error) {
	found, err := expand(targets)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, t := range found {
		f, err := m.Pins.OpenFilter(t.Target)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return nil, errors.Join(errs...)
}

// Start attaches the engine's program to the interfaces of the targets. Where a
// program of weir's filters already, it is replaced without a gap, and its
// counters go on. An interface that cannot be filtered is logged and retried;
// Start fails, and attaches to none, if it is required, an old program filters
// there, or no interface can be filtered. An interface that has gone since Find is waited for, unless a
// target that is required names it.
func (m *Manager) Start(e *engine.Generation, d Metadata, targets []Target) error {
	found, err := expand(targets)
	if err != nil {
		return err
	}
	defer m.Forget()
	m.engine, m.metadata, m.targets = e, d, targets
	if err := m.continueTrackers(found); err != nil {
		return err
	}
	errs := make([]error, len(found))
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	for n, t := range found {
		i := &managedInterface{Target: t.Target, XDP: t.XDP}
		m.interfaces = append(m.interfaces, i)
		all.Go(func() error {
			errs[n] = m.attachLasting(i)
			return nil
		})
	}
	_ = all.Wait() // errs has the errors
	var failed error
	for n, t := range found {
		i, err := m.interfaces[n], errs[n]
		// An old program would go on with its old lists.
		absent := IsAbsent(err)
		if absent {
			i.adopted = false // its program went with it
		}
		if err != nil && (t.Required && (!absent || m.named(t.Target)) || i.adopted || errors.Is(err, errRunning)) {
			m.undo()
			return err
		}
		switch {
		case absent:
			m.Log.Warn("the interface does not exist, waiting for it", "interface", t.String())
		case err != nil:
			failed = errors.Join(failed, err)
			i.failed(m.Log.With("interface", t.String()), err)
		case i.adopted:
			m.Log.Info(adoptedMessage, "interface", t.String())
		}
	}
	if failed != nil && len(m.Names()) == 0 {
		m.undo()
		return failed
	}
	m.tidy()
	m.hotplug.setTargets(m.engine, m.targets, nil, m.interfaces)
	m.refill()
	return nil
}

// continueTrackers makes the programs for all interfaces count where those of one do that filters
// already, if it has the engine's trackers. Where others count there that are not replaced, as those
// of another daemon or of an interface that the configuration does not name any more, all count anew,
// with the penalties that there are.
func (m *Manager) continueTrackers(found []Target) error {
	others, filtered := make(map[bool]bool), make(map[bool][]netif.Target) // by direction
	for _, t := range found {
		p, err := m.find(t.Target)
		switch {
		case err != nil: // attach says why
			others[t.Out] = others[t.Out] || !IsAbsent(err)
		case p.Attachment != nil:
			others[t.Out] = others[t.Out] || p.OfOther() // which may yet attach more programs
			filtered[t.Out] = append(filtered[t.Out], t.Target)
			p.Close() // if it fails, a map leaks
		}
	}
	for out, targets := range filtered {
		for _, t := range targets {
			continued, err := m.continueFrom(t, others[out], targets)
			if err != nil {
				return fmt.Errorf("%s: %w", t, err)
			}
			if continued {
				break
			}
		}
	}
	return nil
}

// continueFrom makes the programs for all interfaces of a direction count where that of one does,
// if it has the engine's trackers, and reports whether it has.
func (m *Manager) continueFrom(t netif.Target, others bool, targets []netif.Target) (continued bool, err error) {
	a, err := m.open(t)
	if err != nil {
		return false, nil // it has gone
	}
	defer a.Close()
	return m.engine.Continue(t, a.Stats(), func() bool {
		if others {
			return true
		}
		elsewhere, err := m.Pins.CountElsewhere(a.Stats(), targets)
		if err != nil {
			m.Log.Warn("trackers count anew: " + err.Error())
		}
		return elsewhere || err != nil
	})
}

// find finds what filters on an interface.
func (m *Manager) find(t netif.Target) (p predecessor, err error) {
	a, err := m.open(t)
	switch {
	case errors.Is(err, loader.ErrNotAttached):
		return p, nil
	case err != nil:
		return p, err
	case a.Severed():
		return p, a.Close() // it filters no more
	}
	p.Attachment = a
	if p.Metadata, p.err = MetadataOf(a); p.err != nil {
		p.Metadata = Metadata{} // not half of it
	}
	if p.OfOther() && !m.Takeover {
		a.Close()
		return p, fmt.Errorf("%s: %w, process %d: stop it first, or take over with --takeover", t, errRunning, p.PID)
	}
	return p, nil
}

// While the pins vanish, as where their file system is mounted anew, attaching is tried again at this
// interval, for some time.
const (
	vanishedInterval = 50 * time.Millisecond
	vanishedPatience = 5 * time.Second
)

// attachLasting is attach, and begins again where pins vanish meanwhile.
func (m *Manager) attachLasting(i *managedInterface) error {
	again := time.NewTicker(vanishedInterval)
	defer again.Stop()
	for end := time.Now().Add(vanishedPatience); ; <-again.C {
		err := m.attach(i)
		vanished := errors.Is(err, loader.ErrNotAttached) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, bpffs.ErrNoBPFFS)
		if kept := m.found[i.Target]; errors.Is(err, kernelerr.ErrForeign) && kept != nil && !kept.Severed() {
			vanished = true // its own program is in the way, since its pins were not found
			if kept.Replaced() {
				// By this process, before all pins were made: nothing can pin that program again.
				m.Log.Error("the pins have vanished while the program was replaced: it is attached anew, and packets pass until then", "interface", i.Target.String())
				kept.Close() // detaches it
			}
		}
		if err != nil && !IsAbsent(err) {
			// The kernel may refuse an interface that leaves by any error, as by "invalid argument".
			if _, gone := i.Target.Number(); IsAbsent(gone) {
				err = fmt.Errorf("%w: %w", gone, err)
			}
		}
		if !vanished || IsAbsent(err) || time.Now().After(end) {
			return err
		}
	}
}

// attach attaches the program to an interface. A program that was filtering
// there is replaced.
func (m *Manager) attach(i *managedInterface) error {
	d := m.metadata.At(i.Target)
	before, err := m.find(i.Target)
	if err != nil {
		return err
	}
	defer before.Close()
	i.adopted = before.Attachment != nil
	if i.adopted {
		if before.err != nil {
			m.Log.Warn(before.err.Error()) // no reason not to filter
		}
		lists := before.Stats().Lists(nil)
		if !d.CompatibleCounters(before.Metadata) {
			m.Log.Warn("the counters have another version's layout and start anew", "interface", i.Target.String())
			if err := before.ForgetStats(); err != nil {
				return err
			}
			lists = nil
		}
		d.InheritCounters(before.Metadata, lists)
	}
	text, err := d.Encode()
	if err != nil {
		return err
	}
	if before.Attachment == nil {
		i.Attachment = m.attachAhead(i.Target, text)
	}
	// A process that is taken over may just have replaced its program.
	for range 3 {
		if i.Attachment != nil {
			break
		}
		if i.Attachment, err = m.attachOnce(i, text); !errors.Is(err, loader.ErrReplaced) {
			break
		}
	}
	if err == nil && i.TookOverOrphan() {
		i.adopted = true
		m.Log.Warn("took over a program of weir's that filtered without pins; its counters start anew", "interface", i.Target.String())
	}
	i.updateIndex()
	return err
}

// attachAhead attaches a program that was loaded ahead, if there is one that fits. Otherwise it
// returns nil.
func (m *Manager) attachAhead(t netif.Target, metadata []byte) *loader.Attachment {
	at := slices.IndexFunc(m.ahead, func(a *ahead) bool { return a.Target == t && a.engine == m.engine && a.program != nil })
	if at < 0 {
		return nil
	}
	a := m.ahead[at]
	attached, err := a.prepared.Attach(a.program, metadata)
	a.program = nil // Attach has it
	if err != nil {
		return nil // as where the interface has become another one
	}
	return attached
}

// dropAhead closes the programs that were loaded ahead and are not needed.
func (m *Manager) dropAhead() {
	for _, a := range m.ahead {
		if err := a.Close(); err != nil {
			m.Log.Debug(err.Error())
		}
	}
	m.ahead = nil
	m.hotplug.expect(nil)
}

func (m *Manager) attachOnce(i *managedInterface, metadata []byte) (*loader.Attachment, error) {
	prepared, err := m.Pins.Prepare(i.Target, i.XDP)
	if err != nil {
		return nil, err
	}
	defer prepared.Close()
	program, err := m.load(m.engine, i.Target, prepared.Stats())
	if err != nil {
		return nil, err
	}
	return prepared.Attach(program, metadata)
}

// load loads an engine's program for an interface.
func (m *Manager) load(e *engine.Generation, t netif.Target, s *loader.Stats) (*loader.Program, error) {
	if err := specialise(e, t, s); err != nil {
		return nil, err
	}
	p, err := e.For(t).Load(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t, err)
	}
	m.progress()
	return p, nil
}

// undo detaches what Start has attached. A program that replaced another one
// stays, since the old one cannot be brought back and no listed packet shall
// pass.
func (m *Manager) undo() {
	for _, i := range m.interfaces {
		if i.Attachment == nil {
			continue
		}
		if i.adopted {
			m.Log.Warn("the new lists stay active where weir was filtering already", "interface", i.Target.String())
		} else if err := i.Detach(); err != nil {
			m.Log.Error(err.Error())
		}
		i.Close()
	}
	m.interfaces = nil
}

// Names returns the names of the interfaces that are filtered.
func (m *Manager) Names() []string {
	all := []string{}
	for _, i := range m.interfaces {
		if i.filtered() {
			all = append(all, i.Target.String())
		}
	}
	return all
}

// Interfaces returns the states of the interfaces that the targets name, and of
// those that exist and match a glob.
func (m *Manager) Interfaces() []State {
	var all []State
	for _, i := range m.interfaces {
		n := State{Target: i.Target, Condition: Gone, XDP: i.XDP, passing: !m.named(i.Target), attachment: i.Attachment}
		switch {
		case i.filtered():
			n.Condition, n.XDP = Filtered, i.Hook()
			if n.Problem = i.Unpinned(); n.Problem != "" {
				n.Condition = Unpinned
			}
		case i.problem != "":
			n.Condition, n.Problem = Unfiltered, i.problem
		case n.passing:
			continue // the next one may have any other name
		case i.Attachment == nil:
			n.Condition = Absent
		}
		all = append(all, n)
	}
	for _, t := range m.lost {
		all = append(all, State{Target: t, Condition: Detached})
	}
	return all
}

// Named returns the interfaces that targets name without a glob.
func (m *Manager) Named() []netif.Target {
	var all []netif.Target
	for _, t := range m.targets {
		if !t.Glob() {
			all = append(all, t.Target)
		}
	}
	return all
}

// Attached returns the attachments that are not another daemon's, also those whose
// interface is gone: what they have counted is still to be read.
func (m *Manager) Attached() []*loader.Attachment {
	var all []*loader.Attachment
	for _, i := range m.interfaces {
		if i.Attachment != nil && !i.Replaced() {
			all = append(all, i.Attachment)
		}
	}
	return all
}

// Filtered returns the attachments of the interfaces that are filtered.
func (m *Manager) Filtered() []*loader.Attachment {
	return slices.DeleteFunc(m.Attached(), (*loader.Attachment).Severed)
}

// Stats returns the counters of those of Attached that filter outgoing packets, or
// incoming ones.
func (m *Manager) Stats(out bool) []*loader.Stats {
	var all []*loader.Stats
	for _, a := range m.Attached() {
		if a.Target().Out == out {
			all = append(all, a.Stats())
		}
	}
	return all
}

// Metadata describes the engine that filters.
func (m *Manager) Metadata() Metadata { return m.metadata }

// describe updates the metadata at an interface, unless that is not this manager's any more,
// as Follow will find.
func (m *Manager) describe(i *managedInterface, d Metadata) error {
	err := i.describe(d.At(i.Target))
	if errors.Is(err, loader.ErrReplaced) || errors.Is(err, loader.ErrNotAttached) {
		return nil
	}
	return err
}

// Describe updates the metadata at the attachments.
func (m *Manager) Describe(d Metadata) {
	m.metadata = d
	for _, i := range m.interfaces {
		if !i.filtered() {
			continue
		}
		if err := m.describe(i, d); err != nil {
			m.Log.Warn(err.Error())
		}
	}
}

// Changed receives a value when interfaces have changed and Follow is to be
// called.
func (m *Manager) Changed() <-chan struct{} { return m.hotplug.changed }

// Follow looks at what has become of the interfaces. One that had vanished gets
// its program again when it is back. One that somebody has detached, or where
// another daemon has taken over, is given up. When none is left, and none can
// come, the error is ErrNothingLeft.
func (m *Manager) Follow() error {
	m.hotplug.watch(m.targets)
	if m.isUnchanged() {
		return nil
	}
	looked := m.look()
	m.takeIn(m.hotplug.arrivals())
	m.followNames()
	var lost error
	m.interfaces = slices.DeleteFunc(m.interfaces, func(i *managedInterface) bool {
		err := m.ensure(i)
		if err != nil {
			m.giveUp(i, err)
			lost = err
		}
		return err != nil
	})
	// Who detaches an interface that a glob covers does not mean the next one.
	if lost != nil && len(m.interfaces) == 0 && (errors.Is(lost, errTaken) || !slices.ContainsFunc(m.targets, Target.Glob)) {
		m.over = true
	}
	unseen := ""
	found, err := expand(m.targets)
	if err == nil {
		m.forget(found)
	} else if unseen = err.Error(); unseen != m.unseen {
		m.Log.Error(unseen)
	}
	m.unseen = unseen
	for _, t := range found {
		known := func(i *managedInterface) bool { return i.Target == t.Target }
		if slices.Contains(m.lost, t.Target) || slices.ContainsFunc(m.interfaces, known) {
			continue
		}
		i := &managedInterface{Target: t.Target, XDP: t.XDP}
		if err := m.ensure(i); err != nil {
			m.giveUp(i, err)
			continue
		}
		m.interfaces = append(m.interfaces, i)
	}
	m.dropAhead()
	m.followLeaving() // after interfaces that are named again were adopted
	m.repinShared()
	m.hotplug.setTargets(m.engine, m.targets, m.lost, m.interfaces)
	looked.complete = m.refill() && m.unseen == "" && !m.over
	m.looked = looked
	if m.over {
		return ErrNothingLeft
	}
	return nil
}

// look is a look at the interfaces of all namespaces.
type look struct {
	at       time.Time
	reports  uint64             // of changes, by then
	engine   *engine.Generation // whose programs were preloaded
	targets  *Target
	complete bool // nothing failed
}

// unreported bounds the time until interfaces are looked for that the kernel has not reported.
const unreported = 10 * time.Second

func (m *Manager) look() look {
	l := look{at: time.Now(), reports: m.hotplug.reports.Load(), engine: m.engine}
	if len(m.targets) > 0 {
		l.targets = &m.targets[0]
	}
	return l
}

// isUnchanged reports whether all is as Follow has left it: the kernel has reported nothing
// since, each interface that was there has its program, and none is left to detach from.
func (m *Manager) isUnchanged() bool {
	now, last := m.look(), m.looked
	if !last.complete || len(m.ahead) > 0 || len(m.leaving.interfaces) > 0 || m.unshared ||
		now.reports != last.reports || now.engine != last.engine || now.targets != last.targets ||
		now.at.Sub(last.at) >= unreported || !m.IsWatching() {
		return false
	}
	return !slices.ContainsFunc(m.interfaces, func(i *managedInterface) bool {
		return i.index == 0 || i.named != i.index || i.problem != "" || i.engine != nil || !i.IsOn(i.index)
	})
}

// IsWatching reports whether the kernel reports all changes of interfaces, as Follow has found:
// otherwise it is to be called each FollowInterval.
func (m *Manager) IsWatching() bool { return m.hotplug.isWatching(m.targets) }

// followNames switches to the names of interfaces that were renamed and that the
// targets cover under those as well: their programs stay where they are.
func (m *Manager) followNames() {
	renamed := make(map[*managedInterface]netif.Target)
	for _, i := range m.interfaces {
		if t, ok := m.renamed(i); ok {
			renamed[i] = t
		}
	}
	for i, t := range renamed {
		free := true
		m.interfaces = slices.DeleteFunc(m.interfaces, func(o *managedInterface) bool {
			if _, leaves := renamed[o]; leaves || o.Target != t {
				return false
			}
			// The interface that had the name is gone, or will be renamed as well.
			free = !o.filtered() && m.hotplug.forget(o)
			if free {
				m.release(o)
			}
			return free
		})
		if !free {
			continue
		}
		if err := i.Rename(t.Iface); err != nil {
			m.Log.Error(err.Error())
			continue
		}
		m.Log.Info("the interface was renamed, filtering goes on", "interface", i.Target.String(), "name", t.Iface)
		if i.engine == nil {
			i.engine, i.parts = m.engine, m.engine.Kind(i.Target)
		}
		i.device = i.device || i.Stats().IsDevice()
		i.Target = t
	}
}

// renamed returns the new name of an interface that was renamed, if the targets
// cover that in the same way.
func (m *Manager) renamed(i *managedInterface) (t netif.Target, ok bool) {
	i.named = 0
	if !i.filtered() {
		return t, false
	}
	name, err := i.Name()
	if err != nil {
		return t, false
	}
	if t = (netif.Target{Netns: i.Netns, Iface: name, Out: i.Out}); t == i.Target {
		i.named = i.index
		return t, false
	}
	at := slices.IndexFunc(m.targets, func(o Target) bool { return o.Covers(t) })
	return t, at >= 0 && m.targets[at].XDP == i.XDP
}

// giveUp drops an interface that is not this manager's any more.
func (m *Manager) giveUp(i *managedInterface, why error) {
	m.Log.Warn(why.Error(), "interface", i.Target.String())
	m.hotplug.forget(i)
	if i.Attachment != nil {
		i.Close()
	}
	m.lost = append(m.lost, i.Target)
}

// takeIn adds the interfaces that hotplug has attached to. While an engine was
// built, that may have been with the one before.
func (m *Manager) takeIn(arrived []*managedInterface) {
	for _, n := range arrived {
		at := slices.IndexFunc(m.interfaces, func(i *managedInterface) bool { return i.Target == n.Target })
		if at < 0 {
			at, m.interfaces = len(m.interfaces), append(m.interfaces, n)
		}
		i := m.interfaces[at]
		if i != n && i.Attachment != nil {
			n.Close() // Follow came first, and has adopted it
			continue
		}
		i.Attachment, i.engine, i.parts, i.problem = n.Attachment, n.engine, n.parts, ""
		i.updateIndex()
		m.Log.Info("the interface is there, filtering", "interface", i.Target.String())
	}
}

// bringUp puts the current program of its name on an interface that may have another one.
func (m *Manager) bringUp(i *managedInterface) error {
	if i.engine == nil {
		return nil
	}
	if err := m.renew(i); err != nil {
		return fmt.Errorf("the previous lists are active there, retrying: %w", err)
	}
	if err := m.describe(i, m.metadata); err != nil {
		return fmt.Errorf("weir status shows the previous lists there, retrying: %w", err)
	}
	i.engine, i.device = nil, false // an engine is not to be kept in memory
	return nil
}

// renew replaces the program of an interface, unless it is the current one, or the engine has none
// for it: forget releases it then.
func (m *Manager) renew(i *managedInterface) error {
	current := m.engine.For(i.Target)
	if current == nil {
		return nil
	}
	if err := specialise(m.engine, i.Target, i.Stats()); err != nil {
		return err
	}
	// A preloaded program takes its interface for none of the devices that it knows.
	parts := m.engine.Kind(i.Target)
	if i.engine == m.engine && i.parts == parts && !i.device && !i.Stats().IsDevice() {
		return nil
	}
	p, err := current.Load(i.Stats())
	if err != nil {
		return err
	}
	if err := i.Replace(p); err != nil {
		return err
	}
	i.engine, i.parts = m.engine, parts
	return nil
}

// refill preloads programs for interfaces that may come, and reports whether it could.
func (m *Manager) refill() bool {
	err := m.hotplug.refill(m.engine, m.metadata)
	if err != nil {
		m.Log.Error("no program is preloaded, new interfaces will be filtered later than they could: " + err.Error())
	}
	return err == nil
}

// forget drops interfaces that only a glob covers where they do not come back,
// or have left for another namespace.
func (m *Manager) forget(found []Target) {
	m.interfaces = slices.DeleteFunc(m.interfaces, func(i *managedInterface) bool {
		here := func(t Target) bool { return t.Target == i.Target }
		waits := i.index == 0 && i.Attachment != nil && time.Since(i.gone) < goneFor
		if m.named(i.Target) || waits || slices.ContainsFunc(found, here) {
			return false
		}
		if _, renamed := m.renamed(i); renamed || !m.hotplug.forget(i) {
			return false
		}
		m.release(i)
		return true
	})
}

// tidy removes what an earlier weir has left of interfaces that only a glob
// covers, and that went while none ran: their pins keep old lists in memory.
func (m *Manager) tidy() {
	all, err := m.Pins.List()
	if err != nil {
		m.Log.Warn(err.Error()) // the others are tidied
	}
	for _, a := range all {
		if d, _ := MetadataOf(a); a.Severed() && !Alive(d.PID) &&
			!m.named(a.Target()) && m.covers(a.Target()) {
			if err := a.DetachAny(); err != nil {
				m.Log.Warn(err.Error())
			}
		}
		a.Close()
	}
}

// covers reports whether a target names an interface, or its glob does.
func (m *Manager) covers(i netif.Target) bool {
	return slices.ContainsFunc(m.targets, func(t Target) bool { return t.Covers(i) })
}

// named reports whether a target names an interface without a glob.
func (m *Manager) named(i netif.Target) bool {
	return slices.ContainsFunc(m.targets, func(t Target) bool { return t.Target == i })
}

// release detaches from an interface that is not to be filtered any more. Where that fails,
// Follow tries again.
func (m *Manager) release(i *managedInterface) {
	if i.Attachment == nil {
		return
	}
	if m.leaving.waits() { // each attempt may take half a minute
		m.leaving.add(i, m.Log, m.leaving.err)
		return
	}
	err := i.Detach()
	if !hasLeft(err) {
		m.leaving.failed(err)
		m.leaving.add(i, m.Log, err)
		return
	}
	m.unshared = true
	if err == nil {
		m.Log.Info("no longer filtered", "interface", i.Target.String())
	}
	if err := i.Close(); err != nil {
		m.Log.Error(err.Error())
	}
}

// repinShared pins the maps again that all programs share. Who detaches from the last interface
// removes their pins, but this manager's programs go on with the maps when an interface comes: if
// the daemon were killed then, the next one would not have them.
func (m *Manager) repinShared() {
	if !m.unshared || m.over {
		return
	}
	made, err := m.Pins.RepinShared(m.engine.Kernel())
	if err != nil {
		m.Log.Error(err.Error())
	}
	m.unshared = made == 0 && err == nil && m.busy() // then nothing is known of the pins: Follow tries again
}

// busy reports whether somebody else has the lock of the pins.
func (m *Manager) busy() bool {
	unlock, err := bpffs.LockDir(string(m.Pins), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		unlock()
	}
	return errors.Is(err, unix.EWOULDBLOCK)
}

// ensure makes sure that an interface is filtered, if it exists. It fails where
// the interface is not this manager's any more.
func (m *Manager) ensure(i *managedInterface) error {
	log := m.Log.With("interface", i.Target.String())
	if i.filtered() {
		was := i.index
		if i.updateIndex(); i.index != was {
			if was != 0 {
				m.logGone(i, log)
			}
			log.Info("the interface is there, filtering")
		}
		if m.misnamed(i) && m.hotplug.forget(i) {
			log.Error("another interface has this name now: it is filtered, the previous one no longer")
			return m.beginAnew(i, log)
		}
		if err := m.bringUp(i); err != nil {
			i.logOnce(log, err)
		} else {
			i.problem = ""
		}
		return nil
	}
	if i.Attachment == nil {
		return m.begin(i, log)
	}
	if i.index != 0 && i.Severed() {
		if n, err := i.Number(); err != nil || n != i.index { // otherwise somebody has detached
			m.logGone(i, log)
		}
		i.index, i.gone = 0, time.Now()
	}
	switch err := i.Reattach(nil); {
	case i.Replaced(), errors.Is(err, loader.ErrReplaced):
		return errTaken
	case err == nil:
		i.updateIndex()
		i.problem = ""
		log.Info("the interface is there, filtering")
	case IsAbsent(err):
		i.problem = ""
	case errors.Is(err, loader.ErrNotAttached):
		return errDetached
	case errors.Is(err, loader.ErrSevered): // at TC, where frames have an Ethernet header now, or no longer
		if m.hotplug.forget(i) {
			log.Warn("the interface has frames of another type now: it needs another program, and its counters start anew")
			return m.beginAnew(i, log)
		}
	default:
		i.logOnce(log, err)
	}
	return nil
}

// misnamed reports whether another interface, which is not filtered, has taken
// the name of the one that is. Where two have exchanged their names, both are
// filtered, and stay so without a gap.
func (m *Manager) misnamed(i *managedInterface) bool {
	if i.named == i.index { // followNames has just looked
		return false
	}
	n, err := i.Number()
	if err == nil && n == i.index {
		// An interface that moves to another network namespace keeps its program and mostly its
		// index, and another one may get that index in its place.
		_, err := i.Name()
		return errors.Is(err, netif.ErrNoInterface)
	}
	return err == nil && !slices.ContainsFunc(m.interfaces, func(o *managedInterface) bool {
		return o.Netns == i.Netns && o.Out == i.Out && o.index == n && o.Attachment != nil
	})
}

func (m *Manager) logGone(i *managedInterface, log *slog.Logger) {
	if m.named(i.Target) {
		log.Error("the interface is gone, waiting for it to come back")
	} else {
		log.Info("the interface is gone")
	}
}

// beginAnew detaches the present program, whose interface may be gone, and attaches to the interface
// that has the name now.
func (m *Manager) beginAnew(i *managedInterface, log *slog.Logger) error {
	m.release(i)
	i.Attachment, i.index = nil, 0
	return m.begin(i, log)
}

// begin attaches to an interface, if it exists. It fails where another daemon that runs has attached
// its program.
func (m *Manager) begin(i *managedInterface, log *slog.Logger) error {
	now, err := m.Pins.Open(i.Target)
	if err == nil {
		defer now.Close()
	}
	if m.hotplug.has(i.Target) {
		return nil // it will be taken in
	}
	if time.Now().Before(i.retry) {
		return nil
	}
	if err == nil && !now.Severed() {
		if slices.ContainsFunc(m.interfaces, func(o *managedInterface) bool { return o.Attachment != nil && o.ProgramID() == now.ProgramID() }) {
			return nil // it was renamed since followNames looked
		}
		// A program that an ended daemon has left is adopted, as by Start.
		if d, _ := MetadataOf(now); d.OfOther() {
			return errTaken
		}
	}
	switch err := m.attach(i); {
	case err == nil && i.adopted:
		i.problem = ""
		log.Info(adoptedMessage)
	case err == nil:
		i.problem = ""
		log.Info("the interface is there, filtering")
	case IsAbsent(err), m.hotplug.has(i.Target): // which came first
		i.problem = ""
	default:
		i.failed(log, err)
	}
	return nil
}

// Stop ends the manager: it detaches from all interfaces, unless the program is
// to be kept. It detaches from interfaces that are leaving even then, unless they are named
// again. What another daemon has taken over is left alone.
func (m *Manager) Stop(keep bool) error {
	var errs []error
	m.dropAhead()
	for _, i := range append(m.interfaces, m.hotplug.stop()...) {
		if i.Attachment == nil {
			continue
		}
		if !keep {
			if err := i.Detach(); errors.Is(err, loader.ErrReplaced) {
				m.Log.Warn("another daemon has taken over, its program stays", "interface", i.Target.String())
			} else {
				errs = append(errs, err)
			}
		}
		errs = append(errs, i.Close())
	}
	errs = append(errs, m.leaveNow(keep))
	m.interfaces = nil
	return errors.Join(errs...)
}

// FollowDevices updates what the programs know of other interfaces, as these come and go.
func (m *Manager) FollowDevices() {
	if slices.ContainsFunc(m.targets, func(t Target) bool { return m.engine.Follows(t.Target) }) {
		m.writeDevices()
	}
}

// writeDevices writes which interfaces there are of those that programs know by name.
func (m *Manager) writeDevices() {
	problem := ""
	for _, i := range m.interfaces {
		if !i.filtered() {
			continue
		}
		if err := m.engine.Follow(i.Target, i.Stats()); err != nil {
			problem = i.Target.String() + ": " + err.Error()
		}
	}
	if problem != "" && problem != m.deviceError {
		m.Log.Error(problem)
	}
	m.deviceError = problem
}

func names(interfaces []*managedInterface) string {
	var all []string
	for _, i := range interfaces {
		all = append(all, i.Target.String())
	}
	return strings.Join(all, ", ")
}
