package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"weir/tests/wait"
)

// SIGTERM ends a start and a check within two seconds while they read a file that is
// as good as endless.
func TestStopWhileReading(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	path := filepath.Join(g.dir, "endless")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(1 << 43); err != nil { // of zeros, without blocks
		t.Fatal(err)
	}
	f.Close()
	g.configure("lists: {endless: {required: true, sources: [{file: " + path + ", max_bytes: 16TiB}]}}")
	for _, args := range [][]string{{"check", g.config}, {"run", "--config", g.config}} {
		c := exec.Command(filepath.Join(binaries, "weir"), args...)
		c.Stdout, c.Stderr = os.Stderr, os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		g.until("the file is read", func() bool { return opened(c.Process.Pid, path) })
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		signalled := time.Now()
		go func() { ended <- c.Wait() }()
		select {
		case err := <-ended:
			took := time.Since(signalled)
			t.Logf("weir %s: %v after %v", args[0], err, took)
			if c.ProcessState.Success() {
				t.Errorf("weir %s succeeded", args[0])
			}
			if took > 2*time.Second && c.ProcessState.UserTime()+c.ProcessState.SystemTime() > 2*time.Second {
				t.Errorf("weir %s ended %v after SIGTERM", args[0], took)
			}
		case <-time.After(wait.Patience):
			c.Process.Kill()
			t.Errorf("weir %s did not end", args[0])
			<-ended
		}
	}
}

// opened reports whether a process has a file open.
func opened(pid int, path string) bool {
	all, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is good
	for _, fd := range all {
		if to, err := os.Readlink(fd); err == nil && to == path {
			return true
		}
	}
	return false
}
