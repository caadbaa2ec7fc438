package daemon

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/wait"
)

const pattern = "udp length 70-90 sport 123"

// patternKind are the packets of the pattern, and cleanKind others from the same source.
const patternKind = 'p'

// ofLength returns a packet that the pattern matches if its kind is patternKind.
func ofLength(of key.Tuple, kind byte) []byte {
	f := packet.Frame(of)
	if kind == patternKind {
		f = append(f, make([]byte, 76+14-len(f))...)
		f[14+3] = 76
	}
	return f
}

// come sends packets that a pattern matches and as many others from the same source, and returns how
// many of each have arrived behind weir.
func (h *host) come(n int) (matched, others int) {
	h.t.Helper()
	return h.comeFrom(netip.MustParseAddr("192.0.2.77"), n)
}

// comeFrom is come from a source.
func (h *host) comeFrom(src netip.Addr, n int) (matched, others int) {
	h.t.Helper()
	of := from(src)
	of.SrcPort = 123
	rx, tx := h.B.Receiver(h.t), h.A.Sender(h.t)
	for i := range n {
		for _, kind := range []byte{patternKind, cleanKind} {
			if err := tx.Send(h.Numbered(ofLength(of, kind), uint64(kind)<<56|uint64(i))); err != nil {
				h.t.Fatal(err)
			}
		}
	}
	if err := tx.Send(frameOf(h.Lab, endKind, of)); err != nil {
		h.t.Fatal(err)
	}
	for {
		got, err := rx.Receive(wait.Patience)
		if err != nil {
			h.t.Fatal(err)
		}
		switch kind, _ := numberOf(got); kind {
		case patternKind:
			matched++
		case cleanKind:
			others++
		case endKind:
			return matched, others
		}
	}
}

// A pattern counts on trial, drops just what it matches afterwards, over kill -9, without a daemon, a
// reload, an upgrade and a change of the lists, and ends by itself, also while no daemon runs. What is
// dropped is named by it.
func TestPatternByCommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	d := h.start(releases[0])
	const packets = 50
	expect := func(when string, want int) {
		t.Helper()
		if matched, others := h.come(packets); matched != want || others != packets {
			t.Fatalf("%s: %d packets of the pattern came and %d others, want %d and %d", when, matched, others, want, packets)
		}
	}
	limit := func(args ...string) string {
		t.Helper()
		return h.succeeds("", append([]string{"limit", pattern}, args...)...)
	}
	status := func() *api.PoliceOverride {
		t.Helper()
		s, err := h.api.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(s.Policed, func(o api.PoliceOverride) bool { return o.Pattern == pattern })
		if at < 0 {
			return nil
		}
		return &s.Policed[at]
	}
	expect("before", packets)
	limit("0pps", "--ttl", "1h", "--trial", "1m")
	expect("on trial", packets)
	counted := func(when string, held, matched, unknown uint64) {
		t.Helper()
		wait.For(t, when+", its counts", func() bool {
			o := status()
			return o != nil && o.Held == held && *o.Hits == (api.PatternPackets{Packets: matched, Unknown: unknown})
		})
	}
	counted("on trial", 0, packets, packets)
	if out, _ := h.status(); !strings.Contains(out, "ON TRIAL until ") || !strings.Contains(out, pattern) {
		t.Errorf("status prints\n%s", out)
	}
	// tried sends a packet, without which a trial does not end, and waits for its end.
	tried := func(what string) {
		t.Helper()
		if matched, _ := h.come(1); matched != 1 {
			t.Errorf("%s: a packet of the pattern did not come", what)
		}
		wait.For(t, what, func() bool { o := status(); return o != nil && o.Trial == nil })
	}
	limit("0pps", "--ttl", "1h", "--trial", "1s")
	tried("the end of the trial")
	expect("after the trial", 0)
	counted("after the trial", packets, packets+1, packets+1)

	// Named in events, in explain of a frame and of a flow.
	subscribed, err := h.api.Events(t.Context(), api.Events{Reasons: []string{"pattern"}, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan *api.Event, 1)
	go func() {
		for e := range subscribed {
			events <- e
			return
		}
	}()
	wait.For(t, "an event", func() bool {
		h.come(1)
		select {
		case e := <-events:
			if e.Pattern != pattern || e.Verdict != "drop" || e.List != "" {
				t.Errorf("%+v", e)
			}
			return true
		default:
			return false
		}
	})
	var e api.Explanation
	if err := json.Unmarshal([]byte(h.succeeds("", "explain", "--json", "udp 192.0.2.77:123 > 203.0.113.1:9")), &e); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(e.Answers[0].Depends, func(d api.Dependency) bool {
		return d.Reason == "pattern" && d.Verdict == "drop" && d.Packets == "what matches "+pattern && d.Until != nil
	}) {
		t.Errorf("explain: %+v", e.Answers[0].Depends)
	}
	if out := h.succeeds("", "explain", "udp 192.0.2.77:123 > 203.0.113.1:9"); !strings.Contains(out, pattern) {
		t.Errorf("explain prints\n%s", out)
	}
	of := from(netip.MustParseAddr("192.0.2.77"))
	of.SrcPort = 123
	all, err := h.api.ExplainFrames(t.Context(), [][]byte{ofLength(of, patternKind), ofLength(of, cleanKind)})
	if err != nil || len(all) != 2 || all[0].Answers[0].Reason != "pattern" || all[0].Answers[0].Pattern != pattern || !all[0].Drops() || all[1].Drops() {
		t.Errorf("explain of frames: %+v, %v", all, err)
	}

	d.kill()
	expect("without a daemon", 0)
	d = h.start(releases[0])
	expect("after kill -9", 0)
	h.mustChange("", false, "192.0.2.78")
	h.configure(h.B.Iface, "monitor: false\nlists: {always: {%s}, other: {entries: [192.0.2.79]}}\n", h.feed(10))
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("after a reload", 0)
	d = h.takeOver(d, releases[0])
	expect("after a takeover", 0)
	h.succeeds("", "monitor", "on")
	expect("in monitor mode", packets)
	h.succeeds("", "monitor", "off")
	expect("and back", 0)
	// In memory that programs share which were exchanged for the mode.
	const wider = "udp length 70-95 sport 123"
	h.succeeds("", "limit", wider, "0pps", "--ttl", "1h")
	expect("beside another", 0)
	limit("--off")
	expect("by another alone", 0)
	h.succeeds("", "limit", pattern, "0pps", "--ttl", "1h", "--trial", "1s")
	h.succeeds("", "limit", wider, "--off")
	tried("the end of another trial")
	expect("without the other", 0)
	limit("--off")
	expect("ended by a command", packets)

	limit("0pps", "--ttl", "8s")
	until := status().Until
	expect("for a time", 0)
	d.kill()
	wait.For(t, "its end without a daemon", func() bool {
		n, _ := h.come(1)
		return n == 1
	})
	if late := time.Since(*until); late < 0 || late > 2*time.Second+wait.Patience/100 {
		t.Errorf("the pattern ended %v after its time", late)
	}
	h.start(releases[0])
	expect("with the next daemon", packets)
	if o := status(); o != nil {
		t.Errorf("with the next daemon: %+v", o)
	}
}

// Each source, or network, has the rate of a pattern for itself, beside a pattern that was there before,
// over kill -9 and a restart.
func TestPatternPerSource(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(10))
	d := h.start(releases[0])
	const burst, packets = 10, 50
	rate := func(when, src string, from, to int) {
		t.Helper()
		began := time.Now()
		matched, others := h.comeFrom(netip.MustParseAddr(src), packets)
		if to += int(time.Since(began).Seconds()) + 1; matched < from || matched > to || others != packets {
			t.Fatalf("%s: %d packets of the pattern came from %s and %d others, want %d to %d and %d", when, matched, src, others, from, to, packets)
		}
	}
	h.succeeds("", "limit", "tcp dst 203.0.113.9", "0pps", "--ttl", "1h")
	began := time.Now()
	h.succeeds("", "limit", pattern, "1pps", "--per", "src/24", "--ttl", "1h")
	passed := func() int { return int(time.Since(began).Seconds()) + 1 } // by the rate, since then
	rate("first", "192.0.2.77", burst, burst+1)
	rate("another network", "198.51.100.77", burst, burst+1)
	rate("of the first network", "192.0.2.78", 0, passed())
	d.kill()
	rate("without a daemon", "192.0.2.78", 0, passed())
	h.start(releases[0])
	rate("after kill -9", "192.0.2.78", 0, burst+passed()) // by programs that were built anew
	rate("and then", "192.0.2.78", 0, passed())
	out := h.succeeds("", "limit")
	if !strings.Contains(out, pattern+" per src/24") {
		t.Errorf("weir limit prints\n%s", out)
	}
	h.succeeds("", "limit", pattern, "--per", "src/24", "--off")
	rate("ended", "192.0.2.78", packets, packets)
}

// A pattern that matches a conversation of this host is not enforced after its trial, and the audit
// says why; the conversation goes on all the time.
func TestPatternOfConversations(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.addresses()
	echo(t, h.B, hostAddress, "7")
	h.configure(h.B.Iface, "collateral: 2048\nlists: {manual: {}}\n")
	h.start(releases[0])
	c, err := dial(t, h.A, "tcp", unlistedAddress, hostAddress+":7", wait.Patience)
	if err != nil || !answers(c, wait.Patience) {
		t.Fatalf("no answer: %v", err)
	}
	h.succeeds("", "limit", "tcp dport 7 dst "+hostAddress, "0pps", "--ttl", "1h", "--trial", "2s", "--force")
	wait.For(t, "the end of the pattern", func() bool {
		if !answers(c, wait.Patience) {
			t.Fatal("the conversation was cut")
		}
		s, err := h.api.Status(t.Context())
		return err == nil && len(s.Policed) == 0
	})
	if c2, err := dial(t, h.A, "tcp", unlistedAddress, hostAddress+":7", wait.Patience); err != nil || !answers(c2, wait.Patience) {
		t.Errorf("another conversation: no answer: %v", err)
	}
	wait.For(t, "a line in the audit", func() bool {
		a, err := h.api.Audit(t.Context(), 20)
		return err == nil && slices.ContainsFunc(a.Changes, func(r api.AuditRecord) bool {
			return r.Change == "limit off" && r.Source == "conversations"
		})
	})
}
