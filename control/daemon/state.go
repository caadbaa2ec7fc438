package daemon

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"weir/control/clock"
)

// stateInterval is how often the files of the state directory, and the pins, are looked for:
// what is lost is back, or said, within ten seconds.
const stateInterval = 5 * time.Second

// every calls fn at each interval, until ctx is done.
func every(ctx context.Context, interval time.Duration, fn func(now time.Time)) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			fn(now)
		}
	}
}

// problem is the text of an error as it was last logged, "" for none.
type problem string

// log logs a text by a method of a logger, unless it is "" or that of the last call.
func (p *problem) log(text string, by func(string, ...any)) {
	if text != "" && text != string(*p) {
		by(text)
	}
	*p = problem(text)
}

// upkeep looks for what outlives the daemon: the files of its state, and the pins. It is safe for
// concurrent use.
type upkeep struct {
	pins    pinned
	unsaved atomic.Pointer[string] // nil: the state is on disk, as far as it is known
	clock   *clock.Clock
	log     *slog.Logger
}

// follow restores files of the state directory that are removed while the daemon runs,
// until ctx is done. check looks for them, and writes those anew that are missing, from memory.
// Saved contents of feeds come back with their next version.
func (u *upkeep) follow(ctx context.Context, check func() error) {
	every(ctx, stateInterval, func(time.Time) {
		if err := check(); !errors.Is(err, errStopped) && ctx.Err() == nil {
			u.noted(err)
		}
	})
}

// noted logs why a restart would forget changes, where that has changed.
func (u *upkeep) noted(err error) {
	last := u.unsaved.Load()
	if err == nil {
		if last != nil {
			u.log.Info("the state is on disk again")
		}
		u.unsaved.Store(nil)
		return
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if last == nil || *last != text {
		u.log.Error("a restart would forget what was changed: " + text)
	}
	u.unsaved.Store(&text)
}

// checkState looks for the files of the state directory.
func (d *Daemon) checkState(ctx context.Context) error {
	return errors.Join(d.journal.Check(), d.loop.doAlone(ctx, func() error {
		return errors.Join(d.monitor.check(), d.policing.check(), d.trials.check(), d.reloads.confirmation.check(d.active.prepared.Config, d.o.Log))
	}))
}

// missing reports whether a file does not exist.
func missing(path string) bool {
	if path == "" {
		return false
	}
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
