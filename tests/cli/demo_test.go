package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/tests/binary"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

func TestDemo(t *testing.T) {
	lab.Root(t)
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
	lab.Root(t)
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
	lab.Root(t)
	cmd := exec.Command(program, append([]string{"demo", "--entries", "20000"}, flags...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if left, _ := filepath.Glob("/sys/fs/bpf/weir-demo*/*"); len(left) > 0 {
			break
		}
		if time.Since(began) > wait.Patience {
			cmd.Process.Kill()
			t.Fatal("the demo does not attach")
		}
	}
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
