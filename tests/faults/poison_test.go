package faults

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"weir/tests/must"
)

// far returns flows of 32 combinations and more of fields and prefix lengths, of
// which few can be merged: from and to others than the tests' packets. It returns
// their number.
func far() (text string, n int) {
	var all strings.Builder
	for _, protocol := range []string{"any", "tcp"} {
		for _, sport := range []string{"*", "1"} {
			for _, dport := range []string{"*", "80"} {
				for _, src := range []string{"172.16.0.0/12", "172.20.3.0/24", "172.20.3.4"} {
					for _, dst := range []string{"172.16.0.0/12", "172.21.3.0/24", "172.21.3.4"} {
						fmt.Fprintf(&all, "%s %s:%s > %s:%s\n", protocol, src, sport, dst, dport)
						n++
					}
				}
			}
		}
	}
	return all.String(), n
}

// near returns flows of n combinations of prefix lengths, which can be merged.
func near(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "tcp 172.16.0.0/%d:* > 172.20.0.0/%d:80\n", 16+i%16, 14+i/16)
	}
	return text.String()
}

// Of a list whose flows have more combinations of fields than there is room for,
// some lines are left out. The rest, commands and other lists are active, also after
// a reboot.
func TestPoisonedList(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	const poisoned, good, fresh = "10.0.0.1", "10.0.1.1", "10.0.1.2"
	var poison, more atomic.Bool
	flows, n := far()
	server := serve(t, func(path string) http.HandlerFunc {
		switch {
		case path == "/poisoned" && poison.Load():
			return text(poisoned + "\n10.0.0.2\n" + flows)
		case path == "/poisoned":
			return text(poisoned + "\n" + near(100))
		case more.Load():
			return text(good + "\n" + fresh + "\n")
		}
		return text(good + "\n")
	})
	mine := g.file("mine", "10.0.2.1\n")
	lists := fmt.Sprintf("lists:\n  poisoned: {interval: 1h, exclude_private: false, sources: [{url: %q}]}\n  good: {interval: 1h, exclude_private: false, sources: [{url: %q}]}\n  mine: {sources: [{file: %s}]}\n",
		server.URL+"/poisoned", server.URL+"/good", mine)
	g.configure(lists)
	d := g.begin()
	g.filters("good", []string{poisoned, good, "10.0.2.1"}, []string{"10.0.0.2", fresh})
	if l := g.list("poisoned"); l.Entries != 101 || len(l.Spare) != 0 {
		t.Errorf("combinations that can be merged: %+v", l)
	}

	poison.Store(true)
	g.ask(0, "refresh", "poisoned")
	leftOut := func(when string) int {
		t.Helper()
		l, spare := g.list("poisoned"), 0
		for _, s := range l.Spare {
			spare += s.Entries
		}
		if spare == 0 || spare > n-20 || l.Entries != 2+n-spare || l.Feeds[0].Failure != "" {
			t.Errorf("%s: %d flows are left out: %+v", when, spare, l)
		}
		g.untilMetric(float64(spare), "weir_list_left_out", `list="poisoned"`)
		return spare
	}
	spare := leftOut("poisoned")
	out, _ := g.ask(0, "lists")
	g.says("weir lists", out, "poisoned: LEFT OUT 1 × ", "too many combinations of fields and prefix lengths")
	d.wait("flows of too many combinations", `"list":"poisoned"`, fmt.Sprintf(`"entries":%d`, spare))
	g.filters("poisoned", []string{poisoned, "10.0.0.2", good, "10.0.2.1"}, []string{fresh})

	// Manual flows take precedence over those of the list.
	for _, flow := range []string{"udp 10.0.4.0/24:* > *:9", "udp 10.0.5.0/28:4000 > *:*", "any 10.0.6.0/27:4000 > *:9"} {
		g.ask(0, "block", flow)
	}
	if now := leftOut("with manual flows"); now <= spare {
		t.Errorf("%d flows are left out, %d before there were manual ones", now, spare)
	}
	g.ask(0, "block", "10.0.3.1")
	g.ask(0, "allow", "10.0.3.2")
	more.Store(true)
	g.ask(0, "refresh", "good")
	g.file("mine", "10.0.2.1\n10.0.2.2\n")
	g.ask(0, "reload")
	drops := []string{poisoned, "10.0.0.2", good, fresh, "10.0.2.2", "10.0.3.1", "10.0.4.1", "10.0.5.1", "10.0.6.1"}
	g.filters("changed beside it", drops, nil)

	d.kill()
	g.weir(0, "detach", "--all", "--pins", g.pins)
	g.filters("detached", nil, []string{poisoned, good})
	d = g.begin()
	g.filters("after a reboot", drops, nil)
	leftOut("after a reboot")

	poison.Store(false)
	g.ask(0, "refresh", "poisoned", "--accept")
	if l := g.list("poisoned"); l.Entries != 101 || len(l.Spare) != 0 {
		t.Errorf("mended: %+v", l)
	}
	d.stop()
}

// A list of which a part does not fit from the start has the rest, and all of it
// once it fits.
func TestPoisonedFromTheStart(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	flows, _ := far()
	bad := g.file("bad", "10.0.0.1\n"+flows)
	fine := g.file("fine", "10.0.1.1\n")
	g.configure(fmt.Sprintf("lists:\n  bad: {sources: [{file: %s}]}\n  fine: {sources: [{file: %s}]}\n", bad, fine))
	_, log := g.weir(anyCode, "check", g.config)
	g.says("weir check", log, "list bad: left out: 1 × ", "too many combinations of fields and prefix lengths")
	d := g.begin()
	d.read = 0
	d.wait("flows of too many combinations", `"list":"bad"`)
	g.filters("at first", []string{"10.0.0.1", "10.0.1.1"}, nil)
	g.ask(0, "block", "10.0.2.1")
	g.file("bad", "10.0.0.2\n"+near(3))
	g.ask(0, "refresh", "bad")
	g.filters("mended", []string{"10.0.0.2", "10.0.1.1", "10.0.2.1"}, []string{"10.0.0.1"})
	if l := g.list("bad"); len(l.Spare) != 0 {
		t.Errorf("mended: %+v", l)
	}
	d.stop()
}

// An operator accepts what is refused, once: a list that has shrunk, and one that
// covers too much, also across a restart. The audit says so.
func TestAccept(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	const kept, left = "10.0.0.1", "10.0.0.2"
	var now atomic.Pointer[string]
	serves := func(s string) { now.Store(&s) }
	serves(kept + "\n" + left + "\n10.0.0.3\n10.0.0.4\n")
	server := serve(t, func(string) http.HandlerFunc { return text(*now.Load()) })
	g.configure(fmt.Sprintf("lists:\n  feed: {interval: 1h, exclude_private: false, sources: [{url: %q}]}\n", server.URL+"/feed"))
	d := g.begin()
	g.filters("at first", []string{kept, left}, nil)

	serves(kept + "\n")
	out, _ := g.ask(1, "refresh", "feed")
	g.says("weir refresh", out, "shrunk", "--accept")
	g.filters("shrunk", []string{kept, left}, nil)
	_, log := g.ask(2, "refresh", "--accept")
	g.says("weir refresh --accept", log, "name the lists")
	g.ask(0, "refresh", "feed", "--accept")
	g.filters("accepted", []string{kept}, []string{left})

	serves(kept + "\n64.0.0.0/2\n10.0.0.2\n0.0.0.0/5\n")
	out, _ = g.ask(1, "refresh", "feed")
	g.says("weir refresh", out, "refused", "it would cover 28.1 % of IPv4")
	g.ask(0, "refresh", "feed", "--accept")
	g.filters("wide", []string{kept, left, "64.1.2.3"}, nil)
	d.kill()
	g.weir(0, "detach", "--all", "--pins", g.pins)
	d = g.begin()
	g.filters("wide, after a restart", []string{kept, left, "64.1.2.3"}, nil)
	audit := must.Read(t, filepath.Join(g.state, "audit.log"))
	g.says("the audit", string(audit), `"change":"accept","list":"feed"`, `"source":"socket"`, server.URL)
	if n := strings.Count(string(audit), `"change":"accept"`); n != 2 {
		t.Errorf("%d times accepted in the audit, not 2", n)
	}
	d.stop()
}
