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

	"weir/control/api/client"
	"weir/control/attach/inventory"
	"weir/control/config"
	"weir/control/journal"
)

// stopPatience is how long another daemon may take to stop: it may be building the
// next generation.
const stopPatience = 30 * time.Second

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
	if err := stopOthers(c, file, log); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	for errors.Is(err, journal.ErrLocked) {
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
		j, err = journal.Open(file, log)
	}
	return j, err
}

// processOf returns the process of the daemon that runs, 0 if it is unknown: one
// that waits for its interfaces has no pins, and one that starts has no socket.
func processOf(ctx context.Context, c *config.Config) int {
	if s, err := client.Dial(string(c.API.Socket)).Status(ctx); err == nil {
		return s.PID
	}
	all, _ := inventory.ReadStatus(c.Pins) // damaged pins are not what is looked for
	for _, a := range all {
		if a.Running {
			return a.PID
		}
	}
	return 0
}

// stopOthers stops the processes that filter where this one is to, and have the
// journal open.
func stopOthers(c *config.Config, file string, log *slog.Logger) error {
	all, err := inventory.ReadStatus(c.Pins)
	if err != nil {
		log.Warn(err.Error()) // about what is not found then
	}
	var asked []int
	for _, a := range all {
		here := func(i config.Interface) bool {
			match, _ := path.Match(i.Name, a.Name)
			return i.Netns == a.Netns && match
		}
		if a.PID == os.Getpid() || slices.Contains(asked, a.PID) || !slices.ContainsFunc(c.Interfaces, here) {
			continue
		}
		switch stopped, err := stop(a.PID, file); {
		case err != nil:
			return fmt.Errorf("take over: stop process %d: %w", a.PID, err)
		case !stopped:
			continue
		}
		log.Info("taking over: stopping the daemon that runs; its program stays attached, unless its configuration says keep: false", "process", a.PID)
		asked = append(asked, a.PID)
	}
	return nil
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
