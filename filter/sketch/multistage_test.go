package sketch

import (
	"fmt"
	"maps"
	"math"
	"testing"

	"weir/filter/key"
	"weir/tests/long"
)

func mustNewMultistage(t testing.TB, tracker Tracker, threshold Threshold) *Multistage {
	t.Helper()
	m, err := NewMultistage(tracker, threshold)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// heavyFlows is a workload whose flows have keys of their own.
type heavyFlows struct {
	*workload
	keys   []key.Key
	hashes []uint64
}

func newHeavyFlows(w *workload, tracker Tracker) heavyFlows {
	h := heavyFlows{w, make([]key.Key, len(w.truth)), make([]uint64, len(w.truth))}
	for f := range h.keys {
		h.keys[f] = source(uint32(f))
		h.hashes[f] = tracker.Hash(h.keys[f])
	}
	return h
}

func (w heavyFlows) count(m *Multistage) {
	for _, f := range w.packets {
		m.CountKey(w.keys[f], w.hashes[f], w.length(f))
	}
}

// result compares the flows that a filter reports with the truth.
type result struct {
	f1            float64
	missed, wrong int
	worst, mean   float64 // relative error of the heavy hitters' estimates
}

func (r result) String() string {
	return fmt.Sprintf("F1 %.4f, %d missed, %d wrong, error mean %.5f, worst %.4f", r.f1, r.missed, r.wrong, r.mean, r.worst)
}

func (w heavyFlows) compare(t *testing.T, m *Multistage, threshold uint64) (r result) {
	t.Helper()
	heavy := w.heavy(m.Unit, threshold)
	hit := 0
	for f := range m.Heavy() {
		a := f.Key.Src.As4()
		n := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3])
		truth, is := heavy[n]
		if !is {
			r.wrong++
			continue
		}
		hit++
		e := float64(f.Estimate(m.Unit)-truth) / float64(truth)
		r.mean += e
		r.worst = max(r.worst, e)
		if f.Exact(m.Unit) > truth || f.Estimate(m.Unit) < truth {
			t.Fatalf("flow of %d: exact %d, estimate %d", truth, f.Exact(m.Unit), f.Estimate(m.Unit))
		}
	}
	for n, truth := range heavy {
		if got := m.Estimate(Flow{Key: w.keys[n], Hash: w.hashes[n]}); got < truth {
			t.Errorf("flow of %d is estimated at %d", truth, got)
		}
	}
	r.missed = len(heavy) - hit
	r.mean /= float64(hit)
	r.f1 = f1(hit, r.wrong, r.missed)
	return r
}

// TestHeavyFlows finds the flows with at least 0.01 % of the traffic, among a
// million flows in 10 million packets, in 256 KB: sketch and flow memory of one
// bank. A tracker has two, one of which is idle.
func TestHeavyFlows(t *testing.T) {
	long.Seconds(t)
	const flows, packets, threshold, size = 1_000_000, 10_000_000, 1000, 256 << 10
	for i, alpha := range []float64{0.9, 1.1, 1.3} {
		if i != 1 && !long.Or(false, true) {
			continue
		}
		tracker := sources
		w := newHeavyFlows(newWorkload(t, uint64(10+i), flows, packets, alpha), tracker)
		tracker.Geometry = PlanGeometry(size).WithCold()
		m := mustNewMultistage(t, tracker, Threshold{Units: threshold})
		for interval := range 2 {
			w.count(m)
			r := w.compare(t, m, threshold)
			t.Logf("Zipf %.1f, %4d KB, interval %d: %v; %d packets denied", alpha, size>>10, interval+1, r, m.Denied())
			if r.f1 < 0.995 {
				t.Errorf("Zipf %.1f: F1 %.4f, want at least 0.995", alpha, r.f1)
			}
			if most := []float64{0.003, 0}[interval]; r.mean > most { // the entries are kept
				t.Errorf("Zipf %.1f: mean relative error %.5f, want at most %g", alpha, r.mean, most)
			}
			if r.missed > 0 {
				t.Errorf("Zipf %.1f: %d heavy hitters missed", alpha, r.missed)
			}
			m.Next()
		}
	}
}

// TestBytes counts bytes: no heavy hitter is missed, and the estimates are within
// the data plane's bounds.
func TestBytes(t *testing.T) {
	const threshold = 200_000
	tracker := sources.of(Bytes, 512, 512)
	w := newHeavyFlows(newWorkload(t, 20, 50_000, 500_000, 1.1), tracker)
	m := mustNewMultistage(t, tracker, Threshold{Units: threshold})
	w.count(m)
	for f := range m.Flows() {
		if f.Bytes%f.Packets != 0 {
			t.Fatalf("%d packets of one length have %d bytes", f.Packets, f.Bytes)
		}
	}
	r := w.compare(t, m, threshold)
	t.Log(r)
	if r.missed > 0 || r.mean > 0.002 || m.Denied() > 0 {
		t.Errorf("%v, %d packets denied", r, m.Denied())
	}
}

// TestShare finds the flows with a share of the traffic while the traffic
// varies.
func TestShare(t *testing.T) {
	const share = 0.002
	tracker := sources.of(Packets, 1024, 2048)
	m := mustNewMultistage(t, tracker, Threshold{Units: 20, Share: share})
	previous := 0
	for i, packets := range []int{200_000, 200_000, 5_000, 400_000, 10_000} {
		w := newHeavyFlows(newWorkload(t, uint64(60+i), 50_000, packets, 1.1), tracker)
		w.count(m)
		heavy := uint64(max(20, math.Ceil(share*float64(packets)), share*float64(previous)/16))
		r := w.compare(t, m, heavy)
		in := 0
		for range m.Flows() {
			in++
		}
		t.Logf("%d packets: heavy from %d on, %v, %d flows in memory", packets, heavy, r, in)
		if r.missed > 0 || m.Denied() > 0 {
			t.Errorf("%d packets: %d heavy hitters missed, %d packets denied", packets, r.missed, m.Denied())
		}
		// If the i-th flow has 1/i of the traffic, at most 1000 flows reach
		// half of the share, and far fewer do here.
		if r.f1 < 0.95 || in > 1000 {
			t.Errorf("%d packets: %v, %d flows in memory", packets, r, in)
		}
		previous = packets
		m.Next()
	}
}

// TestNext checks which entries are preserved into the next interval, and that
// they are then exact from the first packet.
func TestNext(t *testing.T) {
	m := mustNewMultistage(t, sources.of(Packets, 1024, 8), Threshold{Units: 40})
	m.send(1, 60) // heavy
	m.send(2, 39) // entered with the 20th packet: 20 exact
	m.send(3, 38) // 19
	m.send(4, 19) // never entered
	m.Next()
	kept := make(map[key.Key]bool)
	for f := range m.Flows() {
		kept[f.Key] = true
		if f.Before != 0 || f.Packets != 0 || f.Bytes != 0 {
			t.Errorf("kept entry %+v is not at zero", f)
		}
	}
	if want := map[key.Key]bool{source(1): true, source(2): true}; !maps.Equal(kept, want) {
		t.Errorf("kept %v, want %v", kept, want)
	}
	h := m.send(1, 5)
	if f, _ := m.Lookup(h); f.Exact(Packets) != 5 || m.Estimate(Flow{Key: source(1), Hash: h}) != 5 || m.Total() != 5 {
		t.Errorf("kept flow counts %+v of %d packets, want 5", f, m.Total())
	}
	if got := m.sketch.Estimate(h); got != 0 {
		t.Errorf("kept flow raised the sketch to %d", got)
	}
	m.Next() // flow 1 had 5 packets, flow 2 none, and neither is new: both are removed
	for f := range m.Flows() {
		t.Errorf("entry %+v was preserved after an interval in which it was light", f)
	}
}
