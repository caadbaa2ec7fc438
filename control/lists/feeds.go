package lists

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/feed"
)

// Watch watches files and directories. It returns nil where they cannot be.
func Watch(log *slog.Logger) *feed.Watcher {
	w, err := feed.NewWatcher(log)
	if err != nil {
		log.Warn("files cannot be watched, their changes are noticed at their intervals: " + err.Error())
		return nil
	}
	return w
}

// Open opens the feed of a list with what is saved of it below a state directory, and with what the
// former feed of the list had, nil for none. alike: the list still has its action and its direction.
func Open(ctx context.Context, c feed.Config, state string, former *feed.Feed, alike bool) (*feed.Feed, error) {
	directory := ""
	if state != "" {
		directory = filepath.Join(state, "feeds")
	}
	f, err := feed.Open(ctx, c, directory)
	if err == nil && former != nil {
		f.ForgetFormer()
		f.Inherit(former, alike)
	}
	return f, err
}

// Owner has the lists whose feeds a [Reader] reads.
type Owner interface {
	// Do calls fn in the goroutine of the lists, and returns its error.
	Do(ctx context.Context, fn func() error) error

	// Feeds returns the feed of a list, none if it has no sources, or with "" those of all lists. It
	// is for that goroutine.
	Feeds(list string) ([]*feed.Feed, error)

	// CanRollBack returns why a list must not return to what its source had before. It is for that
	// goroutine.
	CanRollBack(list string) error

	// Take takes in the outcome of an attempt to read a source, and if there may be news what the
	// feed has, unless the list has it. It fails where the list cannot have it.
	Take(ctx context.Context, f *feed.Feed, o feed.Outcome, news bool) error
}

// Reader reads the feeds of lists: at their intervals, and when somebody asks for it. It is safe for
// concurrent use, but for what says otherwise.
type Reader struct {
	owner   Owner
	records *audit.Log
	log     *slog.Logger
	all     sync.WaitGroup

	// Running has the feeds that are read at their intervals, with what ends that. It is for the
	// goroutine of the lists.
	Running map[*feed.Feed]context.CancelFunc
}

// NewReader returns a reader of the feeds of an owner's lists.
func NewReader(owner Owner, records *audit.Log, log *slog.Logger) *Reader {
	return &Reader{owner: owner, records: records, log: log, Running: make(map[*feed.Feed]context.CancelFunc)}
}

// Follow reads the feeds that there are now at their intervals, and no others, until ctx ends. It is
// for the goroutine of the lists.
func (r *Reader) Follow(ctx context.Context) {
	feeds, _ := r.owner.Feeds("") // fails for a name only
	wanted := make(map[*feed.Feed]bool)
	for _, f := range feeds {
		wanted[f] = true
	}
	for f, end := range r.Running {
		if !wanted[f] {
			end()
			delete(r.Running, f)
		}
	}
	for f := range wanted {
		if r.Running[f] != nil {
			continue
		}
		ctx, end := context.WithCancel(ctx)
		r.Running[f] = end
		r.Go(func() { f.Run(ctx, func(o feed.Outcome) { _ = r.Fetched(ctx, f, o) }) }) // it is in the log
	}
}

// Go calls fn in a goroutine that Wait waits for.
func (r *Reader) Go(fn func()) { r.all.Go(fn) }

// waitGrace is how long feeds have to end, as long as receivers of notifications have. A read that is
// under way ends at once, and what was read is on a disk soon. A file system that hangs cannot be
// interrupted, and what is saved stays whole without waiting for it.
const waitGrace = 2 * time.Second

// Wait waits until no feed is read at its intervals, and no contents are saved, after the end of
// Follow's context. It does not wait for what hangs.
func (r *Reader) Wait() {
	ended := make(chan struct{})
	go func() {
		r.all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(waitGrace):
		r.log.Warn("a source hangs while it is read or saved, nothing waits for it any more", "waited", waitGrace.String())
	}
}

// manyEntries is from when on a source takes memory that is worth giving back.
const manyEntries = 1 << 19

// Fetched takes in the outcome of an attempt to read a source. It fails where the list does not
// have what was read.
func (r *Reader) Fetched(ctx context.Context, f *feed.Feed, o feed.Outcome) error {
	return r.fetched(ctx, f, o, o.Changed || o.Returned || f.Undecided())
}

func (r *Reader) fetched(ctx context.Context, f *feed.Feed, o feed.Outcome, news bool) error {
	log := r.log.With("list", f.Name, "source", o.Source, "entries", o.Entries, "took", o.Ended.Sub(o.Began).Round(time.Millisecond).String())
	switch {
	case o.Result == feed.Failed && o.Entries == 0:
		log.Error("feed failed, and it has no entries of before", "failure", o.Failure.String(), "error", o.Err)
	case o.Result == feed.Failed:
		log.Error("feed failed, the old contents stay", "failure", o.Failure.String(), "error", o.Err)
	case o.Unsaved != nil:
		log.Error(unsaved, "error", o.Unsaved)
	case o.Changed:
		log.Info("feed read", "result", o.Result.String())
	default:
		log.Debug("feed read", "result", o.Result.String())
	}
	if o.Result == feed.New {
		for _, s := range f.Status().Sources {
			if s.Source == o.Source {
				s.LogBadLines(r.log, f.Name)
			}
		}
	}
	if o.Entries >= manyEntries {
		// What reading took is given back now, not at some later collection.
		defer debug.FreeOSMemory()
	}
	err := r.owner.Take(ctx, f, o, news)
	if err != nil && ctx.Err() == nil {
		log.Error("feed read, but it is not active, the old contents stay: " + err.Error())
	}
	return err
}

// asked is fetched for somebody who waits for the outcome, and learns whether the list has what was
// read, also if another reader was first. What was read is taken in although they leave.
func (r *Reader) asked(ctx context.Context, f *feed.Feed, o feed.Outcome) api.FetchOutcome {
	inactive := r.fetched(context.WithoutCancel(ctx), f, o, o.Err == nil || o.Changed || f.Undecided())
	var last feed.Outcome
	for _, s := range f.Status().Sources {
		if s.Source == o.Source {
			last = s.Last
		}
	}
	if o.Err == nil && inactive == nil {
		inactive = last.Err // another reader was first, and its contents are not active
	}
	out := o.API(f.Name, inactive)
	if o.Err == nil && inactive != nil && last.Failure != feed.NoFailure {
		out.Failure, out.Entries = last.Failure.String(), last.Entries
	}
	return out
}

// feeds is [Owner.Feeds] in the goroutine of the lists, where may does not fail.
func (r *Reader) feeds(ctx context.Context, list string, may func(list string) error) (all []*feed.Feed, err error) {
	err = r.owner.Do(ctx, func() error {
		if all, err = r.owner.Feeds(list); err != nil || len(all) == 0 || may == nil {
			return err
		}
		return may(list)
	})
	return all, err
}

// versioned is feeds for the versions of a list.
func (r *Reader) versioned(ctx context.Context, list string, may func(list string) error) (*feed.Feed, error) {
	feeds, err := r.feeds(ctx, list, may)
	if err == nil && len(feeds) == 0 {
		err = &api.BadRequest{Err: fmt.Errorf("list %s has no sources here, so that no versions of it are known", list)}
	}
	if err != nil {
		return nil, err
	}
	return feeds[0], nil
}

// Refresh implements [weir/control/api/server.Refresher].
func (r *Reader) Refresh(ctx context.Context, list string, accept bool) (outcomes []api.FetchOutcome, err error) {
	feeds, err := r.feeds(ctx, list, nil)
	if err != nil && accept {
		r.record(audit.Accepted(ctx, list, nil), nil, err)
	}
	for _, f := range feeds {
		fetch, before := f.Fetch, len(outcomes)
		if accept {
			fetch = f.Accept
		}
		all, err := fetch(ctx)
		for _, o := range all {
			outcomes = append(outcomes, r.asked(ctx, f, o))
		}
		if of := outcomes[before:]; accept {
			r.record(audit.Accepted(ctx, f.Name, of), of, err)
		}
		if err != nil {
			return outcomes, err
		}
	}
	return outcomes, err
}

// Versions implements [weir/control/api/server.Versioner].
func (r *Reader) Versions(ctx context.Context, list string, diff ...string) (api.ListVersions, error) {
	f, err := r.versioned(ctx, list, nil)
	if err != nil {
		return api.ListVersions{}, err
	}
	sources, err := f.Versions(diff...)
	if errors.Is(err, feed.ErrUnknownVersion) {
		err = &api.BadRequest{Err: fmt.Errorf("list %s: %w", list, err)}
	}
	return api.ListVersions{List: list, Sources: sources}, err
}

// Rollback implements [weir/control/api/server.Versioner].
func (r *Reader) Rollback(ctx context.Context, list string) (out api.FetchOutcome, err error) {
	out.List = list
	f, err := r.versioned(ctx, list, r.owner.CanRollBack)
	var outcomes []api.FetchOutcome
	if err == nil {
		var o feed.Outcome
		if o, err = f.Rollback(ctx); errors.Is(err, feed.ErrNoVersion) {
			err = &api.BadRequest{Err: fmt.Errorf("list %s: %w", list, err)}
		} else if err == nil {
			out = r.asked(ctx, f, o)
			outcomes = append(outcomes, out)
		}
	}
	r.record(audit.RolledBack(ctx, out), outcomes, err)
	return out, err
}

// record records that sources were accepted or rolled back, or why one of them was not. Where a
// source was read, its contents may be saved and become active later, whatever the error.
func (r *Reader) record(of audit.Record, outcomes []api.FetchOutcome, err error) {
	for _, o := range outcomes {
		if err == nil && o.Error != "" {
			err = errors.New(o.Source + ": " + o.Error)
		}
	}
	if len(outcomes) == 0 || err == nil {
		r.records.Attempt(of, err)
		return
	}
	of.Error = err.Error()
	r.records.Record(of)
}

// Decision says whether a list has the contents of a source up to a version.
type Decision struct {
	List string
	From interface {
		Keep(version uint64) error
		Revert(version uint64, reason error)
	}
	Version uint64
	Err     error // why the list cannot have it, nil if it has
}

const unsaved = "feed read, but it could not be saved: a restart would find the old contents"

// Settle has the source save what its list has, and forget what it cannot have. It waits for the
// disk, for which the goroutine of the lists has no time.
func (d *Decision) Settle(log *slog.Logger) {
	switch {
	case d == nil:
	case d.Err != nil:
		d.From.Revert(d.Version, d.Err)
	default:
		if err := d.From.Keep(d.Version); err != nil {
			log.Error("what the list has could not be saved: a restart would not find it", "list", d.List, "error", err)
		}
	}
}

// maxSettling bounds the decisions that are settled at the same time.
const maxSettling = 32

// SettleAll settles decisions, many at a time: each waits for the disk.
func SettleAll(all []*Decision, log *slog.Logger) {
	var settling errgroup.Group
	settling.SetLimit(maxSettling)
	for _, d := range all {
		settling.Go(func() error {
			d.Settle(log)
			return nil
		})
	}
	_ = settling.Wait() // the log has the errors
}
