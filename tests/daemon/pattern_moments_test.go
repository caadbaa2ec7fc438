package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/wait"
)

// probes are packets that go from A to B all the time, each with a source port of a few: from a source
// that patterns hold back, and from one that an allow list has.
type probes struct {
	mu       sync.Mutex
	sent     int           // of the second source
	arrived  []time.Time   // by number, of the first source: zero where it did not, or not yet
	when     []time.Time   // it was about to be sent
	gone     []time.Time   // it had been sent: zero where it has not yet
	ports    []uint16      // of those that are sent now
	of       []uint16      // the port, by number
	received atomic.Uint64 // of the second source
	done     atomic.Bool
	wg       sync.WaitGroup
}

const (
	probeStep  = 2 * time.Millisecond
	probeDelay = 100 * time.Millisecond // of a packet on a busy machine, at most, once it has been sent
)

func startProbes(t *testing.T, l *lab.Lab, held, allowed netip.Addr) *probes {
	t.Helper()
	p := new(probes)
	tx, rx := l.A.Sender(t), l.B.Receiver(t)
	frame := func(src netip.Addr, kind byte, port uint16, n int) []byte {
		of := from(src)
		of.SrcPort = port
		return l.Numbered(packet.Frame(of), uint64(kind)<<56|uint64(n))
	}
	p.wg.Go(func() {
		for ; !p.done.Load(); time.Sleep(probeStep) {
			p.mu.Lock()
			var frames [][]byte
			first := len(p.when)
			if p.sent-int(p.received.Load()) < steadyUnderWay {
				for _, port := range p.ports {
					frames = append(frames, frame(held, patternKind, port, len(p.when)), frame(allowed, cleanKind, port, p.sent))
					p.when, p.arrived, p.of = append(p.when, time.Now()), append(p.arrived, time.Time{}), append(p.of, port)
					p.gone = append(p.gone, time.Time{})
					p.sent++
				}
			}
			p.mu.Unlock()
			for _, f := range frames {
				if err := tx.SendAll(f); err != nil {
					t.Error(err)
					return
				}
			}
			p.mu.Lock()
			for n := range p.gone[first:] {
				p.gone[first+n] = time.Now()
			}
			p.mu.Unlock()
		}
	})
	p.wg.Go(func() {
		for {
			f, err := rx.Receive(100 * time.Millisecond)
			if err != nil {
				if p.done.Load() {
					return
				}
				continue
			}
			switch kind, n := numberOf(f); kind {
			case cleanKind:
				p.received.Add(1)
			case patternKind:
				p.mu.Lock()
				p.arrived[n] = time.Now()
				p.mu.Unlock()
			}
		}
	})
	t.Cleanup(p.stop)
	return p
}

func (p *probes) stop() {
	p.done.Store(true)
	p.wg.Wait()
}

// set sets the ports of the packets from now on.
func (p *probes) set(ports ...uint16) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports = ports
}

// passed returns how many packets of a port were sent from a time on, until another, and how many of them
// have come.
func (p *probes) passed(port uint16, from, until time.Time) (sent, came int, last time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, at := range p.when {
		if p.of[n] != port || at.Before(from) || p.gone[n].IsZero() || !p.gone[n].Before(until) {
			continue
		}
		sent++
		if !p.arrived[n].IsZero() {
			came++
			last = at
		}
	}
	return sent, came, last
}

// lived is a daemon whose clock a test sets.
type lived struct {
	*host
	d   *daemon
	by  release
	set func(ahead time.Duration)
}

func (l *lived) start() { l.d = l.host.start(l.by) }

// patternMoments are moments in the life of patterns. Each ends with a daemon that runs.
var patternMoments = []struct {
	name string
	do   func(l *lived, ahead time.Duration)
}{
	{"kill -9", func(l *lived, _ time.Duration) {
		l.d.kill()
		l.start()
	}},
	{"restart", func(l *lived, _ time.Duration) {
		l.d.stop()
		l.start()
	}},
	{"kill -9, and the clock is set", func(l *lived, ahead time.Duration) {
		l.d.kill()
		l.set(ahead)
		l.start()
	}},
	{"the clock is set", func(l *lived, ahead time.Duration) { l.set(ahead) }},
	{"reload", func(l *lived, _ time.Duration) {
		if _, err := l.api.Reload(l.t.Context()); err != nil {
			l.t.Fatal(err)
		}
	}},
	{"takeover", func(l *lived, _ time.Duration) { l.d = l.takeOver(l.d, l.by) }},
	{"SIGSTOP", func(l *lived, _ time.Duration) {
		l.stopped(l.d, func() { time.Sleep(2 * time.Second) })
	}},
	{"full disk", func(l *lived, _ time.Duration) {
		full := filepath.Join(l.path("state"), "full")
		if err := os.WriteFile(full, make([]byte, stateSize), 0o600); !errors.Is(err, unix.ENOSPC) {
			l.t.Fatal(err)
		}
		time.Sleep(time.Second)
		if err := os.Remove(full); err != nil {
			l.t.Fatal(err)
		}
	}},
}

const stateSize = 64 << 20 // bytes of the disk with the state

// Whatever happens to the daemon, its clock and its disk while patterns are on trial, enforced and about
// to end, none ends early, none lasts longer than two seconds more, by its packets on the wire, and no
// packet of a source that an allow list has is lost.
func TestPatternMoments(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	r, set := stepped(t)
	random := seed.New(t)
	h := newHost(t)
	if err := os.Mkdir(h.path("state"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", h.path("state"), "tmpfs", 0, fmt.Sprintf("size=%d", stateSize)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(h.path("state"), unix.MNT_DETACH) })
	held, allowed := netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("192.0.2.99")
	h.configure(h.B.Iface, "lists: {always: {%s}, friends: {action: allow, entries: [%v]}}\n", h.feed(10), allowed)
	l := &lived{h, h.start(r), r, set}
	load := startProbes(t, h.Lab, held, allowed)
	text := func(port uint16) string { return fmt.Sprintf("udp sport %d src %v/32", port, held) }
	// limit begins a pattern, and returns the times between which it must end.
	limit := func(port uint16, ttl, trial time.Duration) (first, last time.Time) {
		t.Helper()
		first = time.Now().Add(ttl)
		_, err := h.api.SetPolice(t.Context(), api.PoliceChange{Pattern: text(port), Rate: "0pps", For: ttl.Seconds(), Trial: trial.Seconds()})
		if err != nil {
			t.Fatal(err)
		}
		return first, time.Now().Add(ttl)
	}
	// enforced waits until a pattern is, which it is false for if it has ended before.
	enforced := func(port uint16) bool {
		t.Helper()
		is := false
		wait.For(t, text(port)+" is enforced, or over", func() bool {
			s, err := h.api.Status(t.Context())
			if err != nil {
				return false
			}
			at := slices.IndexFunc(s.Policed, func(o api.PoliceOverride) bool { return o.Pattern == text(port) })
			is = at >= 0 && s.Policed[at].Trial == nil
			return at < 0 || is
		})
		return is
	}
	sizes := []time.Duration{-365 * 24 * time.Hour, -time.Hour, -3 * time.Second, 0, 3 * time.Second, time.Hour, 3650 * 24 * time.Hour}
	done := make(map[string]int)
	judged, port := 0, uint16(1000)
	for range setting(t, momentsVariable, long.Rounds(3, 5, 30)) {
		port += 3
		on, tried, over := port, port+1, port+2
		load.set(on, tried, over)
		// At the moment one is enforced, one about to end, one on trial.
		type life struct {
			port              uint16
			from, first, last time.Time // enforced from then on; it ends between these
		}
		var lives []life
		ttl := 6*time.Second + time.Duration(random.Int64N(int64(4*time.Second)))
		first, last := limit(on, ttl, 0)
		lives = append(lives, life{on, time.Now(), first, last})
		first, last = limit(over, time.Second+time.Duration(random.Int64N(int64(2*time.Second))), 0)
		lives = append(lives, life{over, time.Now(), first, last})
		first, last = limit(tried, ttl, time.Second+time.Duration(random.Int64N(int64(time.Second))))
		time.Sleep(time.Duration(random.Int64N(int64(2 * time.Second))))
		m := patternMoments[random.IntN(len(patternMoments))]
		ahead := sizes[random.IntN(len(sizes))]
		m.do(l, ahead)
		done[m.name]++
		if enforced(tried) {
			lives = append(lives, life{tried, time.Now(), first, last})
		}
		end := lives[0].last
		for _, of := range lives {
			if of.last.After(end) {
				end = of.last
			}
		}
		time.Sleep(time.Until(end.Add(2500 * time.Millisecond)))
		for _, of := range lives {
			sent, came, at := load.passed(of.port, of.from, of.first.Add(-probeDelay))
			if came > 0 {
				t.Errorf("%s, the clock ahead by %v: %d of %d packets of sport %d came while a pattern held for them, the last %v before its end", m.name, ahead, came, sent, of.port, of.first.Sub(at))
			}
			until, patience := time.Now(), time.Now().Add(5*time.Second)
			after, passed, _ := load.passed(of.port, of.last.Add(2*time.Second), until)
			for ; passed < after && time.Now().Before(patience); time.Sleep(10 * time.Millisecond) { // the receiver may be late
				after, passed, _ = load.passed(of.port, of.last.Add(2*time.Second), until)
			}
			if passed < after {
				t.Errorf("%s, the clock ahead by %v: %d of %d packets of sport %d are held back two seconds after the end of a pattern", m.name, ahead, after-passed, after, of.port)
			}
			judged += sent
		}
		if t.Failed() {
			break
		}
	}
	load.stop()
	if load.sent != int(load.received.Load()) {
		t.Errorf("of %d packets of a source that is allowed, %d came", load.sent, load.received.Load())
	}
	t.Logf("moments: %v; %d packets that a pattern held back; %d of a source that is allowed, all came", done, judged, load.sent)
	if judged < 100 {
		t.Error("too few packets were judged")
	}
}
