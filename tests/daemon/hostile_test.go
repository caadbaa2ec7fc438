package daemon

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"weir/tests/long"
	"weir/tests/timed"
)

// hostileFeeds returns what answers for feeds that are to hold weir up. A name's suffix says how
// the text is compressed, which takes seconds.
func hostileFeeds() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"lines.gz":   packed(gzipped, func(w io.Writer) { repeat(w, "x\n", 125_000_000) }),
		"blank.zst":  packed(zstandard, func(w io.Writer) { repeat(w, "\n", 255<<20) }),
		"shapes":     packed(plain, shapes),
		"members.gz": packed(plain, func(w io.Writer) { repeat(w, string(emptyMember()), 2_000_000) }),
		"nested.gz": packed(gzipped, func(w io.Writer) {
			of := gzip.NewWriter(w)
			defer of.Close()
			repeat(of, "192.0.2.1\n", 20_000_000)
		}),
		"equal.gz":    packed(gzipped, func(w io.Writer) { repeat(w, "192.0.2.1\n", 25_000_000) }),
		"ranges.gz":   packed(gzipped, func(w io.Writer) { repeat(w, "0.0.0.1-255.255.255.254\n", 300_000) }),
		"ranges6.gz":  packed(gzipped, func(w io.Writer) { repeat(w, "::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe\n", 50_000) }),
		"comments.gz": packed(gzipped, func(w io.Writer) { repeat(w, "# a comment\n", 20_000_000) }),
		"line.gz":     packed(gzipped, func(w io.Writer) { repeat(w, "9", 200_000_000) }),
		"random":      packed(plain, func(w io.Writer) { scattered(w, 100_000) }),
		"slow": func(w http.ResponseWriter, q *http.Request) {
			for q.Context().Err() == nil {
				_, _ = io.WriteString(w, "1")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
		},
		"endless": func(w http.ResponseWriter, q *http.Request) {
			for q.Context().Err() == nil {
				if _, err := io.WriteString(w, strings.Repeat("45.0.0.1\nbad\n", 1000)); err != nil {
					return
				}
			}
		},
		"redirects": func(w http.ResponseWriter, q *http.Request) {
			n, _ := strconv.Atoi(q.URL.Query().Get("n"))
			http.Redirect(w, q, fmt.Sprintf("/redirects?n=%d", n+1), http.StatusFound)
		},
	}
}

func listOf(feed string) string { return "bad-" + strings.ReplaceAll(feed, ".", "-") }

func plain(w io.Writer) io.WriteCloser {
	return struct {
		io.Writer
		io.Closer
	}{w, io.NopCloser(nil)}
}

func gzipped(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }

func zstandard(w io.Writer) io.WriteCloser {
	z, err := zstd.NewWriter(w)
	if err != nil {
		panic(err)
	}
	return z
}

// packed answers with a text, which it writes once.
func packed(pack func(io.Writer) io.WriteCloser, write func(io.Writer)) http.HandlerFunc {
	var b bytes.Buffer
	to := pack(&b)
	write(to)
	if err := to.Close(); err != nil {
		panic(err)
	}
	return func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = w.Write(b.Bytes())
	}
}

func repeat(w io.Writer, text string, n int) {
	const at = 1 << 12
	many := []byte(strings.Repeat(text, at))
	for ; n > at; n -= at {
		_, _ = w.Write(many)
	}
	_, _ = io.WriteString(w, strings.Repeat(text, n))
}

func emptyMember() []byte {
	var b bytes.Buffer
	gzip.NewWriter(&b).Close()
	return b.Bytes()
}

// shapes writes flows of more combinations of prefix lengths than fit.
func shapes(w io.Writer) {
	for s := range 18 {
		for d := range 18 {
			fmt.Fprintf(w, "tcp 45.0.0.0/%d:* > 46.0.0.0/%d:80\n", 15+s, 15+d)
			fmt.Fprintf(w, "tcp [2001:db8::/%d]:* > [2001:db8:1::/%d]:80\n", 111+s, 111+d)
		}
	}
}

// scattered writes addresses that have nothing in common.
func scattered(w io.Writer, n int) {
	for i := range n {
		fmt.Fprintln(w, spread(i+5_000_000))
	}
}

// Hostile feeds beside 180 good lists, one of them with a million entries, delay neither the
// filtering by what is saved, nor commands, nor the end, and take no more than their share of the
// processor.
func TestHostileFeeds(t *testing.T) {
	long.Only(t, "takes minutes")
	timed.Alone(t)
	// Each feed is read once in the time that is watched, which takes 3 to 5 s for all, and 13 on a
	// slow machine.
	const good, entries, budget = 180, 1_000_000, 1400 * time.Millisecond
	feeds, answered := hostileFeeds(), make(map[string]*atomic.Uint64)
	for name := range feeds {
		answered[name] = new(atomic.Uint64)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		name := strings.TrimPrefix(q.URL.Path, "/")
		if answer := feeds[name]; answer != nil {
			answered[name].Add(1)
			answer(w, q)
		} else {
			http.NotFound(w, q)
		}
	}))
	t.Cleanup(server.CloseClientConnections)
	t.Cleanup(server.Close)

	h := newHost(t)
	h.bigList(entries)
	var lists strings.Builder
	fmt.Fprintf(&lists, "  big: {sources: [{file: %s}], interval: 24h}\n", h.path("feed.txt"))
	var sources []string // one of each good list
	for i := range good - 1 {
		var text strings.Builder
		for n := range 100 {
			fmt.Fprintf(&text, "198.18.%d.%d\n", i, n)
		}
		sources = append(sources, fmt.Sprintf("198.18.%d.7", i))
		fmt.Fprintf(&lists, "  good%d: {sources: [{file: %s}], interval: 24h}\n", i, h.write(fmt.Sprintf("good%d.txt", i), []byte(text.String())))
	}
	var bad strings.Builder
	for name := range feeds {
		fmt.Fprintf(&bad, "  %s: {sources: [{url: %q}], interval: 1m}\n", listOf(name), server.URL+"/"+name)
	}
	used := func(d *daemon) time.Duration {
		t.Helper()
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		var ticks int
		for _, f := range fields[11:13] {
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			ticks += n
		}
		return time.Duration(ticks) * 10 * time.Millisecond
	}
	filtering := func() {
		t.Helper()
		for _, s := range sources {
			h.explain(s, true)
		}
		h.explain(spread(1).String(), true)
	}
	// watched runs commands for a time, and returns how long the slowest took.
	next := 0
	watched := func(d *daemon, during time.Duration) (slowest time.Duration) {
		t.Helper()
		for until := time.Now().Add(during); time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
			for what, command := range map[string]func() error{
				"block":   func() error { next++; _, err := h.change("", false, address(commandBlock, next).String()); return err },
				"lists":   func() error { _, err := h.api.Lists(t.Context()); return err },
				"status":  func() error { _, err := h.api.Status(t.Context()); return err },
				"explain": func() error { _, err := h.api.Explain(t.Context(), "198.18.0.7"); return err },
			} {
				began := time.Now()
				if err := command(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				slowest = max(slowest, time.Since(began))
			}
		}
		return slowest
	}
	ended := func(d *daemon) time.Duration {
		t.Helper()
		began := time.Now()
		d.stop()
		return time.Since(began)
	}
	// again starts as after a reboot, and returns how long it takes until all that is saved filters.
	again := func() (*daemon, time.Duration) {
		t.Helper()
		h.detach()
		began := time.Now()
		d := h.start(releases[0])
		took := time.Since(began)
		filtering()
		return d, took
	}

	h.configure(h.B.Iface, "lists:\n%s", lists.String())
	d := h.start(releases[0])
	h.settled("big")
	filtering()
	ended(d)
	d, alone := again()
	const during = 20 * time.Second
	quiet := watched(d, during/3)
	usedAlone := used(d)
	d.kill()

	h.configure(h.B.Iface, "lists:\n%s%s", lists.String(), bad.String())
	var stops []time.Duration
	for i, what := range []string{"the first start", "a start with what is saved of them"} {
		d, took := again()
		for more := 0; more < 2 && i > 0 && took > alone+2*time.Second; more++ { // a machine may be busy for a moment
			stops = append(stops, ended(d))
			d, took = again()
		}
		t.Logf("%s: filtering after %v, %v without hostile feeds", what, took.Round(time.Millisecond), alone.Round(time.Millisecond))
		if took > alone+2*time.Second {
			t.Errorf("%s: filtering by what is saved after %v, without hostile feeds after %v", what, took, alone)
		}
		stops = append(stops, ended(d)) // while they are read
		d, _ = again()
		slowest := watched(d, during)
		cpu := used(d) - usedAlone
		t.Logf("%s: the slowest command took %v (%v without); %v of processor time more in %v for %d feeds", what,
			slowest.Round(time.Millisecond), quiet.Round(time.Millisecond), cpu, during, len(feeds))
		if slowest > time.Second {
			t.Errorf("%s: a command took %v", what, slowest)
		}
		if cpu > budget*time.Duration(len(feeds)) {
			t.Errorf("%s: %v of processor time", what, cpu)
		}
		filtering()
		for name := range feeds {
			l := h.list(listOf(name))
			t.Logf("%s: %s, %d entries, %.150s", l.Name, l.Feeds[0].Outcome, l.Entries, l.Feeds[0].Error)
		}
		stops = append(stops, ended(d))
	}
	for _, took := range stops {
		if took > 2*time.Second {
			t.Errorf("the end took %v", took)
		}
	}
	t.Logf("the end took %v", stops)
	for name, n := range answered {
		if n.Load() == 0 {
			t.Errorf("%s was never read", name)
		}
	}
}
