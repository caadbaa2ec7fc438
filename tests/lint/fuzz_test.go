package lint

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/timed"
)

// make fuzz bounds how often an input that reaches new code is made shorter. By default Go spends
// a minute on each: a target whose inputs hardly get shorter had ten executions in that time.
func TestFuzz(t *testing.T) {
	recipe, err := exec.Command("make", "-n", "-C", root, "fuzz").Output()
	if err != nil {
		t.Fatal(err)
	}
	bound := regexp.MustCompile(`-fuzzminimizetime (\d{1,2}x) `).FindSubmatch(recipe)
	if bound == nil {
		t.Fatalf("inputs are made shorter without a bound:\n%s", recipe)
	}
	if !long.Enabled {
		return
	}
	timed.Alone(t)
	binary := filepath.Join(t.TempDir(), "journal.test")
	build := exec.Command("go", "test", "-c", "-fuzz", "^FuzzScan$", "-o", binary, "./control/journal")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const patience = 90 * time.Second // a busy machine takes 20
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	run := exec.CommandContext(ctx, binary, "-test.run=^$", "-test.fuzz=^FuzzScan$", "-test.fuzztime=300x",
		"-test.fuzzminimizetime="+string(bound[1]), "-test.parallel=1", "-test.fuzzcachedir="+t.TempDir())
	run.Dir = filepath.Join(root, "control/journal")
	run.Cancel = func() error { return run.Process.Signal(os.Interrupt) }
	run.WaitDelay = 10 * time.Second
	began := time.Now()
	if out, err := run.CombinedOutput(); err != nil || ctx.Err() != nil {
		t.Fatalf("300 executions are not made within %v: %v\n%s", patience, err, out)
	}
	t.Logf("300 executions in %v", time.Since(began).Round(time.Millisecond))
}
