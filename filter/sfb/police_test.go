package sfb

import (
	"math/rand/v2"
	"testing"
	"time"
)

const rate = 12.5e6 // bytes a second: 100 Mbit/s

func plan(t testing.TB, c Controller) Limits {
	t.Helper()
	l, err := Plan(c, rate, false, 20*time.Millisecond, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// offered sends frames of 1500 bytes for a time, of flows with these hashes and rates (in
// bytes a second), and returns the share of each that passes.
func offered(p *Policer, rng *rand.Rand, from, to time.Duration, hashes []uint64, rates []float64) []float64 {
	const size = 1500
	next, sent, passed := make([]float64, len(rates)), make([]float64, len(rates)), make([]float64, len(rates))
	for i := range next {
		next[i] = from.Seconds() + rng.Float64()*size/rates[i]
	}
	for {
		first := 0
		for i := range next {
			if next[i] < next[first] {
				first = i
			}
		}
		if next[first] >= to.Seconds() {
			break
		}
		sent[first]++
		// A third of the packets arrive at another CPU.
		if !p.Admit(rng.IntN(3)/2, hashes[first], size, false, uint64(1e9+next[first]*1e9)).Dropped() {
			passed[first]++
		}
		next[first] += rng.ExpFloat64() * size / rates[first]
	}
	for i := range passed {
		passed[i] /= sent[i]
	}
	return passed
}

// Ten flows that send half of the rate together lose nothing to one that sends four times
// the rate, once it is in the penalty box, and it gets next to nothing. A bucket alone
// lets it take most.
func TestPolicerPenalises(t *testing.T) {
	for _, c := range []Controller{Fair, Bucket} {
		rng := rand.New(source(t, 1))
		p := NewPolicer(plan(t, c), 1, 2)
		hashes, rates := []uint64{rng.Uint64()}, []float64{4 * rate}
		for range 10 {
			hashes, rates = append(hashes, rng.Uint64()), append(rates, rate/20)
		}
		offered(p, rng, 0, 3*time.Second, hashes, rates)
		passed := offered(p, rng, 3*time.Second, 6*time.Second, hashes, rates)
		t.Log(c, passed)
		var others float64
		for _, x := range passed[1:] {
			others += x / 10
		}
		if c == Bucket {
			if others > 0.5 {
				t.Errorf("behind a bucket alone, %.3f of the other flows passes", others)
			}
		} else if others < 0.99 || passed[0]*4 > 0.01 {
			t.Errorf("%.3f of the other flows passes, and of the flood %.4f of the rate", others, 4*passed[0])
		}
		// It is forgiven once it sends less.
		rates[0] = rate / 20
		offered(p, rng, 6*time.Second, 7*time.Second, hashes, rates)
		if passed := offered(p, rng, 7*time.Second, 8*time.Second, hashes, rates); passed[0] < 0.99 {
			t.Errorf("%v: %.3f of the former flood passes", c, passed[0])
		}
	}
}

// A flood stays in the penalty box for as long as it sends more than it may, also below twice
// that and while the others leave room, so that the fair rate is the limit. It is let out
// once it sends what the link has room for, and with the next hash function, which is the
// second chance of a flow that shares its bins with it.
func TestPolicerKeeps(t *testing.T) {
	for _, flood := range []float64{1.1, 1.5, 1.9, 2} {
		rng := rand.New(source(t, 4))
		l := plan(t, Fair)
		l.Lifetime = uint64(20 * time.Second)
		p := NewPolicer(l, 1, 2)
		hashes, rates := []uint64{rng.Uint64()}, []float64{4 * rate}
		for range 10 {
			hashes, rates = append(hashes, rng.Uint64()), append(rates, rate/20)
		}
		offered(p, rng, 0, 3*time.Second, hashes, rates)
		rates[0] = flood * rate
		passed := offered(p, rng, 3*time.Second, 15*time.Second, hashes, rates)
		least := 1.0
		for _, x := range passed[1:] {
			least = min(least, x)
		}
		t.Logf("a flood of %g times the rate gets %.4f of it; of the worst other flow %.3f passes", flood, flood*passed[0], least)
		if flood*passed[0] > 0.01 || least < 0.99 {
			t.Errorf("a flood of %g times the rate leaves the box, and gets %.4f of it; of the worst other flow %.3f passes", flood, flood*passed[0], least)
		}
		rates[0] = rate / 3
		offered(p, rng, 15*time.Second, 16*time.Second, hashes, rates)
		if passed := offered(p, rng, 16*time.Second, 19*time.Second, hashes, rates); passed[0] < 0.99 {
			t.Errorf("%.3f of the former flood passes, for which there is room", passed[0])
		}
	}
}

// So many flows that do not respond, as a flood with forged sources has, are not penalised:
// all bins would be in the penalty box.
func TestPolicerGuard(t *testing.T) {
	rng := rand.New(source(t, 2))
	p := NewPolicer(plan(t, Fair), 1, 2)
	var hashes []uint64
	var rates []float64
	for range 1000 {
		hashes, rates = append(hashes, rng.Uint64()), append(rates, rate/100)
	}
	offered(p, rng, 0, 4*time.Second, hashes, rates)
	passed := offered(p, rng, 4*time.Second, 5*time.Second, hashes, rates)
	var all, least float64 = 0, 1
	for _, x := range passed {
		all += x / float64(len(passed))
		least = min(least, x)
	}
	t.Logf("%.3f passes, of the worst flow %.3f", all, least)
	if p.State.Suspended == 0 || all < 0.08 || all > 0.11 {
		t.Errorf("suspended %d, %.3f passes of ten times the rate", p.State.Suspended, all)
	}
}

// Two CPUs may update the same. The later one may have taken its time, or counted what has
// arrived, before the other.
func TestPolicerTwoCPUs(t *testing.T) {
	rng := rand.New(source(t, 5))
	p := NewPolicer(plan(t, Fair), 1, 2)
	var hashes []uint64
	var rates []float64
	for range 8 {
		hashes, rates = append(hashes, rng.Uint64()), append(rates, rate/5)
	}
	offered(p, rng, 0, 3*time.Second, hashes, rates)
	before := *p.State
	p.State.Slice = 0
	p.turn(p.State.Ticked - 300)
	if p.State.Fair != before.Fair || p.State.Bins != before.Bins {
		t.Errorf("300 ns before the last turn, another one takes the fair rate from %d to %d", before.Fair, p.State.Fair)
	}
	for i, b := range before.Bins {
		p.State.Bins[i].Seen += 1e9
		p.update(i, tick>>10, 1)
		if now := p.State.Bins[i].Rate; now > b.Rate {
			t.Errorf("bin %d: of less than was counted before, the rate is %d, after %d", i, now, b.Rate)
		}
	}
}

// The hash function moves, and a flow's bins with it.
func TestPolicerMoves(t *testing.T) {
	l := plan(t, Fair)
	l.Lifetime = uint64(time.Second)
	rng := rand.New(source(t, 3))
	p := NewPolicer(l, 1, 2)
	offered(p, rng, 0, 3500*time.Millisecond, []uint64{7}, []float64{2 * rate})
	if p.State.Epoch != 4 { // the first one, and three moves
		t.Errorf("%d hash functions in 3.5 seconds, want 4", p.State.Epoch)
	}
	used := 0
	for _, b := range p.State.Bins {
		if b.Rate > 0 {
			used++
		}
	}
	if used != PolicerLevels {
		t.Errorf("%d bins have a rate, want one of each level", used)
	}
}

func TestPlanBounds(t *testing.T) {
	for _, c := range []struct {
		rate            float64
		packets         bool
		depth, lifetime time.Duration
	}{
		{MinByteRate - 1, false, MinDepth, time.Second}, {MaxByteRate * 2, false, MinDepth, time.Second},
		{MinPacketRate - 1, true, MinDepth, time.Second}, {MaxPacketRate * 2, true, MinDepth, time.Second},
		{rate, false, MinDepth - 1, time.Second}, {rate, false, MaxDepth + 1, time.Second}, {rate, false, MinDepth, 1},
	} {
		if l, err := Plan(Fair, c.rate, c.packets, c.depth, c.lifetime); err == nil {
			t.Errorf("%+v: %+v", c, l)
		}
	}
	for _, r := range []float64{MinByteRate, MaxByteRate} {
		l, err := Plan(Fair, r, false, MaxDepth, time.Minute)
		if err != nil || l.Cost == 0 || l.Limit == 0 || l.Chunk < 1500 {
			t.Errorf("%+v, %v", l, err)
		}
	}
	if l, err := Plan(Fair, MaxPacketRate, true, MinDepth, time.Second); err != nil || l.Cost == 0 || l.Chunk != 64 {
		t.Errorf("%+v, %v", l, err)
	}
}
