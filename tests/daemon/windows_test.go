package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/tests/lab"
	"weir/tests/long"
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

// awaitDrops waits until each source above a threshold was held back for a while.
func (f *steady) awaitDrops(t *testing.T, what string) {
	t.Helper()
	const while = 300 * time.Millisecond
	left := make(map[*steadySource]bool)
	for _, s := range f.sources {
		left[s] = s.above
	}
	began := time.Now()
	for deadline := began.Add(patience); ; {
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
			t.Logf("%s: those above a threshold are held back %v later", what, time.Since(began).Round(10*time.Millisecond))
			return
		}
		if time.Now().After(deadline) {
			// Where many at half of it are held back, no more is sent.
			t.Fatalf("%s: at twice a threshold, and not held back:%s; at half of it, and lost: %v", what, still, f.lost())
		}
	}
}

// Whatever holds the daemon up, or ends it, sources at half of a threshold lose no packet and
// are not reported, also by the next daemon; those at twice the threshold are held back as soon as
// the daemon has watched for an interval, and also while it is stopped or none runs.
func TestPausesPunishNoneBelow(t *testing.T) {
	lab.Root(t)
	for _, entries := range long.Or([]int{200_000}, []int{1_000_000, 10_000_000}) {
		t.Run(fmt.Sprintf("entries=%d", entries), func(t *testing.T) { testPauses(t, entries) })
	}
}

func testPauses(t *testing.T, entries int) {
	h := newHost(t)
	configure := func(more string) {
		h.configure(h.B.Iface, `
lists: {big: {sources: [{file: %s}], interval: 24h}%s}
trackers: [{key: src, threshold: 200pps, action: block, duration: 1s}]
guards: [{key: src, distinct: ports, threshold: 64, window: 2s, action: block, duration: 1s}]
`, h.path("feed.txt"), more)
	}
	h.bigList(entries)
	configure("")
	var sources []*steadySource
	add := func(n int, rate float64, scans, above bool) {
		for range n {
			sources = append(sources, &steadySource{
				addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + len(sources))}), rate: rate, scans: scans, above: above,
			})
		}
	}
	add(12, 100, false, false)
	add(3, 400, false, true)
	add(5, 16, true, false)
	add(2, 64, true, true)

	daemons := []*daemon{h.start(releases[0])}
	last := func() *daemon { return daemons[len(daemons)-1] }
	h.settled("big")
	f := startSteady(t, h.Lab, sources)
	f.awaitDrops(t, "start")
	pause := long.Or(3*time.Second, 20*time.Second)
	next := func(d *daemon) { daemons = append(daemons, d) }
	for _, moment := range []struct {
		name string
		do   func()
	}{
		{"reload", func() {
			h.write("extra.txt", []byte("192.0.2.0/24\n2001:db8::/32\n"))
			configure(", extra: {direction: dst, sources: [{file: " + h.path("extra.txt") + "}]}")
			if _, err := h.api.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
		}},
		{"update of the list", func() {
			h.bigList(entries + entries/4)
			if _, err := h.api.Refresh(t.Context(), "big"); err != nil {
				t.Fatal(err)
			}
		}},
		{"first block", func() { h.mustChange("", false, "203.0.113.200") }},
		{"stopped process", func() {
			for _, s := range []os.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
				if err := last().process.Signal(s); err != nil {
					t.Fatal(err)
				}
				if s == syscall.SIGSTOP {
					time.Sleep(pause) // penalties of before have expired
					f.awaitDrops(t, "while it is stopped")
				}
			}
		}},
		{"takeover", func() { next(h.takeOver(last(), releases[1])) }},
		{"kill", func() {
			last().kill()
			time.Sleep(pause)
			f.awaitDrops(t, "while none runs")
			next(h.start(releases[0]))
		}},
		{"kill and start at once", func() {
			last().kill()
			next(h.start(releases[0]))
		}},
		{"stop", func() {
			last().stop()
			time.Sleep(pause)
			next(h.start(releases[1]))
		}},
	} {
		began := time.Now()
		moment.do()
		t.Logf("%s took %v", moment.name, time.Since(began).Round(10*time.Millisecond))
		f.awaitDrops(t, moment.name)
		if lost := f.lost(); len(lost) > 0 {
			t.Errorf("%s: sources at half of the threshold lost packets:\n%s", moment.name, strings.Join(lost, "\n"))
			break
		}
	}
	f.stop()
	if lost := f.lost(); len(lost) > 0 {
		t.Errorf("in the end sources at half of the threshold have lost packets:\n%s", strings.Join(lost, "\n"))
	}
	reported := 0
	for _, d := range daemons {
		d.mu.Lock()
		for _, e := range d.log {
			if e.Msg != "heavy hitter" && e.Msg != "scan" {
				continue
			}
			reported++
			for _, s := range sources {
				if !s.above && strings.Contains(e.text, fmt.Sprintf("%q", s.addr)) {
					t.Errorf("reported at half of the threshold: %s", e.text)
				}
			}
		}
		d.mu.Unlock()
	}
	if least := 5; reported < least*len(daemons)/2 {
		t.Errorf("%d reports of sources at twice the threshold by %d daemons: too few", reported, len(daemons))
	}
	sent := uint64(0)
	for _, s := range sources {
		if !s.above {
			sent += s.sent.Load()
		}
	}
	t.Logf("%d packets of sources at half of the threshold have come, all that were sent; %d reports of the others", sent, reported)
}
