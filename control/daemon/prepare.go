package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/fleet/node"
	"weir/control/geo"
	"weir/control/guard"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/observe/heavy"
	"weir/control/observe/learn"
	"weir/control/stages"
	"weir/control/trial"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/ordered"
	"weir/filter/verdict"
	"weir/loader"
)

// Prepared is a configuration with the contents of its lists: all that an engine
// is built from.
type Prepared struct {
	config   *config.Config
	lists    []*managedList // by priority, as their numbers are
	byName   lists.ByName[*managedList]
	rules    []engine.List // with their active contents: list number n is rules[n-1]
	journal  *journal.Journal
	stages   *stages.Table
	trackers []heavy.Spec // those of the configuration, the guards last

	trackDrops bool // who is being dropped

	peers []guard.Peer // what must not be blocked, as last seen
	blind string       // why some of those are unknown

	notified map[string][]netip.Addr // servers of notifications and exports, as last seen

	asn, country *geo.Database // nil: none
	unopened     error         // why one of them could not be opened

	derived map[uint16]derived // by number of the engine's list
}

// managedList is a list of the configuration. In the engine it is two: what its
// sources contain, and manual entries, so that the one is not lost when the other
// goes.
type managedList struct {
	config.List
	source       uint16      // number of the engine's list with the contents of its sources, 0 if it has none
	manual       uint16      // number of the engine's list of manual entries
	derived      uint16      // number of the engine's list of prefixes that these derive, 0 if there are none
	counted      *derived    // ahead of an activation; nil: nothing was
	from         source      // what its sources contain; nil: it has none
	feed         *feed.Feed  // from, if that is one
	seenVersion  uint64      // version of from whose contents are active, or could not be
	decided      uint64      // the last such version: taken, or an earlier one while seenVersion is being activated
	read         *list.Set   // the contents of from that refused is about
	refused      error       // why the feed's contents must not be active, nil if they may
	failed       lists.Retry // to activate seenVersion; when it is tried again
	rejected     error       // why an engine could not have the feed's contents, nil if it has
	left         leftOut     // of the feed's contents
	trial        *api.Trial  // what decides whether List.Enforce is as configured; nil: it is
	retryPending bool        // its last change failed, and is tried again
}

func (l *managedList) rule() engine.List {
	return engine.List{Name: l.Name, Allow: l.Action == config.Allow, Direction: l.Direction, Priority: l.Priority, Rule: l.Rule()}
}

// preparation says how a configuration is prepared.
type preparation struct {
	log      *slog.Logger
	journal  *journal.Journal
	last     *Prepared // whose feeds go on where they are the same; nil: none
	reload   bool      // files and directories are read again
	version  string    // of weir
	readOnly bool      // only files and directories are read, and nothing is saved
	progress *feed.Progress
	watcher  *feed.Watcher   // of files and directories; nil: none
	fleet    *node.Node      // nil: the host is in none
	trials   trial.Decisions // what commands have decided

	attached   []string // lists whose sources have entries in a program that filters already
	rolledBack bool     // to the configuration before an unconfirmed one, which may have saved what this one refuses
}

// Prepare reads what a configuration filters by: files and directories, what was
// saved of other sources, and the journal. It takes no lock, asks no server and
// changes nothing. [Start] refuses what Prepare or [Prepared.Build] refuse, with
// the same error, but for databases of geo, without which it starts.
func Prepare(ctx context.Context, c *config.Config, log *slog.Logger, progress *feed.Progress) (*Prepared, error) {
	j, err := journal.Open("", log)
	if err != nil {
		return nil, err
	}
	if c.StateDir != "" {
		if err := copyJournal(j, journalPath(c), log); err != nil {
			return nil, err
		}
	}
	fleet, err := openFleet(c, "", true, log)
	if err != nil {
		return nil, err
	}
	p, err := prepare(ctx, c, preparation{log: log, journal: j, readOnly: true, progress: progress, fleet: fleet, trials: trial.Load(trialPath(c), log)})
	if err == nil && p.unopened != nil {
		return nil, p.unopened
	}
	return p, err
}

func prepare(ctx context.Context, c *config.Config, how preparation) (*Prepared, error) {
	feeds, err := openFeeds(ctx, c, how)
	if err != nil {
		return nil, err
	}
	of, err := c.Stages()
	if err != nil {
		return nil, err
	}
	p := assemble(c, of, how.journal, feeds, how.fleet, how.last, how.trials)
	if how.readRefused(ctx, p) {
		p = assemble(c, of, how.journal, feeds, how.fleet, how.last, how.trials)
	}
	if ctx.Err() != nil {
		return nil, stopped(ctx, ctx.Err())
	}
	for _, l := range p.lists {
		switch {
		case !l.Required:
		case l.rejected != nil:
			return nil, l.rejected
		case l.refused != nil && !how.rolledBack:
			return nil, l.refused
		}
	}
	return p, nil
}

// readRefused reads the sources of required lists whose saved contents are refused, since a start
// fails over them. It reports whether there are any.
func (how *preparation) readRefused(ctx context.Context, p *Prepared) (some bool) {
	var all sync.WaitGroup
	for _, l := range p.lists {
		if l.Required && l.refused != nil && l.feed != nil && !how.readOnly {
			some = true
			all.Go(func() { _, _ = l.feed.Fetch(ctx) }) // Status has the outcome
		}
	}
	all.Wait()
	return some
}

// assemble puts together what an engine is built from, after what the last one was
// built from, if there is one. It does not fail, so that nothing keeps weir from returning to a
// configuration.
func assemble(c *config.Config, of *stages.Table, j *journal.Journal, feeds map[string]*feed.Feed, fleet *node.Node, last *Prepared, decided trial.Decisions) *Prepared {
	p := &Prepared{config: c, journal: j, stages: of, byName: make(map[string]*managedList)}
	p.trackers, p.trackDrops = slices.Clone(c.Trackers), c.TrackDrops
	for _, g := range c.Guards {
		p.trackers = append(p.trackers, g.Spec())
	}
	p.openGeo(last)
	p.addLists(feeds, fleet, last, decided)
	if last != nil {
		p.notified = last.notified
	}
	protected, err := peers(c, p.lists, p.notified)
	if err != nil {
		p.blind = err.Error()
	}
	p.leaveOut(protected)
	p.fit(last)
	p.deriveAll(last)
	return p
}

// openGeo opens the databases of a configuration, as far as it can. err says what it cannot.
func openGeo(c *config.Config) (asn, country *geo.Database, err error) {
	if path := c.Geo.ASN; path != "" {
		var bad error
		if asn, bad = geo.OpenASN(path); bad != nil {
			asn, err = nil, fmt.Errorf("geo.asn: %w", bad)
		}
	}
	if path := c.Geo.Country; path != "" {
		var bad error
		if country, bad = geo.OpenCountry(path); bad != nil {
			country, err = nil, errors.Join(err, fmt.Errorf("geo.country: %w", bad))
		}
	}
	return asn, country, err
}

// openGeo opens the databases. They name who was dropped and do not filter, so that nothing that
// must be activated, such as the configuration before an unconfirmed one, waits for them: the
// last ones go on, or none.
func (p *Prepared) openGeo(last *Prepared) {
	p.asn, p.country, p.unopened = openGeo(p.config)
	if p.unopened == nil || last == nil {
		return
	}
	if p.asn == nil && p.config.Geo.ASN == last.config.Geo.ASN {
		p.asn = last.asn
	}
	if p.country == nil && p.config.Geo.Country == last.config.Geo.Country {
		p.country = last.country
	}
}

// openFeeds opens the feeds of a configuration by list, or takes over those of
// the last one that are the same, and reads sources.
func openFeeds(ctx context.Context, c *config.Config, how preparation) (map[string]*feed.Feed, error) {
	feeds := make(map[string]*feed.Feed)
	how.readFormer(ctx, c)
	for _, l := range c.Lists {
		if len(l.All()) == 0 {
			continue
		}
		f := how.last.feed(c, l)
		if f == nil {
			of := feed.Config{
				Refuse:     func(e *list.Set, accepted bool) error { return refuseRead(c, l, e, accepted) },
				MayBeEmpty: c.Monitor, // which blocks nothing anyway
				Hold:       !how.readOnly, ReadOnly: how.readOnly, Progress: how.progress, Watcher: how.watcher, Version: how.version,
			}
			old := cmp.Or(how.last.list(l.Name), new(managedList))
			var err error
			if f, err = lists.Open(ctx, l, of, c.StateDir, &old.List, old.feed); err != nil {
				return nil, stopped(ctx, err)
			}
		}
		feeds[l.Name] = f
	}
	how.read(ctx, c, feeds)
	if ctx.Err() != nil {
		return nil, stopped(ctx, ctx.Err())
	}
	for _, l := range c.Lists {
		if f := feeds[l.Name]; f != nil && l.Required && how.last.list(l.Name) == nil {
			if err := unread(f, how.readOnly); err != nil {
				return nil, err
			}
		}
	}
	return feeds, nil
}

// readFormer has feeds read their files that end with a reload, since another one has their lists
// then: what has left a file stays for the list's TTL, which only the feed that had it knows.
func (how *preparation) readFormer(ctx context.Context, c *config.Config) {
	if !how.reload {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, l := range c.Lists {
		old := how.last.list(l.Name)
		if l.TTL == 0 || old == nil || how.last.feed(c, l) != nil {
			continue
		}
		if f := old.feed; f != nil && old.TTL > 0 && old.Action == l.Action && reflect.DeepEqual(old.Format, l.Format) && f.Local() && !f.Once() {
			all.Go(func() { _, _ = f.Fetch(ctx) }) // Status has the outcome
		}
	}
}

// stopped returns err, or that ctx has ended before.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("stopped while the lists were read, nothing has changed: %w", ctx.Err())
}

// Variables for tests.
var (
	// firstFetch bounds the wait for sources that have never been read, where nothing
	// is known to filter by, or a program filters meanwhile.
	firstFetch = 10 * time.Second

	// moment bounds the wait for files that have never been read where something is
	// known to filter by.
	moment = time.Second
)

// read reads the sources that a start or a reload waits for. What was saved, or
// empty, is filtered by at once.
func (how *preparation) read(ctx context.Context, c *config.Config, feeds map[string]*feed.Feed) {
	saved := how.last != nil
	for _, f := range feeds {
		saved = saved || f.Known() || f.Status().Entries > 0
	}
	if how.fleet != nil {
		for _, l := range how.fleet.Lists() {
			saved = saved || l.Contents().Len() > 0
		}
	}
	for range how.journal.Entries() {
		saved = true
		break
	}
	first, cancelFirst := context.WithTimeout(ctx, firstFetch)
	defer cancelFirst()
	short, cancelShort := context.WithTimeout(ctx, moment)
	defer cancelShort()
	var all sync.WaitGroup
	defer all.Wait()
	for _, l := range c.Lists {
		f := feeds[l.Name]
		if f == nil {
			continue
		}
		var within context.Context // nil: it is not waited for
		old := how.last.list(l.Name)
		local, attached := f.Local(), slices.Contains(how.attached, l.Name)
		switch {
		case local && (how.readOnly || how.reload):
			within = ctx // a file is read however long it takes
		case how.readOnly || f.Known() || old != nil && old.feed == f: // which goes on by itself
		case l.Required, local && attached && !f.Once():
			within = ctx
		case !saved, how.reload, attached, f.Once():
			within = first
		case local:
			within = short
		}
		if within == nil {
			continue
		}
		if within == first && !f.Local() {
			how.log.Info(fmt.Sprintf("waiting up to %v for the first fetch", firstFetch), "list", l.Name)
		}
		all.Go(func() { _, _ = f.Fetch(within) }) // Status has the outcome
	}
}

// unread returns why a source of a feed has never been read, nil if all have.
func unread(f *feed.Feed, onlyLocal bool) error {
	for _, s := range f.Status().Sources {
		if !s.Read.IsZero() || onlyLocal && !f.Local() {
			continue
		}
		if s.Last.Err != nil {
			return failure(f.Name, s)
		}
		return fmt.Errorf("list %s: %s: not read in time", f.Name, s.Source)
	}
	return nil
}

// failure returns why a source of a list could not be read.
func failure(list string, s feed.SourceStatus) error {
	switch s.Last.Failure {
	case feed.Refused:
		return s.Last.Err // it names the list
	case feed.Empty, feed.Shrunk, feed.Grown:
		return fmt.Errorf("list %s: %s: %w", list, s.Source, s.Last.Err)
	}
	return fmt.Errorf("list %s: %w", list, s.Last.Err) // it names the source
}

// feed returns the feed of a list that is the same, and whose contents are refused
// for the same reason.
func (p *Prepared) feed(c *config.Config, l config.List) *feed.Feed {
	old := p.list(l.Name)
	if old == nil || p.config.MaxCoverage != c.MaxCoverage {
		return nil
	}
	same := old.List
	same.Enforce = l.Enforce // of which a feed knows nothing
	if !reflect.DeepEqual(same, l) {
		return nil
	}
	return old.feed
}

// feeds returns the feeds by list.
func (p *Prepared) feeds() map[string]*feed.Feed {
	feeds := make(map[string]*feed.Feed)
	for _, l := range p.lists {
		if l.feed != nil {
			feeds[l.Name] = l.feed
		}
	}
	return feeds
}

// addLists adds the lists, with all that is known of them.
func (p *Prepared) addLists(feeds map[string]*feed.Feed, fleet *node.Node, last *Prepared, decided trial.Decisions) {
	more, shared := fleetLists(fleet, p.config)
	all := config.DefaultLists.With(slices.Concat(p.config.Lists, more))
	// A packet that several lists match is credited to the one of the lowest number.
	ordered.By(all, func(a, b config.List) int { return b.Priority - a.Priority })
	for _, l := range all {
		m := &managedList{List: l, feed: feeds[l.Name]}
		m.follow(p.config, decided)
		if m.feed != nil {
			m.from = m.feed
		} else if s := shared[l.Name]; s != nil {
			m.from = s
		}
		suffix := ""
		if m.from != nil {
			m.seenVersion = m.from.Version() // before its contents, which may change
			m.decided = m.seenVersion
			contents := m.from.Contents()
			if m.refuse(p.config, contents, last); m.refused != nil {
				contents = p.keeps(m, last)
			}
			m.source = p.add(m, "", contents)
			suffix = api.ManualSuffix
		}
		entries := list.SetOf(manualKeys(p.journal, &l)...)
		if old := last.list(l.Name); old != nil { // the same set says that nothing has changed
			if before := last.contents(old.manual); entries.Diff(before).Len() == 0 {
				entries = before
			}
		}
		m.manual = p.add(m, suffix, entries)
		if derivation(l).On() {
			m.derived = p.add(m, api.DerivedSuffix, nil)
		}
		p.lists, p.byName[l.Name] = append(p.lists, m), m
	}
}

// keeps returns what a list has while what was read of it is refused: what it had, unless that is
// another configuration's, and refused by this one.
func (p *Prepared) keeps(l *managedList, last *Prepared) *list.Set {
	old := last.list(l.Name)
	if old == nil || old.source == 0 {
		return nil
	}
	had := last.contents(old.source)
	if old.from != l.from && refuseRead(p.config, l.List, had, false) != nil {
		return nil
	}
	return had
}

// refuse sets whether the contents of a list's sources are refused: as they were, where these
// and the list are the same.
func (l *managedList) refuse(c *config.Config, contents *list.Set, last *Prepared) {
	l.read = contents
	if old := last.list(l.Name); old != nil && last.config.MaxCoverage == c.MaxCoverage &&
		old.from == l.from && old.read == contents && old.refused == nil && reflect.DeepEqual(old.List, l.List) {
		return
	}
	l.refused = refuseRead(c, l.List, contents, l.from.Accepted())
}

// fit leaves out what does not fit into an engine beside the other lists: flows of
// a feed's rarest shapes, or all contents of the feed, whose list then has what it had
// in the last engine, or nothing. Manual entries come first, then lists that have not changed, then those of a higher
// priority.
func (p *Prepared) fit(last *Prepared) {
	if last != nil && slices.EqualFunc(p.rules, last.rules, engine.List.Equal) || engine.Fits(p.rules) == nil {
		return
	}
	census := engine.NewCensus(p.rules)
	var read []*managedList
	for _, l := range p.lists {
		if l.source == 0 {
			continue
		}
		read = append(read, l)
		var before *list.Set
		if old := last.list(l.Name); old != nil && old.source != 0 {
			before = last.contents(old.source)
		}
		census.Set(l.source, before)
	}
	if census.Fits() != nil { // the configuration has changed what fits
		for _, l := range read {
			census.Set(l.source, nil)
		}
	}
	rules := slices.Clone(p.rules)
	for _, l := range read {
		before := census.Contents(l.source)
		census.Set(l.source, p.contents(l.source))
		rules[l.source-1].Contents, l.left.shapes = withoutSpare(census, l.source)
		census.Set(l.source, rules[l.source-1].Contents)
		if err := census.Fits(); err != nil {
			l.left.shapes = nil
			l.rejected = fmt.Errorf("list %s: %w", l.Name, err)
			rules[l.source-1].Contents = before
			census.Set(l.source, before)
		}
	}
	p.rules = rules
}

// shed leaves out the contents of the feed that is most likely the reason why an
// engine could not be started: the largest, or that of the most shapes where its
// program was rejected. It returns false if no feed can be the reason, or that one's
// list is required.
func (p *Prepared) shed(reason error) bool {
	var weigh func(*list.Set) int
	switch {
	case errors.As(reason, new(rejected)):
		weigh = engine.Shapes
	case errors.As(reason, new(unbuilt)):
		weigh = (*list.Set).Len
	default:
		return false
	}
	var worst *managedList
	most := 0
	for _, l := range p.lists {
		if l.source == 0 {
			continue
		}
		if n := weigh(p.contents(l.source)); n > most {
			worst, most = l, n
		}
	}
	if worst == nil || worst.Required {
		return false
	}
	p.rules = slices.Clone(p.rules)
	p.rules[worst.source-1].Contents = nil
	worst.rejected = fmt.Errorf("list %s: %w", worst.Name, reason)
	p.deriveAll(nil)
	return true
}

// decisions returns the decisions on the contents that feeds have read.
func (p *Prepared) decisions() (all []*lists.Decision) {
	for _, l := range p.lists {
		if l.from != nil {
			all = append(all, l.decision(cmp.Or(l.refused, l.rejected)))
		}
	}
	return all
}

// add adds a list of the engine, and returns its number.
func (p *Prepared) add(m *managedList, suffix string, contents *list.Set) uint16 {
	l := m.rule()
	l.Name += suffix
	l.Contents = contents
	p.rules = append(p.rules, l)
	return uint16(len(p.rules))
}

// contents returns the active contents of a list of the engine.
func (p *Prepared) contents(number uint16) *list.Set { return p.rules[number-1].Contents }

// manualKeys returns the manual entries of a list.
func manualKeys(j *journal.Journal, l *config.List) (all []key.Key) {
	for e := range lists.Manual(j, l) {
		all = append(all, e.Key)
	}
	return all
}

// learns reports whether weights are learned. In exact mode a table confirms what the
// cascade passes, so that there is nothing to win.
func (p *Prepared) learns() bool {
	return p.config.Mode == membership.Approximate && p.config.Learning.Elements > 0 && p.blocked() > 0
}

// watched returns all trackers: those of the configuration, then that of dropped packets.
func (p *Prepared) watched() (all []heavy.Watched) {
	for _, s := range p.trackers {
		all = append(all, heavy.Watched{Spec: s, Role: heavy.Hitters})
	}
	if p.trackDrops {
		all = append(all, heavy.Watched{Spec: heavy.DefaultSpec("src"), Role: heavy.Drops})
	}
	return all
}

// watchedOut returns the trackers of outgoing packets: that of dropped ones, by whom they
// were to.
func (p *Prepared) watchedOut() []heavy.Watched {
	if !p.trackDrops {
		return nil
	}
	return []heavy.Watched{{Spec: heavy.DefaultSpec("dst"), Role: heavy.Drops}}
}

// learnConfig returns the settings of the learner of weights.
func (p *Prepared) learnConfig() learn.Config {
	l := p.config.Learning
	return learn.Config{HalfLife: time.Duration(l.HalfLife), Elements: int(l.Elements)}
}

// engineConfig returns what an engine is specialised to, but for seeds.
func (p *Prepared) engineConfig() engine.Config {
	c := p.config
	var e engine.Config
	e.Mode, e.BitsPerKey, e.Monitor = c.Mode, c.BitsPerEntry, c.Monitor
	e.DropMalformed, e.DropNotIP = c.Malformed == verdict.Drop, c.NotIP == verdict.Drop
	e.DHCPServer = c.Failsafe.DHCPServer
	e.FailsafePorts, e.FailsafeICMP = c.Failsafe.Ports, c.Failsafe.ICMP
	for _, f := range c.Failsafe.Prefixes {
		e.FailsafePrefixes = append(e.FailsafePrefixes, f.Prefix)
	}
	for _, t := range p.watched() {
		e.Trackers = append(e.Trackers, t.Tracker())
	}
	if p.learns() {
		e.Hot = int(c.Learning.Elements)
	}
	e.Parts = p.stages.Parts(p.journal)
	e.TC = slices.ContainsFunc(c.Interfaces, func(i config.Interface) bool { return i.Place() == loader.TC })
	if c.FiltersOutgoing() {
		e.Outgoing = new(engine.Telemetry)
		for _, t := range p.watchedOut() {
			e.Outgoing.Trackers = append(e.Outgoing.Trackers, t.Tracker())
		}
	}
	return e
}

// Build builds the engine on the heap, with seeds of its own. It decides as the
// program in the kernel would.
func (p *Prepared) Build() (*engine.Generation, error) {
	c := p.engineConfig()
	c.TrackerSeed = hash.NewSeed()
	return engine.Reference(p.rules, c)
}

// BuildKernel is [Prepared.Build] in the kernel, for test runs: nothing is
// attached.
func (p *Prepared) BuildKernel() (*engine.Generation, error) {
	c := p.engineConfig()
	c.TrackerSeed = hash.NewSeed()
	return engine.Build(p.rules, c)
}

// ReplaceTrackers replaces all trackers by one, or none.
func (p *Prepared) ReplaceTrackers(spec *heavy.Spec) {
	p.trackers, p.trackDrops = nil, false
	if spec != nil {
		p.trackers = []heavy.Spec{*spec}
	}
}

// Config returns the configuration.
func (p *Prepared) Config() *config.Config { return p.config }

// Lists returns the lists of the engine: list number n is Lists()[n-1].
func (p *Prepared) Lists() []engine.List { return p.rules }

// Warnings returns what an operator should know of the lists, a line for each: what is
// left out of them, and their bad lines.
func (p *Prepared) Warnings() []string { return p.warnings(nil) }

// warnings is like Warnings, without the bad lines of feeds whose version is known.
func (p *Prepared) warnings(known map[*feed.Feed]uint64) (all []string) {
	for _, l := range p.lists {
		all = append(all, l.warnings()...)
		all = append(all, l.derivedWarnings(p.derived[l.derived])...)
		if why := p.idle(l); why != "" {
			all = append(all, why)
		}
		if l.from == nil || l.unchanged(known) {
			continue
		}
		for _, s := range l.from.Status().Sources {
			if s.Former {
				all = append(all, fmt.Sprintf("list %s: %s was not read with its new settings yet: its %d entries of before stay", l.Name, s.Source, s.Entries))
			}
			lines, _ := s.BadLines()
			all = append(all, lines...)
		}
	}
	return all
}

// unchanged reports whether a list's feed has a known version.
func (l *managedList) unchanged(known map[*feed.Feed]uint64) bool {
	version, ok := known[l.feed]
	return ok && version == l.feed.Version()
}

// Problem is why a list does not have what a source of it contains: it could not be read, or was
// refused.
type Problem struct {
	List string
	Err  error // names the list, too
}

// Problems returns the problems of all lists.
func (p *Prepared) Problems() (all []Problem) {
	for _, l := range p.lists {
		if l.refused != nil {
			all = append(all, Problem{l.Name, l.refused})
		}
		if l.rejected != nil {
			all = append(all, Problem{l.Name, fmt.Errorf("not active: %w", l.rejected)})
		}
		if l.from == nil {
			continue
		}
		for _, s := range l.from.Status().Sources {
			if s.Last.Result == feed.Failed {
				all = append(all, Problem{l.Name, failure(l.Name, s)})
			}
		}
	}
	return all
}

// Unread returns the sources that have not been read, and of which nothing is saved,
// each with its list.
func (p *Prepared) Unread() (all []api.NotReady) {
	for _, l := range p.lists {
		if l.feed == nil {
			continue
		}
		for _, s := range l.feed.Status().Sources {
			if s.Read.IsZero() && !s.Former && s.Last.Result == feed.None {
				all = append(all, api.NotReady{List: l.Name, Source: s.Source, Problem: "not read yet"})
			}
		}
	}
	return all
}

// notReady returns the sources of lists that have nothing to filter by: they have not
// been read, or all that was read is refused.
func (p *Prepared) notReady() []api.NotReady {
	all := p.Unread()
	for _, l := range p.lists {
		if l.feed == nil {
			continue
		}
		active := p.contents(l.source).Len()
		for _, s := range l.feed.Status().Sources {
			switch why := cmp.Or(l.refused, l.rejected); {
			case s.Read.IsZero() && !s.Former && s.Last.Result == feed.Failed:
				all = append(all, api.NotReady{List: l.Name, Source: s.Source, Problem: s.Last.Err.Error()})
			case why != nil && active == 0 && s.Entries > 0:
				all = append(all, api.NotReady{List: l.Name, Source: s.Source, Problem: why.Error()})
			case l.decided != l.feed.Version() && active == 0 && s.Entries > 0:
				all = append(all, api.NotReady{List: l.Name, Source: s.Source, Problem: "it was read, and is being activated"})
			}
		}
	}
	return all
}

// idle says why a list, which is a fleet's, matches nothing on this host, "" if it may.
func (p *Prepared) idle(l *managedList) string {
	if l.Direction != engine.Out || p.config.FiltersOutgoing() {
		return ""
	}
	return fmt.Sprintf("list %s is of outgoing packets, which are filtered on no interface: set egress: true on one", l.Name)
}

// descriptions describes the lists, list number n being the (n-1)th.
func (p *Prepared) descriptions() []attach.List {
	all := make([]attach.List, len(p.rules))
	for _, l := range p.lists {
		d := attach.List{Allow: l.Action == config.Allow, Direction: l.Direction.String()}
		d.Name, d.Entries = p.rules[l.manual-1].Name, p.contents(l.manual).Len()
		all[l.manual-1] = d
		if l.derived != 0 {
			d.Name, d.Entries = p.rules[l.derived-1].Name, p.contents(l.derived).Len()
			all[l.derived-1] = d
		}
		if l.source == 0 {
			continue
		}
		d.Name, d.Entries = p.rules[l.source-1].Name, p.contents(l.source).Len()
		sources := l.from.Status().Sources
		d.Source = sources[0].Source
		if more := len(sources) - 1; more > 0 {
			d.Source += fmt.Sprintf(" and %d more", more)
		}
		for _, s := range sources {
			_, n := s.BadLines()
			d.BadLines += n
		}
		all[l.source-1] = d
	}
	return all
}

// list returns the list of a name, nil if there is none, or no configuration.
func (p *Prepared) list(name string) *managedList {
	if p == nil {
		return nil
	}
	return p.byName[name]
}

// summary is the daemon's state in a line.
func (p *Prepared) summary() string {
	text := fmt.Sprintf("filtering %d entries of %d lists", p.Entries(), len(p.lists))
	if n := len(p.notReady()); n > 0 {
		text += fmt.Sprintf(", sources that are not ready: %d", n)
	}
	return text
}

// Entries returns the number of entries of all lists.
func (p *Prepared) Entries() (n int) {
	for _, l := range p.rules {
		n += l.Contents.Len()
	}
	return n
}

// blocked returns the number of entries of the block lists.
func (p *Prepared) blocked() (n int) {
	for _, l := range p.rules {
		if !l.Allow {
			n += l.Contents.Len()
		}
	}
	return n
}

// logFailures logs which lists do not have what their sources hold, and the bad lines
// of feeds whose version is not known.
func (p *Prepared) logFailures(log *slog.Logger, known map[*feed.Feed]uint64) {
	if p.blind != "" {
		log.Warn(p.blind)
	}
	for _, l := range p.lists {
		if why := p.idle(l); why != "" {
			log.Warn(why)
		}
		l.logLeftOut(log, leftOut{})
		l.logDerived(log, derived{}, p.derived[l.derived])
		if l.refused != nil {
			log.Error("refused: " + l.refused.Error())
		}
		if l.rejected != nil {
			log.Error("contents that cannot be activated are left out: "+l.rejected.Error(),
				"list", l.Name, "active_entries", p.contents(l.source).Len())
		}
		if l.from == nil {
			continue
		}
		for _, s := range l.from.Status().Sources {
			if s.Former {
				log.Warn("the source was not read with its new settings yet, its entries of before stay", "list", l.Name, "source", s.Source, "active_entries", s.Entries)
			}
			switch {
			case s.Last.Result == feed.None && s.Former:
			case s.Last.Result == feed.None:
				log.Warn("the source is not read yet", "list", l.Name, "source", s.Source)
			case s.Last.Result != feed.Failed && s.Entries == 0:
				log.Info("the source is empty", "list", l.Name, "source", s.Source)
			case s.Last.Result == feed.Failed:
				log.Error("feed failed", "active_entries", s.Entries, "list", l.Name, "source", s.Source, "error", s.Last.Err)
			}
			if !l.unchanged(known) {
				s.LogBadLines(log, l.Name)
			}
		}
	}
}

// maxBadLines bounds what is left out of one list and logged one by one.
const maxBadLines = 5

// evadable reports whether packets can hide from the block lists what these
// match: the headers before the ports of an IPv6 packet may be more than are
// followed, or end early.
func evadable(e *engine.Generation) bool {
	return !e.Policy.DropMalformed &&
		slices.ContainsFunc(e.Block.V6Flow, func(s membership.GatedShape) bool { return s.Ports() })
}

// targetsOf returns the interfaces of a configuration.
func targetsOf(c *config.Config) []attach.Target {
	var all []attach.Target
	for _, i := range c.Interfaces {
		all = append(all, attach.Target{
			Target: loader.Target{Netns: i.Netns, Iface: i.Name}, XDP: i.Place(), Required: i.Required,
		})
		if c.Sends(i) {
			all = append(all, attach.Target{
				Target: loader.Target{Netns: i.Netns, Iface: i.Name, Out: true}, XDP: loader.TC, Required: i.Required && i.Egress,
			})
		}
	}
	return all
}

func journalPath(c *config.Config) string {
	if c.StateDir == "" {
		return ""
	}
	return filepath.Join(string(c.StateDir), "entries")
}

// copyJournal copies the entries of the journal at path, if there is one, into j.
func copyJournal(j *journal.Journal, path string, log *slog.Logger) error {
	entries, err := journal.Read(path)
	if err != nil && entries == nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("manual entries: run it as root, or as the service's user: %w", err)
		}
		return err
	}
	if err != nil {
		log.Warn(err.Error())
	}
	batch := make([]journal.Change, len(entries))
	for i, e := range entries {
		batch[i] = journal.Change{Entry: e}
	}
	return j.Apply(batch)
}
