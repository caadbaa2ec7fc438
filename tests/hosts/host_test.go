// Package hosts makes hosts in namespaces: broken ones, on which weir doctor has to find the fault
// and its mend, and the hosts of the pages in docs/hosts, which it follows.
package hosts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"weir/tests/binary"
	"weir/tests/lab"
)

// weir is the command.
var weir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "weir-doctor-")
	if err == nil {
		weir = filepath.Join(dir, "weir")
		err = binary.Build(dir, "weir", "weir")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// machine is a network namespace.
type machine struct{ lab.Host }

// host is a machine with mounts of its own.
type host struct {
	machine
	dir    string
	mounts *exec.Cmd // sleeps in the mount namespace
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{machine: machine{lab.NewHost(t, "host")}, dir: t.TempDir()}
	h.mounts = exec.Command(lab.Installed(t, "unshare"), "--mount", "--propagation", "private", "sh", "-c", "echo ready; exec sleep 600")
	ready, err := h.mounts.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.mounts.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.mounts.Process.Kill()
		h.mounts.Wait()
	})
	if _, err := ready.Read(make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	return h
}

// run runs a script among the mounts of the host, NS and DIR being its namespace and directory,
// and returns the output and the exit code.
func (h *host) run(t *testing.T, script string) (string, int) {
	t.Helper()
	script = h.name(script)
	c := exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", h.mounts.Process.Pid), "bash", "-c", script)
	c.Env = append(os.Environ(), "WEIR="+weir)
	var out, log bytes.Buffer
	c.Stdout, c.Stderr = &out, &log
	err := c.Run()
	if log.Len() > 0 {
		t.Logf("%s\n%s", script, log.String())
	}
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		t.Fatal(err)
	}
	return out.String(), c.ProcessState.ExitCode()
}

func (h *host) name(text string) string {
	return strings.NewReplacer("NS", h.Netns, "DIR", h.dir).Replace(text)
}
