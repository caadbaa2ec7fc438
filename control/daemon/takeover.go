package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/attach"
	"weir/control/clock"
	"weir/control/config"
	"weir/control/journal"
	"weir/control/metrics"
)

// stopPatience is how long another daemon may take to stop, before it is killed: it may be building
// the next generation. It is a variable for tests.
var stopPatience = 30 * time.Second

// killPatience is how long it may take to end then.
const killPatience = 10 * time.Second

// reportInterval is how often what is waited for is logged.
const reportInterval = 5 * time.Second

// lookInterval is how often another daemon is looked for until the journal is free: one that is
// starting may be found by neither its socket nor its pins yet.
const lookInterval = time.Second / 2

// openJournal opens the journal of manual entries. To take over from another daemon
// that has it open, that is stopped first: two cannot record changes, nor listen
// on one socket. Its program stays attached meanwhile, unless its configuration says keep: false.
func openJournal(ctx context.Context, c *config.Config, file string, by *clock.Clock, takeover bool, log *slog.Logger) (*journal.Journal, error) {
	j, err := journal.Open(file, by, log)
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
	o := others{config: c, file: file, log: log}
	began := time.Now()
	var looked, logged time.Time
	for errors.Is(err, journal.ErrLocked) {
		now := time.Now()
		if now.Sub(looked) >= lookInterval {
			looked = now
			if err := o.stop(ctx); err != nil {
				return nil, err
			}
		}
		late := now.Sub(began) >= stopPatience
		if now.Sub(logged) >= reportInterval || late && !o.killed {
			if !logged.IsZero() {
				o.report(now.Sub(began))
			}
			logged = now
		}
		if late && !o.killed {
			o.kill()
		}
		if now.Sub(began) >= stopPatience+killPatience {
			return nil, o.late(err)
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
		j, err = journal.Open(file, by, log)
	}
	return j, err
}

// refuseAnother returns an error where another daemon that runs listens at the socket or serves metrics at the
// address that a configuration names: commands and scrapes would reach it, and not this one. What another
// program has is no reason not to filter.
func refuseAnother(ctx context.Context, c *config.Config) error {
	if socket := string(c.API.Socket); socket != "" {
		pid := client.Dial(socket).Process()
		if !attach.Alive(pid) {
			pid = answering(ctx, c)
		}
		if pid != 0 && pid != os.Getpid() {
			return fmt.Errorf("another daemon runs, process %d, and listens at %s: stop it first, choose another socket, or take over with --takeover", pid, socket)
		}
	}
	if address := string(c.Metrics.Listen); address != "" && servesMetrics(ctx, address) {
		return fmt.Errorf("another daemon serves metrics at %s: stop it first, choose another address, or take over with --takeover", address)
	}
	return nil
}

// servesMetrics reports whether another daemon serves metrics at an address.
func servesMetrics(ctx context.Context, address string) bool {
	l, err := net.Listen("tcp", address)
	if err == nil {
		_ = l.Close()
		return false
	}
	host, port, bad := net.SplitHostPort(address)
	if !errors.Is(err, unix.EADDRINUSE) || bad != nil {
		return false
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+metrics.Path, nil)
	if err != nil {
		return false
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return false
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	return bytes.Contains(text, []byte("\nweir_build_info{"))
}

// processOf returns the process of the daemon that runs, 0 if it is unknown.
func processOf(ctx context.Context, c *config.Config) int {
	if pid := answering(ctx, c); pid != 0 {
		return pid
	}
	all, _ := attach.ReadStatus(c.Pins) // damaged pins are not what is looked for
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
	killed bool   // those that were asked and had not ended
	blind  string // why some are not found, as logged
	log    *slog.Logger
}

// stop stops the processes that have the journal open and filter where this one is to, or nowhere
// yet. It may be called again for those that were not found before.
func (o *others) stop(ctx context.Context) error {
	all, err := attach.ReadStatus(o.config.Pins)
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
		signals := []unix.Signal{unix.SIGTERM}
		if client.IsStopped(pid) { // it ends in order when it is continued
			signals = append(signals, unix.SIGCONT)
		}
		switch stopped, err := signal(pid, o.file, signals...); {
		case err != nil:
			return fmt.Errorf("take over: stop process %d: %w", pid, err)
		case !stopped:
			continue
		}
		what := "taking over: stopping the daemon that runs"
		if len(signals) > 1 {
			what += ", and continuing it, since a signal has stopped it"
		}
		o.log.Info(what+"; its program stays attached, unless its configuration says keep: false", "process", pid)
		o.asked = append(o.asked, pid)
	}
	return nil
}

// report logs what is waited for.
func (o *others) report(since time.Duration) {
	since = since.Round(time.Second)
	for _, pid := range o.holders() {
		o.log.Info("taking over: waiting for the daemon that runs to end", "process", pid, "stopped_by_signal", client.IsStopped(pid), "since", since)
	}
	if len(o.holders()) == 0 {
		o.log.Info("taking over: waiting for a process that has the journal open, and is not known", "journal", o.file, "since", since)
	}
}

// kill kills the daemons that were asked to stop and have not ended. Nothing is lost by that: each
// change is in the journal, and the program is pinned.
func (o *others) kill() {
	o.killed = true
	for _, pid := range o.holders() {
		if killed, err := signal(pid, o.file, unix.SIGKILL); err != nil || killed {
			o.log.Warn("taking over: the daemon that runs has not ended in time and is killed; its program stays attached", "process", pid, "error", err)
		}
	}
}

// holders returns the processes that were asked to stop, and still have the journal open. Another process
// may have their number by now.
func (o *others) holders() (all []int) {
	for _, pid := range o.asked {
		if attach.Alive(pid) && journal.OpenIn(pid, o.file) {
			all = append(all, pid)
		}
	}
	return all
}

// late returns why the journal is still locked.
func (o *others) late(err error) error {
	if all := o.holders(); len(all) > 0 {
		return fmt.Errorf("take over: process %d was killed, and has not ended: %w", all[0], err)
	}
	return err
}

// signal sends signals to a process if it is a daemon that has the journal open. The
// number may have become another process's: one is checked and signalled by its
// descriptor, which stays that of one process.
func signal(pid int, file string, signals ...unix.Signal) (sent bool, err error) {
	fd, err := unix.PidfdOpen(pid, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return false, nil // it has ended, or is no process
	case err != nil:
		return false, err
	}
	defer unix.Close(fd)
	if !attach.Alive(pid) || !journal.OpenIn(pid, file) {
		return false, nil
	}
	for _, s := range signals {
		err := unix.PidfdSendSignal(fd, s, nil, 0)
		if errors.Is(err, unix.ESRCH) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}
