package daemon

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	ossignal "os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/api/server"
	"weir/control/config"
	"weir/control/journal"
	"weir/loader"
	"weir/tests/must"
	"weir/tests/wait"
)

// waiter is another process of this name, which waits, with some files open.
func waiter(t *testing.T, files ...*os.File) *exec.Cmd { return waiterThat(t, "1", files...) }

func waiterThat(t *testing.T, how string, files ...*os.File) *exec.Cmd {
	t.Helper()
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(own, "-test.run=^TestStop$")
	c.Env = append(os.Environ(), "WEIR_WAIT="+how)
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
	if how := os.Getenv("WEIR_WAIT"); how != "" {
		if how == "deaf" {
			ossignal.Ignore(unix.SIGTERM)
			os.WriteFile(os.Getenv("WEIR_READY"), nil, 0o600)
		}
		io.Copy(io.Discard, os.Stdin)
		return
	}
	file := filepath.Join(t.TempDir(), "journal")
	j, err := journal.Open(file, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()

	other := waiter(t)
	if asked, err := signal(other.Process.Pid, file, unix.SIGTERM); asked || err != nil {
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
	if asked, err := signal(owner.Process.Pid, file, unix.SIGTERM); !asked || err != nil {
		t.Errorf("the process with the journal: %t, %v", asked, err)
	}
	owner.Wait()
	if s, ok := owner.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v", owner.ProcessState)
	}
	if asked, err := signal(owner.Process.Pid, file, unix.SIGTERM); asked || err != nil {
		t.Errorf("one that has ended: %t, %v", asked, err)
	}
}

// holder is a waiter that alone has the lock of a journal.
func holder(t *testing.T, file string) *exec.Cmd { return holderThat(t, "1", file) }

func holderThat(t *testing.T, how, file string) *exec.Cmd {
	t.Helper()
	lock, err := os.Create(file + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	owner := waiterThat(t, how, lock)
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
	must.Write(t, damaged, "")
	c := &config.Config{Pins: loader.Pins(damaged), API: config.API{Socket: config.Path(socket)}}
	j, err := openJournal(t.Context(), c, file, nil, true, slog.New(slog.NewTextHandler(&log, nil)))
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

// A daemon that a signal has stopped is continued to end in order; one that does not end is killed. The
// log says what is waited for.
func TestTakeOverFromStopped(t *testing.T) {
	before := stopPatience
	defer func() { stopPatience = before }()
	for _, c := range []struct {
		how  string
		ends syscall.Signal
		says string
	}{
		{"1", syscall.SIGTERM, "and continuing it, since a signal has stopped it"},
		{"deaf", syscall.SIGKILL, "has not ended in time and is killed"},
	} {
		t.Run(c.how, func(t *testing.T) {
			dir := t.TempDir()
			file, socket := filepath.Join(dir, "journal"), filepath.Join(dir, "socket")
			ready := filepath.Join(dir, "ready")
			t.Setenv("WEIR_READY", ready)
			owner := holderThat(t, c.how, file)
			t.Cleanup(func() { owner.Process.Kill() })
			if stopPatience = before; c.how == "deaf" {
				stopPatience = time.Second
				wait.For(t, "the process to ignore SIGTERM", func() bool { _, err := os.Stat(ready); return err == nil })
			}
			if err := owner.Process.Signal(unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			// If SIGTERM came before that, it would end.
			wait.For(t, "the process to stop", func() bool { return client.IsStopped(owner.Process.Pid) })
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			s := http.Server{Handler: server.StartingHandler(starting{owner.Process.Pid})}
			go s.Serve(l)
			t.Cleanup(func() { s.Close() })
			config := &config.Config{Pins: loader.Pins(filepath.Join(dir, "pins")), API: config.API{Socket: config.Path(socket)}}
			var log bytes.Buffer
			j, err := openJournal(t.Context(), config, file, nil, true, slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err, &log)
			}
			j.Close()
			owner.Wait()
			if s, ok := owner.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != c.ends {
				t.Errorf("it ended with %v; %s", owner.ProcessState, &log)
			}
			waits := strings.Contains(log.String(), "waiting for the daemon that runs to end")
			if !strings.Contains(log.String(), c.says) || waits != (c.how == "deaf") {
				t.Errorf("no %q, or what is waited for (%t): %s", c.says, waits, &log)
			}
		})
	}
}

// No process is taken for the owner of the journal that was asked and has not the journal open any more, even
// where its number is another process's by now.
func TestHolders(t *testing.T) {
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
	o := others{file: file, asked: []int{innocent.Process.Pid, owner.Process.Pid, ended.Process.Pid}}
	if got := o.holders(); !slices.Equal(got, []int{owner.Process.Pid}) {
		t.Errorf("%d have the journal, want %d", got, owner.Process.Pid)
	}
}

// starting is a daemon that is starting, as a process.
type starting struct{ pid int }

func (s starting) Starting() api.Starting { return api.Starting{PID: s.pid} }

func (starting) Queue(context.Context, api.Change) (api.Changed, error) { return api.Changed{}, nil }
