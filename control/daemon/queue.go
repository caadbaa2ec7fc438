package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/durable"
	"weir/control/feed"
	"weir/control/fleet/member"
	"weir/control/lists"
	"weir/control/notices"
	"weir/control/queue"
)

// waiting is the queue of changes that were given while no daemon could make them. It is
// safe for concurrent use.
type waiting struct {
	queue    queue.Queue
	audit    *audit.Log
	notifier *notices.Notices
	log      *slog.Logger
	carryOut func(context.Context, api.Change) (api.Changed, error) // makes a change, or refuses it

	mu       sync.Mutex // held while changes are made
	failing  failing
	patience time.Duration // queuedPatience, but in tests
	problem  problem

	done sync.Map // names of changes that were made, but whose files could not be removed
}

// failing is the change at the head of the queue that the engine could not take, as where memory
// was short.
type failing struct {
	name         string
	since, retry time.Time
}

// A change that the engine cannot take is tried again at this interval, for some time: those behind
// it wait as long.
const (
	retryQueued    = 10 * time.Second
	queuedPatience = time.Minute
)

// open opens the queue of a configuration, and leaves beside the API's socket where it
// is, for commands that find no daemon.
func (w *waiting) open(c *config.Config) error {
	at := ""
	if c.StateDir != "" {
		var err error
		if at, err = filepath.Abs(string(c.StateDir)); err == nil {
			at, err = filepath.EvalSymlinks(at)
		}
		if err != nil {
			return err
		}
		w.queue = queue.In(at)
	}
	return leavePlace(string(c.API.Socket), at)
}

// leavePlace writes the path of the state directory, "" for none, to a file beside a socket.
func leavePlace(socket, state string) error {
	if socket == "" {
		return nil
	}
	place := queue.PlaceOf(socket)
	if state == "" {
		if err := os.Remove(place); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	dir := filepath.Dir(place)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := errors.Join(durable.MkdirAll(dir), os.Chmod(dir, 0o755)); err != nil { // as for the socket
			return err
		}
	}
	if err := durable.WriteFile(place, []byte(state+"\n")); err != nil {
		return err
	}
	return os.Chmod(place, 0o644)
}

// starter answers while the daemon starts.
type starter struct {
	queued   *waiting
	progress *feed.Progress
	fleet    *member.Member
	version  string
	since    time.Time
}

// Starting implements [server.Starter].
func (s *starter) Starting() api.Starting {
	doing := "building and loading the filter"
	switch source, read, total := s.progress.Get(); {
	case s.fleet.Awaited() != "":
		doing = s.fleet.Awaited()
	case source == "":
		doing = "reading what is saved"
	case total > 0 && read < total:
		doing = fmt.Sprintf("reading %s, %s of %s", source, humanize.Bytes(uint64(read)), humanize.Bytes(uint64(total)))
	}
	return api.Starting{PID: os.Getpid(), Version: s.version, Since: s.since, Doing: doing}
}

// Queue implements [server.Starter].
func (s *starter) Queue(ctx context.Context, c api.Change) (api.Changed, error) {
	done, err := s.queued.Queue(ctx, c)
	if bad := new(api.BadRequest); err != nil && !errors.As(err, &bad) {
		err = errors.Join(&api.StartingError{Starting: s.Starting()}, err)
	}
	return done, err
}

// Queue stores a change that this daemon cannot make now: it, or the next one, will.
func (w *waiting) Queue(ctx context.Context, c api.Change) (api.Changed, error) {
	if _, err := lists.Parse(c); err != nil { // the caller learns of it at once
		return api.Changed{}, err
	}
	by, _ := api.CallerOf(ctx)
	by.UID, by.Client = c.UID, c.Client
	err := w.queue.Add(queue.Command{Time: time.Now(), By: by, Change: c})
	if err != nil {
		return api.Changed{}, fmt.Errorf("the change cannot wait for the daemon: %w", err)
	}
	return api.Changed{List: nameIn(c), Queued: true}, nil
}

// follow makes the changes that wait, until ctx is done. It looks each second: a command
// may find no daemon just before this one answers.
func (w *waiting) follow(ctx context.Context, seconds <-chan struct{}) {
	for {
		w.take(ctx)
		select {
		case <-ctx.Done():
			return
		case <-seconds: // not by a clock of its own, which would wake an idle daemon once more
		}
	}
}

// some reports whether changes wait.
func (w *waiting) some() bool {
	names, _ := w.queue.Waiting() // take logs what is wrong
	return slices.ContainsFunc(names, func(name string) bool { return !w.made(name) })
}

// made reports whether a change that waits was made by this daemon.
func (w *waiting) made(name string) bool {
	_, is := w.done.Load(name)
	return is
}

// take makes the changes that wait, in their order, before any that comes later. It reports
// whether some must wait longer.
func (w *waiting) take(ctx context.Context) (wait bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait, err := w.takeEach(ctx)
	text := ""
	if err != nil && !errors.Is(err, errStopped) && ctx.Err() == nil {
		text = "changes that were given while no daemon answered wait: " + err.Error()
	}
	w.problem.log(text, w.log.Error)
	return wait
}

// takeEach makes the changes that wait until one must wait longer, which it reports. The caller
// has locked the queue.
func (w *waiting) takeEach(ctx context.Context) (wait bool, err error) {
	names, err := w.queue.Waiting()
	if err != nil || len(names) == 0 {
		return false, err
	}
	if w.failing.name == names[0] && time.Now().Before(w.failing.retry) {
		return true, nil
	}
	w.log.Info("making the changes that were given while no daemon answered", "changes", len(names))
	for _, name := range names {
		if !w.made(name) {
			if err := w.takeOne(ctx, name); err != nil {
				return true, err
			}
		}
		if bad := w.queue.Done(name); bad != nil && !errors.Is(bad, fs.ErrNotExist) {
			w.done.Store(name, true) // by this daemon; the next one makes it again
			err = errors.Join(err, fmt.Errorf("%s was made, but cannot be removed: %w", name, bad))
			continue
		}
		w.done.Delete(name)
	}
	return false, err
}

// takeOne makes a change that waits, or refuses it. It returns an error if it must wait
// longer.
func (w *waiting) takeOne(ctx context.Context, name string) error {
	c, err := w.queue.Read(name)
	if bad := new(queue.Bad); errors.As(err, &bad) {
		w.log.Error("a change that was given while no daemon answered cannot be read: " + err.Error())
		w.audit.Record(audit.Record{Change: audit.Unreadable, Source: "queue", Error: err.Error()})
		return w.queue.SetAside(name)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // somebody has taken it back
	}
	if err != nil {
		return err
	}
	if c.Note != nil {
		w.recordNote(c)
		return nil
	}
	ctx = api.As(ctx, c.By)
	if _, err = w.carryOut(ctx, c.Change); err != nil {
		if waits(err) {
			if !w.givesUp(name, err) {
				return err
			}
			w.notifier.RefusedChange(c.Change, nameIn(c.Change), err)
			w.audit.RefusedChange(ctx, nameIn(c.Change), c.Change, err)
		}
		w.log.Error("a change that was given while no daemon answered is refused: "+err.Error(), "given", c.Time)
	}
	return nil
}

// recordNote records what was done without the daemon.
func (w *waiting) recordNote(c queue.Command) {
	r := *c.Note
	r.Time, r.Given = time.Now(), &c.Time
	w.audit.Record(r)
}

// takeNotes records what was done without the daemon, which may be why it ends.
func (w *waiting) takeNotes() {
	q := w.queue
	names, err := q.Waiting()
	for _, name := range names {
		c, bad := q.Read(name)
		if bad != nil || c.Note == nil {
			continue // the next daemon sees to it
		}
		w.recordNote(c)
		err = errors.Join(err, q.Done(name))
	}
	if err != nil {
		w.log.Error("what was done without the daemon: " + err.Error())
	}
}

// waits reports whether a change that failed may be made later as it is.
func waits(err error) bool {
	return !errors.As(err, new(*api.BadRequest)) && !errors.Is(err, api.ErrNoList)
}

// givesUp reports whether a change has failed for too long to be tried again. What was not
// recorded, or not tried, is.
func (w *waiting) givesUp(name string, err error) bool {
	if errors.As(err, new(unrecorded)) || errors.Is(err, errStopped) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	now := time.Now()
	if w.failing.name != name {
		w.failing = failing{name: name, since: now}
	}
	w.failing.retry = now.Add(min(retryQueued, w.patience))
	return now.Sub(w.failing.since) >= w.patience
}
