package sfb

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"weir/filter/hash"
	"weir/filter/internal/trial"
)

var epoch = time.Unix(0, 0)

func source(t testing.TB, seed uint64) *rand.PCG {
	t.Helper()
	t.Logf("seed %d", seed)
	return rand.NewPCG(seed, 0)
}

func mustNew[P any](t testing.TB, c Config, source rand.Source) *Queue[P] {
	t.Helper()
	q, err := New[P](c, source, epoch)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestLinuxDefaults(t *testing.T) {
	c := Linux()
	if c.Increment != 66 || c.Decrement != 11 { // 1/1000 and 1/6000 of 65535
		t.Errorf("increment %d, decrement %d", c.Increment, c.Decrement)
	}
	for name, p := range map[string]struct{ got, want float64 }{
		"increment": {float64(c.Increment) / maxProbability, 1.0 / 1000},
		"decrement": {float64(c.Decrement) / maxProbability, 1.0 / 6000},
	} {
		if math.Abs(p.got/p.want-1) > 0.01 {
			t.Errorf("%s %g, want %g", name, p.got, p.want)
		}
	}
}

// TestFalsePunish computes the rate of false punishment for 16 unresponsive
// flows, and measures it on the queue's own bins. The often quoted figure of
// 2.6 % is the approximation (1 − e^(−16/16))^8; the formula itself yields 2.96
// %, and the measurement agrees with it.
func TestFalsePunish(t *testing.T) {
	if got := FalsePunish(8, 16, 16); math.Abs(got-0.0296) > 0.00005 {
		t.Errorf("rate %.4f, want 2.96 %%", got)
	}
	if got := math.Pow(1-math.Exp(-1), 8); math.Abs(got-0.026) > 0.001 {
		t.Errorf("approximation %.4f, want 2.6 %%", got)
	}
	for _, flows := range []int{16, 32} {
		t.Run(fmt.Sprint(flows, " flows"), func(t *testing.T) {
			rng := rand.New(source(t, uint64(flows)))
			rate := FalsePunish(8, 16, flows)
			q := mustNew[int](t, Linux(), rng)
			trials, hits := trial.Count(rate, 0.1), 0
			for range trials {
				s := &q.sets[q.current]
				s.function = rng.Uint64()
				clear(s.bins)
				for range flows {
					q.each(q.current, q.place(q.current, rng.Uint64()), func(b *bin) { b.probability = maxProbability })
				}
				if q.Probability(rng.Uint64()) == 1 {
					hits++
				}
			}
			trial.Check(t, hits, trials, rate)
		})
	}
}

// TestAdapt follows the probability of one flow step by step.
func TestAdapt(t *testing.T) {
	c := Linux()
	q := mustNew[int](t, c, source(t, 1))
	const h = 42
	now := epoch
	for n := range c.BinSize {
		if v := q.Enqueue(n, h, false, now); v != Queued {
			t.Fatalf("packet %d: %v", n, v)
		}
	}
	if p := q.Probability(h); p != 0 {
		t.Fatalf("probability %g before the bins are full", p)
	}
	if v := q.Enqueue(20, h, true, now); v.Dropped() {
		t.Fatalf("packet 20: %v", v)
	}
	if p, want := q.Probability(h), float64(c.Increment)/maxProbability; p != want {
		t.Errorf("probability %g after an arrival at full bins, want %g", p, want)
	}
	for range c.Max {
		q.Enqueue(0, h, true, now)
	}
	if v := q.Enqueue(0, h, true, now); v != BinDrop || q.Len() != c.Max {
		t.Errorf("%v with %d packets, want a bin drop at %d", v, q.Len(), c.Max)
	}
	before := q.Probability(h)
	for n := range q.Len() {
		p, ok := q.Dequeue()
		if !ok || n < 20 && p != n {
			t.Fatalf("dequeued %d, %v, want %d", p, ok, n)
		}
	}
	if _, ok := q.Dequeue(); ok {
		t.Error("dequeued from an empty queue")
	}
	for _, s := range q.sets {
		for i, b := range s.bins {
			if b.queued != 0 {
				t.Fatalf("bin %d counts %d packets of an empty queue", i, b.queued)
			}
		}
	}
	q.Enqueue(0, h, true, now)
	if p, want := before-q.Probability(h), float64(c.Decrement)/maxProbability; math.Abs(p-want) > 1e-9 {
		t.Errorf("probability fell by %g at empty bins, want %g", p, want)
	}
}

// TestMarking measures the verdicts at a given probability: below one half
// packets are marked or, if they cannot be, dropped; above, a growing share is
// dropped in any case.
func TestMarking(t *testing.T) {
	for i, probability := range []float64{0.2, 0.4, 0.75} {
		rng := rand.New(source(t, uint64(10+i)))
		c := Linux()
		c.Decrement = 0 // keep it constant
		q := mustNew[int](t, c, rng)
		q.each(q.current, q.place(q.current, 1), func(b *bin) { b.probability = uint16(probability * maxProbability) })
		for _, canMark := range []bool{true, false} {
			trials := trial.Count(probability, 0.05)
			count := make(map[Verdict]int)
			for range trials {
				v := q.Enqueue(0, 1, canMark, epoch)
				count[v]++
				if !v.Dropped() {
					q.Dequeue()
				}
			}
			t.Logf("probability %g, can mark %v: %v", probability, canMark, count)
			dropped := probability
			if canMark {
				// r < p and r < 2(p − ½): the latter is the smaller.
				dropped = max(0, 2*probability-1)
				trial.Check(t, count[Marked], trials, probability-dropped)
			}
			if dropped == 0 && count[EarlyDrop] > 0 {
				t.Errorf("%d drops of packets that could be marked", count[EarlyDrop])
			} else if dropped > 0 {
				trial.Check(t, count[EarlyDrop], trials, dropped)
			}
		}
	}
}

// TestPenalty checks that a flow with probability 1 gets the penalty rate.
func TestPenalty(t *testing.T) {
	c := Linux()
	c.Decrement = 0
	q := mustNew[int](t, c, source(t, 20))
	q.each(q.current, q.place(q.current, 1), func(b *bin) { b.probability = maxProbability })
	passed := 0
	const seconds = 50
	for ms := range seconds * 1000 {
		if v := q.Enqueue(0, 1, true, epoch.Add(time.Duration(ms)*time.Millisecond)); v == Queued {
			passed++
			q.Dequeue()
		} else if v != PenaltyDrop {
			t.Fatalf("%v", v)
		}
	}
	if want := seconds*c.PenaltyRate + c.PenaltyBurst; passed < want-c.PenaltyRate || passed > want {
		t.Errorf("%d packets in %d s, want %d", passed, seconds, want)
	}
}

// TestMovingHash checks the double buffering: during the warm-up the next
// function's bins learn of unresponsive flows, the function changes on time,
// the new set knows such a flow, and the old one forgets it.
func TestMovingHash(t *testing.T) {
	c := Linux()
	c.Decrement, c.BinSize = 0, 1
	q := mustNew[int](t, c, source(t, 30))
	const h = 7
	q.each(q.current, q.place(q.current, h), func(b *bin) { b.probability = maxProbability })
	first := q.current
	learned := func() uint16 { _, p := q.least(1-first, q.place(1-first, h)); return p }

	at := func(d time.Duration) { q.Enqueue(0, h, true, epoch.Add(d)) }
	at(c.Rehash - c.Warmup - time.Second)
	if q.warming || learned() != 0 {
		t.Fatalf("learned %d before the warm-up", learned())
	}
	for range 3 * c.PenaltyBurst {
		at(c.Rehash - c.Warmup + time.Second)
	}
	if !q.warming || learned() < c.Increment {
		t.Fatalf("learned %d in the warm-up", learned())
	}
	knows := learned()
	at(c.Rehash)
	if q.current != first {
		t.Fatal("function changed early")
	}
	at(c.Rehash + time.Second)
	if q.current == first || q.warming {
		t.Fatal("function did not change")
	}
	if got := q.Probability(h); got < float64(knows)/maxProbability {
		t.Errorf("after the change the flow has probability %g, want %g at least", got, float64(knows)/maxProbability)
	}
	for i, b := range q.sets[first].bins {
		if b.probability != 0 {
			t.Fatalf("bin %d of the old set keeps probability %d", i, b.probability)
		}
	}
	for range q.Len() {
		q.Dequeue()
	}
	for _, s := range q.sets {
		for i, b := range s.bins {
			if b.queued != 0 {
				t.Fatalf("bin %d counts %d packets of an empty queue", i, b.queued)
			}
		}
	}
}

// scene is a link of 1000 packets per second with one flow that sends at a
// fixed rate whatever happens, and responsive flows that behave like TCP: one
// more packet per round trip, and half as many after a mark or a drop.
type scene struct {
	responsive   int
	unresponsive float64 // packets a second
	duration     time.Duration
}

const (
	linkRate  = 1000
	roundTrip = 100 * time.Millisecond
)

// queue is the queue of a scene.
type queue interface {
	Enqueue(flow int, h uint64, canMark bool, now time.Time) Verdict
	Dequeue() (int, bool)
}

// dropTail is a plain FIFO queue.
type dropTail struct {
	packets []int
	limit   int
}

func (d *dropTail) Enqueue(flow int, _ uint64, _ bool, _ time.Time) Verdict {
	if len(d.packets) >= d.limit {
		return QueueDrop
	}
	d.packets = append(d.packets, flow)
	return Queued
}

func (d *dropTail) Dequeue() (int, bool) {
	if len(d.packets) == 0 {
		return 0, false
	}
	p := d.packets[0]
	d.packets = d.packets[1:]
	return p, true
}

// play returns the packets per second that each flow gets through in the second
// half of the time. Flow 0 is the unresponsive one.
func (s scene) play(q queue, rng *rand.Rand) []float64 {
	type sender struct {
		window   float64 // packets in a round trip
		credit   float64
		deaf     time.Time // ignores congestion until then: one response per round trip
		received int
	}
	flows := make([]sender, 1+s.responsive)
	for i := range flows {
		flows[i].window = 1 + 9*rng.Float64()
		flows[i].credit = rng.Float64()
	}
	seed := rng.Uint64()
	const tick = time.Second / linkRate
	for at := time.Duration(0); at < s.duration; at += tick {
		now := epoch.Add(at)
		for _, i := range rng.Perm(len(flows)) {
			f := &flows[i]
			if i == 0 {
				f.credit += s.unresponsive * tick.Seconds()
			} else {
				f.credit += f.window * tick.Seconds() / roundTrip.Seconds()
				f.window += tick.Seconds() / roundTrip.Seconds()
			}
			for ; f.credit >= 1; f.credit-- {
				v := q.Enqueue(i, hash.Nth(seed, uint64(i)), true, now)
				if v != Queued && now.After(f.deaf) {
					f.window = max(1, f.window/2)
					f.deaf = now.Add(roundTrip)
				}
			}
		}
		if i, ok := q.Dequeue(); ok && at >= s.duration/2 {
			flows[i].received++
		}
	}
	rates := make([]float64, len(flows))
	for i, f := range flows {
		rates[i] = float64(f.received) / (s.duration / 2).Seconds()
	}
	return rates
}

// TestUnresponsiveFlow runs the scene. With drop tail the unresponsive flow
// takes the link; under SFB it is limited, and the others share the rest.
func TestUnresponsiveFlow(t *testing.T) {
	s := scene{responsive: 10, unresponsive: 1200, duration: 120 * time.Second}
	fair := float64(linkRate) / float64(1+s.responsive)
	sum := func(rates []float64) (others, least float64) {
		least = math.Inf(1)
		for _, r := range rates[1:] {
			others += r
			least = min(least, r)
		}
		return others, least
	}

	tail := s.play(&dropTail{limit: Linux().Limit}, rand.New(source(t, 40)))
	others, _ := sum(tail)
	t.Logf("drop tail: unresponsive %.0f packets/s, all others %.0f", tail[0], others)
	if tail[0] < 0.8*linkRate {
		t.Errorf("without management the unresponsive flow gets %.0f packets/s: the scene shows nothing", tail[0])
	}

	for _, rehash := range []time.Duration{0, 20 * time.Second} {
		for seed := uint64(41); seed < 45; seed++ {
			rng := rand.New(source(t, seed))
			c := Linux()
			c.Rehash, c.Warmup = rehash, rehash/10
			rates := s.play(mustNew[int](t, c, rng), rng)
			others, least := sum(rates)
			t.Logf("rehash %v: unresponsive %.0f packets/s, all others %.0f, the least of them %.0f; fair share %.0f", rehash, rates[0], others, least, fair)
			if rates[0] > 2*fair {
				t.Errorf("rehash %v, seed %d: unresponsive flow gets %.0f packets/s, fair share is %.0f", rehash, seed, rates[0], fair)
			}
			if least < fair/2 {
				t.Errorf("rehash %v, seed %d: a responsive flow gets %.0f packets/s, fair share is %.0f", rehash, seed, least, fair)
			}
			if others < 0.7*linkRate {
				t.Errorf("rehash %v, seed %d: the responsive flows get %.0f of %d packets/s", rehash, seed, others, linkRate)
			}
		}
	}
}

func TestNewRejects(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"levels":  func(c *Config) { c.Levels = 0 },
		"bins":    func(c *Config) { c.Bins = 12 },
		"hash":    func(c *Config) { c.Levels = 17 },
		"limit":   func(c *Config) { c.Limit = 0 },
		"bin":     func(c *Config) { c.BinSize = 0 },
		"max":     func(c *Config) { c.Max = 0 },
		"warm-up": func(c *Config) { c.Warmup = c.Rehash + 1 },
		"penalty": func(c *Config) { c.PenaltyRate = -1 },
	} {
		c := Linux()
		change(&c)
		if _, err := New[int](c, rand.NewPCG(0, 0), epoch); err == nil {
			t.Errorf("%s: %+v accepted", name, c)
		}
	}
	c := Linux()
	c.Limit = 2
	q := mustNew[int](t, c, rand.NewPCG(0, 0))
	for i, want := range []Verdict{Queued, Queued, QueueDrop} {
		if v := q.Enqueue(i, uint64(i), false, epoch); v != want {
			t.Errorf("packet %d of a queue of 2: %v", i, v)
		}
	}
}

func BenchmarkQueue(b *testing.B) {
	b.Run("op=insert", func(b *testing.B) {
		q := mustNew[int](b, Linux(), rand.NewPCG(50, 0))
		var h uint64
		for b.Loop() {
			q.Enqueue(0, hash.Nth(0, h%100), true, epoch)
			q.Dequeue()
			h++
		}
	})
	b.Run("op=query", func(b *testing.B) {
		q := mustNew[int](b, Linux(), rand.NewPCG(51, 0))
		var h uint64
		for b.Loop() {
			q.Probability(h)
			h++
		}
	})
}
