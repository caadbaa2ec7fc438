package takeover

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
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/config"
	"weir/control/journal"
	"weir/loader"
	"weir/tests/wait"
)

// waiter is another process of this name, which waits, with some files open.
func waiter(t *testing.T, files ...*os.File) *exec.Cmd {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(own, "-test.run=^TestStop$")
	c.Env = append(os.Environ(), "WEIR_WAIT=1")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.ExtraFiles = files
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Wait()
	})
	return c
}

// A process that has got the number of a daemon that has ended is not stopped,
// whatever its name: only one that has the journal open is.
func TestStop(t *testing.T) {
	if os.Getenv("WEIR_WAIT") != "" {
		io.Copy(io.Discard, os.Stdin)
		return
	}
	file := filepath.Join(t.TempDir(), "journal")
	j, err := journal.Open(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()

	other := waiter(t)
	if asked, err := stop(other.Process.Pid, file); asked || err != nil {
		t.Errorf("another process: %t, %v", asked, err)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}

	lock, err := os.Open(file + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	owner := waiter(t, lock)
	if asked, err := stop(owner.Process.Pid, file); !asked || err != nil {
		t.Errorf("the process with the journal: %t, %v", asked, err)
	}
	owner.Wait()
	if s, ok := owner.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v", owner.ProcessState)
	}
	if asked, err := stop(owner.Process.Pid, file); asked || err != nil {
		t.Errorf("one that has ended: %t, %v", asked, err)
	}
}

// holder is a waiter that alone has the lock of a journal.
func holder(t *testing.T, file string) *exec.Cmd {
	t.Helper()
	lock, err := os.Create(file + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	owner := waiter(t, lock)
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	return owner
}

// A daemon that is starting, or waits for its interfaces, has no program yet: it is taken over from by what
// answers at its socket, as soon as something does. Damaged pins are warned about once.
func TestTakeOverFromStarting(t *testing.T) {
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "journal"), filepath.Join(dir, "socket")
	owner := holder(t, file)
	var calls atomic.Int32
	s := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls.Add(1) == 1 {
			http.NotFound(w, r) // not yet
			return
		}
		server.StartingHandler(starting{owner.Process.Pid}).ServeHTTP(w, r)
	})}
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	var log bytes.Buffer
	damaged := filepath.Join(dir, "pins")
	if err := os.WriteFile(damaged, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &config.Config{Pins: loader.Pins(damaged), API: config.API{Socket: config.Path(socket)}}
	j, err := Open(t.Context(), c, file, true, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Error(err)
	}
	owner.Wait()
	if s, ok := owner.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v", owner.ProcessState)
	}
	if n := strings.Count(log.String(), "list attachments"); n != 1 {
		t.Errorf("%d warnings of damaged pins: %s", n, &log)
	}
}

// The error names a daemon that has not ended in time, as one that a signal has stopped, and says how
// to end it.
func TestTakeOverFromStopped(t *testing.T) {
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "journal"), filepath.Join(dir, "socket")
	owner := holder(t, file)
	t.Cleanup(func() { owner.Process.Kill() })
	if err := owner.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the process to stop", func() bool { // if SIGTERM came before that, it would end
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", owner.Process.Pid))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := http.Server{Handler: server.StartingHandler(starting{owner.Process.Pid})}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	c := &config.Config{Pins: loader.Pins(filepath.Join(dir, "pins")), API: config.API{Socket: config.Path(socket)}}
	var log bytes.Buffer
	open := func(ctx context.Context) error {
		_, err := Open(ctx, c, file, true, slog.New(slog.NewTextHandler(&log, nil)))
		return err
	}
	want := fmt.Sprintf("kill -KILL %d", owner.Process.Pid)
	for within, end := time.Second, wait.Deadline(); ; within *= 2 { // on a slow machine, it takes a while until the owner is known
		ctx, cancel := context.WithTimeout(t.Context(), within)
		err := open(ctx)
		cancel()
		if !errors.Is(err, journal.ErrLocked) || !strings.Contains(err.Error(), want) && time.Now().After(end) {
			t.Errorf("%v, without %q; %s", err, want, &log)
		} else if !strings.Contains(err.Error(), want) {
			continue
		}
		break
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Second, cancel)
	if err := open(ctx); !errors.Is(err, journal.ErrLocked) || strings.Contains(err.Error(), want) {
		t.Errorf("canceled: %v", err)
	}
}

// The error names no process that was asked and has not the journal open any more, even where its number
// is another process's by now.
func TestLateNamesTheOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "journal")
	lock, err := os.Create(file + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	owner, innocent, ended := waiter(t, lock), waiter(t), waiter(t)
	if err := ended.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended.Wait()
	ctx, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	pid := func(c *exec.Cmd) int { return c.Process.Pid }
	for _, c := range []struct {
		asked []int
		names int // 0: none
	}{
		{nil, 0},
		{[]int{pid(innocent), pid(ended)}, 0},
		{[]int{pid(owner), pid(innocent), pid(ended)}, pid(owner)},
	} {
		o := others{file: file, asked: c.asked}
		err := o.late(ctx, journal.ErrLocked)
		if !errors.Is(err, journal.ErrLocked) || (c.names == 0) != (err == journal.ErrLocked) ||
			c.names != 0 && !strings.HasSuffix(strings.Split(err.Error(), "`")[1], fmt.Sprintf("-KILL %d", c.names)) {
			t.Errorf("asked %d, want %d: %v", c.asked, c.names, err)
		}
	}
}

// starting is a daemon that is starting, as a process.
type starting struct{ pid int }

func (s starting) Starting() api.Starting { return api.Starting{PID: s.pid} }

func (starting) Queue(context.Context, api.Change) (api.Changed, error) { return api.Changed{}, nil }
