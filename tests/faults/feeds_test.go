package faults

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"weir/tests/long"
)

// badFeed is a way for a feed to fail.
type badFeed struct {
	name    string // of the list
	handler http.HandlerFunc
	failure string // "": this is none
	says    string
}

var badFeeds = []badFeed{
	{"missing", status(404), "status", "404 Not Found"},
	{"broken", status(500), "status", "500 Internal Server Error"},
	{"unchanged", status(304), "", ""}, // conditional: good contents have a tag
	{"page", text("<html>\n<body>504 Gateway Time-out</body>\n</html>\n"), "garbage", "a page of HTML or XML instead of a list"},
	{"empty", text(""), "empty", "no entries"},
	{"shrunk", text("10.0.0.1\n"), "shrunk", "1 entries, down from 4: more than 50% removed (refresh --accept or a larger max_shrink accepts it)"},
	{"truncated", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "10.0.0.1\n")
	}, "truncated", "broke off after 9 bytes"},
	{"reset", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "unreachable", "no answer"},
	{"stalled", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "10.0.0.1\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}, "timeout", "not done within 1s"},
	{"bomb", func(w http.ResponseWriter, _ *http.Request) { w.Write(bomb()) }, "too-large", "max_bytes"},
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// text answers with a text and an entity tag.
func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		tag := fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(body)))
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		fmt.Fprint(w, body)
	}
}

// bomb is 16 MiB of addresses in a few kilobytes.
var bomb = sync.OnceValue(func() []byte {
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	line := []byte(strings.Repeat("10.0.0.1\n", 1<<12))
	for range 1 << 9 {
		z.Write(line) // to memory
	}
	z.Close()
	return packed.Bytes()
})

// serve serves what a function returns for a path.
func serve(t *testing.T, handler func(path string) http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler(r.URL.Path)(w, r) }))
	t.Cleanup(s.Close)
	return s
}

// address is one of a list's: of the list's number, by its own.
func address(list, number int) string { return fmt.Sprintf("10.0.%d.%d", list, number) }

// Every way for a feed to fail, all at once: the lists' contents stay active,
// even across a restart, until the feeds recover. Feeds that never had contents
// do not block the others.
func TestFeeds(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	g := newGround(t)
	const good, bad, better = 0, 1, 2
	var now atomic.Int32
	now.Store(bad)
	server := serve(t, func(path string) http.HandlerFunc {
		i := slices.IndexFunc(badFeeds, func(f badFeed) bool { return path == "/"+f.name })
		entries := 4
		switch now.Load() {
		case bad:
			return badFeeds[i].handler
		case better:
			entries++
		}
		body := ""
		for n := range entries {
			body += address(i, n+1) + "\n"
		}
		return text(body)
	})
	lists := "lists:\n"
	var held, later []string
	for i, f := range badFeeds {
		timeout := "1m" // others than that which is to pass fail at once, whatever else runs
		if f.failure == "timeout" {
			timeout = "1s"
		}
		lists += fmt.Sprintf("  %s: {interval: 1s, jitter: 0s, exclude_private: false, sources: [{url: \"%s/%s\", timeout: %s, max_bytes: 64KiB}]}\n", f.name, server.URL, f.name, timeout)
		held, later = append(held, address(i, 4)), append(later, address(i, 5))
	}
	fine := "10.9.9.1"
	g.configure(lists + "  fine: {sources: [{file: " + g.file("fine", fine) + "}]}\n")
	d := g.begin()
	for _, f := range badFeeds {
		if f.failure != "shrunk" { // which nothing is, at first
			d.read = 0
			d.wait("feed failed", `"active_entries":0`, `"list":"`+f.name+`"`)
		}
	}
	g.filters("never good", []string{fine}, append(held, later...))
	if out, _ := g.ask(0, "lists"); strings.Count(out, "it has never been read") != len(badFeeds)-1 {
		t.Errorf("weir lists:\n%s", out)
	}
	now.Store(good)
	for i := range badFeeds {
		g.untilDropped(address(i, 4))
	}
	g.filters("good", append(held, fine), later)

	now.Store(bad)
	g.checkBad("bad", server.URL)
	g.filters("bad", held, later)
	for _, f := range badFeeds {
		if f.failure != "" {
			d.read = 0
			d.wait("feed failed, the old contents stay", `"entries":4`, `"list":"`+f.name+`"`, `"failure":"`+f.failure+`"`)
		}
	}
	g.refuses([]string{"1 of 1", "their old contents stay active"}, "refresh", "missing")

	d.kill()
	g.filters("killed", held, later)
	d = g.begin()
	g.filters("bad, after a restart", held, later)
	g.checkBad("bad, after a restart", server.URL)

	now.Store(better)
	for i, f := range badFeeds {
		g.untilDropped(address(i, 5))
		g.untilMetric(-1, "weir_feed_failing", `list="`+f.name+`"`)
	}
	g.filters("good again", append(held, later...), nil)
	d.stop()
}

// checkBad waits until all bad feeds have failed, and checks lists and metrics
// for each.
func (g *ground) checkBad(when, url string) {
	g.t.Helper()
	for _, f := range badFeeds {
		g.until(f.name+" fails", func() bool { return f.failure == "" || g.list(f.name).Feeds[0].Outcome == "failed" })
	}
	metrics := g.metrics()
	shown, _ := g.ask(0, "lists")
	for _, f := range badFeeds {
		fails := f.failure != ""
		l := g.list(f.name)
		source := l.Feeds[0]
		if l.Entries != 4 || source.Failure != f.failure || (source.Failures > 0) != fails || !strings.Contains(source.Error, f.says) {
			g.t.Errorf("%s: weir lists says of %s: %+v", when, f.name, l)
		}
		if fails && !(regexp.MustCompile(regexp.QuoteMeta(f.name+": "+source.Source)+`: FAILED \d+ times? \(`+f.failure).MatchString(shown) && strings.Contains(shown, f.says)) {
			g.t.Errorf("%s: weir lists does not say of %s: %q\n%s", when, f.name, f.says, shown)
		}
		labels := fmt.Sprintf(`list="%s",source="%s/%s"}`, f.name, url, f.name)
		_, failing := metrics[fmt.Sprintf(`weir_feed_failing{failure="%s",%s`, f.failure, labels)]
		attempts, entries := metrics["weir_feed_failed_attempts{"+labels], metrics["weir_feed_entries{"+labels]
		if failing != fails || (attempts > 0) != fails || entries != 4 {
			g.t.Errorf("%s: metrics of %s: failing: %t, failed attempts: %v, entries: %v", when, f.name, failing, attempts, entries)
		}
	}
}
