package digest

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"weir/filter/internal/trial"
)

var (
	config = Config{Rate: 2000, Slice: time.Second, FPR: 0.01, Keep: 10 * time.Second}
	start  = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
)

func mustNewLog(t testing.TB, c Config) *Log {
	t.Helper()
	l, err := NewLog(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// record stores n random digests, evenly over the time from start on.
func record(t testing.TB, l *Log, rng *rand.Rand, n int, length time.Duration) []uint64 {
	t.Helper()
	digests := make([]uint64, n)
	for i := range digests {
		digests[i] = rng.Uint64()
		if !l.Record(digests[i], when(i, n, length)) {
			t.Fatalf("digest %d not recorded", i)
		}
	}
	return digests
}

func when(i, n int, length time.Duration) time.Time {
	return start.Add(time.Duration(float64(length) * float64(i) / float64(n)))
}

// TestNothingForgotten checks that every packet is found in its slice for as
// long as Keep, and in no other window except by chance.
func TestNothingForgotten(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	t.Log("seed 1")
	l := mustNewLog(t, config)
	const n = 20_000
	digests := record(t, l, rng, n, config.Keep)
	elsewhere := 0
	for i, d := range digests {
		at := when(i, n, config.Keep)
		matches, _ := l.Query(d, start, start.Add(config.Keep))
		found := false
		for j, m := range matches {
			if j > 0 && !matches[j-1].Start.Before(m.Start) {
				t.Fatal("matches out of order")
			}
			if !at.Before(m.Start) && at.Before(m.Start.Add(m.Length)) {
				found = true
			} else {
				elsewhere++
			}
		}
		if !found {
			t.Fatalf("packet at %v not found: %v", at, matches)
		}
		if matches, _ := l.Query(d, at, at); len(matches) != 1 {
			t.Fatalf("window of an instant: %v", matches)
		}
	}
	// Each packet may match the nine other slices.
	p := l.Slice(start).Chance()
	if got := float64(elsewhere) / (9 * n); got > 1.2*config.FPR || got < p/2 {
		t.Errorf("false matches %.5f, predicted by the first slice %.5f", got, p)
	}
}

// TestSize measures the false-positive rate of a slice that is as full as
// configured and compares it with the exact formula.
func TestSize(t *testing.T) {
	g, err := config.Geometry()
	if err != nil {
		t.Fatal(err)
	}
	n := int(config.Rate * config.Slice.Seconds())
	rate := g.FalsePositiveRate(n)
	if rate > config.FPR || rate < 0.9*config.FPR {
		t.Errorf("%d lines, k = %d: rate %.5f, want just under %g", g.Lines, g.Bits, rate, config.FPR)
	}
	rng := rand.New(rand.NewPCG(2, 0))
	t.Log("seed 2")
	// Few queries of many slices: queries of one slice are not independent.
	const queries = 1000
	trials, hits := trial.Count(rate, 0.12)/queries*queries, 0
	l := mustNewLog(t, config)
	for round := range trials / queries {
		at := start.Add(time.Duration(round) * config.Slice)
		for range n {
			l.Record(rng.Uint64(), at)
		}
		for range queries {
			if matches, _ := l.Query(rng.Uint64(), at, at); len(matches) > 0 {
				hits++
			}
		}
	}
	trial.Check(t, hits, trials, rate)
}

// TestChance compares the probability that a packet which never passed matches
// at least one slice with what the query reports.
func TestChance(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 0))
	t.Log("seed 3")
	l := mustNewLog(t, config)
	record(t, l, rng, 30_000, config.Keep) // half as many again as planned
	from, to := start.Add(2500*time.Millisecond), start.Add(6*time.Second)
	_, chance := l.Query(0, from, to)
	if plan := 1 - math.Pow(1-config.FPR, 5); chance < plan { // slices 2 to 6
		t.Errorf("chance %.4f in an overfull log, planned %.4f", chance, plan)
	}
	trials, hits, single := trial.Count(chance, 0.1), 0, 0.0
	for range trials {
		matches, c := l.Query(rng.Uint64(), from, to)
		if c != chance {
			t.Fatalf("chance %g, then %g", chance, c)
		}
		if len(matches) > 0 {
			hits++
			single = matches[0].Chance
		}
	}
	trial.Check(t, hits, trials, chance)
	if math.Abs(5*single/chance-1) > 0.3 {
		t.Errorf("a slice matches by chance with %g, five with %g", single, chance)
	}
}

// TestTime checks slice boundaries, times too far in the past, and gaps.
func TestTime(t *testing.T) {
	l := mustNewLog(t, config)
	const d = 12345
	find := func(from, to time.Duration) []Match {
		matches, _ := l.Query(d, start.Add(from), start.Add(to))
		return matches
	}
	if got := find(0, time.Hour); got != nil {
		t.Errorf("found in an empty log: %v", got)
	}
	l.Record(d, start.Add(999*time.Millisecond))
	for _, c := range []struct {
		from, to time.Duration
		found    bool
	}{
		{0, 0, true}, {-time.Hour, time.Hour, true}, {time.Second, time.Hour, false}, {-time.Hour, -1, false}, {time.Hour, 0, false},
	} {
		if got := find(c.from, c.to); (len(got) == 1) != c.found {
			t.Errorf("window %v…%v: %v", c.from, c.to, got)
		}
	}
	if got := find(0, 0)[0]; !got.Start.Equal(start) || got.Length != time.Second || got.Chance > 1e-9 {
		t.Errorf("match %+v", got)
	}

	// Ten slices later it is still there, then its slice is overwritten.
	l.Record(1, start.Add(config.Keep))
	if len(find(0, 0)) != 1 {
		t.Error("forgotten within Keep")
	}
	l.Record(1, start.Add(config.Keep+time.Second))
	if len(find(0, time.Hour)) != 0 {
		t.Error("found in the slice that replaced its own")
	}
	if l.Record(d, start) {
		t.Error("recorded in a slice that was overwritten")
	}
	if l.Slice(start) != nil || l.Slice(start.Add(config.Keep)) == nil {
		t.Error("wrong slices")
	}

	// A late packet of a slice that is still kept, and times before the epoch.
	if !l.Record(d, start.Add(5*time.Second)) || len(find(5*time.Second, 5*time.Second)) != 1 {
		t.Error("late packet not recorded")
	}
	l = mustNewLog(t, config)
	before := time.Unix(0, -1)
	l.Record(d, before)
	if m, _ := l.Query(d, before, before); len(m) != 1 || !m[0].Start.Equal(time.Unix(-1, 0)) {
		t.Errorf("before the epoch: %v", m)
	}
	if m, _ := l.Query(d, time.Unix(0, 0), time.Unix(0, 0)); len(m) != 0 {
		t.Errorf("in the slice after: %v", m)
	}
}

func TestNewLogRejects(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"rate":     func(c *Config) { c.Rate = 0 },
		"nan":      func(c *Config) { c.Rate = math.NaN() },
		"too many": func(c *Config) { c.Rate = 1e12 },
		"slice":    func(c *Config) { c.Slice = 0 },
		"keep":     func(c *Config) { c.Keep = c.Slice - 1 },
		"fpr":      func(c *Config) { c.FPR = 1 },
		"no fpr":   func(c *Config) { c.FPR = 0 },
	} {
		c := config
		change(&c)
		if _, err := NewLog(c); err == nil {
			t.Errorf("%s: %+v accepted", name, c)
		}
	}
	l := mustNewLog(t, config)
	// Eleven slices of 10.2 bits for each of 2000 packets.
	if got, want := float64(l.Bytes()), 11*2000*10.2/8; math.Abs(got/want-1) > 0.02 {
		t.Errorf("%g bytes, want about %g", got, want)
	}
}

func BenchmarkLog(b *testing.B) {
	c := Config{Rate: 1e6, Slice: time.Second, FPR: 0.001, Keep: 10 * time.Second}
	l := mustNewLog(b, c)
	rng := rand.New(rand.NewPCG(4, 0))
	b.Run("op=insert", func(b *testing.B) {
		for b.Loop() {
			l.Record(rng.Uint64(), start)
		}
	})
	b.Run("op=query", func(b *testing.B) {
		for b.Loop() {
			l.Query(rng.Uint64(), start, start)
		}
	})
}

// TestLoops checks that a loop is a TTL that decreases twice in a slice.
func TestLoops(t *testing.T) {
	type seen struct {
		ttl   uint8
		slice uint32
	}
	for _, c := range []struct {
		name    string
		packets []seen
		loops   int
	}{
		{"a loop", []seen{{64, 1}, {62, 1}, {60, 1}, {58, 1}, {56, 1}}, 1},
		{"on both sides of a router", []seen{{64, 1}, {63, 1}}, 0},
		{"the same, twice", []seen{{64, 1}, {63, 1}, {64, 1}, {63, 1}}, 0},
		{"copies", []seen{{64, 1}, {64, 1}, {64, 1}, {63, 1}, {63, 1}}, 0},
		{"a loop with copies", []seen{{64, 1}, {64, 1}, {62, 1}, {62, 1}, {60, 1}}, 1},
		{"too slow", []seen{{64, 1}, {62, 1}, {60, 2}, {58, 2}}, 0},
		{"another round", []seen{{64, 1}, {62, 1}, {60, 1}, {64, 1}, {62, 1}, {60, 1}}, 2},
	} {
		l, loops := NewLoops(Sightings), 0
		for _, p := range c.packets {
			if first, suspected := l.See(12345, p.ttl, p.slice); suspected {
				loops++
				if first != 64 {
					t.Errorf("%s: first seen with %d", c.name, first)
				}
			}
		}
		if loops != c.loops {
			t.Errorf("%s: %d loops, want %d", c.name, loops, c.loops)
		}
	}
}
