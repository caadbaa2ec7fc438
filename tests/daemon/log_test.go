package daemon

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A log pipe whose reader ends does not end the daemon: it counts the lines, and says so to
// the next reader.
func TestClosedLogPipe(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {jail: {}}\n")
	pipe := h.path("log")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() *os.File {
		f, err := os.OpenFile(pipe, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	reader := open()
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(releases[0].path, "run", "--config", h.path("weir.yaml"), "--json", "--interval", "1h")
	c.Stderr = w
	if err := start(c, ""); err != nil {
		t.Fatal(err)
	}
	w.Close()
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() { c.Process.Kill() })
	lines := bufio.NewScanner(reader)
	lines.Scan()
	reader.Close()

	h.eventually("it answers", func() bool { _, err := h.api.Lists(t.Context()); return err == nil })
	h.mustChange("jail", false, "192.0.2.1") // which is logged
	h.explain("192.0.2.1", true)
	if n := h.metrics(t)["weir_log_failed_lines_total"]; n < 1 {
		t.Errorf("%v lines are counted", n)
	}
	reader = open()
	h.mustChange("jail", false, "192.0.2.2")
	for lines = bufio.NewScanner(reader); lines.Scan(); {
		if strings.Contains(lines.Text(), "lines before this one could not be written to the log") {
			select {
			case err := <-ended:
				t.Errorf("the daemon has ended: %v", err)
			default:
			}
			return
		}
	}
	t.Errorf("the next reader does not learn it: %v", lines.Err())
}
