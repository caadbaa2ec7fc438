package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/wait"
)

// A daemon that filters ends within a second of SIGTERM, of a processor's time, at any moment of
// taking in a large list anew: while it reads, sorts, builds tables or loads them.
func TestStoppedInUpdate(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	random := seed.New(t)
	size := long.Or(200_000, 2_000_000)
	texts := make([][]byte, 2)
	for i := range texts {
		texts[i] = []byte(strings.Join(lines(addresses(feedBlock+byte(i), 0, size)), "\n") + "\n")
	}
	h.write("large.txt", texts[1])
	h.configure(h.B.Iface, "keep: false\nlists: {large: {sources: [{file: %s, max_entries: 20000000}]}}\n", h.path("large.txt"))
	var whole, worst time.Duration // of an update; after a signal
	for i := range 1 + long.Rounds(3, 10, 100) {
		cmd := exec.Command(releases[0].path, "run", "--config", h.path("weir.yaml"), "--json")
		d := &daemon{h: h, ended: make(chan struct{}), began: time.Now()}
		cmd.Stderr = d
		if err := start(cmd, ""); err != nil {
			t.Fatal(err)
		}
		d.process = cmd.Process
		go func() { cmd.Wait(); close(d.ended) }()
		t.Cleanup(d.kill)
		line := d.await(0, "filtering")
		began := d.processorTime()
		// With a line of its own: what the last daemon had saved may be the other text, and it would not be an update.
		h.write("large.txt", append(slices.Clip(texts[i%2]), address(feedBlock+2, i).String()+"\n"...))
		if i == 0 {
			d.await(line, "list updated")
			whole = d.processorTime() - began
		}
		moment := time.Duration(random.Int64N(int64(whole)))
		for deadline := wait.Deadline(); d.processorTime()-began < moment && d.after(line, "list updated") == 0; {
			if time.Now().After(deadline) {
				t.Fatalf("it does not take in the list:\n%s", d.tail(40))
			}
			time.Sleep(time.Millisecond)
		}
		signalled := d.processorTime()
		if err := d.process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case <-d.ended:
		case <-time.After(wait.Patience):
			t.Fatalf("it does not end:\n%s", d.tail(40))
		}
		took := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime() - signalled
		if worst = max(worst, took); took > time.Second || !cmd.ProcessState.Success() {
			t.Errorf("after %v of %v: %v takes %v of a processor after SIGTERM\n%s", moment, whole, cmd.ProcessState, took, d.tail(40))
		}
	}
	t.Logf("an update takes %v of a processor; at most %v after SIGTERM", whole, worst)
}

// processorTime returns the processor time that a daemon has taken.
func (d *daemon) processorTime() time.Duration {
	d.h.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.process.Pid))
	if err != nil {
		d.h.t.Fatal(err)
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		d.h.t.Fatal(err)
	}
	const tick = time.Second / 100 // USER_HZ
	return time.Duration(user+system) * tick
}
