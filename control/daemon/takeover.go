package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"weir/control/config"
	"weir/control/journal"
	"weir/control/status"
)

// stopPatience is how long another weir may take to stop: it may be building the
// next generation.
const stopPatience = 30 * time.Second

// openJournal opens the journal of what was added by command. To take over from
// another weir that has it open, that is stopped first: two cannot record changes,
// nor listen on one socket. Its program stays in force meanwhile.
func (d *Daemon) openJournal(ctx context.Context, c *config.Config) (*journal.Journal, error) {
	file := filepath.Join(string(c.StateDir), "entries")
	j, err := journal.Open(file, d.Log)
	if !d.Takeover || !errors.Is(err, journal.ErrLocked) {
		return j, err
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
		j, err = journal.Open(file, d.Log)
	}
	return j, err
}

// stopOthers asks the processes to stop that filter where this one is to.
func (d *Daemon) stopOthers(c *config.Config) error {
	all, err := status.Read(c.Pins)
	if err != nil {
		d.Log.Warn(err.Error()) // about what is not found then
	}
	var asked []int
	for _, a := range all {
		here := func(i config.Interface) bool {
			match, _ := path.Match(i.Name, a.Name)
			return i.Netns == a.Netns && match
		}
		if a.PID == os.Getpid() || !status.Alive(a.PID) || slices.Contains(asked, a.PID) || !slices.ContainsFunc(c.Interfaces, here) {
			continue
		}
		if err := syscall.Kill(a.PID, syscall.SIGTERM); err != nil {
			return fmt.Errorf("take over: stop process %d: %w", a.PID, err)
		}
		d.Log.Info("taking over: the weir that runs is to stop, its program stays in force", "process", a.PID)
		asked = append(asked, a.PID)
	}
	return nil
}
