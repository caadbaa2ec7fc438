package netns

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/config"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/tests/lab"
	"weir/tests/timed"
)

// startFilter runs a filter with one tracker, and a list that allows one flooder,
// at the lab's end B.
func startFilter(t *testing.T, l *lab.Lab, track string) *filter {
	t.Helper()
	spec, err := tracker.Parse(track)
	if err != nil {
		t.Fatal(err)
	}
	c := configuration(t, target(l.B))
	c.Trackers = []tracker.Spec{spec}
	addList(t, c, config.Allow, "allow.txt", allowedFlooder+"\n")
	return serve(t, c)
}

const (
	flooder        = "198.51.100.77"
	allowedFlooder = "198.51.100.78"
	normalFlows    = 50
	normalRate     = 40     // packets a second of each
	floodRate      = 10_000 // a second, and as many of the flooder that is allowed

	// The maximum of normal and allowed packets in flight: the wire's queue has
	// room for 256, including the flooder's, while its CPU is busy.
	underWay = 64
)

// kinds of frames, in the upper half of their numbers.
const (
	normalKind = iota + 1
	floodKind
	allowedKind
	kindCount
)

// traffic sends normal flows continuously and floods on demand, and counts the
// packets that pass.
type traffic struct {
	flood          atomic.Bool
	stalled        atomic.Int64 // the longest time for which the sender did not run
	sent, received [kindCount]atomic.Uint64
	done           atomic.Bool
	wg             sync.WaitGroup
}

func startTraffic(t *testing.T, l *lab.Lab) *traffic {
	t.Helper()
	f := &traffic{}
	tx, rx := l.A.Sender(t), l.B.Receiver(t)
	frame := func(src string) []byte {
		return l.Numbered(frameOf(key.Tuple{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 5, DstPort: 6}), 0)
	}
	var normal [][]byte
	for i := range normalFlows {
		normal = append(normal, frame(fmt.Sprintf("192.0.2.%d", i+1)))
	}
	bad, allowed := frame(flooder), frame(allowedFlooder)
	send := func(b []byte, kind uint64) {
		lab.Renumber(b, kind<<32)
		if err := tx.Send(b); err != nil {
			t.Error(err)
			f.done.Store(true)
		}
		f.sent[kind].Add(1)
	}
	// receive reads until nothing arrives in time.
	receive := func(wait time.Duration) {
		for {
			b, err := rx.Receive(wait)
			if err != nil {
				return
			}
			if n, ok := lab.NumberOf(b); ok && n>>32 < kindCount {
				f.received[n>>32].Add(1)
			}
		}
	}
	full := func() bool {
		for range 2 {
			sent := f.sent[normalKind].Load() + f.sent[allowedKind].Load()
			if sent < f.received[normalKind].Load()+f.received[allowedKind].Load()+underWay {
				return false
			}
			receive(0)
		}
		return true
	}
	f.wg.Go(func() {
		const step = 2 * time.Millisecond
		begin, last, n := time.Now(), time.Now(), 0
		for !f.done.Load() {
			now := time.Now()
			f.stalled.Store(max(f.stalled.Load(), int64(now.Sub(last))))
			for ; float64(n) < now.Sub(begin).Seconds()*normalFlows*normalRate && !full(); n++ {
				send(normal[n%normalFlows], normalKind)
			}
			if f.flood.Load() {
				for range int(now.Sub(last).Seconds() * floodRate) {
					if full() {
						break
					}
					send(bad, floodKind)
					send(allowed, allowedKind)
				}
			}
			receive(0)
			last = now
			time.Sleep(step)
		}
		receive(300 * time.Millisecond)
	})
	t.Cleanup(f.stop)
	return f
}

func (f *traffic) stop() {
	f.done.Store(true)
	f.wg.Wait()
}

// A flood from one source among normal flows is reported within an interval,
// limited as configured, and released when it is over. The normal flows, and an
// allowed flooder, lose nothing.
func TestFloodIsLimited(t *testing.T) {
	lab.Root(t)
	timed.Alone(t)
	t.Parallel() // it waits most of the time
	const interval, lasts = 500 * time.Millisecond, time.Second
	for _, test := range []struct {
		track string
		most  float64 // packets per second that pass while it is limited
		least float64
	}{
		{"action=report,duration=1s", 1e9, 0},
		{"action=limit,limit=200pps,duration=1s", 1.3 * 200, 0.7 * 200},
		{"action=block,duration=1s", 0, 0},
	} {
		t.Run(test.track, func(t *testing.T) {
			t.Parallel()
			l := lab.New(t)
			filter := startFilter(t, l, fmt.Sprintf("key=src,threshold=1kpps,interval=%v,%s", interval, test.track))
			traffic := startTraffic(t, l)
			time.Sleep(2 * interval)
			traffic.stalled.Store(0)
			began := time.Now()
			traffic.flood.Store(true)
			at := filter.log.await(t, began, 10*time.Second, `msg="heavy hitter"`, flooder)
			// It is reported at most an interval after it has sent enough to be
			// heavy, given CPU time, which the sender measures.
			took, stalled := at.Sub(began), time.Duration(traffic.stalled.Load())
			t.Logf("reported after %v; the sender did not run for %v once", took, stalled)
			if took > interval+2*tracker.Tick+interval*1000/floodRate+100*time.Millisecond+2*stalled {
				t.Errorf("reported after %v", took)
			}
			time.Sleep(200 * time.Millisecond)
			before, from := traffic.received[floodKind].Load(), time.Now()
			sentBefore := traffic.sent[floodKind].Load()
			time.Sleep(3 * interval)
			passed, sent := float64(traffic.received[floodKind].Load()-before), traffic.sent[floodKind].Load()-sentBefore
			rate := passed / time.Since(from).Seconds()
			t.Logf("%d sent, %.0f passed: %.0f a second", sent, passed, rate)
			if rate > test.most || rate < test.least {
				t.Errorf("%.0f packets a second of the flood pass, want %.0f to %.0f", rate, test.least, test.most)
			}
			if top := filter.Top(); top == nil || len(top.Trackers) != 1 || len(top.Trackers[0].Flows) < 2 {
				t.Errorf("weir top would show %+v", top)
			}
			traffic.flood.Store(false)
			ended := time.Now()
			released := filter.log.await(t, ended, lasts*12+3*interval, "no longer a heavy hitter", flooder)
			stalled = time.Duration(traffic.stalled.Load())
			t.Logf("released after %v; the sender did not run for %v once", released.Sub(ended), stalled)
			if released.Sub(ended) > 2*lasts+3*interval+2*stalled {
				t.Errorf("released after %v", released.Sub(ended))
			}
			// It passes again, below the threshold.
			wire := lab.NewProbe(t, l)
			frames := make([][]byte, 20)
			for i := range frames {
				frames[i] = frameOf(key.Tuple{Src: netip.MustParseAddr(flooder), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 5, DstPort: 6})
			}
			for i, f := range wire.Pass(t, frames...) {
				if f == nil {
					t.Errorf("frame %d of the flooder is held back after it was released", i)
				}
			}
			traffic.stop()
			for kind, name := range map[int]string{normalKind: "normal flows", allowedKind: "allowed flooder"} {
				if s, r := traffic.sent[kind].Load(), traffic.received[kind].Load(); s != r || s == 0 {
					t.Errorf("%s: %d sent, %d received", name, s, r)
				} else {
					t.Logf("%s: %d sent, all received", name, s)
				}
			}
		})
	}
}
