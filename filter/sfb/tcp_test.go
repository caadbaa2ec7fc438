package sfb

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// simulation is TCP connections and a flood of UDP through a policer. That delays nothing,
// so round-trip times are constant but for jitter.
type simulation struct {
	policer     *Policer
	rng         *rand.Rand
	now         time.Duration
	events      events
	connections []*connection
	flood       float64 // bytes of it that have passed
	boxed       int     // packets of connections that the penalty box has dropped
}

type event struct {
	at time.Duration
	do func()
}

// events is a heap of future events.
type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

func (s *simulation) at(t time.Duration, do func()) { heap.Push(&s.events, event{t, do}) }

func (s *simulation) run(until time.Duration) {
	for s.events[0].at < until {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
	}
	s.now = until
}

func (s *simulation) admit(h uint64, length uint32) Outcome {
	return s.policer.Admit(s.rng.IntN(len(s.policer.CPUs)), h, length, false, uint64(time.Second+s.now))
}

const segment = 1514 // bytes of a frame

// congestion is an algorithm of congestion control.
type congestion struct {
	name   string
	keep   float64 // of the window after a loss
	growth float64 // of the window, in segments a round trip
}

// Cubic is in its region of TCP friendliness at these windows (RFC 9438, section 4.3).
var (
	reno  = congestion{"reno", 0.5, 1}
	cubic = congestion{"cubic", 0.7, 3 * (1 - 0.7) / (1 + 0.7)}
)

// connection always has something to send. It has selective acknowledgements, reduces its
// window once for all losses in a window, and has tail-loss probes and timeouts.
type connection struct {
	*simulation
	congestion
	hash      uint64
	rtt       time.Duration
	window    float64
	threshold float64
	sent      uint64
	flight    []flying
	recovery  uint64        // the window is reduced for losses from this segment on
	arrival   time.Duration // of the last acknowledgement under way
	heard     time.Duration // when the last one came
	probed    bool
	delivered float64 // bytes
}

// flying is a segment in flight.
type flying struct {
	number uint64
	lost   bool
	later  int // segments sent later that were acknowledged
}

func (s *simulation) connect(c congestion, rtt time.Duration) {
	x := &connection{simulation: s, congestion: c, hash: s.rng.Uint64(), rtt: rtt, window: 10, threshold: math.Inf(1)}
	s.connections = append(s.connections, x)
	s.at(time.Duration(s.rng.Int64N(int64(10*time.Millisecond))), x.watch)
}

func (c *connection) send() {
	if len(c.flight) == 0 {
		c.heard = c.now
	}
	n := c.sent
	c.sent++
	o := c.admit(c.hash, segment)
	c.flight = append(c.flight, flying{number: n, lost: o.Dropped()})
	switch {
	case o == DroppedBoxed:
		c.boxed++
	case !o.Dropped():
		c.arrival = max(c.arrival, c.now+c.rtt+time.Duration(c.rng.Int64N(int64(time.Millisecond))))
		c.at(c.arrival, func() { c.acknowledged(n) })
	}
}

func (c *connection) fill() {
	for len(c.flight) < int(c.window) {
		c.send()
	}
}

func (c *connection) acknowledged(n uint64) {
	c.delivered += segment
	c.heard, c.probed = c.now, false
	rest := c.flight[:0]
	for _, f := range c.flight {
		if f.number < n && f.lost {
			f.later++
		}
		switch {
		case f.number == n:
		case f.later < 3:
			rest = append(rest, f)
		case f.number >= c.recovery:
			c.window = max(2, c.window*c.keep)
			c.threshold, c.recovery = c.window, c.sent
		}
	}
	c.flight = rest
	switch {
	case n < c.recovery:
	case c.window < c.threshold:
		c.window++
	default:
		c.window += c.growth / c.window
	}
	c.fill()
}

// watch looks for timeouts.
func (c *connection) watch() {
	switch idle := c.now - c.heard; {
	case len(c.flight) > 0 && idle > c.rtt+200*time.Millisecond:
		c.threshold = max(2, c.window*c.keep)
		c.window, c.recovery, c.heard = 1, c.sent, c.now
		c.flight = c.flight[:0]
	case len(c.flight) > 0 && idle > 2*c.rtt && !c.probed:
		c.probed = true
		for i := range c.flight {
			c.flight[i].later = 2
		}
		c.send()
	}
	c.fill()
	c.at(c.now+2*time.Millisecond, c.watch)
}

// blast sends UDP at a rate, in bytes a second, in small bursts.
func (s *simulation) blast(rate float64) {
	const length = 1442
	h, sent := s.rng.Uint64(), 0.
	var turn func()
	turn = func() {
		for ; sent < s.now.Seconds()*rate/length; sent++ {
			if !s.admit(h, length).Dropped() {
				s.flood += length
			}
		}
		s.at(s.now+500*time.Microsecond, turn)
	}
	s.at(0, turn)
}

// shared has the rates that ten connections and a flood get, as shares of the limit.
type shared struct {
	tcp, jain, flood float64
	boxed            int // packets of the connections
}

func (s shared) String() string {
	return fmt.Sprintf("TCP %.3f of the limit (Jain %.3f), the flood %.4f", s.tcp, s.jain, s.flood)
}

// share simulates a flood at a multiple of the limit.
func share(t *testing.T, seed uint64, controller Controller, c congestion, rtt time.Duration, multiple float64) (result shared) {
	t.Helper()
	const settle, measure, flows = 4 * time.Second, 4 * time.Second, 10
	s := &simulation{policer: NewPolicer(plan(t, controller), 1, 2), rng: rand.New(rand.NewPCG(seed, 0))}
	for range flows {
		s.connect(c, rtt)
	}
	if multiple > 0 {
		s.blast(multiple * rate)
	}
	s.run(settle)
	before, flood := make([]float64, flows), s.flood
	for i, x := range s.connections {
		before[i] = x.delivered
	}
	s.run(settle + measure)
	var squares float64
	for i, x := range s.connections {
		got := (x.delivered - before[i]) / measure.Seconds() / rate
		result.tcp += got
		squares += got * got
	}
	result.jain = result.tcp * result.tcp / (flows * squares)
	result.flood = (s.flood - flood) / measure.Seconds() / rate
	result.boxed = s.boxed
	return result
}

// The bars of TestPolice in tests/netns, without the noise of a machine: ten connections
// have nearly as much as behind a token bucket, fairly, and keep it in a flood of two and
// four times the limit, which gets next to nothing.
func TestPolicerTCP(t *testing.T) {
	for _, c := range []congestion{cubic, reno} {
		for seed, rtt := range []time.Duration{6 * time.Millisecond, 12 * time.Millisecond} {
			seed := uint64(seed)
			bucket := share(t, seed, Bucket, c, rtt, 0)
			alone := share(t, seed, Fair, c, rtt, 0)
			t.Logf("%s, seed %d, %v: behind a bucket %v; alone %v", c.name, seed, rtt, bucket, alone)
			if alone.tcp < 0.97*bucket.tcp {
				t.Errorf("alone %v, behind a bucket %v", alone, bucket)
			}
			for _, multiple := range []float64{2, 4} {
				s := share(t, seed, Fair, c, rtt, multiple)
				t.Logf("with %g times the limit %v", multiple, s)
				if s.tcp < 0.97*alone.tcp || s.jain < 0.98 || s.flood > 0.01 || s.boxed > 0 {
					t.Errorf("with %g times the limit %v, %d packets of TCP boxed; alone %v", multiple, s, s.boxed, alone)
				}
			}
		}
	}
	// The control.
	if s := share(t, 1, Bucket, cubic, 12*time.Millisecond, 2); s.tcp > 0.1 {
		t.Errorf("behind a token bucket alone %v: this is no flood", s)
	}
}
