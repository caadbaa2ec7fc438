package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/attach"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/queue"
)

// configFile is the file that the service reads.
var configFile = "/etc/weir/weir.yaml"

// queueAfter is how long the daemon may take for a change, such as one that is stopped by a
// signal. Callers may have timeouts, such as the minute of Fail2Ban, after which they would
// forget the change.
var queueAfter = 30 * time.Second

// submit asks the daemon for a change of entries. Where none answers, the change waits for
// it in its state directory.
func submit(c *cobra.Command, socket string, change api.Change) (*api.Changed, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(c.Context(), queueAfter, client.ErrUnanswered)
	defer cancel()
	of := dial(c, socket)
	changed, err := of.Change(ctx, change)
	switch {
	case errors.Is(err, client.ErrUnanswered) && ctx.Err() != nil:
		err = of.Silent(queueAfter)
	case !errors.Is(err, client.ErrNotRunning) && !errors.Is(err, client.ErrUnanswered):
		return changed, err
	}
	change.UID = uint32(os.Getuid())
	if waits := wait(socket, change, began); waits != nil {
		return nil, fmt.Errorf("%w; nothing was changed: %w", err, waits)
	}
	return &api.Changed{List: config.DefaultLists.Of(change.List, change.Action), Queued: true}, nil
}

// wait stores a change that was given at some time for the daemon of a socket.
func wait(socket string, change api.Change, given time.Time) error {
	q, err := queueOf(socket)
	if err != nil {
		return err
	}
	err = q.Add(queue.Command{Time: given, By: api.Caller{UID: change.UID, Process: api.OwnProcess()}, Change: change})
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: you need to be root", err)
	}
	return err
}

// noteDetached leaves a note for the audit of each daemon whose program was detached, and
// which may have ended. before are the interfaces as they were.
func noteDetached(pins attach.Pins, before []attach.Status, detached []attach.Interface) error {
	byState := make(map[string][]string)
	for _, a := range before {
		if t := a.Interface(); a.StateDir != "" && slices.Contains(detached, t) {
			byState[a.StateDir] = append(byState[a.StateDir], t.String())
		}
	}
	if len(byState) == 0 {
		return nil // there is no audit
	}
	info, err := os.Stat(string(pins))
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: %w", pins, errors.ErrUnsupported)
	}
	for state, names := range byState {
		r := audit.Record{Time: time.Now(), Change: audit.Detach, Entries: len(names), Changed: len(names), First: names}
		audit.By(&r, uint32(os.Getuid()), "")
		audit.ByProcess(&r, api.OwnProcess())
		r.Source = "process"
		q := queue.In(state)
		if owner.Uid != 0 { // who owns the pins says where this is written
			q = queue.Of(state, int(owner.Uid))
		}
		err = errors.Join(err, q.Add(queue.Command{Time: r.Time, By: api.Caller{UID: *r.UID}, Note: &r}))
	}
	return err
}

// queueOf returns the queue of the daemon that listened on a socket: where that has left
// it, or after a boot where the service's configuration says.
func queueOf(socket string) (queue.Queue, error) {
	q, err := queue.At(socket)
	if !errors.Is(err, fs.ErrNotExist) {
		return q, err
	}
	if c := serviceOf(socket); c != nil && c.StateDir != "" {
		return queue.In(string(c.StateDir)), nil
	}
	return queue.Queue{}, fmt.Errorf("no state_dir is known for the socket %s", socket)
}

// serviceOf returns the configuration of the service if that listens on a socket, or else nil.
func serviceOf(socket string) *config.Config {
	text, err := os.ReadFile(configFile)
	if err != nil {
		return nil
	}
	if c, err := config.Parse(configFile, text); err == nil && string(c.API.Socket) == socket {
		return c
	}
	return nil
}

// fileOf returns the file with the configuration of the daemon that listened on a socket, "" where
// that is not known. What another user has left there is not read.
func fileOf(socket string) string {
	p, err := queue.PlaceAt(socket)
	if err == nil && (p.Owner == 0 || p.Owner == os.Geteuid()) {
		return p.Config
	}
	if errors.Is(err, fs.ErrNotExist) && serviceOf(socket) != nil {
		return configFile
	}
	return ""
}

// queued returns how many changes wait for the daemon of a socket, as far as this user may
// see that.
func queued(socket string) int {
	q, err := queueOf(socket)
	if err != nil {
		return 0
	}
	names, _ := q.Waiting() // a member of the group may not look
	return len(names)
}
