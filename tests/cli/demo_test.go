package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"weir/tests/lab"
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

func TestDemoInterrupted(t *testing.T) {
	lab.Root(t)
	cmd := exec.Command(binary, "demo", "--entries", "20000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		if left, _ := filepath.Glob("/sys/fs/bpf/weir-demo/*"); len(left) > 0 {
			break
		}
		if time.Since(began) > patience {
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
	for _, pattern := range []string{"/run/netns/weir-demo-*", "/sys/fs/bpf/weir-demo", filepath.Join(os.TempDir(), "weir-demo-*")} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}
