package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"syscall"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/journal"
)

// stopPatience is how long another daemon may take to stop: it may be building the
// next generation.
const stopPatience = 30 * time.Second

// openJournal opens the journal of manual entries. To take over from another daemon
// that has it open, that is stopped first: two cannot record changes, nor listen
// on one socket. Its program stays attached meanwhile.
func (d *Daemon) openJournal(ctx context.Context, c *config.Config) (*journal.Journal, error) {
	file := journalPath(c)
	j, err := journal.Open(file, d.o.Log)
	if !errors.Is(err, journal.ErrLocked) {
		return j, err
	}
	if !d.o.Takeover {
		who := "another daemon runs"
		if pid := processOf(ctx, c); pid != 0 {
			who += fmt.Sprintf(", process %d", pid)
		}
		return nil, fmt.Errorf("%s: stop it first, or take over with --takeover: %w", who, err)
	}
	if err := d.stopOthers(c); err != nil {
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
		j, err = journal.Open(file, d.o.Log)
	}
	return j, err
}

// processOf returns the process of the daemon that runs, 0 if it is unknown: one
// that waits for its interfaces has no pins, and one that starts has no socket.
func processOf(ctx context.Context, c *config.Config) int {
	if s, err := api.Dial(string(c.API.Socket)).Status(ctx); err == nil {
		return s.PID
	}
	all, _ := attach.ReadStatus(c.Pins) // damaged pins are not what is looked for
	for _, a := range all {
		if a.Running {
			return a.PID
		}
	}
	return 0
}

// stopOthers stops the processes that filter where this one is to.
func (d *Daemon) stopOthers(c *config.Config) error {
	all, err := attach.ReadStatus(c.Pins)
	if err != nil {
		d.o.Log.Warn(err.Error()) // about what is not found then
	}
	var asked []int
	for _, a := range all {
		here := func(i config.Interface) bool {
			match, _ := path.Match(i.Name, a.Name)
			return i.Netns == a.Netns && match
		}
		if a.PID == os.Getpid() || !attach.Alive(a.PID) || slices.Contains(asked, a.PID) || !slices.ContainsFunc(c.Interfaces, here) {
			continue
		}
		if err := syscall.Kill(a.PID, syscall.SIGTERM); err != nil {
			return fmt.Errorf("take over: stop process %d: %w", a.PID, err)
		}
		d.o.Log.Info("taking over: stopping the daemon that runs, its program stays attached", "process", a.PID)
		asked = append(asked, a.PID)
	}
	return nil
}
