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

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/durable"
	"weir/control/lists"
	"weir/control/queue"
)

// changeMaker makes changes of manual entries. It is safe for concurrent use.
type changeMaker interface {
	// CarryOut makes a change, or refuses it.
	CarryOut(ctx context.Context, c api.Change) (api.Changed, error)

	// Untried reports whether a change failed before the engine was asked for it: it is tried again,
	// however long that takes.
	Untried(err error) bool

	// Ended reports whether an error says that the daemon has ended.
	Ended(err error) bool
}

// refusalNotifier notifies of changes that are refused.
type refusalNotifier interface {
	RefusedChange(c api.Change, list string, err error)
}

// queuedChanges is the queue of changes that were given while no daemon could make them. It is
// safe for concurrent use.
type queuedChanges struct {
	queue    queue.Queue
	changes  changeMaker
	audit    *audit.Log
	notifier refusalNotifier
	log      *slog.Logger

	mu       sync.Mutex // held while changes are made
	failing  failing
	patience time.Duration // queuedPatience, but in tests
	problem  string        // as it was last logged

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

// newQueuedChanges returns the queue of changes that changes makes, before it is open.
func newQueuedChanges(changes changeMaker, records *audit.Log, notifier refusalNotifier, log *slog.Logger) *queuedChanges {
	return &queuedChanges{changes: changes, audit: records, notifier: notifier, log: log, patience: queuedPatience}
}

// SetPatience sets for how long a change that the engine cannot take is tried again, from now on and at
// once, for tests.
func (w *queuedChanges) SetPatience(of time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.patience, w.failing.retry = of, time.Time{}
}

// StateDir returns where the queue is, "" where changes cannot wait.
func (w *queuedChanges) StateDir() string { return w.queue.StateDir() }

// Open opens the queue of a configuration. Beside the API's socket, it leaves where the queue and the
// configuration's file are, "" for no file, for commands that find no daemon.
func (w *queuedChanges) Open(c *config.Config, file string) error {
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
	return leavePlace(string(c.API.Socket), queue.Place{StateDir: at, Pins: string(c.Pins), Config: file})
}

// leavePlace writes a place to a file beside a socket, unless it has no state directory.
func leavePlace(socket string, left queue.Place) error {
	if socket == "" {
		return nil
	}
	place := queue.PlaceOf(socket)
	if left.StateDir == "" {
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
	if err := durable.WriteFile(place, left.Text()); err != nil {
		return err
	}
	return os.Chmod(place, 0o644)
}

// Queue stores a change that this daemon cannot make now: it, or the next one, will.
func (w *queuedChanges) Queue(ctx context.Context, c api.Change) (api.Changed, error) {
	if _, err := lists.Parse(c); err != nil { // the caller learns of it at once
		return api.Changed{}, err
	}
	by, _ := api.CallerOf(ctx)
	by.UID, by.Client = c.UID, c.Client
	err := w.queue.Add(queue.Command{Time: time.Now(), By: by, Change: c})
	if err != nil {
		return api.Changed{}, fmt.Errorf("the change cannot wait for the daemon: %w", err)
	}
	return api.Changed{List: config.DefaultLists.Of(c.List, c.Action), Queued: true}, nil
}

// Follow makes the changes that wait, until ctx is done. It looks each second: a command
// may find no daemon just before this one answers.
func (w *queuedChanges) Follow(ctx context.Context, seconds <-chan struct{}) {
	for {
		w.Take(ctx)
		select {
		case <-ctx.Done():
			return
		case <-seconds: // not by a clock of its own, which would wake an idle daemon once more
		}
	}
}

// Some reports whether changes wait.
func (w *queuedChanges) Some() bool {
	names, _ := w.queue.Waiting() // take logs what is wrong
	return slices.ContainsFunc(names, func(name string) bool { return !w.made(name) })
}

// made reports whether a change that waits was made by this daemon.
func (w *queuedChanges) made(name string) bool {
	_, is := w.done.Load(name)
	return is
}

// Take makes the changes that wait, in their order, before any that comes later. It reports
// whether some must wait longer.
func (w *queuedChanges) Take(ctx context.Context) (wait bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait, err := w.takeEach(ctx)
	text := ""
	if err != nil && !w.changes.Ended(err) && ctx.Err() == nil {
		text = "changes that were given while no daemon answered wait: " + err.Error()
	}
	if text != "" && text != w.problem {
		w.log.Error(text)
	}
	w.problem = text
	return wait
}

// takeEach makes the changes that wait until one must wait longer, which it reports. The caller
// has locked the queue.
func (w *queuedChanges) takeEach(ctx context.Context) (wait bool, err error) {
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
func (w *queuedChanges) takeOne(ctx context.Context, name string) error {
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
	if _, err = w.changes.CarryOut(ctx, c.Change); err != nil {
		if waitsForEngine(err) {
			if !w.givesUp(name, err) {
				return err
			}
			w.notifier.RefusedChange(c.Change, config.DefaultLists.Of(c.Change.List, c.Change.Action), err)
			w.audit.RefusedChange(ctx, config.DefaultLists.Of(c.Change.List, c.Change.Action), c.Change, err)
		}
		w.log.Error("a change that was given while no daemon answered is refused: "+err.Error(), "given", c.Time)
	}
	return nil
}

// recordNote records what was done without the daemon.
func (w *queuedChanges) recordNote(c queue.Command) {
	r := *c.Note
	r.Time, r.Given = time.Now(), &c.Time
	w.audit.Record(r)
}

// TakeNotes records what was done without the daemon, which may be why it ends.
func (w *queuedChanges) TakeNotes() {
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

// waitsForEngine reports whether a change that failed may be made later as it is.
func waitsForEngine(err error) bool {
	return !errors.As(err, new(*api.BadRequest)) && !errors.Is(err, api.ErrNoList)
}

// givesUp reports whether a change has failed for too long to be tried again. What was not
// recorded, or not tried, is.
func (w *queuedChanges) givesUp(name string, err error) bool {
	if w.changes.Untried(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	now := time.Now()
	if w.failing.name != name {
		w.failing = failing{name: name, since: now}
	}
	w.failing.retry = now.Add(min(retryQueued, w.patience))
	return now.Sub(w.failing.since) >= w.patience
}
