// Package run keeps weir filtering on interfaces: it builds a generation from
// lists, puts it in force, replaces it when the lists are to be read again,
// and follows interfaces that come and go.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/metrics"
	"weir/control/observe/digests"
	"weir/control/observe/events"
	"weir/control/observe/heavy"
	"weir/control/observe/learn"
	"weir/control/ruleset"
	"weir/control/status"
	"weir/filter/membership"
	"weir/loader"
)

// What names the places where weir is attached, for those who call this package.
type (
	Target = loader.Target
	Pins   = loader.Pins
	Mode   = loader.Hook
)

// Place is where to filter: an interface, or a pattern of names with *, ? and
// [ ] in the place of its name, for all that have such a one, as they come and
// go.
type Place struct {
	Target
	XDP loader.Hook
}

// pattern reports whether the place has a pattern of names.
func (p Place) pattern() bool { return strings.ContainsAny(p.Iface, "*?[") }

// DefaultPins is where weir pins unless it is told otherwise.
const DefaultPins = loader.DefaultPins

// TLS is a TCP address, "": none, where the API is served to clients with
// certificates, and files in PEM for that.
type TLS struct{ Address, Cert, Key, ClientCA string }

// Options say what is to be filtered where.
type Options struct {
	Rules    ruleset.Rules
	Places   []Place
	Wait     bool // for interfaces that are not there yet, instead of failing
	Pins     Pins
	Keep     bool            // leave the program in force when the filter stops
	Takeover bool            // replace a program also while the process that attached it lives
	Wide     bool            // block half of a family or more, if a list says so
	Version  string          // weir's
	Track    []heavy.Spec    // trackers of heavy flows
	Digests  *digests.Config // of what passes; nil: none
	Learn    int             // elements that may have weights; LearnByMode
	HalfLife time.Duration   // of what is learned; 0: learn.DefaultHalfLife
	Socket   string          // of the API; "": none
	Group    string          // whose members may use the socket besides root; "": that of the process
	TLS      TLS             // where the API is served besides
	Metrics  string          // address and port where they are served besides; "": none
	Loop     *Loop           // looks for packets in a loop; nil: nobody does
	Log      *slog.Logger
	// Control is who takes commands that come through the socket, nil: nobody.
	Control api.Control
	// Progress, unless nil, follows the reading of lists.
	Progress ruleset.Progress
	// Load gives the lists, unless it is nil: then they are read from the files
	// that the rules name. Where it is set, its owner has judged whether they
	// are plausible, and may change what it has given by Apply.
	Load func(ruleset.Progress) (*ruleset.Loaded, error)
	// Multicast says, unless it is nil, which groups go where. It is asked when a
	// generation is built; its owner changes what is in force by Groups.
	Multicast func() engine.Multicast
	// Tell adds to metrics, unless it is nil, what the lists' owner knows of feeds
	// and of its configuration. It is called by the filter's goroutine.
	Tell func(*metrics.Snapshot)
}

// Filter filters on some interfaces. It is not safe for concurrent use, but
// for Counters beside Reload, and for what is asked for: Top, Weights, Metrics.
type Filter struct {
	o           Options
	description status.Description
	generation  *engine.Generation
	generations int // that were in force so far
	holds       []*hold
	sentry      *sentry
	lost        []Target // detached or taken over by others: not to be attached to again
	over        bool     // nothing is left to filter, nor to wait for
	unseen      string   // why interfaces cannot be looked for, as the log has it
	loaded      *ruleset.Loaded
	changed     bool // entries were changed in place since they were described
	do          chan func()
	trackerSeed uint64
	watch       watch
	loops       loops
	digestSeed  uint64
	recorder    *digests.Recorder // nil: no digests are recorded
	record      record
	forwarding  forwarding
	events      *events.Hub
}

// hold is an interface that is to be filtered.
type hold struct {
	loader.Target
	XDP                loader.Hook
	*loader.Attachment           // nil while no such interface has been there
	adopted            bool      // it was filtered already
	index              int       // number of the interface, as it was last seen; 0: it is gone
	went               time.Time // when it was seen that it is gone
	told               string    // why it is not filtered, as the log has it

	of *engine.Generation // which it is filtered by, where the sentry met it
}

// tell logs why an interface is not filtered, once while that stays the same.
func (h *hold) tell(log *slog.Logger, err error) {
	if text := err.Error(); text != h.told {
		h.told = text
		log.Error(text)
	}
}

// Start reads the lists and puts them in force on all interfaces, or, when it
// fails, on none. Where weir's pins hold an interface already, it replaces the
// program there without a gap, and the counters go on. When ctx is done before
// the lists are read, nothing has changed.
func Start(ctx context.Context, o Options) (*Filter, error) {
	if len(o.Places) == 0 {
		return nil, errors.New("no interface to filter on")
	}
	if err := status.Room(o.Rules); err != nil {
		return nil, err
	}
	if o.Learn == LearnByMode {
		o.Learn = 0
		if o.Rules.Mode == membership.Approximate {
			o.Learn = learn.DefaultElements
		}
	}
	f := &Filter{o: o, do: make(chan func()), sentry: newSentry(o), events: events.NewHub(o.Log)}
	began := time.Now()
	var before []status.List
	places, err := expand(o.Places)
	if err != nil {
		return nil, err
	}
	for _, p := range places {
		found, err := f.find(p.Target)
		if o.Wait && errors.Is(err, loader.ErrNoNetns) {
			continue
		}
		if err != nil {
			return nil, err
		}
		before = append(before, found.Lists...)
		if found.Attachment != nil && f.trackerSeed == 0 {
			f.trackerSeed = found.Stats().TrackerSeed() // what it has counted goes on
		}
		if found.Attachment != nil && f.digestSeed == 0 {
			f.digestSeed = found.Stats().DigestSeed()
		}
		found.Close()
	}
	if f.recorder, err = remember(o, nil); err != nil {
		return nil, err
	}
	g, d, specs, err := f.build(before)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, errors.Join(fmt.Errorf("stopped before the lists were in force, nothing has changed: %w", ctx.Err()), g.Close())
	}
	f.generation, f.description, f.generations = g, d, 1
	f.observe(specs)
	for _, p := range places {
		h := &hold{Target: p.Target, XDP: p.XDP}
		err := f.attach(h)
		if err != nil && !(o.Wait && isAbsent(err)) {
			f.undo()
			return nil, err
		}
		f.holds = append(f.holds, h)
		switch {
		case err != nil:
			o.Log.Warn("the interface is not there, waiting for it", "interface", p.String())
		case h.adopted:
			o.Log.Info("adopted a program that was filtering already, counters go on", "interface", p.String())
		}
	}
	f.tidy()
	f.sentry.instruct(o.Places, nil, f.holds)
	f.provide()
	f.announce("filtering", f.names(), time.Since(began))
	f.record.loaded(false, began, nil)
	f.note()
	return f, nil
}

// isAbsent tells whether an interface could not be attached to because it is
// not there.
func isAbsent(err error) bool {
	return errors.Is(err, loader.ErrNoInterface) || errors.Is(err, loader.ErrNoNetns)
}

// expand gives places with the interfaces that there are for patterns; each
// interface once, as the first that names it says.
func expand(places []Place) ([]Place, error) {
	var all []Place
	add := func(p Place) {
		if !slices.ContainsFunc(all, func(q Place) bool { return q.Target == p.Target }) {
			all = append(all, p)
		}
	}
	for _, p := range places {
		if !p.pattern() {
			add(p)
			continue
		}
		names, err := p.Interfaces()
		if err != nil && !isAbsent(err) {
			return nil, err
		}
		for _, name := range names {
			if ok, err := path.Match(p.Iface, name); err != nil {
				return nil, fmt.Errorf("interfaces %q: %w", p.Iface, err)
			} else if ok {
				found := p
				found.Iface = name
				add(found)
			}
		}
	}
	return all, nil
}

// predecessor is what filters on an interface before this filter does.
type predecessor struct {
	*loader.Attachment // nil if there is none
	status.Description
	lost error // why there is no description
}

func (p predecessor) Close() error {
	if p.Attachment == nil {
		return nil
	}
	return p.Attachment.Close()
}

// find finds what filters on an interface. It fails where that is the program
// of another process which lives, unless it is to be taken over.
func (f *Filter) find(t Target) (p predecessor, err error) {
	a, err := f.o.Pins.Open(t)
	switch {
	case errors.Is(err, loader.ErrNotAttached):
		return p, nil
	case err != nil:
		return p, err
	case a.Severed():
		return p, a.Close() // it filters no more
	}
	p.Attachment = a
	if p.Description, p.lost = status.DescriptionOf(a); p.lost != nil {
		p.Description = status.Description{} // not half of one
	}
	if pid := p.PID; pid != os.Getpid() && status.Alive(pid) && !f.o.Takeover {
		a.Close()
		return p, fmt.Errorf("%s: another weir filters there, process %d: stop it first, or take over with --takeover", t, pid)
	}
	return p, nil
}

// build reads the lists and builds the generation for them. It refuses what is
// more likely a mistake than meant; before are the lists as they were.
func (f *Filter) build(before []status.List) (g *engine.Generation, d status.Description, specs []heavy.Spec, err error) {
	load := f.o.Load
	if load == nil {
		load = f.o.Rules.Load
	}
	loaded, err := load(f.o.Progress)
	if err != nil {
		return nil, d, nil, err
	}
	if f.o.Load == nil {
		if err := f.plausible(loaded, before); err != nil {
			return nil, d, nil, err
		}
	}
	if f.o.Load == nil {
		for _, w := range loaded.Warnings() {
			f.o.Log.Warn(w)
		}
	}
	c := f.o.Rules.Config
	if f.o.Loop != nil {
		c.Loop = engine.Loop{Node: f.o.Loop.Node, Edges: len(f.o.Loop.Edges) > 0}
		c.Policy.DropLooped = f.o.Loop.Drop
	}
	if specs, err = f.configure(&c, loaded); err != nil {
		return nil, d, nil, err
	}
	if f.o.Multicast != nil {
		c.Multicast = f.o.Multicast()
	}
	if g, err = engine.Build(loaded.Lists(), c); err != nil {
		return nil, d, nil, err
	}
	f.connect(g)
	if evadable(g) {
		f.o.Log.Warn("IPv6 flows with ports can be evaded by packets whose header chain hides the ports " +
			"(reasons truncated, unparsed): --malformed drop closes that")
	}
	f.loaded, f.changed = loaded, false
	d = status.Describe(loaded, g)
	d.Loop = f.o.Loop.describe()
	d.Version, d.PID, d.Loaded = f.o.Version, os.Getpid(), time.Now()
	d.Since = d.Loaded
	// What reading and building took is given back now, not some minutes later:
	// it is several times what stays.
	debug.FreeOSMemory()
	return g, d, specs, nil
}

// plausible refuses a list that has lost all its entries, which is a download
// that failed, not a world without villains; block lists that are all empty;
// and those that block half of the world.
func (f *Filter) plausible(l *ruleset.Loaded, before []status.List) error {
	if lost, found := status.Emptied(status.Lists(l), before); found {
		return fmt.Errorf("%s: the list has no entries any more, where it had %d: if that is meant, start without it",
			lost.File, lost.Entries)
	}
	if f.o.Rules.Monitor {
		return nil
	}
	if l.BlockEntries() == 0 && !((len(f.o.Track) > 0 || f.o.Loop != nil) && len(f.o.Rules.Block) == 0) {
		return fmt.Errorf("%s: no block list has any entry, nothing would be blocked: --monitor to start all the same",
			strings.Join(l.Rules.Block, ", "))
	}
	if f.o.Wide {
		return nil
	}
	return l.TooWide()
}

// evadable tells whether packets can hide from the block lists what those ask
// for: the headers before the ports of an IPv6 packet may be more than are
// followed, or end early.
func evadable(g *engine.Generation) bool {
	return !g.Policy.DropMalformed &&
		slices.ContainsFunc(g.Block.V6Flow, func(s membership.GatedShape) bool { return s.Ports() })
}

// attach puts the generation in force on an interface. Where a program was
// filtering there, it takes over.
func (f *Filter) attach(h *hold) error {
	d := f.description
	before, err := f.find(h.Target)
	if err != nil {
		return err
	}
	defer before.Close()
	h.adopted = before.Attachment != nil
	if h.adopted {
		if before.lost != nil {
			f.o.Log.Warn(before.lost.Error()) // which is no reason not to filter
		}
		lists := before.Stats().Lists(nil)
		if !d.Counts(before.Description) {
			f.o.Log.Warn("the counters are those of another version, and begin anew", "interface", h.Target.String())
			if err := before.ForgetStats(); err != nil {
				return err
			}
			lists = nil
		}
		d.Succeed(before.Description, lists)
	}
	about, err := d.Encode()
	if err != nil {
		return err
	}
	// A process that is taken over may just have replaced its program.
	for range 3 {
		if h.Attachment, err = f.load(h, about); !errors.Is(err, loader.ErrReplaced) {
			break
		}
	}
	h.seen()
	return err
}

// load loads the generation's program for an interface, and attaches it.
func (f *Filter) load(h *hold, about []byte) (*loader.Attachment, error) {
	prepared, err := f.o.Pins.Prepare(h.Target, h.XDP)
	if err != nil {
		return nil, err
	}
	defer prepared.Close()
	if err := f.setEdges(h.Target, prepared.Stats()); err != nil {
		return nil, err
	}
	program, err := f.generation.Load(prepared.Stats())
	if err != nil {
		return nil, err
	}
	return prepared.Attach(program, about)
}

// seen takes note which interface of its name is filtered.
func (h *hold) seen() {
	if h.Attachment != nil {
		h.index, _ = h.Index()
	}
}

// undo takes the generation off again. What it has replaced cannot be brought
// back, and no listed packet shall pass meanwhile: that stays in force.
func (f *Filter) undo() {
	for _, h := range f.holds {
		if h.adopted {
			f.o.Log.Warn("the new lists stay in force where weir was filtering already", "interface", h.Target.String())
		} else if err := h.Detach(); err != nil {
			f.o.Log.Error(err.Error())
		}
		h.Close()
	}
	f.generation.Close()
}

// announce says what is in force on some interfaces.
func (f *Filter) announce(what string, interfaces []string, took time.Duration) {
	d := f.description
	f.o.Log.Info(what,
		"interfaces", interfaces,
		"entries", d.Entries,
		"shapes", len(d.Shapes),
		"mode", d.Mode,
		"monitor", d.Monitor,
		"kernel_bytes", d.KernelBytes,
		"false_positive_rate", fmt.Sprintf("%.2g", d.FalsePositiveRate),
		"load_time", took.Round(time.Millisecond).String())
}

// names are those of the interfaces that are there.
func (f *Filter) names() []string {
	return names(slices.DeleteFunc(slices.Clone(f.holds), func(h *hold) bool { return !h.present() }))
}

// Unfiltered says, for each interface that is there and cannot be filtered, why.
func (f *Filter) Unfiltered() (all []string) {
	for _, h := range f.holds {
		if h.told != "" && !h.present() {
			all = append(all, fmt.Sprintf("%s is not filtered: %s", h.Target, h.told))
		}
	}
	return all
}

func names(holds []*hold) []string {
	names := []string{}
	for _, h := range holds {
		names = append(names, h.Target.String())
	}
	return names
}

// Reload reads the lists again and puts them in force with one step for each
// interface. When it fails, what was in force stays so everywhere, or the error
// names where it does not.
func (f *Filter) Reload() error { return f.reload(f.o, f.recorder) }

// reload is Reload, which goes over to these options and this recorder.
func (f *Filter) reload(o Options, recorder *digests.Recorder) (err error) {
	began, before, recorded, loaded, changed := time.Now(), f.o, f.recorder, f.loaded, f.changed
	f.o, f.recorder = o, recorder
	back := func() {
		f.o, f.recorder, f.loaded, f.changed = before, recorded, loaded, changed
		f.followEdges()
	}
	defer func() {
		f.record.loaded(true, began, err)
		f.note()
	}()
	g, d, specs, err := f.build(f.description.Lists)
	if err != nil {
		back()
		return fmt.Errorf("reload, the old lists stay in force: %w", err)
	}
	f.weigh(learn.Interval{}, g)
	// All that is likely to fail comes before the first interface is changed.
	programs := make([]*loader.Program, len(f.holds))
	for i, h := range f.holds {
		if h.Attachment == nil || h.Replaced() {
			continue
		}
		if err = f.setEdges(h.Target, h.Stats()); err == nil {
			programs[i], err = g.Load(h.Stats())
		}
		if err != nil {
			closeAll(programs[:i])
			g.Close()
			back()
			return fmt.Errorf("reload, the old lists stay in force: %w", err)
		}
	}
	f.succeed(recorded, recorder)
	var replaced []*hold
	for i, h := range f.holds {
		if programs[i] == nil {
			continue
		}
		err := h.Replace(programs[i])
		if errors.Is(err, loader.ErrSevered) || errors.Is(err, loader.ErrReplaced) {
			continue // it is another's, or nobody's, as follow will find
		}
		if err != nil {
			closeAll(programs[i+1:])
			back()
			stuck, bad := f.restore(replaced)
			for _, h := range stuck {
				bad = errors.Join(bad, describe(h, d))
			}
			what := "the old lists stay in force"
			if len(stuck) > 0 {
				what += ", but on " + strings.Join(names(stuck), ", ") + " the new ones do"
			}
			return fmt.Errorf("reload, %s: %w", what, errors.Join(err, bad, g.Close()))
		}
		replaced = append(replaced, h)
		h.of = nil
	}
	old := f.generation
	f.replaced(old)
	f.generation, f.description = g, d
	f.generations++
	f.observe(specs)
	for _, h := range replaced {
		if err := describe(h, d); err != nil && !errors.Is(err, loader.ErrReplaced) {
			f.o.Log.Warn(err.Error())
		}
	}
	f.announce("reloaded", f.names(), time.Since(began))
	f.provide()
	return old.Close()
}

func closeAll(programs []*loader.Program) {
	for _, p := range programs {
		if p != nil {
			p.Close()
		}
	}
}

// present tells whether the interface is there with this filter's program.
func (h *hold) present() bool {
	return h.Attachment != nil && !h.Severed() && !h.Replaced()
}

// restore puts the present generation in force again. Where it fails, the next
// one sticks.
func (f *Filter) restore(holds []*hold) (stuck []*hold, err error) {
	for _, h := range holds {
		var p *loader.Program
		bad := f.setEdges(h.Target, h.Stats()) // which the program is loaded for
		if bad == nil {
			p, bad = f.generation.Load(h.Stats())
		}
		if bad == nil {
			bad = h.Replace(p)
		}
		if bad == nil || errors.Is(bad, loader.ErrSevered) || errors.Is(bad, loader.ErrReplaced) {
			continue
		}
		stuck, err = append(stuck, h), errors.Join(err, bad)
	}
	return stuck, err
}

// describe brings an attachment's description up to date.
func describe(h *hold, d status.Description) error {
	old, err := status.DescriptionOf(h.Attachment)
	if err != nil {
		return err
	}
	d.Succeed(old, h.Stats().Lists(nil))
	about, err := d.Encode()
	if err != nil {
		return err
	}
	return h.SetMetadata(about)
}

var (
	// errLost says that weir filters nowhere any more, by somebody else's doing.
	errLost = errors.New("nothing is left to filter: every interface was detached or taken over by another weir")

	// By which an interface is lost.
	errTaken    = errors.New("another weir has taken over")
	errDetached = errors.New("detached by somebody else")
)

// followInterval is how soon it is noticed that an interface is gone or back,
// where the kernel does not tell: in a namespace that is yet to be made.
const followInterval = 250 * time.Millisecond

// follow looks what has become of the interfaces. One that has vanished gets its
// program again when it is back. One that somebody has detached, or where
// another weir has taken over, is none of this filter's any more.
func (f *Filter) follow() error {
	f.sentry.follow(f.o.Places)
	f.takeIn(f.sentry.arrivals())
	f.connect(f.generation)
	f.followNames()
	var lost error
	f.holds = slices.DeleteFunc(f.holds, func(h *hold) bool {
		err := f.keep(h)
		if err != nil {
			f.lose(h, err)
			lost = err
		}
		return err != nil
	})
	// Who detaches what a pattern names does not mean others that may come.
	if lost != nil && len(f.holds) == 0 && (errors.Is(lost, errTaken) || !slices.ContainsFunc(f.o.Places, Place.pattern)) {
		f.over = true
	}
	unseen := ""
	places, err := expand(f.o.Places)
	if err == nil {
		f.forget(places)
	} else if unseen = err.Error(); unseen != f.unseen {
		f.o.Log.Error(unseen)
	}
	f.unseen = unseen
	for _, p := range places {
		known := func(h *hold) bool { return h.Target == p.Target }
		if slices.Contains(f.lost, p.Target) || slices.ContainsFunc(f.holds, known) {
			continue
		}
		h := &hold{Target: p.Target, XDP: p.XDP}
		if err := f.keep(h); err != nil {
			f.lose(h, err)
			continue
		}
		f.holds = append(f.holds, h)
	}
	f.sentry.instruct(f.o.Places, f.lost, f.holds)
	f.provide()
	if f.over {
		return errLost
	}
	return nil
}

// followNames goes over to the names of interfaces that were renamed and that are
// to be filtered by those as well: their programs stay where they are.
func (f *Filter) followNames() {
	renamed := make(map[*hold]Target)
	for _, h := range f.holds {
		if t, ok := f.renamed(h); ok {
			renamed[h] = t
		}
	}
	for h, t := range renamed {
		free := true
		f.holds = slices.DeleteFunc(f.holds, func(o *hold) bool {
			if _, leaves := renamed[o]; leaves || o.Target != t {
				return false
			}
			// What has had the name is gone, or will be renamed as well.
			free = !o.present() && f.sentry.dismiss(o)
			if free {
				f.release(o)
			}
			return free
		})
		if !free {
			continue
		}
		if err := h.Rename(t.Iface); err != nil {
			f.o.Log.Error(err.Error())
			continue
		}
		f.o.Log.Info("the interface was renamed, filtering goes on", "interface", h.Target.String(), "name", t.Iface)
		h.Target = t
	}
}

// renamed returns the present name of an interface that was renamed, where that is
// to be filtered as it is.
func (f *Filter) renamed(h *hold) (t Target, ok bool) {
	if !h.present() {
		return t, false
	}
	if n, err := h.Number(); err == nil && n == h.index {
		return t, false
	}
	name, err := h.Name()
	t = Target{Netns: h.Netns, Iface: name}
	if err != nil || t == h.Target {
		return t, false
	}
	at := slices.IndexFunc(f.o.Places, func(p Place) bool { return p.names(t) })
	return t, at >= 0 && f.o.Places[at].XDP == h.XDP
}

// lose gives up an interface that is not this filter's any more.
func (f *Filter) lose(h *hold, why error) {
	f.o.Log.Warn(why.Error(), "interface", h.Target.String())
	f.sentry.dismiss(h)
	if h.Attachment != nil {
		h.Close()
	}
	f.lost = append(f.lost, h.Target)
}

// takeIn takes in interfaces that the sentry has met. While a generation was
// built, it may have been with the one before.
func (f *Filter) takeIn(arrived []*hold) {
	for _, n := range arrived {
		i := slices.IndexFunc(f.holds, func(h *hold) bool { return h.Target == n.Target })
		if i < 0 {
			i, f.holds = len(f.holds), append(f.holds, n)
		}
		h := f.holds[i]
		if h != n && h.Attachment != nil {
			n.Close() // follow came first, and has adopted it
			continue
		}
		h.Attachment, h.of, h.told = n.Attachment, n.of, ""
		h.seen()
		f.o.Log.Info("the interface is there, filtering", "interface", h.Target.String())
	}
}

// bringUp puts the present generation in force where the sentry has met an interface
// with that of another moment.
func (f *Filter) bringUp(h *hold) error {
	if h.of == nil {
		return nil
	}
	if err := f.renew(h); err != nil {
		return fmt.Errorf("the lists of before are in force there, it is tried again: %w", err)
	}
	if err := describe(h, f.description); err != nil {
		return fmt.Errorf("weir status tells of the lists of before there, it is tried again: %w", err)
	}
	h.of = nil // not to be kept in memory
	return nil
}

// renew exchanges the program that the sentry has put on an interface, unless it is
// the present one.
func (f *Filter) renew(h *hold) error {
	if err := f.setEdges(h.Target, h.Stats()); err != nil {
		return err
	}
	// A program that waits for any interface takes it for none of the edges.
	if h.of == f.generation && !h.Stats().Edge() {
		return nil
	}
	p, err := f.generation.Load(h.Stats())
	if err != nil {
		return err
	}
	if err := h.Replace(p); err != nil {
		return err
	}
	h.of = f.generation
	return nil
}

// provide sees to it that programs wait for interfaces that may come.
func (f *Filter) provide() {
	d := f.description
	if err := f.sentry.provide(f.generation, d.Encode); err != nil {
		f.o.Log.Error("no program waits for interfaces that are yet to come, which will be filtered later than they could: " + err.Error())
	}
}

// goneFor is how long an interface that only a pattern names is waited for when it
// is gone: longer than it takes to restart what has made it. The next may have any
// other name.
const goneFor = 10 * time.Second

// forget gives up interfaces that only a pattern names where they do not come back,
// or have left for another namespace.
func (f *Filter) forget(places []Place) {
	f.holds = slices.DeleteFunc(f.holds, func(h *hold) bool {
		here := func(p Place) bool { return p.Target == h.Target }
		waits := h.index == 0 && h.Attachment != nil && time.Since(h.went) < goneFor
		if f.named(h.Target) || waits || slices.ContainsFunc(places, here) {
			return false
		}
		if _, renamed := f.renamed(h); renamed || !f.sentry.dismiss(h) {
			return false
		}
		f.release(h)
		return true
	})
}

// tidy removes what an earlier weir has left of interfaces that only a pattern
// names, and that went while none ran: their pins hold the lists of that time in
// memory.
func (f *Filter) tidy() {
	all, err := f.o.Pins.List()
	if err != nil {
		f.o.Log.Warn(err.Error()) // about what is not found then
	}
	for _, a := range all {
		means := func(p Place) bool { return p.names(a.Target()) }
		if d, _ := status.DescriptionOf(a); a.Severed() && !status.Alive(d.PID) &&
			!f.named(a.Target()) && slices.ContainsFunc(f.o.Places, means) {
			if err := a.DetachAny(); err != nil {
				f.o.Log.Warn(err.Error())
			}
		}
		a.Close()
	}
}

// named tells whether an interface is named itself, not only by a pattern.
func (f *Filter) named(t Target) bool {
	return slices.ContainsFunc(f.o.Places, func(p Place) bool { return p.Target == t })
}

// release takes the program off an interface that is not to be filtered any more.
func (f *Filter) release(h *hold) {
	if h.Attachment == nil {
		return
	}
	if err := errors.Join(h.Detach(), h.Close()); err != nil && !errors.Is(err, loader.ErrReplaced) {
		f.o.Log.Error(err.Error())
	} else {
		f.o.Log.Info("no longer filtered", "interface", h.Target.String())
	}
}

// keep sees to it that an interface is filtered, if it is there. It fails where it is
// none of this filter's any more.
func (f *Filter) keep(h *hold) error {
	log := f.o.Log.With("interface", h.Target.String())
	if h.present() {
		was := h.index
		if h.seen(); h.index != was {
			if was != 0 {
				f.tellGone(h, log)
			}
			log.Info("the interface is there, filtering")
		}
		if f.misnamed(h) && f.sentry.dismiss(h) {
			log.Error("another interface has this name now: that is filtered, and the one of before no longer")
			f.release(h)
			h.Attachment, h.index = nil, 0
			return f.begins(h, log)
		}
		if err := f.bringUp(h); err != nil {
			h.tell(log, err)
		} else {
			h.told = ""
		}
		return nil
	}
	if h.Attachment == nil {
		return f.begins(h, log)
	}
	if h.index != 0 && h.Severed() {
		f.tellGone(h, log)
		h.index, h.went = 0, time.Now()
	}
	switch err := h.Reattach(nil); {
	case h.Replaced(), errors.Is(err, loader.ErrReplaced):
		return errTaken
	case err == nil:
		h.seen()
		h.told = ""
		log.Info("the interface is there, filtering")
	case isAbsent(err):
		h.told = ""
	case errors.Is(err, loader.ErrNotAttached):
		return errDetached
	default:
		h.tell(log, err)
	}
	return nil
}

// misnamed tells whether the name that an interface was filtered by is that of
// another now, which is not filtered. Where two have exchanged their names, both
// are filtered, and stay so without a gap.
func (f *Filter) misnamed(h *hold) bool {
	n, err := h.Number()
	return err == nil && n != h.index && !slices.ContainsFunc(f.holds, func(o *hold) bool {
		return o.Netns == h.Netns && o.index == n && o.Attachment != nil
	})
}

func (f *Filter) tellGone(h *hold, log *slog.Logger) {
	if f.named(h.Target) {
		log.Error("the interface is gone, waiting for it to come back")
	} else {
		log.Info("the interface is gone")
	}
}

// begins begins to filter on an interface, if it is there. It fails where another
// weir does.
func (f *Filter) begins(h *hold, log *slog.Logger) error {
	now, err := f.o.Pins.Open(h.Target)
	if err == nil {
		defer now.Close()
	}
	if f.sentry.has(h.Target) {
		return nil // and will be taken in
	}
	if err == nil && !now.Severed() {
		if slices.ContainsFunc(f.holds, func(o *hold) bool { return o.Attachment != nil && o.ProgramID() == now.ProgramID() }) {
			return nil // it was renamed since followNames looked
		}
		return errTaken
	}
	switch err := f.attach(h); {
	case err == nil:
		h.told = ""
		log.Info("the interface is there, filtering")
	case isAbsent(err), f.sentry.has(h.Target): // which came first
		h.told = ""
	default:
		h.tell(log, err)
	}
	return nil
}

// Do calls fn in the goroutine that serves, where the filter may be changed, and
// gives its error. It fails when ctx is done before fn is called.
func (f *Filter) Do(ctx context.Context, fn func() error) error {
	done := make(chan error, 1)
	select {
	case f.do <- func() { done <- fn() }:
		return <-done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Apply changes lists, in place where the changes fit, and else with the next
// generation. It returns the number of entries that change. The numbers of lists
// are those of the loaded rules. When it fails, nothing has changed.
func (f *Filter) Apply(changes []engine.Change) (n int, err error) {
	began := time.Now()
	if n, err = f.generation.Apply(changes); err == nil {
		f.loaded.SetContents(f.generation.Lists())
		f.changed = f.changed || n > 0
		f.record.updates.Observe(time.Since(began))
		return n, nil
	}
	f.o.Log.Debug("the next generation is built: " + err.Error())
	before := f.generation.Lists()
	next, n, err := engine.With(before, changes)
	if err != nil {
		return 0, err
	}
	loaded := f.loaded
	loaded.SetContents(next)
	if err := f.Reload(); err != nil {
		loaded.SetContents(before)
		return 0, err
	}
	return n, nil
}

// redescribe brings what stands at the attachments up to date after changes in
// place.
func (f *Filter) redescribe() {
	if !f.changed {
		return
	}
	f.changed = false
	d := &f.description
	d.Entries = f.loaded.Entries()
	for i, s := range f.loaded.Sources {
		d.Lists[i].Entries = s.Contents.Len()
	}
	for _, h := range f.holds {
		if !h.present() {
			continue
		}
		if err := describe(h, *d); err != nil && !errors.Is(err, loader.ErrReplaced) {
			f.o.Log.Warn(err.Error())
		}
	}
}

// Reconfigure changes what is to be filtered where. When it fails, all is as it
// was. The program of an interface that is no longer named is taken off.
func (f *Filter) Reconfigure(o Options) error {
	if _, err := expand(o.Places); err != nil {
		return err
	}
	for _, h := range f.holds {
		i := slices.IndexFunc(o.Places, func(p Place) bool { return p.names(h.Target) })
		if i >= 0 && h.XDP != o.Places[i].XDP {
			return fmt.Errorf("%s: changing from %v to %v would leave it unfiltered for a moment: detach it first", h.Target, h.XDP, o.Places[i].XDP)
		}
	}
	o.Pins, o.Version, o.Log, o.Progress, o.Socket = f.o.Pins, f.o.Version, f.o.Log, f.o.Progress, f.o.Socket
	o.Metrics = f.o.Metrics
	recorded := f.recorder
	recorder, err := remember(o, recorded)
	if err != nil {
		return err
	}
	if err := f.reload(o, recorder); err != nil {
		return errors.Join(err, recorder.CloseUnless(recorded))
	}
	if err := recorded.CloseUnless(recorder); err != nil {
		f.o.Log.Error(err.Error())
	}
	f.lost = nil // who names an interface again wants it filtered again
	f.sentry.instruct(o.Places, nil, f.holds)
	f.holds = slices.DeleteFunc(f.holds, func(h *hold) bool {
		if slices.ContainsFunc(o.Places, func(p Place) bool { return p.names(h.Target) }) {
			return false
		}
		f.sentry.dismiss(h)
		f.release(h)
		return true
	})
	_ = f.follow() // who serves ends where nothing is left
	return nil
}

// Serve keeps the filter going until ctx is done. Each value from reload makes
// it read the lists again. show is called with the rates of each interval.
func (f *Filter) Serve(ctx context.Context, reload <-chan os.Signal, interval time.Duration, show func(Rates)) error {
	f.serve(ctx)
	f.tellLoops(time.Now()) // from the first one on
	shown, followed := time.NewTicker(interval), time.NewTicker(followInterval)
	watched, told := time.NewTicker(heavy.Tick), time.NewTicker(time.Second)
	recorded := time.NewTimer(0)
	defer recorded.Stop()
	for _, t := range []*time.Ticker{shown, followed, watched, told} {
		defer t.Stop()
	}
	showing, telling := newMeter(f), newMeter(f)
	f.sentry.ctx = ctx
	if err := f.follow(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case fn := <-f.do:
			fn()
		case <-f.sentry.told:
			if err := f.follow(); err != nil {
				return err
			}
			f.followEdges()
		case <-reload:
			f.o.Log.Info("reloading")
			if err := f.Reload(); err != nil {
				f.o.Log.Error(err.Error())
			}
		case <-followed.C:
			if err := f.follow(); err != nil {
				return err
			}
		case <-watched.C:
			if len(f.watch.specs) > 0 {
				f.tick()
			}
		case <-recorded.C:
			f.recorded(recorded)
		case now := <-told.C:
			f.redescribe()
			f.followEdges()
			f.tellLoops(now)
			f.snapshot(now, telling.measure(f, now))
			f.note()
		case now := <-shown.C:
			show(showing.measure(f, now))
		}
	}
}

// Keeps tells whether the program stays in force after Stop.
func (f *Filter) Keeps() bool { return f.o.Keep }

// Stop takes the filter off its interfaces, unless it is to be kept in force.
// What another weir has taken over is left alone.
func (f *Filter) Stop() error {
	var errs []error
	if f.recorder != nil && !f.o.Keep {
		f.recorder.Finish(f.generation)
	}
	for _, h := range append(f.holds, f.sentry.retire()...) {
		if h.Attachment == nil {
			continue
		}
		if !f.o.Keep {
			if err := h.Detach(); errors.Is(err, loader.ErrReplaced) {
				f.o.Log.Warn("another weir has taken over, its program stays", "interface", h.Target.String())
			} else {
				errs = append(errs, err)
			}
		}
		errs = append(errs, h.Close())
	}
	f.holds = nil
	return errors.Join(append(errs, f.generation.Close(), f.recorder.CloseUnless(nil))...)
}
