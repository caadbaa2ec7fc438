package tracker

import (
	"testing"
	"time"
)

// follow lets time pass, and calls the watcher when it is due, or was woken. It returns how
// often, and the time of the first event that is not a release, 0 if there is none.
func (h *host) follow(w *Watcher, d time.Duration) (ticks int, at time.Duration) {
	const step = time.Millisecond
	for end := h.now + d; h.now < end; h.pass(step) {
		if h.woken {
			h.woken = false
			w.Wake()
		}
		if h.now < w.Due() {
			continue
		}
		ticks++
		_, events := w.tick(h.clock, h.wires)
		for _, e := range events {
			if !e.Released && at == 0 {
				at = h.now
			}
		}
	}
	return ticks, at
}

// Without traffic, a watcher looks once an interval and exchanges no banks. A source that is
// heavy is found as soon as by a watcher that looks all the time.
func TestRest(t *testing.T) {
	for name, text := range map[string]string{
		"a rate":  "key=src,threshold=1kpps,action=block,duration=1s",
		"a share": "key=src,threshold=6%+1kpps,action=block,duration=1s",
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			watched := []Watched{{Spec: s}}
			h := newHost(t, watched)
			of := h.sources[0] // they are silent at first
			h.sources = nil
			w := newWatcher(watched, func() {})
			w.Rest()
			h.follow(w, 4*time.Second)
			for range 3 {
				h.exchanges = 0
				ticks, _ := h.follow(w, 10*time.Second)
				if ticks < 9 || ticks > 11 || h.exchanges > 0 {
					t.Errorf("without traffic it looks %d times in 10 s, and exchanges %d banks", ticks, h.exchanges)
				}
				h.follow(w, time.Duration(h.random.Int64N(int64(time.Second))))
				began := h.now
				of.every, of.next = time.Second/10_000, h.now
				h.sources = []source{of}
				_, at := h.follow(w, 2*time.Second)
				// A tenth of a second has as many packets as the threshold. A program allows
				// some more, and begins to count at the second report.
				if took := at - began; at == 0 || took > 100*time.Millisecond+Tick+20*time.Millisecond {
					t.Errorf("ten times the threshold is found after %v", took)
				}
				h.sources = nil
				h.follow(w, 5*time.Second) // it is released
			}
			for range 10 {
				of.every, of.next = time.Second/20, h.now // known, and nowhere near the threshold
				h.sources = []source{of}
				h.follow(w, 4*time.Second+time.Duration(h.random.Int64N(int64(time.Second))))
				began := h.now
				h.sources[0].every = time.Second / 10_000
				_, at := h.follow(w, 2*time.Second)
				if took := at - began; at == 0 || took > 50*time.Millisecond+100*time.Millisecond+Tick+20*time.Millisecond {
					t.Errorf("a known source at ten times the threshold is found after %v", took)
				}
				h.sources = nil
				h.follow(w, 5*time.Second)
			}
		})
	}
}

// Below a step of the threshold, traffic does not wake the watcher, which looks once an interval.
func TestRestsBelowSteps(t *testing.T) {
	s, err := Parse("key=src,threshold=10kpps,action=block")
	if err != nil {
		t.Fatal(err)
	}
	watched := []Watched{{Spec: s}}
	h := newHost(t, watched)
	w := newWatcher(watched, func() {})
	w.Rest()
	for i := range h.sources {
		h.sources[i].every = time.Second / 20
	}
	h.follow(w, 4*time.Second)
	h.exchanges = 0
	reports := 0
	ticks, _ := h.follow(w, 10*time.Second)
	if last := w.Last()[0]; last != nil && last.Packets > 300 {
		reports++
	}
	if h.exchanges == 0 || reports == 0 || ticks > 25 {
		t.Errorf("it looks %d times in 10 s, and exchanges %d banks; the last report is %+v", ticks, h.exchanges, w.Last()[0])
	}
	for i := range h.sources {
		h.sources[i].every = time.Second // too few to be known
	}
	h.follow(w, 5*time.Second)
	h.sources = nil
	h.follow(w, 5*time.Second)
	if n := total(h.wires.idle(0)); n > 0 {
		t.Errorf("after a silence, the banks of the last interval still have %d packets", n)
	}
}
