package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/tests/wait"
)

// command runs a command of weir, and returns its output and its exit code.
func (h *host) command(args ...string) (string, int) {
	h.t.Helper()
	c := exec.Command(releases[0].path, args...)
	out, err := c.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatal(err)
	}
	return string(out), c.ProcessState.ExitCode()
}

// status returns what weir status prints.
func (h *host) status() (string, int) {
	h.t.Helper()
	return h.command("status", "--socket", h.path("weir.sock"))
}

// The status shows every configured interface: filtered, gone, not to be
// filtered, detached; and what stands in the kernel once the daemon is dead.
func TestStatus(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	// Loopback has no native XDP.
	more := fmt.Sprintf(", {name: lo, netns: %s}", h.B.Netns)
	configure := func(more string) {
		text := fmt.Sprintf("interfaces: [{name: %q, netns: %s}%s]\npins: %s\nstate_dir: %s\napi: {socket: %s}\nlearning: {elements: 0}\nlists: {always: {%s}}\n",
			h.B.Iface, h.B.Netns, more, h.pins, h.path("state"), h.path("weir.sock"), h.feed(10))
		h.write("weir.yaml", []byte(text))
	}
	expect := func(when string, code int, has ...string) {
		t.Helper()
		for deadline := wait.Deadline(); ; time.Sleep(20 * time.Millisecond) {
			out, got := h.status()
			missing := ""
			for _, text := range has {
				if !strings.Contains(out, text) {
					missing = text
				}
			}
			if got == code && missing == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: exit code %d, want %d, with %q:\n%s", when, got, code, has, out)
			}
		}
	}
	configure("")
	d := h.start(releases[0])
	pid := fmt.Sprintf("weir (PID %d)", d.process.Pid)
	expect("filtering", 0, h.B.Iface, "native XDP")
	if out, _ := h.status(); strings.Contains(out, "false drops") {
		t.Errorf("in exact mode:\n%s", out)
	}

	configure(more)
	out, code := h.command("reload", "--socket", h.path("weir.sock"))
	if code != 4 || !strings.Contains(out, "is not filtered") {
		t.Errorf("reload: exit code %d\n%s", code, out)
	}
	expect("without native XDP", 4, h.B.Iface+" in namespace", "lo in namespace "+h.B.Netns+" NOT FILTERED, "+pid+" retries: ")
	d.kill()
	d = h.start(releases[0]) // does not fail for one of them
	pid = fmt.Sprintf("weir (PID %d)", d.process.Pid)
	expect("started again", 4, "native XDP", "NOT FILTERED, "+pid)
	configure("")
	if out, code := h.command("reload", "--socket", h.path("weir.sock")); code != 0 {
		t.Errorf("reload: exit code %d\n%s", code, out)
	}
	expect("without the interface that cannot be filtered", 0, "native XDP")

	if out, code := h.command("run", "--config", h.path("weir.yaml")); code != 1 || !strings.Contains(out, "another daemon runs, process "+fmt.Sprint(d.process.Pid)) || !strings.Contains(out, "--takeover") {
		t.Errorf("a second daemon: exit code %d\n%s", code, out)
	}

	h.cut()
	expect("the wire is cut", 4, h.B.Iface+" in namespace "+h.B.Netns+" GONE, "+pid+" waits for it\n")
	if out, _ := h.status(); strings.Contains(out, "weir detach") {
		t.Errorf("detach is offered while a daemon waits:\n%s", out)
	}
	h.Wire(t)
	expect("the wire is back", 0, "native XDP")

	text, code := h.command("status", "--json", "--socket", h.path("weir.sock"))
	var s struct {
		Filtered    bool
		Daemon      *api.Status
		Attachments []struct{ Interface string }
	}
	if err := json.Unmarshal([]byte(text), &s); err != nil || code != 0 || !s.Filtered || s.Daemon == nil ||
		s.Daemon.PID != d.process.Pid || len(s.Daemon.Interfaces) != 1 || len(s.Attachments) != 1 {
		t.Errorf("status --json: exit code %d, %v\n%s", code, err, text)
	}

	d.kill()
	out, code = h.command("status", "--pins", string(h.pins), "--socket", h.path("weir.sock"))
	if code != 4 || !strings.HasPrefix(out, fmt.Sprintf("NO DAEMON: process %d has ended\n", d.process.Pid)) || !strings.Contains(out, "not running, the program continues") {
		t.Errorf("status of a killed daemon: exit code %d\n%s", code, out)
	}
}

// What detach takes off stays off: the daemon ends well, so that systemd does
// not start it again, and detach says so.
func TestDetachStaysOff(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	d := h.start(releases[0])
	out, code := h.command("detach", "--all", "--pins", string(h.pins))
	if want := fmt.Sprintf("weir (PID %d) had nothing else to filter and has ended", d.process.Pid); code != 0 || !strings.Contains(out, want) {
		t.Errorf("detach: exit code %d, want %q\n%s", code, want, out)
	}
	d.end()
	if code := d.exit; code != 0 {
		t.Errorf("the daemon ended with exit code %d", code)
	}
	if out, code := h.command("status", "--pins", string(h.pins), "--socket", h.path("weir.sock")); code != 4 || !strings.Contains(out, "nothing is filtered") {
		t.Errorf("status: exit code %d\n%s", code, out)
	}

	// One that has other interfaces to wait for goes on.
	h.configure("veth-*", "lists: {always: {%s}}\n", h.feed(10))
	d = h.start(releases[0])
	out, code = h.command("detach", "--iface", h.B.Iface, "--netns", h.B.Netns, "--pins", string(h.pins))
	if want := fmt.Sprintf("weir (PID %d) still runs", d.process.Pid); code != 0 || !strings.Contains(out, want) || !strings.Contains(out, fmt.Sprintf("kill %d", d.process.Pid)) {
		t.Errorf("detach: exit code %d, want %q\n%s", code, want, out)
	}
	h.eventually("the daemon has noticed", func() bool {
		out, code := h.status()
		return code == 4 && strings.Contains(out, h.B.Iface+" in namespace "+h.B.Netns+" DETACHED")
	})
}
