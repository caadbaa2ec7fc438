package faults

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bad lines of a source are counted, named and logged while the daemon runs, also
// where the entries stay as they were.
func TestBadLines(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	const bad = 499
	good := strings.Repeat("#\n", 3) + "10.0.0.1\n"
	text := good
	for i := range bad {
		text += fmt.Sprintf("what is %d?\n", i)
	}
	feed := g.file("feed", good)
	g.configure("lists:\n  feed: {max_bad: 100%, sources: [{file: " + feed + "}]}\n")
	d := g.begin()
	d.read = 0
	g.untilMetric(0, "weir_list_bad_lines", `list="feed"`)
	g.file("feed", text)
	g.ask(0, "refresh", "feed")
	g.untilMetric(bad, "weir_list_bad_lines", `list="feed"`)
	s := g.list("feed").Feeds[0]
	if s.BadLines != bad || len(s.FirstBad) != 5 || !strings.Contains(s.FirstBad[0], ":5: ") || s.Outcome == "failed" {
		t.Errorf("weir lists: %+v", s)
	}
	out, _ := g.ask(0, "lists")
	g.says("weir lists", out, "499 bad lines left out, the first: ", "what is 0?")
	d.wait("bad lines were left out", `"lines":499`, "what is 4?", `"list":"feed"`)
	if n := d.count("bad lines were left out"); n != 1 {
		t.Errorf("%d lines of the log", n)
	}
	g.filters("with bad lines", []string{"10.0.0.1"}, []string{"10.0.0.2"})
	d.stop()
}

// A source that fails from the start is one error of the log, which does not claim
// that there are old contents.
func TestFailingFromTheStart(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	server := serve(t, func(string) http.HandlerFunc { return http.NotFound })
	g.configure(fmt.Sprintf("lists:\n  feed: {interval: 1h, exclude_private: false, sources: [{url: %q}]}\n", server.URL+"/feed"))
	d := g.begin()
	time.Sleep(2 * time.Second)
	var failed []string
	for _, line := range d.log() {
		if strings.Contains(line, `"list":"feed"`) && strings.Contains(line, `"level":"ERROR"`) {
			failed = append(failed, line)
		}
	}
	if len(failed) != 1 || !strings.Contains(failed[0], "404") || strings.Contains(failed[0], "old contents") {
		t.Errorf("the log:\n%s", strings.Join(failed, "\n"))
	}
	g.refuses([]string{"1 of 1"}, "refresh", "feed")
	d.wait("feed failed, and it has no entries of before", `"list":"feed"`)
	d.stop()
}

// weir refresh reads lists in the order of the configuration, whatever their
// priorities are.
func TestRefreshOrder(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	var mu sync.Mutex
	var asked []string
	server := serve(t, func(path string) http.HandlerFunc {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, path)
		return text("10.0.0.1\n")
	})
	names := []string{"zebra", "ant", "mole", "bee", "yak", "cat", "x", "dog"}
	var lists, paths []string
	for i, n := range names {
		lists = append(lists, fmt.Sprintf("  %s: {priority: %d, interval: 1h, exclude_private: false, sources: [{url: %q}]}\n", n, i%3, server.URL+"/"+n))
		paths = append(paths, "/"+n)
	}
	g.configure("lists:\n" + strings.Join(lists, ""))
	d := g.begin()
	g.until("all lists are read", func() bool { mu.Lock(); defer mu.Unlock(); return len(asked) >= len(names) })
	time.Sleep(time.Second) // whatever else is read at the start
	mu.Lock()
	asked = nil
	mu.Unlock()
	out, _ := g.ask(0, "refresh")
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(asked, paths) {
		t.Errorf("asked for %v, want %v", asked, paths)
	}
	var printed []string
	for line := range strings.Lines(out) {
		name, _, _ := strings.Cut(line, ":")
		printed = append(printed, name)
	}
	if !slices.Equal(printed, names) {
		t.Errorf("printed in the order %v, want %v:\n%s", printed, names, out)
	}
	d.stop()
}
