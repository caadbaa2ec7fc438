package daemon

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	binaries "weir/tests/binary"
	"weir/tests/long"
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
	if err := os.WriteFile(path, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
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

// However the wall clock of the daemon is set, over restarts and kill -9, nothing that has a time ends early,
// nothing lasts longer, no listed packet comes through, and status has each step.
func TestClockIsSet(t *testing.T) {
	long.Seconds(t)
	r, set := stepped(t)
	const day = 24 * time.Hour
	random := seed.New(t)
	h := newHost(t)
	h.write("feed.txt", []byte("198.51.100.1\n198.51.100.2\n"))
	h.write("stix.json", []byte(`{"type": "bundle", "objects": [{"type": "indicator", "pattern_type": "stix", "pattern": "[ipv4-addr:value = '198.51.100.9']", "valid_from": "1960-01-01T00:00:00Z"}]}`))
	h.configure(h.B.Iface, `lists:
  feed: {ttl: 3d, sources: [{file: %s}], interval: 24h}
  stix: {format: stix, sources: [{file: %s}], interval: 24h}
  trial: {entries: [203.0.113.77], enforce: false}
  jail: {}
  ours: {action: allow, entries: [192.0.2.250]}
`, h.path("feed.txt"), h.path("stix.json"))
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(r.path, append(args, "--socket", h.path("weir.sock"))...).CombinedOutput()
		if err != nil {
			t.Fatalf("weir %q: %v\n%s", args, err, out)
		}
		return string(out)
	}
	a := netip.MustParseAddr
	load := startTraffic(t, h.Lab, nil, froms(a("10.0.0.1"), a("192.0.2.4"), a("203.0.113.77")))
	d := h.start(r)
	h.settled("feed")
	run("block", "--ttl", "365d", "192.0.2.1")
	run("block", "--list", "jail", "--ttl", "2h", "192.0.2.2")
	run("block", "192.0.2.3")
	run("allow", "--list", "ours", "--ttl", "2h", "192.0.2.4")
	run("block", "192.0.2.4")
	run("enforce", "trial", "--after", "2h")
	h.write("feed.txt", []byte("198.51.100.1\n")) // the other one stays by the list's ttl
	if _, err := h.api.Refresh(t.Context(), "feed"); err != nil {
		t.Fatal(err)
	}
	load.list(froms(a("192.0.2.1"), a("192.0.2.2"), a("192.0.2.3"), a("198.51.100.1"), a("198.51.100.2"), a("198.51.100.9"))...)
	load.run()

	type entry struct {
		text        string
		first, last time.Time // when it ends, by the clock of the test, which is not set
	}
	var short []entry // which end while the test runs
	brief := func(ttl time.Duration, text string) {
		t.Helper()
		began := time.Now()
		run("block", "--list", "jail", "--ttl", ttl.String(), text)
		short = append(short, entry{text, began.Add(ttl), time.Now().Add(ttl)})
	}
	number, ahead, steps, ended, restarts := 0, time.Duration(0), 0, 0, 0
	sizes := []time.Duration{time.Second, time.Minute, time.Hour, day, 365 * day, 3650 * day}
	look := func() {
		t.Helper()
		short = slices.DeleteFunc(short, func(e entry) bool {
			there := h.blocked(e.text)
			switch now := time.Now(); {
			case !there && now.Before(e.first):
				t.Errorf("the clock is ahead by %v: %s has ended %v early", ahead, e.text, e.first.Sub(now))
			case there && now.After(e.last.Add(30*time.Second)): // a busy machine may take some
				t.Errorf("the clock is ahead by %v: %s is there %v after its end", ahead, e.text, now.Sub(e.last))
			case there:
				return false
			default:
				ended++
			}
			return true
		})
	}
	rounds := long.Or(20, 200)
	for range rounds {
		last := ahead
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
		set(ahead)
		if by := ahead - last; by != 0 {
			steps++
			wait.For(t, fmt.Sprintf("status has a step of %v", by), func() bool {
				s, err := h.api.Status(t.Context())
				if err != nil || s.Clock == nil || len(s.Clock.Settings) == 0 {
					return false
				}
				n := s.Clock.Settings[len(s.Clock.Settings)-1]
				return math.Abs(n.By-by.Seconds()) < 1
			})
			way := "CLOCK: set forward by "
			if by < 0 {
				way = "CLOCK: set back by "
			}
			if out := run("status", "--pins", string(h.pins)); !strings.Contains(out, way) {
				t.Fatalf("after a step of %v, status prints\n%s", by, out)
			}
		}
		switch random.IntN(6) {
		case 0:
			d.kill()
			if number++; random.IntN(2) == 0 { // a change waits
				brief(30*time.Second, fmt.Sprintf("192.0.%d.%d", 3+number/250, number%250))
			}
			if random.IntN(2) == 0 {
				ahead = sizes[random.IntN(len(sizes))]
				set(ahead)
			}
			d = h.start(r)
			restarts++
		case 1:
			d.stop()
			d = h.start(r)
			restarts++
		}
		number++
		brief(3*time.Second, fmt.Sprintf("192.0.%d.%d", 3+number/250, number%250))
		look()
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
		load.await(500)
		if load.leaked.Load() > 0 {
			t.Fatalf("the clock is ahead by %v: listed packets have come through", ahead)
		}
	}
	wait.For(t, "what was blocked for seconds has ended", func() bool { look(); return len(short) == 0 })
	set(0)
	load.finish()
	t.Logf("%d steps, %d restarts, %d entries have ended in time", steps, restarts, ended)
	if steps < rounds/2 || ended < rounds {
		t.Errorf("%d steps, %d entries have ended: that shows little", steps, ended)
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
