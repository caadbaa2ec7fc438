package daemon

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/long"
	"weir/tests/timed"
	"weir/tests/wait"
)

// 10 000 manual entries per second are added and removed: added ones are
// blocked when the command returns, removed ones pass. In the end the daemon,
// and its successor, has exactly the remaining ones.
func TestCommands(t *testing.T) {
	timed.Alone(t)
	const (
		second  = 10_000 // entries that are added, and removed, in a second
		batch   = 500
		staying = 20 * batch // entries stay so long
		pause   = time.Second * batch / second
		few     = 20 // batches, among which a generation that is built anew is no more than it is in the long run
	)
	h := newHost(t)
	h.configure(h.B.Iface, "lists: {always: {%s}}\n", h.feed(20_000))
	load := h.flood()
	d := h.start(releases[0])
	load.run()
	added := func(i int) []netip.Addr { return addresses(commandBlock, i, batch) }
	for i := 0; i < staying; i += batch {
		h.mustChange("", false, lines(added(i))...)
	}
	began, batches, before := time.Now(), 0, d.times()
	length := time.Duration(long.Or(3, 5)) * time.Second
	var slowest time.Duration
	for ; time.Since(began) < length || batches < few; batches++ {
		come, gone := added(staying+batches*batch), added(batches*batch)
		asked := time.Now()
		h.mustChange("", false, lines(come)...)
		slowest = max(slowest, time.Since(asked))
		asked = time.Now()
		h.mustChange("", true, lines(gone)...)
		slowest = max(slowest, time.Since(asked))
		if batches%5 == 0 {
			some := func(all []netip.Addr) []key.Tuple { return froms(all[0], all[batch/2], all[batch-1]) }
			load.expect("what was added", false, some(come)...)
			load.expect("what was removed", true, some(gone)...)
		}
		time.Sleep(time.Until(began.Add(time.Duration(batches+1) * pause)))
	}
	took := time.Since(began)
	// Their rate depends on the load of the machine; their cost does not.
	seconds := float64(batches*batch) / second
	cpus := (d.times().ran - before.ran).Seconds() / seconds
	t.Logf("%.0f adds and as many removes a second, for %v; the slowest command took %v; %d a second take %.2f of a CPU",
		float64(batches*batch)/took.Seconds(), took.Round(time.Millisecond), slowest.Round(time.Millisecond), second, cpus)
	if cpus > 1 {
		t.Errorf("%d adds and removes a second take %.2f CPUs, want one at most", second, cpus)
	}
	check := func() {
		t.Helper()
		if l := h.list("manual"); l.Manual != staying || l.Entries != staying {
			t.Errorf("%d manual entries are reported, want %d", l.Manual, staying)
		}
		left := addresses(commandBlock, batches*batch, staying)
		for i := 0; i < staying; i += staying / 20 {
			h.explain(left[i].String(), true)
			if i < batches*batch {
				h.explain(address(commandBlock, i).String(), false)
			}
		}
		for part := range slices.Chunk(left, 1000) {
			load.expect("what is left", false, froms(part...)...)
		}
		load.expect("what was removed", true, froms(addresses(commandBlock, max(0, batches*batch-1000), min(1000, batches*batch))...)...)
	}
	check()
	d.complain()
	d.kill()
	d = h.start(releases[0])
	check()
	// Adding present and removing absent entries changes nothing.
	twice := lines(addresses(commandBlock, batches*batch, 2))
	for _, remove := range []bool{false, true, true} {
		if _, err := h.change("", remove, append(twice, twice...)...); err != nil {
			t.Fatal(err)
		}
	}
	if l := h.list("manual"); l.Manual != staying-2 {
		t.Errorf("%d manual entries are reported, want %d", l.Manual, staying-2)
	}
	load.finish()
	d.complain()
}

// Explain distinguishes listed, listed and allowed, and only monitored packets.
func TestExplain(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const listed, pardoned, unlisted = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	configure := func(monitor bool) { h.configure(h.B.Iface, "monitor: %t\nlists: {}\n", monitor) }
	configure(false)
	h.start(releases[0])
	h.mustChange("", false, listed, pardoned)
	pardon := api.Change{Action: api.Allow, Entries: []string{pardoned}}
	if _, err := h.api.Change(t.Context(), pardon); err != nil {
		t.Fatal(err)
	}
	check := func(reason, verdict string) {
		t.Helper()
		for asked, want := range map[string][2]string{
			listed: {reason, verdict}, "> " + listed: {"clean", "pass"}, pardoned: {"allowed", "pass"}, unlisted: {"clean", "pass"},
		} {
			e, err := h.api.Explain(t.Context(), asked)
			if err != nil || e.Answers[0].Reason != want[0] || e.Answers[0].Verdict != want[1] {
				t.Errorf("%q: %+v, %v, want %q", asked, e, err, want)
			}
		}
	}
	check("blocked", "drop")
	configure(true)
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	check("would-block", "pass")
}

// Every stage of the program counts, not only the lists, and what comes from an
// address is not what goes to it.
func TestExplainStages(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("block.txt", []byte("0.0.0.0/8\n10.0.0.0/16\n10.9.0.1\n"))
	h.write("out.txt", []byte("203.0.113.9\n"))
	h.configure(h.B.Iface, `failsafe: {ports: [tcp/22], prefixes: [10.9.0.0/16]}
lists:
  block: {sources: [{file: %s}]}
  out: {sources: [{file: %s}], direction: dst}
`, h.path("block.txt"), h.path("out.txt"))
	h.start(releases[0])
	h.settled("block")
	h.settled("out")
	for question, want := range map[string]string{
		"10.0.0.1":                          "blocked clean",
		"8.8.8.8":                           "clean clean", // 0.0.0.0/8 is no source of everything
		"10.9.0.1":                          "failsafe clean",
		"tcp 10.0.0.1:9 > 192.0.2.1:22":     "failsafe",
		"tcp 10.0.0.1:9 > 192.0.2.1:23":     "blocked",
		"udp 10.0.0.1:67 > 192.0.2.1:68":    "dhcp",
		"203.0.113.9":                       "clean blocked",
		"tcp 192.0.2.1:9 > 203.0.113.9:80":  "blocked",
		"::ffff:10.0.0.1":                   "blocked clean",
		"203.0.113.0/24":                    "clean clean",
		"tcp 203.0.113.9:22 > 192.0.2.1:80": "clean",
	} {
		e, err := h.api.Explain(t.Context(), question)
		if err != nil {
			t.Fatal(err)
		}
		var reasons []string
		for _, a := range e.Answers {
			reasons = append(reasons, a.Reason)
		}
		if got := strings.Join(reasons, " "); got != want || e.Drops() != strings.Contains(want, "blocked") {
			t.Errorf("%s: %q, %v, want %q", question, got, e.Verdict, want)
		}
	}
	// The verdict on an address depends on a port that always passes.
	e, err := h.api.Explain(t.Context(), "10.0.0.1")
	if err != nil || !slices.ContainsFunc(e.Answers[0].Depends, func(d api.Dependency) bool { return d.Packets == "tcp/22" }) {
		t.Errorf("%+v, %v", e, err)
	}
	// Frames are answered in their order.
	frame := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("192.0.2.1"), Proto: 6, HasPorts: true, SrcPort: 9, DstPort: 22,
	})
	all, err := h.api.ExplainFrames(t.Context(), [][]byte{frame, frame[:20]})
	if err != nil || len(all) != 2 || all[0].Answers[0].Reason != "failsafe" || all[1].Answers[0].Reason != "truncated" {
		t.Errorf("%+v, %v", all, err)
	}
}

// Entries removed from a feed stay listed for the list's TTL, even if the
// daemon is killed, and no longer.
func TestLingering(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	h := newHost(t)
	h.feed(1010)
	h.configure(h.B.Iface, "lists: {always: {sources: [{file: %s}], interval: 1s, jitter: 0s, ttl: %v}}\n", h.path("feed.txt"), ttl)
	load := h.flood()
	d := h.start(releases[0])
	load.run()
	leaves := time.Now()
	h.feed(1000)
	d.await(0, "list updated")
	left := time.Now()
	count := func(byCommand int) {
		t.Helper()
		// A daemon that was killed may have saved what has left, and not yet the new feed.
		wait.For(t, fmt.Sprintf("1000 entries and %d manual ones", byCommand), func() bool {
			l := h.list("always")
			return l.Entries == 1000+byCommand && l.Manual == byCommand
		})
	}
	gone := froms(addresses(feedBlock, 1000, 10)...)
	count(10)
	load.expect("what has left the feed", false, gone...)
	d.kill()
	killed := time.Now()
	d = h.start(releases[0])
	count(10)
	load.expect("what has left the feed", false, gone...)
	started := time.Since(killed) // long on a slow machine, and nothing expires meanwhile
	d.await(0, "entries have expired")
	if least, most := time.Since(left), time.Since(leaves); most < ttl || least > ttl+started+2*time.Second {
		t.Errorf("it stays listed for %v to %v, want %v, and at most %v more, in which the daemon started", least, most, ttl, started)
	}
	count(0)
	load.expect("what has left the feed for long", true, gone...)
	load.finish()
	d.complain()
}
