// Package feed gets a list's entries from its sources, and keeps the last known
// good ones.
//
// A [Feed] has one or more sources: files, directories, URLs. Each is on its
// own: one that fails keeps what it held, whatever becomes of the others. What
// a source holds is in force only when it was read to its end, is what its
// checksum and signature say, has not too many bad lines, is not empty, and is
// not much less than before. Otherwise the old contents stay, the [Outcome]
// says why, and the source is tried again, at first after some seconds, then
// more and more rarely, but never more rarely than a good one.
//
// Contents are saved when they come into force, and loaded by [Open]: a restart
// filters at once, and with what filtered before it.
package feed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/list"
)

// firstRetry is after how long a source that has failed is tried again for the
// first time: long enough for a server to restart, short against an Interval.
const firstRetry = 15 * time.Second

// Config is a Spec with what its list adds.
type Config struct {
	Name string // also that of a directory: letters, digits, "_", "-" and inner dots
	Spec

	// MayBeEmpty says that no entries are no failure of a directory that never had
	// any: it is yet to be filled.
	MayBeEmpty bool

	// Refuse, unless it is nil, returns why a source's entries must not become
	// active, nil if they may. It may be called concurrently.
	Refuse func(*list.Set) error
}

// Feed gets a list's entries. Its methods may be called concurrently.
type Feed struct {
	Config
	format  *reader
	sources []*source
	random  func() float64 // 0…1, for jitter

	handling sync.Mutex // held while Run's caller is told of an outcome

	version atomic.Uint64
}

// source is a source and what is known of it.
type source struct {
	Source
	name   string
	saved  string // path of the saved file; "": contents are not saved
	client *http.Client

	attempting sync.Mutex // held during an attempt; guards what attempts alone use:
	decisions  decisions  // CrowdSec's
	synced     bool       // CrowdSec may send changes only

	mu       sync.Mutex // guards the rest
	held     *contents  // nil before the first success
	last     Outcome
	failures int // in a row
	next     time.Time
	servers  []netip.Addr // that the last attempt asked which had to connect
	asked    []netip.Addr // by the attempt under way
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// Open returns a feed with the contents that were saved below directory. It fails
// for a bad configuration only: saved contents that cannot be used are left
// where they are, and [Feed.Status] says so. Without a directory, contents are
// kept in memory only.
func Open(c Config, directory string) (*Feed, error) {
	f, err := open(c, directory)
	if err != nil {
		return nil, fmt.Errorf("feed %s: %w", c.Name, err)
	}
	for _, s := range f.sources {
		if directory != "" {
			s.last = f.load(s)
		}
	}
	return f, nil
}

func open(c Config, directory string) (*Feed, error) {
	f := &Feed{Config: c, random: rand.Float64}
	switch err := c.Validate(); {
	case err != nil:
		return nil, err
	case !namePattern.MatchString(c.Name):
		return nil, fmt.Errorf("name %q: want letters, digits, _, - and inner dots", c.Name)
	case len(c.Sources) == 0:
		return nil, errors.New("no sources")
	}
	var err error
	if f.format, err = newReader(c.Format); err != nil {
		return nil, err
	}
	f.Lenient = f.Lenient || c.Format.Kind == CrowdSec // its ranges need not be masked
	for _, src := range c.Sources {
		src.ConnectTimeout = cmp.Or(src.ConnectTimeout, DefaultConnectTimeout)
		src.StallTimeout = cmp.Or(src.StallTimeout, DefaultStallTimeout)
		s := &source{
			Source: src,
			name:   src.String(),
			client: newClient(src),
		}
		if directory != "" {
			s.saved = filepath.Join(directory, c.Name, src.id())
		}
		f.sources = append(f.sources, s)
	}
	return f, nil
}

// Contents returns the active contents of all sources together.
func (f *Feed) Contents() *list.Set {
	var all []*list.Set
	for _, s := range f.sources {
		s.mu.Lock()
		if s.held != nil {
			all = append(all, s.held.entries)
		}
		s.mu.Unlock()
	}
	return list.Union(all...)
}

// Version counts the changes of Contents. If it is the same before and after a
// call of Contents, the result is current.
func (f *Feed) Version() uint64 { return f.version.Load() }

// Fetch tries each source once, now, and gives an outcome for each. It fails
// only if ctx ends; the sources that were not tried by then have no outcome.
func (f *Feed) Fetch(ctx context.Context) ([]Outcome, error) {
	var outcomes []Outcome
	for _, s := range f.sources {
		o, err := f.attempt(ctx, s)
		if err != nil {
			return outcomes, err
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, nil
}

// Run tries each source at once and then at its intervals, until ctx ends. It
// calls handle after each attempt, once at a time.
func (f *Feed) Run(ctx context.Context, handle func(Outcome)) {
	var all sync.WaitGroup
	for _, s := range f.sources {
		all.Go(func() { f.run(ctx, s, handle) })
	}
	all.Wait()
}

func (f *Feed) run(ctx context.Context, s *source, handle func(Outcome)) {
	defer s.client.CloseIdleConnections()
	for {
		o, err := f.attempt(ctx, s)
		if err != nil {
			return
		}
		s.mu.Lock()
		wait := f.wait(s.failures, o.retryAfter)
		s.next = time.Now().Add(wait)
		s.mu.Unlock()

		f.handling.Lock()
		handle(o)
		f.handling.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// wait is how long to wait after a number of failures in a row, where the
// server may have asked for some time.
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
	// Those that failed together must not come back together.
	wait = wait/2 + time.Duration(f.random()*float64(wait/2))
	return max(wait, retryAfter)
}

// Status is what is known of a feed.
type Status struct {
	Name    string
	Entries int
	Sources []SourceStatus
}

// SourceStatus is what is known of a source.
type SourceStatus struct {
	Source   string
	Entries  int           // in force
	Reports  []list.Report // on the files of which they come
	Read     time.Time     // when the source was last known to hold them; zero: never
	Unsaved  bool          // a restart would not find them
	Last     Outcome       // of the last attempt, or of loading what was saved
	Failures int           // attempts that have failed since one succeeded
	Next     time.Time     // the next attempt of Run; zero: none is planned
	Servers  []netip.Addr  // to which it was connected last, or that was tried
}

// Status tells what is known of the feed.
func (f *Feed) Status() Status {
	st := Status{Name: f.Name}
	for _, s := range f.sources {
		s.mu.Lock()
		one := SourceStatus{Source: s.name, Last: s.last, Failures: s.failures, Next: s.next, Servers: s.servers}
		if c := s.held; c != nil {
			one.Entries, one.Reports, one.Read, one.Unsaved = c.entries.Len(), c.reports, c.Read, !c.saved
		}
		s.mu.Unlock()
		st.Entries += one.Entries
		st.Sources = append(st.Sources, one)
	}
	return st
}
