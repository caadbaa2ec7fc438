// Package takeover opens the journal of manual entries, which one daemon has at a time, and stops the one
// that has it open.
package takeover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/attach/inventory"
	"weir/control/config"
	"weir/control/journal"
)

// stopPatience is how long another daemon may take to stop: it may be building the
// next generation.
const stopPatience = 30 * time.Second

// lookInterval is how often another daemon is looked for until the journal is free: one that is
// starting may be found by neither its socket nor its pins yet.
const lookInterval = time.Second / 2

// Open opens the journal of manual entries. To take over from another daemon
// that has it open, that is stopped first: two cannot record changes, nor listen
// on one socket. Its program stays attached meanwhile, unless its configuration says keep: false.
func Open(ctx context.Context, c *config.Config, file string, takeover bool, log *slog.Logger) (*journal.Journal, error) {
	j, err := journal.Open(file, log)
	if !errors.Is(err, journal.ErrLocked) {
		return j, err
	}
	if !takeover {
		who := "another daemon runs"
		if pid := processOf(ctx, c); pid != 0 {
			who += fmt.Sprintf(", process %d", pid)
		}
		return nil, fmt.Errorf("%s: stop it first, or take over with --takeover: %w", who, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	o := others{config: c, file: file, log: log}
	var look time.Time // when to look for others again
	for errors.Is(err, journal.ErrLocked) {
		if now := time.Now(); now.After(look) {
			look = now.Add(lookInterval)
			if err := o.stop(ctx); err != nil {
				return nil, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, o.late(ctx, err)
		case <-time.After(10 * time.Millisecond):
		}
		j, err = journal.Open(file, log)
	}
	return j, err
}

// processOf returns the process of the daemon that runs, 0 if it is unknown.
func processOf(ctx context.Context, c *config.Config) int {
	if pid := answering(ctx, c); pid != 0 {
		return pid
	}
	all, _ := inventory.ReadStatus(c.Pins) // damaged pins are not what is looked for
	for _, a := range all {
		if a.Running {
			return a.PID
		}
	}
	return 0
}

// answering returns the process of the daemon that answers at the socket, 0 if none does. It may be
// starting, or waiting for its interfaces: then no pins are its own.
func answering(ctx context.Context, c *config.Config) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	s, err := client.Dial(string(c.API.Socket)).Status(ctx)
	if starting, ok := errors.AsType[*api.StartingError](err); ok {
		return starting.Starting.PID
	}
	if err != nil {
		return 0
	}
	return s.PID
}

// others are the daemons to take over from.
type others struct {
	config *config.Config
	file   string // the journal
	asked  []int  // to stop
	blind  string // why some are not found, as logged
	log    *slog.Logger
}

// stop stops the processes that have the journal open and filter where this one is to, or nowhere
// yet. It may be called again for those that were not found before.
func (o *others) stop(ctx context.Context) error {
	all, err := inventory.ReadStatus(o.config.Pins)
	if err != nil && len(o.asked) == 0 && err.Error() != o.blind {
		o.blind = err.Error()
		o.log.Warn(o.blind) // about what is not found then
	}
	var found []int
	filters := make(map[int]bool)
	for _, a := range all {
		here := func(i config.Interface) bool {
			match, _ := path.Match(i.Name, a.Name)
			return i.Netns == a.Netns && match
		}
		filters[a.PID] = true
		if slices.ContainsFunc(o.config.Interfaces, here) {
			found = append(found, a.PID)
		}
	}
	if pid := answering(ctx, o.config); pid != 0 && !filters[pid] {
		found = append(found, pid)
	}
	for _, pid := range found {
		if pid == os.Getpid() || slices.Contains(o.asked, pid) {
			continue
		}
		switch stopped, err := stop(pid, o.file); {
		case err != nil:
			return fmt.Errorf("take over: stop process %d: %w", pid, err)
		case !stopped:
			continue
		}
		o.log.Info("taking over: stopping the daemon that runs; its program stays attached, unless its configuration says keep: false", "process", pid)
		o.asked = append(o.asked, pid)
	}
	return nil
}

// late returns why the journal is still locked: a daemon that was asked has not ended, and still has it
// open. It may be stopped by a signal, and ends when it is continued: nothing runs then.
func (o *others) late(ctx context.Context, err error) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return err
	}
	for _, pid := range slices.Backward(o.asked) {
		if !inventory.Alive(pid) || !journal.OpenIn(pid, o.file) {
			continue // another process has the journal
		}
		return fmt.Errorf("take over: process %d was asked to stop, and has not ended in time, perhaps since a signal has stopped it: `kill -KILL %d`, after which its program stays attached, and try again: %w", pid, pid, err)
	}
	return err
}

// stop asks a process to stop if it is a daemon that has the journal open. The
// number may have become another process's: one is checked and signalled by its
// descriptor, which stays that of one process.
func stop(pid int, file string) (asked bool, err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return false, nil // it has ended, or is no process
	case err != nil:
		return false, err
	}
	defer unix.Close(fd)
	if !inventory.Alive(pid) || !journal.OpenIn(pid, file) {
		return false, nil
	}
	err = unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	return err == nil, err
}
