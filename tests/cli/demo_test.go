package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"weir/tests/binary"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// onlyDemo keeps the demos of other tests from running until the test ends: there is one at a time.
func onlyDemo(t *testing.T) {
	t.Helper()
	lab.Root(t)
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "weir-test-demo.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	wait.For(t, "another test's demo ends", func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil })
}

func TestDemo(t *testing.T) {
	onlyDemo(t)
	out, _ := weir(t, 0, "demo", "--json", "--seconds", "3", "--entries", "20000")
	var report struct {
		Passed         bool
		Sent, Received struct{ Listed, Unlisted, Allowed int }
		Dropped        int
		Swap           float64 `json:"swap_seconds"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if !report.Passed || report.Sent.Listed == 0 || report.Sent.Unlisted == 0 || report.Sent.Allowed == 0 ||
		report.Received.Listed != 0 || report.Swap == 0 {
		t.Errorf("report: %s", out)
	}
	nothingLeft(t)
}

func TestDemoFleet(t *testing.T) {
	onlyDemo(t)
	if err := buildHub(); err != nil {
		t.Fatal(err)
	}
	out, _ := weir(t, 0, "demo", "--fleet", "--json", "--seconds", "4", "--entries", "20000")
	var report struct {
		Passed         bool
		Nodes          int
		Sent, Received struct{ Listed, Unlisted, Allowed int }
		Feed           float64 `json:"feed_seconds"`
		Down           float64 `json:"hub_down_seconds"`
		Command        float64 `json:"command_seconds"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if !report.Passed || report.Nodes != 3 || report.Sent.Listed == 0 || report.Received.Listed != 0 ||
		report.Sent.Unlisted == 0 || report.Received.Unlisted != report.Sent.Unlisted || report.Feed == 0 || report.Down < 1 || report.Command == 0 {
		t.Errorf("report: %s", out)
	}
	nothingLeft(t)
	if _, log := weir(t, 2, "demo", "--fleet", "--pcap", "x"); !strings.Contains(log, "--fleet goes with") {
		t.Errorf("the log: %s", log)
	}
}

// buildHub builds weir-hub beside weir, once.
var buildHub = sync.OnceValue(func() error {
	return binary.Build(filepath.Dir(program), "weir-hub", "weir-hub")
})

func TestDemoInterrupted(t *testing.T) { demoInterrupted(t) }

func TestDemoFleetInterrupted(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	if err := buildHub(); err != nil {
		t.Fatal(err)
	}
	demoInterrupted(t, "--fleet")
}

func demoInterrupted(t *testing.T, flags ...string) {
	onlyDemo(t)
	cmd := exec.Command(program, append([]string{"demo", "--entries", "20000"}, flags...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	wait.For(t, "the demo attaches", func() bool {
		left, _ := filepath.Glob("/sys/fs/bpf/weir-demo*/*")
		return len(left) > 0
	})
	cmd.Process.Signal(os.Interrupt)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	nothingLeft(t)
}

func nothingLeft(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"/run/netns/weir-demo-*", "/sys/fs/bpf/weir-demo*", filepath.Join(os.TempDir(), "weir-demo-*")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}
