// Package feed reads a list's entries from its sources, and keeps the last
// known good ones.
//
// A [Feed] has one or more sources: files, directories, URLs. They are
// independent: one that fails keeps its old contents, whatever happens to the
// others. New contents become active only if they were read to the end, match
// their checksum and signature, do not have too many bad lines, are not empty,
// and are not much smaller than before. Otherwise the old contents stay, the
// [Outcome] says why, and the source is retried, at first after some seconds,
// then at growing intervals up to the regular one.
//
// Contents are saved when they become active, and loaded by [Open], so that
// filtering resumes immediately after a restart. With Config.Hold, the caller
// decides: [Feed.Keep] saves them, [Feed.Revert] returns to the last ones kept.
package feed

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/clock"
	"weir/control/list"
	"weir/control/list/listfile"
)

// firstRetry is the delay before the first retry of a failed source: long
// enough for a server to restart, short in comparison with an Interval.
const firstRetry = 15 * time.Second

// Config is a Spec with what its list adds.
type Config struct {
	Name string // also a directory name: letters, digits, "_", "-" and inner dots
	Spec

	// Purpose says what the list does with its entries: a list of another purpose does not get them.
	Purpose string

	// MayBeEmpty accepts a file or directory without entries if it never had any: it
	// is yet to be filled.
	MayBeEmpty bool

	// Hold leaves it to Keep and Revert whether new contents are saved.
	Hold bool

	// ReadOnly saves nothing: what is saved may be another process's.
	ReadOnly bool

	Progress *Progress // of reading; may be nil
	Watcher  *Watcher  // of files and directories; nil: they are read at their intervals only

	Version string // of weir, for the User-Agent of requests

	Clock *clock.Clock // dates saved decisions of CrowdSec; nil: the wall clock

	// Refuse, unless it is nil, returns why a source's entries must not become
	// active, nil if they may. An operator may have accepted whatever they cover. It
	// may be called concurrently.
	Refuse func(entries *list.Set, accepted bool) error
}

// Feed reads a list's entries. Its methods are safe for concurrent use.
type Feed struct {
	Config
	format  *reader
	sources []*source
	random  func() float64 // 0…1, for jitter

	handling sync.Mutex // locked during calls of Run's handler

	// Taking is for the owner, who may lock it while what was read is taken in: a refresh may come
	// beside Run.
	Taking sync.Mutex

	version atomic.Uint64
}

// turns has a single attempt at a time write the saved files of a source. After a reload that changes
// the list's settings, two feeds have the source until the former one has ended its attempt.
type turns struct {
	attempting chan struct{} // has a value during an attempt
	saving     sync.Mutex    // locked while files are replaced, and before mu
}

// turnsOf has the turns of sources by the path of their saved files.
var turnsOf sync.Map

// newTurns returns the turns of a source that is saved at a path; "": it is not.
func newTurns(saved string) *turns {
	t := &turns{attempting: make(chan struct{}, 1)}
	if saved != "" {
		shared, _ := turnsOf.LoadOrStore(saved, t)
		t = shared.(*turns)
	}
	return t
}

// source is a source and its state.
type source struct {
	Source
	name   string // distinct within the feed
	saved  string // path of the saved file; "": not saved
	client *http.Client
	format *reader

	agent   string                 // the User-Agent of requests
	accept  string                 // what they ask for; "": anything
	lookup  lookup                 // of names
	reachOf func(netip.Addr) reach // reachOf

	*turns
	// Guarded by attempting, as only attempts use it:
	decisions    decisions        // CrowdSec's
	unreadable   map[string]error // CrowdSec's decisions that are active there
	expired      []string         // the decisions that had expired at the beginning of the attempt
	names        map[string]*resolved
	anew         bool              // the attempt looks up all names, whether or not they are due
	synced       bool              // CrowdSec may send changes only
	certificates [sha256.Size]byte // SHA-256 of the files that the client was made from

	mu          sync.Mutex // guards the rest
	current     *contents  // nil before the first success
	former      *contents  // what counts until then: entries that the list had before its settings changed; nil: none
	savedFormer *contents  // former, as it was saved; nil: it is not
	formerSaved time.Time  // when that was
	undecided   *candidate // what Keep or Revert decides about; nil: nothing
	reverted    *candidate // what the next attempt must forget; nil: nothing
	damaged     error      // what is saved is not what was saved, and no attempt has succeeded since; nil: it is not known to be
	returned    bool       // Revert has returned to current, and no attempt has succeeded since

	sooner   chan struct{} // next has changed
	changed  bool          // since the last attempt has begun
	last     Outcome
	failures int // consecutive
	next     time.Time
	servers  []netip.Addr // connected to by the last attempt that needed a connection
	asked    []netip.Addr // by the attempt in progress
}

// candidate is contents that are neither kept nor reverted yet: the current ones.
type candidate struct {
	version   uint64    // of the feed, since when they are current
	former    *contents // the last that were kept, nil if none were
	decisions decisions // CrowdSec's of that time
	unsaved   error     // why they cannot be saved
	undone    *list.Set // what an operator has removed since former, and the source has not again; nil: nothing
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// Open returns a feed with the contents that were saved below directory. It
// fails only for a bad configuration: unusable saved contents are left in
// place, and reported by [Feed.Status]. Without a directory, contents are kept
// in memory only. Open fails if ctx ends before they are loaded.
func Open(ctx context.Context, c Config, directory string) (*Feed, error) {
	f, err := open(c, directory)
	if err != nil {
		return nil, fmt.Errorf("feed %s: %w", c.Name, err)
	}
	for _, s := range f.sources {
		if directory != "" {
			s.last = f.load(ctx, s)
			s.damage(&s.last, f.loadFormer(ctx, s)) // without, the source is read as if it were new
		}
		if s.written != nil && !f.Format.Kind.row().made {
			if _, err := f.attempt(ctx, s, due); err != nil {
				return nil, err
			}
		}
	}
	if directory != "" && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return f, nil
}

// Inherit takes over the contents of sources that a former feed of the same list
// has, where it has none, or older ones: reading them again may fail. With keep, what a source had
// with other settings, or another source in its place, stays until this one has been read. The feed
// must not run.
func (f *Feed) Inherit(former *Feed, keep bool) {
	sameFormat := reflect.DeepEqual(f.Format, former.Format)
	if sameFormat {
		f.inherit(former)
	}
	if keep {
		if !sameFormat {
			f.forgetEmpty()
		}
		f.keepUntilRead(former)
	}
}

// inherit takes over contents of sources with the same settings.
func (f *Feed) inherit(former *Feed) {
	same := f.Lenient == former.Lenient && f.IgnorePorts == former.IgnorePorts
	for _, s := range f.sources {
		for _, old := range former.sources {
			if s.id() != old.id() || s.written != nil && !slices.Equal(s.written, old.written) {
				continue
			}
			old.mu.Lock()
			has := old.current
			old.mu.Unlock()
			s.mu.Lock()
			if s.current == nil && has != nil || same && s.current.olderThan(has) {
				saved := s.saved == "" || s.current != nil && has.saved // nil: what is saved may be damaged
				s.current = has.confirmed(validator{}, has.Read)
				s.current.saved = saved
				s.undecided = nil
				s.decisions, s.synced = has.decisions, false // CrowdSec sends changes once
				s.names = lastAddresses(has.resolved)
			}
			s.mu.Unlock()
		}
	}
}

// forgetEmpty has sources be read whose saved contents, in another format, have no entries in
// that of the feed.
func (f *Feed) forgetEmpty() {
	for _, s := range f.sources {
		s.mu.Lock()
		if s.current != nil && s.last.Result == Loaded && s.current.entries.Len() == 0 {
			s.current = nil
		}
		s.mu.Unlock()
	}
}

// keepUntilRead has sources keep the entries of former ones until they are read: each those from
// its own file, directory or URL, and the others those that are left.
func (f *Feed) keepUntilRead(former *Feed) {
	rest := slices.DeleteFunc(slices.Clone(former.sources), func(old *source) bool { return old.written != nil })
	var others []*source
	for _, s := range f.sources {
		i := slices.IndexFunc(rest, func(old *source) bool {
			return s.File == old.File && s.Directory == old.Directory && s.URL == old.URL
		})
		if i < 0 {
			others = append(others, s)
			continue
		}
		s.keep(rest[i])
		rest = slices.Delete(rest, i, i+1)
	}
	others = slices.DeleteFunc(others, func(s *source) bool { return s.current != nil })
	for i, old := range rest {
		if len(others) > 0 {
			others[min(i, len(others)-1)].keep(old)
		}
	}
}

// keep has the source keep the entries of another one until it is read.
func (s *source) keep(old *source) {
	old.mu.Lock()
	had := old.active()
	old.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if had == nil || s.current != nil || had.decisions != nil { // decisions end, and come with the first answer
		return
	}
	kept := &contents{entries: had.entries}
	kept.Accepted = had.Accepted
	if s.former != nil {
		kept.entries = list.Union(s.former.entries, kept.entries)
		kept.Accepted = kept.Accepted || s.former.Accepted
	}
	s.former = kept
}

// active returns the contents that count, nil for none. The caller holds mu.
func (s *source) active() *contents {
	if s.current == nil {
		return s.former
	}
	return s.current
}

// olderThan reports whether contents are older than others that another feed of the list has.
func (c *contents) olderThan(other *contents) bool {
	return c != nil && other != nil && c.sum != other.sum && (!other.saved || other.Read.After(c.Read))
}

func open(c Config, directory string) (*Feed, error) {
	f := &Feed{Config: c, random: rand.Float64}
	switch err := c.Validate(); {
	case err != nil:
		return nil, err
	case !namePattern.MatchString(c.Name):
		return nil, fmt.Errorf("name %q: want letters, digits, _, - and inner dots", c.Name)
	case len(c.All()) == 0:
		return nil, errors.New("no sources")
	}
	var err error
	if f.format, err = newReader(c.Format); err != nil {
		return nil, err
	}
	f.Lenient = f.Lenient || c.Format.Kind == CrowdSec // its ranges need not be masked
	names := c.SourceNames()
	for i, src := range c.All() {
		src.ConnectTimeout = cmp.Or(src.ConnectTimeout, DefaultConnectTimeout)
		src.StallTimeout = cmp.Or(src.StallTimeout, DefaultStallTimeout)
		s := &source{
			Source: src,
			name:   names[i],
			client: newClient(src, reachOf), reachOf: reachOf, agent: agent(c.Format.Kind, c.Version),
			sooner: make(chan struct{}, 1),
			format: f.format, lookup: systemLookup(new(net.Dialer).DialContext),
		}
		if c.Format.Kind == TAXII {
			s.accept = taxiiType
		}
		if row := c.Format.Kind.row(); src.written != nil || row.made || !row.isFile() {
			s.format = &reader{}
		}
		if directory != "" {
			s.saved = filepath.Join(directory, c.Name, src.id())
		}
		s.turns = newTurns(s.saved)
		f.sources = append(f.sources, s)
	}
	return f, nil
}

// loaded iterates over the sources that have contents of their own, and these.
func (f *Feed) loaded() iter.Seq2[*source, *contents] {
	return func(yield func(*source, *contents) bool) {
		for _, s := range f.sources {
			s.mu.Lock()
			c := s.current
			s.mu.Unlock()
			if c != nil && !yield(s, c) {
				return
			}
		}
	}
}

// Contents returns the active contents of all sources together.
func (f *Feed) Contents() *list.Set {
	var all []*list.Set
	for _, s := range f.sources {
		s.mu.Lock()
		if c := s.active(); c != nil {
			all = append(all, c.entries)
		}
		s.mu.Unlock()
	}
	return list.Union(all...)
}

// ContentsUndone returns the active contents, and the entries that an operator has removed by
// [Feed.Rollback] since the last contents that were kept; nil: none. Those that a source has again are
// not among them, nor those that another source has, or has left out by itself meanwhile.
func (f *Feed) ContentsUndone() (contents, undone *list.Set) {
	type change struct{ before, after, undone *list.Set }
	var all []*list.Set
	var changes []change
	for _, s := range f.sources {
		s.mu.Lock() // once for both: they are of the same version
		c, former, u := s.active(), s.former, s.undecided
		s.mu.Unlock()
		if c == nil {
			continue
		}
		all = append(all, c.entries)
		if u == nil {
			continue
		}
		undone = list.Union(undone, u.undone)
		if u.former != nil {
			former = u.former
		}
		if former != nil {
			changes = append(changes, change{former.entries, c.entries, u.undone})
		}
	}
	contents = list.Union(all...)
	if undone.Len() > 0 { // else the difference is as long as the contents
		undone = undone.Diff(contents).Add
	}
	if undone.Len() == 0 {
		return contents, nil
	}
	for _, c := range changes {
		left := c.before.Diff(c.after).Add.Diff(c.undone).Add
		undone = undone.Diff(left).Add
	}
	return contents, undone
}

// Version counts the changes of Entries: a caller that reads Version before
// Entries misses no change.
func (f *Feed) Version() uint64 { return f.version.Load() }

// Local reports whether all sources are files and directories.
func (f *Feed) Local() bool {
	return f.Format.Kind != Names && !slices.ContainsFunc(f.sources, func(s *source) bool { return s.URL != "" })
}

// Once reports whether a source can be read only once: a pipe, or standard input.
func (f *Feed) Once() bool {
	return slices.ContainsFunc(f.sources, func(s *source) bool { return isStream(string(s.File)) })
}

// Known reports whether all sources have been read, by this process or by an earlier
// one, which has saved what they contained: maybe nothing.
func (f *Feed) Known() bool {
	return !slices.ContainsFunc(f.sources, func(s *source) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.current == nil
	})
}

// Accepted reports whether an operator has accepted the contents of a source,
// whatever they cover.
func (f *Feed) Accepted() bool {
	return slices.ContainsFunc(f.sources, func(s *source) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		c := s.active()
		return c != nil && c.Accepted
	})
}

// Keep saves the contents up to a version: they are active. It waits for the disk. What a source keeps
// until it is read is saved, too.
func (f *Feed) Keep(version uint64) error {
	var errs []error
	for _, s := range f.sources {
		s.decide(version, func(c *candidate) {
			s.mu.Lock()
			saved := *s.current
			s.mu.Unlock()
			err := c.unsaved // which the outcome has reported
			if err == nil {
				err = f.promote(s, &saved)
				errs = append(errs, err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			saved = *s.current
			saved.saved = err == nil
			s.current, s.former, s.last.Unsaved, s.failures = &saved, nil, err, 0
		})
		errs = append(errs, f.saveFormer(s))
	}
	return errors.Join(errs...)
}

// Revert returns to the last contents that were kept, from those up to a version:
// they could not be activated, for a reason.
func (f *Feed) Revert(version uint64, reason error) {
	for _, s := range f.sources {
		s.decide(version, func(c *candidate) {
			if s.saved != "" {
				s.forgetNext() // else the next attempt overwrites it
			}
			var rest time.Duration
			defer func() { s.hasten(f.wait(s.retries(), rest)) }()
			s.mu.Lock()
			defer s.mu.Unlock()
			rest = s.last.rest
			s.current, s.reverted, s.returned = c.former, c, true
			s.last.fail(fail(Uncompiled, "%w", reason))
			s.last.retryAfter = rest
			if next := time.Now().Add(rest); !s.next.IsZero() && s.next.Before(next) {
				s.next = next
			}
			s.last.Entries, s.last.Unsaved = 0, nil
			if now := s.active(); now != nil {
				s.last.Entries = now.entries.Len()
			}
			s.failures++
			f.version.Add(1)
		})
	}
}

// Undecided reports whether there are contents to keep or to revert.
func (f *Feed) Undecided() bool {
	return slices.ContainsFunc(f.sources, func(s *source) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.undecided != nil
	})
}

// Reverted reports whether Revert has returned to what a source had before, which has not been read
// with success since, and there are no other contents to decide about.
func (f *Feed) Reverted() (is bool) {
	for _, s := range f.sources {
		s.mu.Lock()
		returned, undecided := s.returned, s.undecided != nil
		s.mu.Unlock()
		if undecided {
			return false
		}
		is = is || returned
	}
	return is
}

// decide calls what decides about the candidate up to a version, if there is one.
func (s *source) decide(version uint64, do func(*candidate)) {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	c := s.undecided
	decided := c != nil && c.version <= version
	if decided {
		s.undecided = nil
	}
	s.mu.Unlock()
	if decided {
		do(c)
	}
}

// retries returns how often a source was tried that is to be tried again. A file
// costs little to try.
func (s *source) retries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.URL == "" {
		return min(s.failures, 1)
	}
	return s.failures
}

// tries returns how often reading the source has failed since it last succeeded.
func (s *source) tries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failures
}

// restore makes an attempt begin where Revert has returned to.
func (s *source) restore() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reverted != nil {
		s.decisions, s.synced, s.reverted = s.reverted.decisions, false, nil
	}
}

// Fetch tries each source once, now, and looks up all names. It returns an outcome for each. It
// fails only if ctx ends; sources that were not tried by then have no outcome.
func (f *Feed) Fetch(ctx context.Context) ([]Outcome, error) { return f.fetch(ctx, requested) }

// Accept is like Fetch, and accepts, this once, contents that have shrunk or
// become empty, and whatever they cover.
func (f *Feed) Accept(ctx context.Context) ([]Outcome, error) { return f.fetch(ctx, accepted) }

func (f *Feed) fetch(ctx context.Context, why occasion) ([]Outcome, error) {
	var outcomes []Outcome
	for _, s := range f.sources {
		o, err := f.attempt(ctx, s, why)
		if err != nil {
			return outcomes, err
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, nil
}

// Run tries each source immediately and then at its intervals, until ctx ends.
// It calls handle after each attempt; the calls do not overlap.
func (f *Feed) Run(ctx context.Context, handle func(Outcome)) {
	var all sync.WaitGroup
	for _, s := range f.sources {
		all.Go(func() { f.run(ctx, s, handle) })
	}
	all.Wait()
}

func (f *Feed) run(ctx context.Context, s *source, handle func(Outcome)) {
	defer s.client.CloseIdleConnections()
	defer f.watch(ctx, s)()
	if s.postpone(f) && !s.sleep(ctx) {
		return
	}
	for {
		s.mu.Lock()
		s.changed = false
		s.mu.Unlock()
		o, err := f.attempt(ctx, s, due)
		if err != nil {
			return
		}
		if o.Result == Failed {
			_ = f.saveFormer(s) // where that has failed before; Status says whether it is saved
		}
		s.mu.Lock()
		if s.next = time.Now(); !s.changed { // or the attempt may have read what was there before
			wait := f.wait(s.failures, o.retryAfter)
			if s.failures == 0 && o.valid > 0 {
				wait = min(wait, o.valid)
			}
			s.next = s.next.Add(wait)
		}
		s.mu.Unlock()
		f.handling.Lock()
		handle(o)
		f.handling.Unlock()
		if !s.sleep(ctx) {
			return
		}
	}
}

// postpone sets the time of the next attempt where one has just failed, before Run.
func (s *source) postpone(f *Feed) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failures == 0 || time.Since(s.last.Ended) > firstRetry {
		return false
	}
	s.next = time.Now().Add(f.wait(s.failures, s.last.retryAfter))
	return true
}

// sleep returns at the time of the next attempt, or false if ctx ends before.
func (s *source) sleep(ctx context.Context) bool {
	for {
		s.mu.Lock()
		wait := time.Until(s.next)
		s.mu.Unlock()
		if wait <= 0 {
			return true
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-timer.C:
		case <-s.sooner:
			timer.Stop()
		}
	}
}

// hasten moves the next attempt of Run forward, to after a delay.
func (s *source) hasten(delay time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if next := time.Now().Add(delay); next.Before(s.next) {
		s.next = next
		select {
		case s.sooner <- struct{}{}:
		default:
		}
	}
}

// noteChange has Run read the source now, or once more after an attempt that goes on.
func (s *source) noteChange() {
	s.mu.Lock()
	s.changed = true
	s.mu.Unlock()
	s.hasten(0)
}

// wait returns the delay after a number of consecutive failures, given the
// server's Retry-After.
func (f *Feed) wait(failures int, retryAfter time.Duration) time.Duration {
	interval := time.Duration(f.Interval)
	if failures == 0 {
		return interval + time.Duration(f.random()*float64(f.Jitter))
	}
	wait := firstRetry
	for i := 1; i < failures && wait < interval; i++ {
		wait *= 2
	}
	wait = min(wait, interval)
	// Sources that failed together must not retry together.
	wait = wait/2 + time.Duration(f.random()*float64(wait/2))
	return max(wait, retryAfter)
}

// Status is the state of a feed.
type Status struct {
	Name     string
	Entries  int
	Interval time.Duration // of attempts; 0: the source sends its changes
	Sources  []SourceStatus
}

// SourceStatus is the state of a source.
type SourceStatus struct {
	Source   string
	Entries  int               // active entries
	Reports  []listfile.Report // of the files that they come from
	Read     time.Time         // when they were last confirmed; zero: never
	Former   bool              // they are from before the list's settings changed: the source was not read since
	Unsaved  bool              // they would be lost on a restart
	Last     Outcome           // of the last attempt, or of loading the saved contents
	Failures int               // attempts failed since the last success
	Next     time.Time         // next attempt of Run; zero: none planned
	Servers  []netip.Addr      // last connected to, or tried; without those that it redirects to
	Version  string            // of a fleet's list

	// RolledBack is when an operator has returned to these entries: what the source had
	// then is refused. Zero: they are the source's.
	RolledBack time.Time
}

// BadLines describes the lines that were left out, and returns their number.
func (s SourceStatus) BadLines() (all []string, n int) { return badLines(s.Reports) }

func badLines(reports []listfile.Report) (all []string, n int) {
	for _, r := range reports {
		n += r.Bad
		for _, e := range r.Errors {
			all = append(all, e.Error())
		}
		if more := r.Bad - len(r.Errors); more > 0 {
			all = append(all, fmt.Sprintf("%s: %d more bad lines", r.File, more))
		}
	}
	return all, n
}

// LeftOut describes what is no entry by the grammar of the format.
func (s SourceStatus) LeftOut() []string {
	var all []string
	for _, r := range s.Reports {
		all = append(all, r.Skipped()...)
	}
	return all
}

// WideLines describes the lines that cover so much that they are probably a mistake.
func (s SourceStatus) WideLines() (all []string) {
	for family := range 2 {
		for _, w := range widest(s.Reports, family) {
			if w.Suspect() {
				all = append(all, w.String())
			}
		}
	}
	return all
}

// widest returns the lines of all files that cover most of IPv4, 0, or of IPv6, 1.
func widest(reports []listfile.Report, family int) (all []listfile.WideLine) {
	for _, r := range reports {
		all = append(all, r.Widest[family]...)
	}
	slices.SortStableFunc(all, func(a, b listfile.WideLine) int { return cmp.Compare(b.Share, a.Share) })
	return all[:min(len(all), 3)]
}

// Status returns the state of the feed.
func (f *Feed) Status() Status {
	st := Status{Name: f.Name, Interval: time.Duration(f.Interval)}
	for _, s := range f.sources {
		s.mu.Lock()
		one := SourceStatus{Source: s.name, Last: s.last, Failures: s.failures, Next: s.next, Servers: s.servers}
		if c := s.current; c != nil {
			one.Entries, one.Reports, one.Read, one.Unsaved = c.entries.Len(), c.reports, c.Read, !c.saved && s.undecided == nil
			one.RolledBack = c.RolledBack
		} else if s.former != nil {
			one.Entries, one.Former = s.former.entries.Len(), true
			one.Unsaved = s.former != s.savedFormer && s.saved != "" && !f.ReadOnly
		}
		s.mu.Unlock()
		st.Entries += one.Entries
		st.Sources = append(st.Sources, one)
	}
	return st
}
