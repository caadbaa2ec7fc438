// Package ruleset has the lists of a configuration with their contents: reads their sources, decides what of
// that is left out, derives prefixes, and says what has become of each list. An engine is built from it. It knows
// what must not be blocked: the packets that keep a host on its network, and its operator on the host.
//
// A [Ruleset] belongs to one goroutine, that of the daemon's loop. What takes long is called of a copy
// ([Ruleset.Copy]), beside that.
package ruleset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/geo"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/lists"
	"weir/control/observe/learn"
	"weir/control/stages"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/ordered"
	"weir/filter/verdict"
	"weir/loader/hooks"
)

// Ruleset is a configuration with the contents of its lists: all that an engine
// is built from.
type Ruleset struct {
	Config  *config.Config
	Lists   []*List // by priority, as their numbers are
	ByName  lists.ByName[*List]
	Rules   []engine.List    // lists of the engine with their active contents: list number n is Rules[n-1]
	Journal *journal.Journal // of manual entries
	Stages  *stages.Table

	Peers []Peer // what must not be blocked, as last seen
	blind string // why some of those are unknown

	notified map[string][]netip.Addr // servers of notifications and exports, as last seen

	ASN, Country *geo.Database // nil: none
	Unopened     error         // why one of them could not be opened

	Derived map[uint16]derived // by number of the engine's list
}

// List is a list of the configuration. In the engine it is two: what its
// sources contain, and manual entries, so that the one is not lost when the other
// goes.
type List struct {
	config.List
	SourceNumber  uint16      // number of the engine's list with the contents of its sources, 0 if it has none
	ManualNumber  uint16      // number of the engine's list of manual entries
	DerivedNumber uint16      // number of the engine's list of prefixes that these derive, 0 if there are none
	counted       *derived    // ahead of an activation; nil: nothing was
	From          Source      // what its sources contain; nil: it has none
	FromFeed      *feed.Feed  // From, if that is one
	seenVersion   uint64      // version of from whose contents are active, or could not be
	decided       uint64      // the last such version: taken, or an earlier one while seenVersion is being activated
	read          *list.Set   // the contents of from that refused is about
	Refused       error       // why the feed's contents must not be active, nil if they may
	failed        lists.Retry // to activate seenVersion; when it is tried again
	Rejected      error       // why an engine could not have the feed's contents, nil if it has
	Left          LeftOut     // of the feed's contents
	Trial         *api.Trial  // what decides whether List.Enforce is as configured; nil: it is
	Behind        bool        // its last change failed, and is tried again
	stays         lists.Retry // of recording when entries that have left the sources expire: they stay until then
}

// EngineList returns a list of the engine for some of the entries, without contents.
func (l *List) EngineList() engine.List {
	return engine.List{Name: l.Name, Allow: l.Action == config.Allow, Direction: l.Direction, Priority: l.Priority, Rule: l.Rule()}
}

// Source is where a list's contents come from, but for manual entries: a [feed.Feed], or a list of
// the fleet. It is safe for concurrent use.
type Source interface {
	// Contents returns what was read last, and Version its number: to be asked for first.
	Contents() *list.Set
	Version() uint64

	// Accepted reports whether an operator has accepted contents that cover too much.
	Accepted() bool

	// Keep and Revert settle a version: it is active and to be saved, or could not be activated.
	Keep(version uint64) error
	Revert(version uint64, reason error)

	Status() feed.Status

	// Find returns where the sources have entries.
	Find(keys []key.Key) []feed.Origin
}

// Shared has the lists that a host has beside those of its configuration.
type Shared interface {
	// Known reports whether one of them has entries.
	Known() bool

	// Lists returns them as a configuration would have them, and where their contents come from, by
	// name. Those that it cannot have beside its own are refused.
	Lists(*config.Config) (all []config.List, from map[string]Source)
}

// Options say how a configuration is prepared.
type Options struct {
	Log      *slog.Logger
	Journal  *journal.Journal
	Last     *Ruleset // whose feeds go on where they are the same; nil: none
	Reload   bool     // files and directories are read again
	Version  string   // of weir
	ReadOnly bool     // only files and directories are read, and nothing is saved
	Progress *feed.Progress
	Watcher  *feed.Watcher // of files and directories; nil: none
	Shared   Shared        // the lists of a fleet; nil: none
	Trials   lists.Trials  // what commands have decided
	Limits   stages.Limits // by commands

	Attached   []string // lists whose sources have entries in a program that filters already
	RolledBack bool     // to the configuration before an unconfirmed one, which may have saved what this one refuses
}

// Read reads what a configuration filters by. It fails where a required list cannot have what its
// sources contain.
func Read(ctx context.Context, c *config.Config, how Options) (*Ruleset, error) {
	feeds, err := OpenFeeds(ctx, c, how)
	if err != nil {
		return nil, err
	}
	of, err := c.Stages(how.Limits)
	if err != nil {
		return nil, err
	}
	p := Assemble(c, of, how.Journal, feeds, how.Shared, how.Last, how.Trials)
	if how.readRefused(ctx, p) {
		p = Assemble(c, of, how.Journal, feeds, how.Shared, how.Last, how.Trials)
	}
	if ctx.Err() != nil {
		return nil, stopped(ctx, ctx.Err())
	}
	for _, l := range p.Lists {
		switch {
		case !l.Required:
		case l.Rejected != nil:
			return nil, l.Rejected
		case l.Refused != nil && !how.RolledBack:
			return nil, l.Refused
		}
	}
	return p, nil
}

// readRefused reads the sources of required lists whose saved contents are refused, since a start
// fails over them. It reports whether there are any.
func (how *Options) readRefused(ctx context.Context, p *Ruleset) (some bool) {
	var all sync.WaitGroup
	for _, l := range p.Lists {
		if l.Required && l.Refused != nil && l.FromFeed != nil && !how.ReadOnly {
			some = true
			all.Go(func() { _, _ = l.FromFeed.Fetch(ctx) }) // Status has the outcome
		}
	}
	all.Wait()
	return some
}

// Assemble puts together what an engine is built from, after what the last one was
// built from, if there is one. It does not fail, so that nothing keeps weir from returning to a
// configuration.
func Assemble(c *config.Config, of *stages.Table, j *journal.Journal, feeds map[string]*feed.Feed, more Shared, last *Ruleset, decided lists.Trials) *Ruleset {
	p := &Ruleset{Config: c, Journal: j, Stages: of, ByName: make(map[string]*List)}
	p.openGeo(last)
	p.addLists(feeds, more, last, decided)
	if last != nil {
		p.notified = last.notified
	}
	protected, err := peers(c, p.Lists, p.notified)
	if err != nil {
		p.blind = err.Error()
	}
	p.leaveOut(protected)
	p.fit(last)
	p.deriveAll(last)
	return p
}

// OpenGeo opens the databases of a configuration, as far as it can. err says what it cannot.
func OpenGeo(c *config.Config) (asn, country *geo.Database, err error) {
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

// OpenGeo opens the databases. They name who was dropped and do not filter, so that nothing that
// must be activated, such as the configuration before an unconfirmed one, waits for them: the
// last ones go on, or none.
func (p *Ruleset) openGeo(last *Ruleset) {
	p.ASN, p.Country, p.Unopened = OpenGeo(p.Config)
	if p.Unopened == nil || last == nil {
		return
	}
	if p.ASN == nil && p.Config.Geo.ASN == last.Config.Geo.ASN {
		p.ASN = last.ASN
	}
	if p.Country == nil && p.Config.Geo.Country == last.Config.Geo.Country {
		p.Country = last.Country
	}
}

// OpenFeeds opens the feeds of a configuration by list, or takes over those of
// the last one that are the same, and reads sources.
func OpenFeeds(ctx context.Context, c *config.Config, how Options) (map[string]*feed.Feed, error) {
	feeds := make(map[string]*feed.Feed)
	how.readFormer(ctx, c)
	for _, l := range c.Lists {
		if len(l.All()) == 0 {
			continue
		}
		f := how.Last.feed(c, l)
		if f == nil {
			of := l.Feed()
			of.Refuse = func(e *list.Set, accepted bool) error { return RefuseRead(c, l, e, accepted) }
			of.MayBeEmpty = of.MayBeEmpty || c.Monitor // which blocks nothing anyway
			of.Hold, of.ReadOnly = !how.ReadOnly, how.ReadOnly
			of.Progress, of.Watcher, of.Version, of.Clock = how.Progress, how.Watcher, how.Version, how.Journal.Clock()
			old := cmp.Or(how.Last.List(l.Name), new(List))
			var err error
			if f, err = lists.Open(ctx, of, string(c.StateDir), old.FromFeed, l.IsLike(&old.List)); err != nil {
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
		if f := feeds[l.Name]; f != nil && l.Required && how.Last.List(l.Name) == nil {
			if err := unread(f, how.ReadOnly); err != nil {
				return nil, err
			}
		}
	}
	return feeds, nil
}

// readFormer has feeds read their files that end with a reload, since another one has their lists
// then: what has left a file stays for the list's TTL, which only the feed that had it knows.
func (how *Options) readFormer(ctx context.Context, c *config.Config) {
	if !how.Reload {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	for _, l := range c.Lists {
		old := how.Last.List(l.Name)
		if l.TTL == 0 || old == nil || how.Last.feed(c, l) != nil {
			continue
		}
		if f := old.FromFeed; f != nil && old.TTL > 0 && old.Action == l.Action && reflect.DeepEqual(old.Format, l.Format) && f.Local() && !f.Once() {
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
	// FirstFetch bounds the wait for sources that have never been read, where nothing
	// is known to filter by, or a program filters meanwhile.
	FirstFetch = 10 * time.Second

	// Moment bounds the wait for files that have never been read where something is
	// known to filter by.
	Moment = time.Second
)

// Read reads the sources that a start or a reload waits for. What was saved, or
// empty, is filtered by at once.
func (how *Options) read(ctx context.Context, c *config.Config, feeds map[string]*feed.Feed) {
	saved := how.Last != nil
	for _, f := range feeds {
		saved = saved || f.Known() || f.Status().Entries > 0
	}
	saved = saved || how.Shared != nil && how.Shared.Known()
	for range how.Journal.Entries() {
		saved = true
		break
	}
	first, cancelFirst := context.WithTimeout(ctx, FirstFetch)
	defer cancelFirst()
	short, cancelShort := context.WithTimeout(ctx, Moment)
	defer cancelShort()
	var all sync.WaitGroup
	defer all.Wait()
	for _, l := range c.Lists {
		f := feeds[l.Name]
		if f == nil {
			continue
		}
		var within context.Context // nil: it is not waited for
		old := how.Last.List(l.Name)
		local, attached := f.Local(), slices.Contains(how.Attached, l.Name)
		switch {
		case local && (how.ReadOnly || how.Reload):
			within = ctx // a file is read however long it takes
		case how.ReadOnly || f.Known() || old != nil && old.FromFeed == f: // which goes on by itself
		case l.Required, local && attached && !f.Once():
			within = ctx
		case !saved, how.Reload, attached, f.Once():
			within = first
		case local:
			within = short
		}
		if within == nil {
			continue
		}
		if within == first && !f.Local() {
			how.Log.Info(fmt.Sprintf("waiting up to %v for the first fetch", FirstFetch), "list", l.Name)
		}
		all.Go(func() { _, _ = f.Fetch(within) }) // Status has the outcome
	}
}

// unread returns why a source of a feed has never been read, nil if all have, or have entries of before
// until they are.
func unread(f *feed.Feed, onlyLocal bool) error {
	for _, s := range f.Status().Sources {
		if !s.Read.IsZero() || s.Former && s.Entries > 0 || onlyLocal && !f.Local() {
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

// FromFeed returns the feed of a list that is the same, and whose contents are refused
// for the same reason.
func (p *Ruleset) feed(c *config.Config, l config.List) *feed.Feed {
	old := p.List(l.Name)
	if old == nil || p.Config.MaxCoverage != c.MaxCoverage {
		return nil
	}
	same := old.List
	same.Enforce = l.Enforce // of which a feed knows nothing
	if !reflect.DeepEqual(same, l) {
		return nil
	}
	return old.FromFeed
}

// Feeds returns the feeds by list.
func (p *Ruleset) Feeds() map[string]*feed.Feed {
	feeds := make(map[string]*feed.Feed)
	for _, l := range p.Lists {
		if l.FromFeed != nil {
			feeds[l.Name] = l.FromFeed
		}
	}
	return feeds
}

// addLists adds the lists, with all that is known of them.
func (p *Ruleset) addLists(feeds map[string]*feed.Feed, of Shared, last *Ruleset, decided lists.Trials) {
	var more []config.List
	var from map[string]Source
	if of != nil {
		more, from = of.Lists(p.Config)
	}
	all := config.DefaultLists.With(slices.Concat(p.Config.Lists, more))
	// A packet that several lists match is credited to the one of the lowest number.
	ordered.By(all, func(a, b config.List) int { return b.Priority - a.Priority })
	for _, l := range all {
		m := &List{List: l, FromFeed: feeds[l.Name]}
		m.follow(p.Config, decided)
		if m.FromFeed != nil {
			m.From = m.FromFeed
		} else if s := from[l.Name]; s != nil {
			m.From = s
		}
		suffix := ""
		if m.From != nil {
			m.seenVersion = m.From.Version() // before its contents, which may change
			m.decided = m.seenVersion
			contents := m.From.Contents()
			if m.refuse(p.Config, contents, last); m.Refused != nil {
				contents = p.keeps(m, last)
			} else {
				contents = m.stay(contents, last)
			}
			m.SourceNumber = p.add(m, "", contents)
			suffix = api.ManualSuffix
		}
		entries := list.SetOf(lists.ManualKeys(p.Journal, l.Name, l.Action == config.Allow)...)
		if old := last.List(l.Name); old != nil { // the same set says that nothing has changed
			if before := last.Contents(old.ManualNumber); entries.Diff(before).Len() == 0 {
				entries = before
			}
		}
		m.ManualNumber = p.add(m, suffix, entries)
		if derivation(l).On() {
			m.DerivedNumber = p.add(m, api.DerivedSuffix, nil)
		}
		p.Lists, p.ByName[l.Name] = append(p.Lists, m), m
	}
}

// keeps returns what a list has while what was read of it is refused: what it had, unless that is
// another configuration's, and refused by this one.
func (p *Ruleset) keeps(l *List, last *Ruleset) *list.Set {
	old := last.List(l.Name)
	if old == nil || old.SourceNumber == 0 {
		return nil
	}
	had := last.Contents(old.SourceNumber)
	if old.From != l.From && RefuseRead(p.Config, l.List, had, false) != nil {
		return nil
	}
	return had
}

// refuse sets whether the contents of a list's sources are refused: as they were, where these
// and the list are the same.
func (l *List) refuse(c *config.Config, contents *list.Set, last *Ruleset) {
	l.read = contents
	if old := last.List(l.Name); old != nil && last.Config.MaxCoverage == c.MaxCoverage &&
		old.From == l.From && old.read == contents && old.Refused == nil && reflect.DeepEqual(old.List, l.List) {
		return
	}
	l.Refused = RefuseRead(c, l.List, contents, l.From.Accepted())
}

// fit leaves out what does not fit into an engine beside the other lists: flows of
// a feed's rarest shapes, or all contents of the feed, whose list then has what it had
// in the last engine, or nothing. Manual entries come first, then lists that have not changed, then those of a higher
// priority.
func (p *Ruleset) fit(last *Ruleset) {
	if last != nil && slices.EqualFunc(p.Rules, last.Rules, engine.List.Equal) || engine.Fits(p.Rules) == nil {
		return
	}
	census := engine.NewCensus(p.Rules)
	var read []*List
	for _, l := range p.Lists {
		if l.SourceNumber == 0 {
			continue
		}
		read = append(read, l)
		var before *list.Set
		if old := last.List(l.Name); old != nil && old.SourceNumber != 0 {
			before = last.Contents(old.SourceNumber)
		}
		census.Set(l.SourceNumber, before)
	}
	if census.Fits() != nil { // the configuration has changed what fits
		for _, l := range read {
			census.Set(l.SourceNumber, nil)
		}
	}
	rules := slices.Clone(p.Rules)
	for _, l := range read {
		before := census.Contents(l.SourceNumber)
		census.Set(l.SourceNumber, p.Contents(l.SourceNumber))
		rules[l.SourceNumber-1].Contents, l.Left.shapes = withoutSpare(census, l.SourceNumber)
		census.Set(l.SourceNumber, rules[l.SourceNumber-1].Contents)
		if err := census.Fits(); err != nil {
			l.Left.shapes = nil
			l.Rejected = fmt.Errorf("list %s: %w", l.Name, err)
			rules[l.SourceNumber-1].Contents = before
			census.Set(l.SourceNumber, before)
		}
	}
	p.Rules = rules
}

// Unbuilt is why an engine could not be built, which fewer entries may mend.
type Unbuilt struct{ Err error }

func (e Unbuilt) Error() string { return e.Err.Error() }

func (e Unbuilt) Unwrap() error { return e.Err }

// Rejected is why a program could not be loaded, which other entries may mend.
type Rejected struct{ Err error }

func (e Rejected) Error() string { return e.Err.Error() }

func (e Rejected) Unwrap() error { return e.Err }

// Shed leaves out the contents of the feed that is most likely the reason why an
// engine could not be started: the largest, or that of the most shapes where its
// program was rejected. It returns false if no feed can be the reason, or that one's
// list is required.
func (p *Ruleset) Shed(reason error) bool {
	var weigh func(*list.Set) int
	switch {
	case errors.As(reason, new(Rejected)):
		weigh = engine.Shapes
	case errors.As(reason, new(Unbuilt)):
		weigh = (*list.Set).Len
	default:
		return false
	}
	var worst *List
	most := 0
	for _, l := range p.Lists {
		if l.SourceNumber == 0 {
			continue
		}
		if n := weigh(p.Contents(l.SourceNumber)); n > most {
			worst, most = l, n
		}
	}
	if worst == nil || worst.Required {
		return false
	}
	p.Rules = slices.Clone(p.Rules)
	p.Rules[worst.SourceNumber-1].Contents = nil
	worst.Rejected = fmt.Errorf("list %s: %w", worst.Name, reason)
	p.deriveAll(nil)
	return true
}

// FirstRefused returns why the contents of a feed are refused, nil if none are.
func (p *Ruleset) FirstRefused() error {
	for _, l := range p.Lists {
		if l.Refused != nil && l.FromFeed != nil {
			return l.Refused
		}
	}
	return nil
}

// Decisions returns the decisions on the contents that feeds have read.
func (p *Ruleset) Decisions() (all []*lists.Decision) {
	for _, l := range p.Lists {
		if l.From != nil {
			all = append(all, l.Decision(cmp.Or(l.Refused, l.Rejected)))
		}
	}
	return all
}

// add adds a list of the engine, and returns its number.
func (p *Ruleset) add(m *List, suffix string, contents *list.Set) uint16 {
	l := m.EngineList()
	l.Name += suffix
	l.Contents = contents
	p.Rules = append(p.Rules, l)
	return uint16(len(p.Rules))
}

// Contents returns the active contents of a list of the engine.
func (p *Ruleset) Contents(number uint16) *list.Set { return p.Rules[number-1].Contents }

// Learns reports whether weights are learned. In exact mode a table confirms what the
// cascade passes, so that there is nothing to win.
func (p *Ruleset) Learns() bool { return p.Mistakes() && p.Config.Learning.Elements > 0 }

// Mistakes reports whether the filter takes unlisted packets for listed ones.
func (p *Ruleset) Mistakes() bool { return p.Config.Mode == membership.Approximate && p.Blocked() > 0 }

// LearnConfig returns the settings of the learner of weights.
func (p *Ruleset) LearnConfig() learn.Config {
	l := p.Config.Learning
	return learn.Config{HalfLife: time.Duration(l.HalfLife), Elements: int(l.Elements)}
}

// EngineConfig returns what an engine is specialised to, but for seeds.
func (p *Ruleset) EngineConfig() engine.Config {
	c := p.Config
	var e engine.Config
	e.Mode, e.BitsPerKey, e.Monitor = c.Mode, c.BitsPerEntry, c.Monitor
	e.DropMalformed, e.DropNotIP = c.Malformed == verdict.Drop, c.NotIP == verdict.Drop
	e.DHCPServer = c.Failsafe.DHCPServer
	e.FailsafePorts, e.FailsafeICMP = c.Failsafe.Ports, c.Failsafe.ICMP
	for _, f := range c.Failsafe.Prefixes {
		e.FailsafePrefixes = append(e.FailsafePrefixes, f.Prefix)
	}
	if p.Learns() {
		e.Hot = int(c.Learning.Elements)
	}
	e.Parts = p.Stages.Parts(p.Journal)
	e.TC = slices.ContainsFunc(c.Interfaces, func(i config.Interface) bool { return i.Place() == hooks.TC })
	e.Outgoing = c.FiltersOutgoing()
	return e
}

// Build builds the engine on the heap, with seeds of its own. It decides as the
// program in the kernel would.
func (p *Ruleset) Build() (*engine.Generation, error) {
	c := p.EngineConfig()
	c.Seed = hash.NewSeed()
	return engine.Reference(p.Rules, c)
}

// BuildKernel is [Ruleset.Build] in the kernel, for test runs: nothing is
// attached.
func (p *Ruleset) BuildKernel() (*engine.Generation, error) {
	c := p.EngineConfig()
	c.Seed = hash.NewSeed()
	return engine.Build(p.Rules, c)
}

// ReplaceTrackers replaces all trackers by others.
func (p *Ruleset) ReplaceTrackers(by stages.TrackerSections) { p.Stages.Trackers = by }

// Warnings returns what an operator should know of the lists, a line for each: what is
// left out of them, and their bad lines.
func (p *Ruleset) Warnings() []string { return p.NewWarnings(nil) }

// NewWarnings is like Warnings, without the bad lines of feeds whose version is known.
func (p *Ruleset) NewWarnings(known map[*feed.Feed]uint64) (all []string) {
	for _, l := range p.Lists {
		all = append(all, l.warnings()...)
		all = append(all, l.derivedWarnings(p.Derived[l.DerivedNumber])...)
		if why := p.doubtful(l); why != "" {
			all = append(all, why)
		}
		if l.From == nil || l.unchanged(known) {
			continue
		}
		for _, s := range l.From.Status().Sources {
			if s.Former {
				all = append(all, fmt.Sprintf("list %s: %s was not read with its new settings yet: its %d entries of before stay", l.Name, s.Source, s.Entries))
			}
			lines, _ := s.BadLines()
			all = append(all, lines...)
			if wide := s.WideLines(); len(wide) > 0 {
				all = append(all, fmt.Sprintf("list %s: lines that cover much, probably a mistake: %s", l.Name, strings.Join(wide, ", ")))
			}
			if left := s.LeftOut(); len(left) > 0 {
				all = append(all, fmt.Sprintf("list %s: %s: left out by the format: %s", l.Name, s.Source, strings.Join(left, ", ")))
			}
		}
	}
	return all
}

// unchanged reports whether a list's feed has a known version.
func (l *List) unchanged(known map[*feed.Feed]uint64) bool {
	version, ok := known[l.FromFeed]
	return ok && version == l.FromFeed.Version()
}

// Problem is why a list does not have what a source of it contains: it could not be read, or was
// refused.
type Problem struct {
	List string
	Err  error // names the list, too
}

// Problems returns the problems of all lists.
func (p *Ruleset) Problems() (all []Problem) {
	for _, l := range p.Lists {
		if l.Refused != nil {
			all = append(all, Problem{l.Name, l.Refused})
		}
		if l.Rejected != nil {
			all = append(all, Problem{l.Name, fmt.Errorf("not active: %w", l.Rejected)})
		}
		if l.From == nil {
			continue
		}
		for _, s := range l.From.Status().Sources {
			if s.Last.Result == feed.Failed {
				all = append(all, Problem{l.Name, failure(l.Name, s)})
			}
		}
	}
	return all
}

// Unread returns the sources that have not been read, and of which nothing is saved,
// each with its list.
func (p *Ruleset) Unread() (all []api.NotReady) {
	for _, l := range p.Lists {
		if l.FromFeed == nil {
			continue
		}
		for _, s := range l.FromFeed.Status().Sources {
			if s.Read.IsZero() && !s.Former && s.Last.Result == feed.None {
				all = append(all, api.NotReady{List: l.Name, Source: s.Source, Problem: "not read yet"})
			}
		}
	}
	return all
}

// NotReady returns the sources of lists that have nothing to filter by: they have not
// been read, or all that was read is refused.
func (p *Ruleset) NotReady() []api.NotReady {
	all := p.Unread()
	for _, l := range p.Lists {
		if l.FromFeed == nil {
			continue
		}
		active := p.Contents(l.SourceNumber).Len()
		for _, s := range l.FromFeed.Status().Sources {
			switch why := cmp.Or(l.Refused, l.Rejected); {
			case s.Read.IsZero() && !s.Former && s.Last.Result == feed.Failed:
				all = append(all, api.NotReady{List: l.Name, Source: s.Source, Problem: s.Last.Err.Error()})
			case why != nil && active == 0 && s.Entries > 0:
				all = append(all, api.NotReady{List: l.Name, Source: s.Source, Problem: why.Error()})
			case l.decided != l.FromFeed.Version() && active == 0 && s.Entries > 0:
				all = append(all, api.NotReady{List: l.Name, Source: s.Source, Problem: "it was read, and is being activated"})
			}
		}
	}
	return all
}

// Unknown returns what answers may lack: NotReady, and manual entries of no list that were lost.
func (p *Ruleset) Unknown() []api.NotReady {
	all := p.NotReady()
	if damage := p.Journal.Damage(); damage != "" {
		all = append(all, api.NotReady{Source: "the file of manual entries", Problem: damage})
	}
	return all
}

// doubtful returns what is probably a mistake of a list's settings, "" for nothing.
func (p *Ruleset) doubtful(l *List) string {
	switch {
	case l.Direction == engine.Out && !p.Config.FiltersOutgoing():
		return fmt.Sprintf("list %s is of outgoing packets, which are filtered on no interface: set egress: true on one", l.Name)
	case p.isTwice(l.Name):
		return fmt.Sprintf("list %s is configured here, and comes from the hub as %s: both filter, and what the hub removes stays in the one here: remove that, or rename it", l.Name, config.FleetPrefix+l.Name)
	}
	return ""
}

// isTwice reports whether a list is configured on this host, and the hub has one of the name, but for those that commands
// change which name none.
func (p *Ruleset) isTwice(name string) bool {
	own, shared := p.ByName[name], p.ByName[config.FleetPrefix+name]
	return own != nil && shared != nil && !config.FleetLists.Has(name) && !config.DefaultLists.Has(name)
}

// Twice returns the lists that are configured on this host, and that the hub has under the same name.
func (p *Ruleset) Twice() (names []string) {
	for _, l := range p.Lists {
		if name, shared := strings.CutPrefix(l.Name, config.FleetPrefix); shared && p.isTwice(name) {
			names = append(names, name)
		}
	}
	return names
}

// Descriptions describes the lists, list number n being the (n-1)th.
func (p *Ruleset) Descriptions() []attach.List {
	all := make([]attach.List, len(p.Rules))
	for _, l := range p.Lists {
		d := attach.List{Allow: l.Action == config.Allow, Direction: l.Direction.String()}
		d.Name, d.Entries = p.Rules[l.ManualNumber-1].Name, p.Contents(l.ManualNumber).Len()
		all[l.ManualNumber-1] = d
		if l.DerivedNumber != 0 {
			d.Name, d.Entries = p.Rules[l.DerivedNumber-1].Name, p.Contents(l.DerivedNumber).Len()
			all[l.DerivedNumber-1] = d
		}
		if l.SourceNumber == 0 {
			continue
		}
		d.Name, d.Entries = p.Rules[l.SourceNumber-1].Name, p.Contents(l.SourceNumber).Len()
		sources := l.From.Status().Sources
		d.Source = sources[0].Source
		if more := len(sources) - 1; more > 0 {
			d.Source += fmt.Sprintf(" and %d more", more)
		}
		for _, s := range sources {
			_, n := s.BadLines()
			d.BadLines += n
		}
		all[l.SourceNumber-1] = d
	}
	return all
}

// List returns the list of a name, nil if there is none, or no configuration.
func (p *Ruleset) List(name string) *List {
	if p == nil {
		return nil
	}
	return p.ByName[name]
}

// Summary is the daemon's state in a line.
func (p *Ruleset) Summary() string {
	text := fmt.Sprintf("filtering %d entries of %d lists", p.Entries(), len(p.Lists))
	if n := len(p.NotReady()); n > 0 {
		text += fmt.Sprintf(", sources that are not ready: %d", n)
	}
	return text
}

// Entries returns the number of entries of all lists.
func (p *Ruleset) Entries() (n int) {
	for _, l := range p.Rules {
		n += l.Contents.Len()
	}
	return n
}

// Manual returns how many entries of all lists are manual ones, or have left a source.
func (p *Ruleset) Manual() (n int) {
	for _, l := range p.Lists {
		n += p.Contents(l.ManualNumber).Len()
	}
	return n
}

// Blocked returns the number of entries of the block lists.
func (p *Ruleset) Blocked() (n int) {
	for _, l := range p.Rules {
		if !l.Allow {
			n += l.Contents.Len()
		}
	}
	return n
}

// LogFailures logs which lists do not have what their sources hold, and the bad lines
// of feeds whose version is not known.
func (p *Ruleset) LogFailures(log *slog.Logger, known map[*feed.Feed]uint64) {
	for _, l := range p.Lists {
		if why := p.doubtful(l); why != "" {
			log.Warn(why)
		}
		l.LogLeftOut(log, LeftOut{})
		l.logDerived(log, derived{}, p.Derived[l.DerivedNumber])
		if l.Refused != nil {
			log.Error("refused: " + l.Refused.Error())
		}
		if l.Rejected != nil {
			log.Error("contents that cannot be activated are left out: "+l.Rejected.Error(),
				"list", l.Name, "active_entries", p.Contents(l.SourceNumber).Len())
		}
		if l.From == nil {
			continue
		}
		for _, s := range l.From.Status().Sources {
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

// DiffersInLists reports whether a configuration differs from another one, for which programs
// are attached, in nothing that these are specialised to: only in the sources and contents of
// lists, and in other tasks of the daemon.
func (p *Ruleset) DiffersInLists(last *Ruleset) bool {
	same := func(a, b engine.List) bool { a.Contents, b.Contents = nil, nil; return a.Equal(b) }
	return reflect.DeepEqual(programmed(p.Config), programmed(last.Config)) && slices.EqualFunc(p.Rules, last.Rules, same) &&
		p.Stages.Trackers.Equal(&last.Stages.Trackers) &&
		reflect.DeepEqual(p.EngineConfig(), last.EngineConfig()) // which also has facts of the host
}

// programmed returns a configuration without the sections that programs do not depend on.
func programmed(c *config.Config) config.Config {
	only := *c
	only.Lists = nil
	only.Log, only.Notify, only.Export = config.Config{}.Log, config.Config{}.Notify, config.Config{}.Export
	return only
}
