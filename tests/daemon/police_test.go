package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/tests/wait"
)

// burst sends frames of a source, and returns how many have arrived behind weir, and how long that
// took. The last frame has no IP header, and always passes.
func (h *host) burst(n int) (arrived int, took time.Duration) {
	h.t.Helper()
	const header = 14 + 12 // before the source address
	frame := frameOf(h.Lab, cleanKind, from(netip.MustParseAddr("192.0.2.77")))
	rx, tx, began := h.B.Receiver(h.t), h.A.Sender(h.t), time.Now()
	for range n {
		if err := tx.Send(frame); err != nil {
			h.t.Fatal(err)
		}
	}
	end := frameOf(h.Lab, endKind, from(netip.MustParseAddr("192.0.2.77")))
	if err := tx.Send(end); err != nil {
		h.t.Fatal(err)
	}
	for {
		got, err := rx.Receive(wait.Patience)
		if err != nil {
			h.t.Fatal(err)
		}
		if bytes.Equal(got[12:14], end[12:14]) && bytes.Equal(got, end) {
			return arrived, time.Since(began)
		}
		if len(got) > header+4 && bytes.Equal(got[header:header+4], frame[header:header+4]) {
			arrived++
		}
	}
}

// allArrive sends the packets of a burst, all of which must arrive.
func (h *host) allArrive(when string, packets int) {
	h.t.Helper()
	if n, _ := h.burst(packets); n != packets {
		h.t.Fatalf("%s: %d packets came of %d", when, n, packets)
	}
}

// The rate of an interface that a command has limited holds where the packets arrive: after kill -9
// without a daemon, with the next one, after a reload, an upgrade and a change of the lists; and it
// ends, by itself and by a command.
func TestPoliceByCommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	d := h.start(releases[0])
	const packets, rate, credit = 300, 100, 64 // of the bucket, and of each CPU
	limited := func(when string) {
		t.Helper()
		wait.For(t, when+", the rate is held", func() bool {
			n, took := h.burst(packets)
			if most := rate*took.Seconds() + credit; float64(n) > most {
				t.Fatalf("%s: %d packets came in %v, more than %.0f", when, n, took, most)
			}
			return n < packets
		})
	}
	unlimited := func(when string) { t.Helper(); h.allArrive(when, packets) }
	police := func(args ...string) string {
		t.Helper()
		return h.succeeds("", append([]string{"police", h.B.Iface, "--netns", h.B.Netns}, args...)...)
	}
	unlimited("before")
	if out := police("100pps", "--for", "1h"); !strings.Contains(out, "LIMITED: "+h.B.Iface) {
		t.Error(out)
	}
	limited("at once")
	if out, _ := h.status(); !strings.Contains(out, "LIMITED: "+h.B.Iface+" in namespace "+h.B.Netns+" to 100pps") || !strings.Contains(out, "100pps by flow, fair") {
		t.Errorf("status prints\n%s", out)
	}
	const name = "weir_police_override_"
	labels := fmt.Sprintf(`interface=%q,netns=%q`, h.B.Iface, h.B.Netns)
	all := h.metrics(t)
	if end := all[name+"end_timestamp_seconds{"+labels+"}"] - float64(time.Now().Unix()); all[name+"rate{"+labels+`,unit="packets"}`] != 100 || end < 1800 || end > 3601 {
		t.Errorf("the metrics have %v, and an end in %v s", all[name+"rate{"+labels+`,unit="packets"}`], end)
	}
	d.kill()
	limited("without a daemon")
	d = h.start(releases[0])
	limited("after kill -9")
	h.mustChange("", false, "192.0.2.78")
	h.configure(h.B.Iface, "monitor: false\nlists: {always: {%s}, other: {entries: [192.0.2.79]}}\n", h.feed(10))
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	limited("after a reload")
	d = h.takeOver(d, releases[0])
	limited("after a takeover")
	police("--off")
	unlimited("ended by a command")
	for metric := range h.metrics(t) {
		if strings.HasPrefix(metric, name) {
			t.Errorf("the limit has ended, and there is %s", metric)
		}
	}
	if out := police("--off"); !strings.Contains(out, "as it was before") {
		t.Error(out)
	}

	// By itself, also where the daemon is killed meanwhile.
	police("100pps", "--for", "15s")
	limited("for a time")
	d.kill()
	d = h.start(releases[0])
	var s *api.Status
	wait.For(t, "the limit ends", func() (over bool) {
		var err error
		if s, err = h.api.Status(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(s.Policed) == 0
	})
	unlimited("when its time is over")
	wait.For(t, "its file is gone", func() bool {
		_, err := os.Stat(h.path("state/police.json"))
		return errors.Is(err, fs.ErrNotExist)
	})
	const want = "police off by expiry, police 100pps by socket, police off by socket, police off by socket, police 100pps by socket"
	wait.For(t, "the audit has "+want, func() bool { // the end of the limit is written there last
		a, err := h.api.Audit(t.Context(), 20)
		if err != nil {
			t.Fatal(err)
		}
		var story []string
		for _, r := range a.Changes {
			if r.Change == audit.Police || r.Change == audit.PoliceOff {
				story = append(story, strings.Join(strings.Fields(r.Change+" "+r.What()+" by "+r.Source), " "))
			}
		}
		return strings.Join(story, ", ") == want
	})
	d.complain("a limit was changed")
	d.stop()
}

// A source that a command has limited is held to its rate, and no other one: after kill -9 without a daemon,
// with the next one, after a reload and a takeover; explain names the command that ends it; and it
// ends, by itself without a daemon, too.
func TestLimitByCommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	d := h.start(releases[0])
	const packets, rate, credit = 300, 20, 10
	gone := 0 // packets
	limited := func(when string) {
		t.Helper()
		n, took := h.burst(packets)
		gone += packets - n
		if most := rate*took.Seconds() + credit + 1; float64(n) > most {
			t.Fatalf("%s: %d packets came in %v, want at most %.0f", when, n, took, most)
		}
	}
	unlimited := func(when string) { t.Helper(); h.allArrive(when, packets) }
	limit := func(args ...string) string {
		t.Helper()
		return h.succeeds("", append([]string{"limit"}, args...)...)
	}
	const of = "192.0.2.77" // as in burst
	limit("198.51.100.0/24", "5pps")
	unlimited("another is limited")
	if out := limit(of, "20pps", "--ttl", "1h", "--reason", "asks too often"); !strings.HasPrefix(out, "LIMITED: "+of+" to 20pps") || !strings.Contains(out, "or `weir limit "+of+" --off`: asks too often") {
		t.Error(out)
	}
	limited("at once")
	if out, _ := h.status(); !strings.Contains(out, "LIMITED: "+of+" to 20pps") {
		t.Errorf("status prints\n%s", out)
	}
	if out := h.succeeds("", "explain", of); !strings.Contains(out, "rate-limited to 20 pps") || !strings.Contains(out, "weir limit "+of+" --off") {
		t.Errorf("explain prints\n%s", out)
	}
	dropped := func() int {
		t.Helper()
		for line := range strings.Lines(limit()) {
			if f := strings.Fields(line); f[0] == of && f[1] == "20pps" {
				n, err := strconv.Atoi(f[2])
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
		}
		t.Fatal("the limit is not shown")
		return 0
	}
	wait.For(t, "the dropped packets are counted", func() bool { return dropped() == gone })
	if out := h.succeeds("", "entries"); strings.Count(out, "asks too often") != 1 || !strings.Contains(out, "198.51.100.0/24") {
		t.Errorf("weir entries prints\n%s", out)
	}
	for asked, n := range map[api.EntriesQuestion]int{{}: 2, {Expiring: 2 * time.Hour}: 1, {Expiring: time.Minute}: 0, {List: "always"}: 0} {
		if page, err := h.api.Entries(t.Context(), asked); err != nil || len(page.Limits) != n {
			t.Errorf("%+v has %+v, %v; want %d limits", asked, page.Limits, err, n)
		}
	}
	d.kill()
	limited("without a daemon")
	d = h.start(releases[0])
	limited("after kill -9")
	h.configure(h.B.Iface, "monitor: false\nlists: {always: {%s}, other: {entries: [192.0.2.79]}}\n", h.feed(10))
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	limited("after a reload")
	d = h.takeOver(d, releases[0])
	limited("after a takeover")
	h.succeeds("", "allow", of)
	unlimited("allowed")
	h.succeeds("", "unallow", of)
	limited("no longer allowed")
	limit("192.0.2.0/24", "1Mpps")
	limited("its network may have more")
	limit(of, "--off")
	unlimited("ended by a command")
	if out := limit(of, "--off"); out != of+" is not limited, as it was before\n" {
		t.Error(out)
	}
	limit("192.0.2.0/24", "--off")

	const ttl = 15 * time.Second
	began := time.Now()
	limit(of, "20pps", "--ttl", ttl.String())
	limited("for a time")
	d.kill()
	limited("for a time, without a daemon")
	wait.For(t, "the limit ends without a daemon", func() bool {
		n, _ := h.burst(packets)
		if early := ttl - time.Since(began); n == packets && early > 0 {
			t.Fatalf("it ended %v early", early)
		}
		return n == packets
	})
	d = h.start(releases[0])
	unlimited("after a restart")
	wait.For(t, "one limit is left", func() bool {
		s, err := h.api.Status(t.Context())
		return err == nil && len(s.Policed) == 1 && s.Policed[0].Source == "198.51.100.0/24"
	})
	d.complain("a limit was changed")
	d.stop()
}

// After kill -9, explain knows the penalty of a source that is silent since.
func TestExplainSilentPenalty(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "trackers: [{key: src, threshold: 1kpps, action: block, duration: 1h}]\nlists: {always: {%s}}\n", h.feed(10))
	d := h.start(releases[0])
	const source = "192.0.2.77"
	wait.For(t, "a penalty", func() bool {
		n, _ := h.burst(2000)
		return n == 0
	})
	silent := func() {
		t.Helper()
		wait.For(t, "nothing counts the source any more", func() bool {
			top, err := h.api.Top(t.Context())
			return err == nil && len(top.Trackers) > 0 && top.Trackers[0].Packets == 0 && len(top.Trackers[0].Flows) == 0
		})
	}
	silent()
	d.kill()
	d = h.start(releases[0])
	silent()
	wait.For(t, "explain says that the source is dropped", func() bool { return h.blocked(source) })
	if h.blocked("192.0.2.78") {
		t.Error("explain says that another source is dropped, too")
	}
	if n, _ := h.burst(10); n != 0 {
		t.Errorf("%d packets arrived of 10", n)
	}
	d.stop()
}
