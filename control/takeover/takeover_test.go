package takeover

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"weir/control/journal"
)

// waiter is another process of this name, which waits; with the journal's lock
// open, if one is given.
func waiter(t *testing.T, lock string) *exec.Cmd {
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
	if lock != "" {
		f, err := os.Open(lock)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		c.ExtraFiles = []*os.File{f}
	}
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

	other := waiter(t, "")
	if asked, err := stop(other.Process.Pid, file); asked || err != nil {
		t.Errorf("another process: %t, %v", asked, err)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}

	owner := waiter(t, file+".lock")
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
