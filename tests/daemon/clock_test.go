package daemon

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/clock"
	binaries "weir/tests/binary"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
	"weir/tests/wait"
)

// stepped is weir with a wall clock that a test sets: that of its process, not the machine's.
func stepped(t *testing.T) (r release, set func(ahead time.Duration)) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("needs amd64: setting the clock of a process is written in its assembly language")
	}
	dir := t.TempDir()
	sources, err := filepath.Abs("../clock/testdata")
	if err != nil {
		t.Fatal(err)
	}
	command, err := filepath.Abs("../../cmd/weir")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		command + "/wall.go": sources + "/wall.go", command + "/wall_amd64.s": sources + "/wall_amd64.s",
	}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "overlay.json")
	must.Write(t, path, overlay)
	if err := binaries.Build(dir, "weir-clock", "weir", "-overlay="+path); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "ahead")
	set = func(ahead time.Duration) {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead/time.Second)), 0); err != nil {
			t.Fatal(err)
		}
	}
	set(0)
	t.Setenv("WEIR_TEST_CLOCK", file)
	return release{name: "weir-clock", version: "dev", path: filepath.Join(dir, "weir-clock")}, set
}

// decisions is an API of CrowdSec, whose decisions end by the clock of the test.
type decisions struct {
	mu  sync.Mutex
	all []decision
}

type decision struct {
	source string
	until  time.Time
	sent   bool
}

func (d *decisions) add(source string, ttl time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, decision{source: source, until: time.Now().Add(ttl)})
}

// ServeHTTP answers with all decisions, or with those that are new.
func (d *decisions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var added []string
	for i := range d.all {
		one := &d.all[i]
		if left := time.Until(one.until); left > 0 && (!one.sent || r.URL.Query().Get("startup") == "true") {
			one.sent = true
			added = append(added, fmt.Sprintf(`{"duration":"%v","id":%d,"origin":"cscli","scenario":"x","scope":"Ip","type":"ban","value":"%s"}`, left, i, one.source))
		}
	}
	fmt.Fprintf(w, `{"new":[%s],"deleted":[]}`, strings.Join(added, ","))
}

var settingLine = regexp.MustCompile(`CLOCK: set (forward|back) by ([0-9.]+)(s|m|h|d), `)

// settings returns the steps of the clock in what status prints, with the units in which it rounds them.
func settings(out string) (by, unit []time.Duration) {
	for _, m := range settingLine.FindAllStringSubmatch(out, -1) {
		n, _ := strconv.ParseFloat(m[2], 64)
		if m[1] == "back" {
			n = -n
		}
		of := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[m[3]]
		by, unit = append(by, time.Duration(n*float64(of))), append(unit, of)
	}
	return by, unit
}

// However the wall clock of the daemon is set, while it runs or does not, over restarts and kill -9, nothing
// that has a time ends early, nothing lasts longer, no listed packet comes through, and status has each step.
func TestClockIsSet(t *testing.T) {
	long.Seconds(t)
	r, set := stepped(t)
	const day = 24 * time.Hour
	random := seed.New(t)
	h := newHost(t)
	crowd := &decisions{}
	lapi := httptest.NewServer(crowd)
	t.Cleanup(lapi.Close)
	crowd.add("192.0.2.8", 24*time.Hour)
	h.write("feed.txt", []byte("198.51.100.1\n198.51.100.2\n"))
	h.write("left.txt", []byte("198.51.100.1\n"))
	var indicators []string
	for _, i := range []string{`'198.51.100.9']"`, `'198.51.100.10']", "valid_until": "UNTIL"`, `'198.51.100.11']", "valid_until": "UNTIL"`} {
		indicators = append(indicators, `{"type": "indicator", "pattern_type": "stix", "valid_from": "1960-01-01T00:00:00Z", "pattern": "[ipv4-addr:value = `+
			strings.ReplaceAll(i, "UNTIL", time.Now().Add(100*day).UTC().Format(time.RFC3339))+"}")
	}
	h.write("stix.json", []byte(`{"type": "bundle", "objects": [`+strings.Join(indicators, ", ")+"]}"))
	h.configure(h.B.Iface, `console: {listen: %q}
trackers: [{key: src, threshold: 3kpps, action: block, duration: 4s}]
max_coverage: 100%%
lists:
  feed: {ttl: 3d, sources: [{file: %s}], interval: 24h}
  left: {ttl: 5s, sources: [{file: %s}], interval: 2s, jitter: 1s, max_shrink: 100%%}
  stix: {format: stix, sources: [{file: %s}], interval: 24h}
  crowd: {format: crowdsec, interval: 1s, sources: [{url: %s, headers: {X-Api-Key: key}}]}
  trial: {entries: [203.0.113.77], enforce: false}
  soon: {entries: [203.0.113.78], enforce: false}
  many: {entries: [10.60.0.0/16]}
  jail: {}
  ours: {action: allow, entries: [192.0.2.250]}
`, lab.FreeAddress(t), h.path("feed.txt"), h.path("left.txt"), h.path("stix.json"), lapi.URL)
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(r.path, append(args, "--socket", h.path("weir.sock"))...).CombinedOutput()
		if err != nil {
			t.Fatalf("weir %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	refresh := func(list string) {
		t.Helper()
		if _, err := h.api.Refresh(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	status := func() *api.Status {
		t.Helper()
		s, err := h.api.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a := netip.MustParseAddr
	load := startTraffic(t, h.Lab, nil, froms(a("10.0.0.1"), a("192.0.2.4"), a("203.0.113.77")))
	d := h.start(r)
	for _, list := range []string{"feed", "left", "stix", "crowd"} {
		h.settled(list)
	}
	run("block", "--ttl", "365d", "192.0.2.1")
	run("block", "--list", "jail", "--ttl", "2h", "192.0.2.2")
	run("block", "192.0.2.3")
	run("allow", "--list", "ours", "--ttl", "2h", "192.0.2.4")
	run("block", "192.0.2.4")
	run("enforce", "trial", "--after", "2h")
	h.write("feed.txt", []byte("198.51.100.1\n")) // the other one stays by the list's ttl
	refresh("feed")
	load.list(froms(a("192.0.2.1"), a("192.0.2.2"), a("192.0.2.3"), a("192.0.2.8"), a("10.60.0.1"), a("198.51.100.1"), a("198.51.100.2"), a("198.51.100.9"), a("198.51.100.10"), a("198.51.100.11"))...)
	load.run()

	opened, err := h.api.OpenConsole(t.Context(), api.ConsoleRequest{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	jar, _ := cookiejar.New(nil)
	browser := http.Client{Jar: jar, Timeout: wait.Patience}
	get := func(address string) (int, string) {
		t.Helper()
		r, err := browser.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(text)
	}
	_, text := get(opened.URL)
	path := regexp.MustCompile(`content="0;url=([^"]+)"`).FindStringSubmatch(text)
	page, err := url.Parse(opened.URL)
	if err != nil || path == nil {
		t.Fatal(err, text)
	}
	page.Path = path[1]

	// What ends while the test runs.
	type brief struct {
		kind, source string
		first, last  time.Time // when it ends, by the clock of the test, which is not set
		is           func() bool
	}
	var briefs []brief
	number, ahead, steps, restarts, paused, ended := 0, time.Duration(0), 0, 0, false, make(map[string]int)
	next := func(network int) string {
		number++
		return fmt.Sprintf("%d.%d.%d.%d", network>>8, network&0xff, 3+number/250, number%250)
	}
	// begin begins what has a TTL; is reports whether it has not ended.
	begin := func(kind string, ttl time.Duration, source string, is func() bool, args ...string) {
		t.Helper()
		began := time.Now()
		run(append(args, source)[:len(args)+min(len(source), 1)]...)
		briefs = append(briefs, brief{kind, source, began.Add(ttl), time.Now().Add(ttl), is})
	}
	block := func(ttl time.Duration) {
		t.Helper()
		source := next(192 << 8)
		begin("block", ttl, source, func() bool { return h.blocked(source) }, "block", "--list", "jail", "--ttl", ttl.String())
	}
	kinds := map[string]func(){
		"allow": func() {
			source := next(10<<8 | 60)
			begin("allow", 3*time.Second, source, func() bool { return !h.blocked(source) }, "allow", "--list", "ours", "--ttl", "3s")
		},
		"list": func() {
			source, began := next(10<<8|61), time.Now()
			for _, text := range []string{"198.51.100.1\n" + source + "\n", "198.51.100.1\n"} {
				h.write("left.txt", []byte(text))
				refresh("left")
			}
			briefs = append(briefs, brief{"list", source, began.Add(5 * time.Second), time.Now().Add(5 * time.Second), func() bool { return h.blocked(source) }})
		},
		"trial": func() {
			run("enforce", "soon", "--off")
			begin("trial", 3*time.Second, "", func() bool { return !h.blocked("203.0.113.78") }, "enforce", "soon", "--after", "3s")
		},
		"monitor": func() {
			load.pause()
			paused = true
			begin("monitor", 3*time.Second, "", func() bool { return status().MonitorOverride != nil }, "monitor", "on", "--for", "3s")
		},
		"police": func() {
			begin("police", 3*time.Second, "", func() bool { return len(status().Policed) > 0 }, "police", h.B.Iface, "1Mpps", "--netns", h.B.Netns, "--for", "3s")
		},
		"penalty": func() {
			source, began, tx := next(10<<8|7), time.Now(), h.A.Sender(t)
			frame := frameOf(h.Lab, probeKind, from(a(source)))
			wait.For(t, "a penalty of "+source, func() bool {
				for range 1000 {
					for range 8 {
						_ = tx.TrySend(frame) // one that is lost is no matter
					}
					time.Sleep(time.Millisecond)
				}
				return h.blocked(source)
			})
			briefs = append(briefs, brief{"penalty", source, began.Add(4 * time.Second), time.Now().Add(5 * time.Second), func() bool {
				for range 20 { // a daemon that has just begun has yet to look
					if h.blocked(source) {
						return true
					}
					time.Sleep(50 * time.Millisecond)
				}
				return false
			}})
		},
		"decision": func() {
			source, began := next(198<<8|51), time.Now()
			crowd.add(source, 5*time.Second)
			for !h.blocked(source) {
				if time.Since(began) > 4*time.Second {
					return // a busy machine
				}
			}
			briefs = append(briefs, brief{"decision", source, began.Add(5 * time.Second), time.Now().Add(6 * time.Second), func() bool { return h.blocked(source) }})
		},
	}
	names := slices.Sorted(maps.Keys(kinds))
	sizes := []time.Duration{time.Second, time.Minute, time.Hour, day, 365 * day, 3650 * day}
	look := func() {
		t.Helper()
		monitors := status().Monitor
		briefs = slices.DeleteFunc(briefs, func(b brief) bool {
			if monitors && b.kind != "monitor" {
				return false // nothing is dropped
			}
			is := b.is()
			switch now := time.Now(); {
			case !is && now.Before(b.first):
				t.Errorf("the clock is ahead by %v: %s %s has ended %v early", ahead, b.kind, b.source, b.first.Sub(now))
			case is && now.After(b.last.Add(30*time.Second)): // a busy machine may take some
				t.Errorf("the clock is ahead by %v: %s %s is there %v after its end", ahead, b.kind, b.source, now.Sub(b.last))
			case is:
				return false
			default:
				ended[b.kind]++
			}
			return true
		})
		if paused && !slices.ContainsFunc(briefs, func(b brief) bool { return b.kind == "monitor" }) {
			paused = false
			load.run()
		}
	}
	known := time.Duration(0)
	seen := func() { // waits until status has the last step
		t.Helper()
		by := ahead - known
		if known = ahead; by == 0 {
			return
		}
		steps++
		var s *api.Status
		defer func() {
			if t.Failed() {
				t.Logf("after %d steps, status has %+v", steps, s.Clock)
			}
		}()
		wait.For(t, fmt.Sprintf("status has a step of %v", by), func() bool {
			s = status()
			return s.Clock != nil && len(s.Clock.Settings) == min(steps, 16) && math.Abs(s.Clock.Settings[len(s.Clock.Settings)-1].By-by.Seconds()) < 1
		})
		out := run("status", "--pins", string(h.pins))
		all, units := settings(out)
		if n := len(all); n != min(steps, 16) || (all[n-1]-by).Abs() > units[n-1] {
			t.Fatalf("after %d steps, the last one of %v, status prints\n%s", steps, by, out)
		}
	}
	var before, last time.Duration // the last steps, since the boot of the host
	step := func() {
		was := ahead
		switch random.IntN(4) {
		case 0, 1:
			if ahead = sizes[random.IntN(len(sizes))]; random.IntN(2) == 0 {
				ahead = -ahead
			}
		case 2:
			ahead = -time.Since(time.Unix(0, 0)).Round(time.Second) + time.Duration(random.IntN(3600))*time.Second // in 1970
		case 3:
			ahead = 0
		}
		if ahead != was {
			before, last = last, clock.This().Ran()
		}
		set(ahead)
	}
	rounds := long.Rounds(20, 30, 200)
	for range rounds {
		step()
		seen()
		if by, again := random.IntN(6), random.IntN(2) == 0; by < 2 {
			if by == 0 {
				// The step that is not saved and the next one are one for the next process.
				since := before
				if again {
					since = last
				}
				wait.For(t, "steps are saved", func() bool {
					var saved struct {
						Ran time.Duration `json:"ran_ns"`
					}
					text, err := os.ReadFile(h.path("state/clock.json"))
					return err == nil && json.Unmarshal(text, &saved) == nil && saved.Ran > since
				})
				d.kill()
			} else {
				d.stop()
			}
			if random.IntN(2) == 0 { // a change waits
				block(10 * time.Second)
			}
			if again {
				step()
			}
			d = h.start(r)
			restarts++
			seen()
		}
		if number++; !paused {
			block(3 * time.Second)
			if kind := names[random.IntN(len(names))]; !slices.ContainsFunc(briefs, func(b brief) bool { return b.kind == kind && b.source == "" }) {
				kinds[kind]()
			}
		}
		if random.IntN(3) == 0 {
			refresh("stix")
		}
		look()
		if code, _ := get(page.String()); code != http.StatusOK {
			t.Errorf("the clock is ahead by %v: the session of the console has ended: %d", ahead, code)
		}
		for list, text := range map[string]string{"manual": "192.0.2.1", "jail": "192.0.2.2", "ours": "192.0.2.4"} {
			e := h.entry(list, text)
			if e == nil || e.Expires == nil {
				t.Fatalf("the clock is ahead by %v: %s of list %s is %+v", ahead, text, list, e)
			}
			most := map[string]time.Duration{"manual": 365 * day, "jail": 2 * time.Hour, "ours": 2 * time.Hour}[list]
			if left := e.Expires.Sub(e.Added); (left - most).Abs() > time.Second {
				t.Errorf("the clock is ahead by %v: %s of list %s lasts %v", ahead, text, list, left)
			}
			if left := e.Expires.Sub(time.Now().Add(ahead)); left > most+2*time.Second || left < most-time.Hour {
				t.Errorf("the clock is ahead by %v: %s of list %s ends in %v", ahead, text, list, left)
			}
		}
		if !paused {
			load.await(500)
		}
		if load.leaked.Load() > 0 {
			t.Fatalf("the clock is ahead by %v: listed packets have come through", ahead)
		}
	}
	wait.For(t, "what was begun for seconds has ended", func() bool { look(); return len(briefs) == 0 })
	set(0)
	load.finish()
	t.Logf("%d steps, %d restarts; ended in time: %v", steps, restarts, ended)
	if steps < rounds/2 || ended["block"] < rounds/3 || len(ended) < 4 {
		t.Errorf("%d steps, ended: %v: that shows little", steps, ended)
	}
}

// blocked reports whether the daemon drops a source.
func (h *host) blocked(source string) bool {
	h.t.Helper()
	e, err := h.api.Explain(h.t.Context(), source)
	if err != nil {
		h.t.Fatal(err)
	}
	return e.Drops()
}
