package faults

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// shapes returns flows of n combinations of prefix lengths, from and to others
// than the tests' packets.
func shapes(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "tcp 172.16.0.0/%d:* > 172.20.0.0/%d:80\n", 16+i%16, 14+i/16)
	}
	return text.String()
}

// A list that does not fit beside the others fails alone: its last contents that
// did stay active and saved, commands and other lists go on, and after a reboot
// all of it is active again.
func TestPoisonedList(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	const poisoned, good, fresh = "10.0.0.1", "10.0.1.1", "10.0.1.2"
	var poison, more atomic.Bool
	server := serve(t, func(path string) http.HandlerFunc {
		switch {
		case path == "/poisoned" && poison.Load():
			return text(poisoned + "\n10.0.0.2\n" + shapes(33))
		case path == "/poisoned":
			return text(poisoned + "\n" + shapes(30))
		case more.Load():
			return text(good + "\n" + fresh + "\n")
		}
		return text(good + "\n")
	})
	mine := g.file("mine", "10.0.2.1\n")
	lists := fmt.Sprintf("lists:\n  poisoned: {interval: 1h, sources: [{url: %q}]}\n  good: {interval: 1h, sources: [{url: %q}]}\n  mine: {sources: [{file: %s}]}\n",
		server.URL+"/poisoned", server.URL+"/good", mine)
	g.configure(lists)
	d := g.begin()
	g.filters("good", []string{poisoned, good, "10.0.2.1"}, []string{"10.0.0.2", fresh})

	poison.Store(true)
	out, _ := g.ask(1, "refresh", "poisoned")
	g.says("weir refresh", out, "uncompiled", "33 combinations of fields and prefix lengths", "the limit is 32")
	l := g.list("poisoned")
	if s := l.Feeds[0]; s.Outcome != "failed" || s.Failure != "uncompiled" || s.Entries != 31 || l.Entries != 31 || s.Unsaved {
		t.Errorf("weir lists: %+v", l)
	}
	if g.metric("weir_feed_failing", `failure="uncompiled"`, `list="poisoned"`) != 1 {
		t.Error("no metric for the list that does not fit")
	}
	d.wait("not active, the old contents stay", `"list":"poisoned"`)
	checkOthers := func(when string) {
		t.Helper()
		g.filters(when, []string{poisoned, good, "10.0.2.1"}, []string{"10.0.0.2"})
	}
	checkOthers("poisoned")
	g.ask(0, "block", "10.0.3.1")
	g.ask(0, "allow", "10.0.3.2")
	more.Store(true)
	g.ask(0, "refresh", "good")
	g.file("mine", "10.0.2.1\n10.0.2.2\n")
	g.ask(0, "reload")
	g.filters("changed beside it", []string{poisoned, good, fresh, "10.0.2.2", "10.0.3.1"}, []string{"10.0.0.2"})

	d.kill()
	g.weir(0, "detach", "--all", "--pins", g.pins)
	g.filters("detached", nil, []string{poisoned, good})
	d = g.begin()
	g.filters("after a reboot", []string{poisoned, good, fresh, "10.0.2.2", "10.0.3.1"}, []string{"10.0.0.2"})
	g.until("the feed is read again", func() bool { return g.list("poisoned").Feeds[0].Failure == "uncompiled" })
	g.filters("after it was read again", []string{poisoned, good, fresh, "10.0.2.2", "10.0.3.1"}, []string{"10.0.0.2"})

	poison.Store(false)
	g.ask(0, "refresh", "poisoned")
	if s := g.list("poisoned").Feeds[0]; s.Failure != "" {
		t.Errorf("mended: %+v", s)
	}
	d.stop()
}

// A list that does not fit from the start is left out, and active once it fits.
func TestPoisonedFromTheStart(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	bad := g.file("bad", "10.0.0.1\n"+shapes(33))
	fine := g.file("fine", "10.0.1.1\n")
	g.configure(fmt.Sprintf("lists:\n  bad: {sources: [{file: %s}]}\n  fine: {sources: [{file: %s}]}\n", bad, fine))
	d := g.begin()
	d.read = 0
	d.wait("contents that cannot be activated are left out", `"list":"bad"`)
	g.filters("at first", []string{"10.0.1.1"}, []string{"10.0.0.1"})
	if out, _ := g.weir(anyCode, "check", g.config); !strings.Contains(out, "33 combinations") {
		_, log := g.weir(anyCode, "check", g.config)
		if !strings.Contains(log, "33 combinations") {
			t.Errorf("weir check says nothing of it:\n%s%s", out, log)
		}
	}
	g.ask(0, "block", "10.0.2.1")
	g.file("bad", "10.0.0.1\n"+shapes(3))
	g.ask(0, "refresh", "bad")
	g.filters("mended", []string{"10.0.0.1", "10.0.1.1", "10.0.2.1"}, nil)
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
	g.configure(fmt.Sprintf("lists:\n  feed: {interval: 1h, sources: [{url: %q}]}\n", server.URL+"/feed"))
	d := g.begin()
	g.filters("at first", []string{kept, left}, nil)

	serves(kept + "\n")
	out, _ := g.ask(1, "refresh", "feed")
	g.says("weir refresh", out, "shrunk", "--accept")
	g.filters("shrunk", []string{kept, left}, nil)
	g.refuses([]string{"name the lists"}, "refresh", "--accept")
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
	audit, err := os.ReadFile(filepath.Join(g.state, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	g.says("the audit", string(audit), `"change":"accept","list":"feed"`, `"source":"socket"`, server.URL)
	if n := strings.Count(string(audit), "\n"); n != 2 {
		t.Errorf("%d lines of the audit", n)
	}
	d.stop()
}
