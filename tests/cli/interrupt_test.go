package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/queue"
	"weir/tests/must"
	"weir/tests/wait"
)

// interrupted starts a command whose standard input has a text and does not end, and sends it a
// signal once it has read the text. It must end within a second, with an error.
func interrupted(t *testing.T, sig os.Signal, input string, args ...string) {
	t.Helper()
	in, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	cmd := exec.Command(program, args...)
	var log bytes.Buffer
	cmd.Stdin, cmd.Stderr = in, &log
	err = cmd.Start()
	in.Close()
	if err != nil {
		t.Fatal(err)
	}
	// A process that hangs fails the test, and does not outlive it.
	timer := time.AfterFunc(wait.Patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if _, err := held.WriteString(input); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the command reads standard input", func() bool {
		left, err := unix.IoctlGetInt(int(held.Fd()), unix.TIOCINQ)
		return err == nil && left == 0
	})
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	cmd.Wait() // what waits for more input is killed
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(log.String(), "interrupted") {
		t.Errorf("weir %s: exit code %d, %s", strings.Join(args, " "), code, &log)
	}
}

// A command that reads standard input ends at a signal, and does nothing.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "weir.sock")
	must.Write(t, queue.PlaceOf(socket), dir+"\n")
	interrupted(t, os.Interrupt, "192.0.2.1\n", "block", "--socket", socket, "-")
	interrupted(t, syscall.SIGTERM, "192.0.2.1\n", "block", "--socket", socket, "-")
	if waiting, err := queue.In(dir).Waiting(); err != nil || len(waiting) > 0 {
		t.Errorf("queued: %v, %v", waiting, err)
	}
	list := filepath.Join(dir, "list.txt")
	must.Write(t, list, "192.0.2.1\n")
	interrupted(t, os.Interrupt, "# none yet\n", "explain", "--block", list, "-")
	interrupted(t, os.Interrupt, "192.0.2.1\n", "diff", list, "-")
	interrupted(t, os.Interrupt, "192.0.2.1\n", "import", "manual", "--socket", socket, "-")
	interrupted(t, os.Interrupt, "\xd4\xc3\xb2\xa1", "replay", "--engine", "go", "--block", list, "-")
}

// A second signal ends a command that does not look at the first one, as while it reads a pipe.
func TestInterruptedTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if _, err := held.WriteString("192.0.2.1\n"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "diff", path, os.DevNull)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	wait.For(t, "the command reads the pipe", func() bool {
		left, err := unix.IoctlGetInt(int(held.Fd()), unix.TIOCINQ)
		return err == nil && left == 0
	})
	ended := make(chan struct{})
	go func() { cmd.Wait(); close(ended) }()
	wait.For(t, "the command ends at signals", func() bool {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
		t.Errorf("%v", cmd.ProcessState)
	}
}
