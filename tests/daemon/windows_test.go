package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
)

// steady sends from sources at constant rates, and makes up for nothing: where it does not
// run, less is sent. So no source exceeds its rate over any time.
type steady struct {
	sources []*steadySource
	done    atomic.Bool
	wg      sync.WaitGroup
}

type steadySource struct {
	addr  netip.Addr
	rate  float64 // packets a second
	scans bool    // each packet goes to another port
	above bool    // at twice the threshold, not at half of it

	frame          []byte
	sent, received atomic.Uint64
}

const (
	steadyStep     = 2 * time.Millisecond
	steadyUnderWay = 64 // packets at most, of those that must pass
	portAt         = 14 + 20 + 2
)

// startSteady begins to send from A to B.
func startSteady(t *testing.T, l *lab.Lab, sources []*steadySource) *steady {
	t.Helper()
	f := &steady{sources: sources}
	for i, s := range sources {
		s.frame = frameOf(l, cleanKind, from(s.addr))
		renumber(s.frame, uint64(i))
	}
	tx, rx := l.A.Sender(t), l.B.Receiver(t)
	f.wg.Go(func() {
		due := make([]float64, len(sources))
		for last := time.Now(); !f.done.Load(); time.Sleep(steadyStep) {
			now := time.Now()
			step := min(now.Sub(last), 10*steadyStep)
			last = now
			if f.underWay() > steadyUnderWay {
				continue
			}
			for i, s := range sources {
				for due[i] += s.rate * step.Seconds(); due[i] >= 1; due[i]-- {
					if s.scans {
						port := s.frame[portAt : portAt+2]
						binary.BigEndian.PutUint16(port, binary.BigEndian.Uint16(port)%30_000+1)
					}
					if err := tx.SendAll(s.frame); err != nil {
						t.Error(err)
						return
					}
					s.sent.Add(1)
				}
			}
		}
	})
	over := make(chan struct{})
	go func() {
		defer close(over)
		for {
			frame, err := rx.Receive(time.Second)
			switch {
			case errors.Is(err, os.ErrDeadlineExceeded):
				if f.done.Load() {
					return
				}
			case errors.Is(err, unix.ENETDOWN):
			case err != nil:
				t.Error(err)
				return
			default:
				if kind, i := numberOf(frame); kind == cleanKind && i < uint64(len(sources)) {
					sources[i].received.Add(1)
				}
			}
		}
	}()
	t.Cleanup(func() { f.stop(); <-over })
	return f
}

func (f *steady) stop() {
	f.done.Store(true)
	f.wg.Wait()
}

// underWay is the number of packets that must pass and have not come yet.
func (f *steady) underWay() (n int) {
	for _, s := range f.sources {
		if received := s.received.Load(); !s.above {
			n += int(s.sent.Load() - received)
		}
	}
	return n
}

// lost returns the sources at half of a threshold whose packets did not all come.
func (f *steady) lost() (all []string) {
	for deadline := time.Now().Add(5 * time.Second); f.underWay() > 0 && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, s := range f.sources {
		if sent, received := s.sent.Load(), s.received.Load(); !s.above && sent > received {
			all = append(all, fmt.Sprintf("%v: %d of %d packets", s.addr, sent-received, sent))
		}
	}
	return all
}

// awaitDrops waits until each source above a threshold was held back for a while, and returns
// how long that took.
func (f *steady) awaitDrops(t testing.TB, what string) time.Duration {
	t.Helper()
	const while = 300 * time.Millisecond
	left := make(map[*steadySource]bool)
	for _, s := range f.sources {
		left[s] = s.above
	}
	began, first := time.Now(), make(map[*steadySource]uint64)
	for _, s := range f.sources {
		first[s] = s.sent.Load()
	}
	for deadline := began.Add(30 * time.Second); ; {
		sent, received := make(map[*steadySource]uint64), make(map[*steadySource]uint64)
		for _, s := range f.sources {
			received[s], sent[s] = s.received.Load(), s.sent.Load()
		}
		time.Sleep(while)
		still := ""
		for _, s := range f.sources {
			if s.sent.Load() > sent[s]+uint64(s.rate*while.Seconds()/3) && s.received.Load() == received[s] {
				left[s] = false
			}
			if left[s] {
				still += " " + s.addr.String()
			}
		}
		if still == "" {
			took := time.Since(began)
			t.Logf("%s: those above a threshold are held back %v later%s", what, took.Round(10*time.Millisecond), f.slow(first, took))
			return took
		}
		if time.Now().After(deadline) {
			// Where many at half of it are held back, no more is sent.
			t.Fatalf("%s: at twice a threshold, and not held back:%s; at half of it, and lost: %v", what, still, f.lost())
		}
	}
}

// slow says how much of its rate the slowest source above a threshold has sent, where that is
// little: on a busy machine it may not be above it.
func (f *steady) slow(since map[*steadySource]uint64, during time.Duration) string {
	least := 1.0
	for _, s := range f.sources {
		if s.above {
			least = min(least, float64(s.sent.Load()-since[s])/(s.rate*during.Seconds()))
		}
	}
	if least > 0.75 {
		return ""
	}
	return fmt.Sprintf(", with %.0f %% of their rate", 100*least)
}

// Whatever holds the daemon up, or ends it, sources at half of a threshold lose no packet and
// are not reported, also by the next daemon; those at twice the threshold are held back as soon as
// the daemon has watched for an interval, and also while it is stopped or none runs.
func TestPausesPunishNoneBelow(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	lab.Root(t)
	testPauses(t, long.Or(200_000, 1_000_000))
}

// moments changes, stops and replaces a daemon whose trackers and scan detectors see sources below and
// above their thresholds.
type moments struct {
	*host
	entries int
	daemons []*daemon
	traffic *steady
	former  release
	pause   time.Duration // of a daemon that is stopped
	slowest time.Duration // until those above a threshold were held back
	changed int           // how often the configuration and the list were
	blocked bool          // an entry by hand, the only one
}

// startMoments starts a daemon with a list and the traffic: numbers of sources at half of the
// tracker's threshold and at twice of it, and of scanners at half of the protection against lock-out's and at twice of it.
func startMoments(t *testing.T, by release, entries, below, above, scansBelow, scansAbove int) *moments {
	t.Helper()
	m := &moments{host: newHost(t), entries: entries, pause: long.Or(3*time.Second, 6*time.Second)}
	if long.Enabled {
		m.former = releaseBefore(t)
	}
	m.bigList(entries)
	m.setUp()
	var sources []*steadySource
	add := func(n int, rate float64, scans, above bool) {
		for range n {
			sources = append(sources, &steadySource{
				addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + len(sources))}), rate: rate, scans: scans, above: above,
			})
		}
	}
	add(below, 100, false, false)
	add(above, 400, false, true)
	add(scansBelow, 16, true, false)
	add(scansAbove, 64, true, true)
	m.next(m.start(by))
	m.settled("big")
	m.traffic = startSteady(t, m.Lab, sources)
	m.traffic.awaitDrops(t, "start")
	return m
}

// setUp writes the configuration, each time another one.
func (m *moments) setUp() {
	m.t.Helper()
	more := ""
	if m.changed%2 == 1 {
		m.write("extra.txt", []byte("192.0.2.0/24\n2001:db8::/32\n"))
		more = ", extra: {direction: dst, sources: [{file: " + m.path("extra.txt") + "}]}"
	}
	m.configure(m.B.Iface, `
lists: {big: {sources: [{file: %s}], interval: 24h}%s}
trackers: [{key: src, threshold: 200pps, action: block, duration: 1s}]
scans: [{key: src, distinct: ports, threshold: 64, window: 2s, action: block, duration: 1s}]
`, m.path("feed.txt"), more)
	m.changed++
}

// rename renames a section of the configuration.
func (m *moments) rename(from, to string) {
	m.t.Helper()
	text := must.Read(m.t, m.path("weir.yaml"))
	m.write("weir.yaml", []byte(strings.Replace(string(text), from, to, 1)))
}

func (m *moments) next(d *daemon) { m.daemons = append(m.daemons, d) }

func (m *moments) last() *daemon { return m.daemons[len(m.daemons)-1] }

// moment is a change of the daemon. It calls between while no daemon answers, which awaits that
// sources above a threshold are held back.
type moment struct {
	name string
	do   func(m *moments, between func(what string))
}

var allMoments = []moment{
	{"reload", func(m *moments, _ func(string)) {
		m.setUp()
		if _, err := m.api.Reload(m.t.Context()); err != nil {
			m.t.Fatal(err)
		}
	}},
	{"update of the list", func(m *moments, _ func(string)) {
		m.bigList(m.entries + m.changed%2*m.entries/4)
		m.changed++
		if _, err := m.api.Refresh(m.t.Context(), "big"); err != nil {
			m.t.Fatal(err)
		}
	}},
	{"first block", func(m *moments, _ func(string)) {
		m.mustChange("", m.blocked, "203.0.113.200")
		m.blocked = !m.blocked
	}},
	{"stopped process", func(m *moments, between func(string)) {
		m.stopped(m.last(), func() {
			time.Sleep(m.pause / 2) // penalties of before have expired
			between("while it is stopped")
		})
	}},
	{"takeover", func(m *moments, _ func(string)) {
		m.next(m.takeOver(m.last(), releases[len(m.daemons)%2]))
	}},
	{"kill", func(m *moments, between func(string)) {
		m.last().kill()
		time.Sleep(m.pause)
		between("while none runs")
		m.next(m.start(releases[0]))
	}},
	{"kill and start at once", func(m *moments, _ func(string)) {
		m.last().kill()
		m.next(m.start(releases[0]))
	}},
	{"stop", func(m *moments, _ func(string)) {
		m.last().stop()
		time.Sleep(m.pause)
		m.next(m.start(releases[1]))
	}},
	{"restart", func(m *moments, _ func(string)) {
		m.last().stop()
		m.next(m.start(releases[0]))
	}},
	{"upgrade", func(m *moments, between func(string)) {
		if m.former.path == "" { // the former release is not there
			return
		}
		m.last().stop()
		m.rename("scans:", "guards:") // as that release had them
		m.next(m.start(m.former))
		between("with the former release")
		m.rename("guards:", "scans:")
		m.next(m.takeOver(m.last(), releases[1]))
	}},
}

// pass does something, and awaits that sources above a threshold are held back again. It
// reports whether no other has lost a packet.
func (m *moments) pass(do moment) bool {
	m.t.Helper()
	began := time.Now()
	await := func(what string) { m.slowest = max(m.slowest, m.traffic.awaitDrops(m.t, what)) }
	do.do(m, await)
	m.t.Logf("%s took %v", do.name, time.Since(began).Round(10*time.Millisecond))
	await(do.name)
	lost := m.traffic.lost()
	if len(lost) > 0 {
		m.t.Errorf("%s: sources at half of the threshold lost packets:\n%s", do.name, strings.Join(lost, "\n"))
	}
	return len(lost) == 0
}

// judge stops the traffic, and fails where a source at half of a threshold has lost a packet
// or was reported.
func (m *moments) judge() {
	m.t.Helper()
	m.traffic.stop()
	if lost := m.traffic.lost(); len(lost) > 0 {
		m.t.Errorf("in the end sources at half of the threshold have lost packets:\n%s", strings.Join(lost, "\n"))
	}
	reported := 0
	for _, d := range m.daemons {
		d.mu.Lock()
		for _, e := range d.log {
			if e.Msg != "heavy hitter" && e.Msg != "scan" {
				continue
			}
			reported++
			for _, s := range m.traffic.sources {
				if !s.above && strings.Contains(e.text, fmt.Sprintf("%q", s.addr)) {
					m.t.Errorf("reported at half of the threshold: %s", e.text)
				}
			}
		}
		d.mu.Unlock()
	}
	if least := 5; reported < least*len(m.daemons)/2 {
		m.t.Errorf("%d reports of sources at twice the threshold by %d daemons: too few", reported, len(m.daemons))
	}
	var sent, passed, above uint64
	for _, s := range m.traffic.sources {
		if s.above {
			passed, above = passed+s.received.Load(), above+s.sent.Load()
		} else {
			sent += s.sent.Load()
		}
	}
	m.t.Logf("%d packets of sources at half of the threshold have come, all that were sent, and %d of %d at twice; %d reports of these, which were held back %v after a moment at the latest",
		sent, passed, above, reported, m.slowest.Round(10*time.Millisecond))
}

func testPauses(t *testing.T, entries int) {
	m := startMoments(t, releases[0], entries, 12, 3, 5, 2)
	for _, do := range allMoments {
		if !m.pass(do) {
			break
		}
	}
	m.judge()
}

// Variables of TestRandomPauses: how many moments there are, and the entries of the list.
const (
	momentsVariable = "WEIR_MOMENTS"
	entriesVariable = "WEIR_ENTRIES"
)

// setting returns the number that a variable of the environment has.
func setting(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number from 1", name, text)
	}
	return n
}

// TestRandomPauses is TestPausesPunishNoneBelow with moments that are drawn, random pauses
// between them and twenty sources at half of a threshold and at twice of it. With
// WEIR_MOMENTS=200 WEIR_ENTRIES=1000000 it takes the better part of an hour.
func TestRandomPauses(t *testing.T) {
	t.Parallel()
	lab.Root(t)
	long.Only(t, "minutes")
	random := seed.New(t)
	n := setting(t, momentsVariable, 5)
	m := startMoments(t, releases[0], setting(t, entriesVariable, 200_000), 15, 15, 5, 5)
	done := make(map[string]int)
	for i := range n {
		do := allMoments[random.IntN(len(allMoments))]
		done[do.name]++
		time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
		if !m.pass(do) {
			t.Logf("after %d moments", i+1)
			break
		}
	}
	m.judge()
	t.Logf("%d daemons, moments: %v", len(m.daemons), done)
}
