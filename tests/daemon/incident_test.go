package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/verdict"
	"weir/tests/long"
	"weir/tests/wait"
)

// TestIncident goes through an incident with the commands that an operator has: a
// flood from 50 sources, some of them listed. weir top shows them below and above the
// threshold, weir drops names those that are dropped, one more is blocked and the
// webhook notified; explain is right at each step. Monitor mode lets everything
// through, a detached interface stays so, and the audit has all changes.
func TestIncident(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h, w := newHost(t), startWebhook(t)
	feed := h.write("scanners.txt", []byte("198.51.100.0/28\n198.51.100.40\n"))
	h.configure(h.B.Iface, `
lists: {scanners: {sources: [{file: %s}], interval: 24h}}
trackers: [{key: src, threshold: 75pps, duration: 1s}]
notify: {targets: {pager: {url: "%s"}}}
`, feed, w.URL)
	d := h.start(releases[0])
	h.settled("scanners")

	weir := func(want int, args ...string) string {
		t.Helper()
		c := exec.Command(releases[0].path, args...)
		c.Args = append(c.Args, "--socket", h.path("weir.sock"))
		var out, log bytes.Buffer
		c.Stdout, c.Stderr = &out, &log
		c.Run()
		if code := c.ProcessState.ExitCode(); code != want {
			t.Fatalf("weir %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), code, want, &out, &log)
		}
		return out.String()
	}
	read := func(to any, args ...string) {
		t.Helper()
		if out := weir(0, append(args, "--json")...); json.Unmarshal([]byte(out), to) != nil {
			t.Fatalf("weir %s prints\n%s", strings.Join(args, " "), out)
		}
	}
	const below, above, listed = "198.51.100.20", "198.51.100.49", "198.51.100.3"
	explains := func(source string, drops bool, says string) {
		t.Helper()
		want := 0
		if drops {
			want = 3
		}
		if out := weir(want, "explain", "--exit-code", source); !strings.Contains(out, says) {
			t.Errorf("weir explain %s does not say %q:\n%s", source, says, out)
		}
	}

	flood := h.A.StartFlood(t, 0.25, func(src netip.Addr) []byte { return frameOf(h.Lab, cleanKind, from(src)) })
	began := time.Now()
	dropped := func(i int) bool { return i < 16 || i == 40 }

	wait.For(t, "weir has rates", func() bool { _, err := h.api.Top(t.Context()); return err == nil })

	// Who is it? All are there, with their rates.
	wait.For(t, "top shows all sources with their rates", func() bool {
		var top api.Top
		read(&top, "top")
		if len(top.Trackers) != 1 || len(top.Trackers[0].Flows) != len(flood.Sources) {
			return false
		}
		for _, f := range top.Trackers[0].Flows {
			i := flood.Index(t, f.Key)
			// Not exactly: a busy machine sends in bursts.
			if math.Abs(f.Packets-flood.Rates[i]) > 5+flood.Rates[i]/10 || f.Heavy != (flood.Rates[i] > 75) && math.Abs(flood.Rates[i]-75) > 15 ||
				f.Dropped == nil || (*f.Dropped > 0) != dropped(i) {
				return false
			}
		}
		return true
	})
	wait.For(t, "the webhook was notified of a heavy hitter", func() bool {
		return strings.Contains(w.text(), "heavy begin 198.51.100.") // the largest are not always the first
	})
	explains(listed, true, "scanners.txt:1")
	explains(above, false, "pass")

	// Who is dropped, and by what?
	wait.For(t, "drops names sources and entries", func() bool {
		var sources, entries, lists api.Drops
		read(&sources, "drops", "--by", "source", "-n", "50")
		read(&entries, "drops", "--by", "entry")
		read(&lists, "drops", "--by", "list")
		var found []string
		for _, row := range sources.Drops {
			if i := flood.Index(t, row.Key); !dropped(i) {
				t.Fatalf("dropped %+v, which no list has", row)
			}
			found = append(found, row.Key)
		}
		return len(found) == 17 && len(entries.Drops) == 2 && entries.Drops[0].Key == "198.51.100.0/28" && entries.Drops[1].Key == "198.51.100.40" &&
			len(lists.Drops) == 1 && lists.Drops[0].Key == "scanners" && slices.Equal(lists.Drops[0].Reasons, []string{verdict.Blocked.String()})
	})

	// Block the largest, and undo it; no reason is asked of somebody at night.
	weir(0, "block", above, "--ttl", "1h", "--reason", "flood")
	explains(above, true, "flood")
	explains(below, false, "pass")
	wait.For(t, "the block is seen to drop", func() bool {
		var sources api.Drops
		read(&sources, "drops", "--by", "source", "-n", "50")
		return slices.ContainsFunc(sources.Drops, func(row api.Drop) bool { return row.Key == above && slices.Contains(row.Lists, "manual") })
	})
	if out := weir(0, "entries"); !strings.Contains(out, above) || !strings.Contains(out, "flood") {
		t.Errorf("weir entries prints\n%s", out)
	}

	// Is it weir? Monitor mode lets everything through.
	rx := h.B.Receiver(t)
	through := func(source string) bool {
		frame := frameOf(h.Lab, cleanKind, from(netip.MustParseAddr(source)))
		const header = 14 + 12 // before the source address
		for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
			if got, err := rx.Receive(time.Second); err == nil && len(got) > header+4 && bytes.Equal(got[header:header+4], frame[header:header+4]) {
				return true
			}
		}
		return false
	}
	if through(above) {
		t.Error("the blocked source comes through")
	}
	weir(0, "monitor", "on", "--for", "10m")
	wait.For(t, "monitor mode lets the blocked source through", func() bool { return through(above) })
	explains(above, false, "would-block")
	weir(0, "monitor", "off")
	for err := error(nil); !errors.Is(err, os.ErrDeadlineExceeded); _, err = rx.Receive(0) { // what came before
	}
	wait.For(t, "monitor mode is off", func() bool { return !through(above) })
	explains(above, true, "flood")
	weir(0, "unblock", above)
	wait.For(t, "the source is through again", func() bool { return through(above) })
	explains(above, false, "pass")

	// Off means off: the daemon ends with exit code 0, and nothing starts it again.
	c := exec.Command(releases[0].path, "detach", "--all", "--pins", string(h.pins))
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), fmt.Sprint(d.process.Pid)) {
		t.Errorf("detach does not name the daemon: %v\n%s", err, out)
	}
	select {
	case <-d.ended:
	case <-time.After(wait.Patience):
		t.Fatal("the daemon has not ended")
	}
	if d.exit != 0 {
		t.Errorf("the daemon has ended with exit code %d", d.exit)
	}
	wait.For(t, "nothing is dropped", func() bool { return through(listed) })
	flood.Stop()

	// The audit has all changes, in order.
	text, err := os.ReadFile(h.path("state/audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	var story []string
	for line := range strings.Lines(string(text)) {
		var r struct {
			Time           time.Time
			Change, Reason string
			First          []string
			User           string
		}
		err := json.Unmarshal([]byte(line), &r)
		if r.Change == "start" || r.Change == "stop" || r.Change == "detach" {
			continue // of the daemon
		}
		if err != nil || r.Time.Before(began) || r.User != "root" {
			t.Errorf("%s: %v", line, err)
		}
		story = append(story, strings.TrimSpace(r.Change+" "+strings.Join(r.First, " ")+" "+r.Reason))
	}
	want := []string{"block " + above + " flood", "monitor on", "monitor off", "unblock " + above}
	if !slices.Equal(story, want) {
		t.Errorf("the audit has %q, want %q", story, want)
	}
}
