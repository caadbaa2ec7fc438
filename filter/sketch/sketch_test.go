package sketch

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat/distuv"

	"weir/filter/hash"
	"weir/filter/internal/trial"
)

var layouts = []Layout{Rows, TwoLines}

// random returns a seeded generator and logs the seed.
func random(t testing.TB, seed uint64) *rand.Rand {
	t.Helper()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func mustNew[C Counter](t testing.TB, layout Layout, rows, width int) *Sketch[C] {
	t.Helper()
	s, err := New[C](layout, rows, width)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestConservativeUpdateFigure2 reproduces the survey's Figure 2: the least
// counter is 2, a packet of 4 bytes arrives, and counters rise only to 6.
func TestConservativeUpdateFigure2(t *testing.T) {
	const h = 0x77656972
	for _, layout := range layouts {
		s := mustNew[uint64](t, layout, 4, 16)
		var buf [MaxRows]int
		at := s.at(h, &buf)
		for i, c := range []uint64{3, 8, 2, 5} {
			s.counters[at[i]] = c
		}
		if got := s.AddConservative(h, 4); got != 6 {
			t.Errorf("%v: estimate %d, want 6", layout, got)
		}
		var got []uint64
		for _, j := range at {
			got = append(got, s.counters[j])
		}
		if want := []uint64{6, 8, 6, 6}; !slices.Equal(got, want) {
			t.Errorf("%v: counters %d, want %d", layout, got, want)
		}
	}
}

// TestOrderOfEstimates checks both updates against exact counts: truth ≤
// conservative update ≤ count-min, for every flow and every counter.
func TestOrderOfEstimates(t *testing.T) {
	rng := random(t, 1)
	for _, layout := range layouts {
		for rows := 2; rows <= MaxRows; rows *= 2 {
			plain, conservative := mustNew[uint32](t, layout, rows, 50), mustNew[uint32](t, layout, rows, 50)
			truth := make(map[uint64]uint64)
			for range 20_000 {
				h, n := hash.Nth(uint64(rng.IntN(2000)), 0), rng.Uint64N(1500)
				truth[h] += n
				plain.Add(h, n)
				if got, want := conservative.AddConservative(h, n), conservative.Estimate(h); got != want {
					t.Fatalf("%v×%d: AddConservative returned %d, Estimate %d", layout, rows, got, want)
				}
			}
			for h, n := range truth {
				if c, p := conservative.Estimate(h), plain.Estimate(h); c < n || p < c {
					t.Fatalf("%v×%d: truth %d, conservative %d, count-min %d", layout, rows, n, c, p)
				}
			}
			for i, c := range conservative.Counters() {
				if p := plain.Counters()[i]; c > p {
					t.Fatalf("%v×%d: counter %d conservative %d, count-min %d", layout, rows, i, c, p)
				}
			}
			plain.Reset()
			if c := slices.Max(plain.Counters()); c != 0 {
				t.Errorf("%v×%d: counter %d after Reset", layout, rows, c)
			}
		}
	}
}

func TestSaturation(t *testing.T) {
	narrow, wide := mustNew[uint32](t, Rows, 4, 8), mustNew[uint64](t, Rows, 4, 8)
	for range 3 {
		narrow.Add(1, math.MaxUint32/2)
		narrow.AddConservative(2, math.MaxUint64)
		wide.Add(1, math.MaxUint64/2)
	}
	for _, got := range []uint64{narrow.Estimate(1), narrow.Estimate(2)} {
		if got != math.MaxUint32 {
			t.Errorf("32 bits: estimate %d, want %d", got, uint32(math.MaxUint32))
		}
	}
	if got := wide.Estimate(1); got != math.MaxUint64 {
		t.Errorf("64 bits: estimate %d, want %d", got, uint64(math.MaxUint64))
	}
	// A second at 100 Gb/s in full-sized packets, all of one flow.
	wide.Reset()
	for range 1000 {
		wide.AddConservative(3, 12_500_000)
	}
	if got := wide.Estimate(3); got != 12_500_000_000 {
		t.Errorf("a second at 100 Gb/s: estimate %d bytes", got)
	}
}

func TestNewRejects(t *testing.T) {
	for _, c := range []struct {
		layout      Layout
		rows, width int
	}{{Rows, 0, 8}, {Rows, MaxRows + 1, 8}, {Rows, 4, 0}, {Rows, 4, math.MaxInt32 + 1}, {TwoLines, 1, 8}, {TwoLines, 6, 8}, {TwoLines, 4, 7}, {TwoLines + 1, 4, 8}} {
		if _, err := New[uint32](c.layout, c.rows, c.width); err == nil {
			t.Errorf("New(%v, %d, %d) succeeded", c.layout, c.rows, c.width)
		}
	}
}

// TestOver continues on the counters of another sketch.
func TestOver(t *testing.T) {
	for _, layout := range layouts {
		first := mustNew[uint32](t, layout, 4, 50)
		for h := range uint64(1000) {
			first.AddConservative(hash.Nth(h, 0), h)
		}
		second, err := Over(layout, 4, first.Counters())
		if err != nil {
			t.Fatal(err)
		}
		for h := range uint64(1000) {
			h = hash.Nth(h, 0)
			if got, want := second.AddConservative(h, 7), first.Estimate(h); got != want {
				t.Fatalf("%v: estimates %d and %d over the same counters", layout, got, want)
			}
		}
	}
	for _, c := range []struct {
		layout         Layout
		rows, counters int
	}{{Rows, 0, 8}, {Rows, 4, 0}, {Rows, 4, 7}, {TwoLines, 6, 32}, {TwoLines, 4, 48}, {TwoLines + 1, 4, 32}} {
		if _, err := Over(c.layout, c.rows, make([]uint32, c.counters)); err == nil {
			t.Errorf("Over(%v, %d, %d counters) succeeded", c.layout, c.rows, c.counters)
		}
	}
}

// unseen returns the exact probability that a flow without traffic is estimated
// at least units after n flows had one unit each by count-min. In a row of the
// Rows layout its counter is Binomial(n, 1/width), independently of the other
// rows; in one of two lines, the same is true of the flows that share the line,
// independently of the other line.
func unseen(layout Layout, rows, width, lanes, n, units int) float64 {
	atLeast := func(n int, p float64) float64 {
		return distuv.Binomial{N: float64(n), P: p}.Survival(float64(units - 1))
	}
	if layout == Rows {
		return math.Pow(atLeast(n, 1/float64(width)), float64(rows))
	}
	inLine := float64(rows) / 2
	sharing := distuv.Binomial{N: float64(n), P: 2 / float64(width)}
	var p float64
	for i := units; i <= n; i++ {
		p += sharing.Prob(float64(i)) * math.Pow(atLeast(i, inLine/float64(lanes)), inLine)
	}
	return p * p
}

// TestUnseenFlows compares the frequency with which a flow that was never
// counted reaches an estimate, one independent sketch per trial, with its exact
// probability.
func TestUnseenFlows(t *testing.T) {
	const rows, n, units, lanes = 4, 24, 2, 16
	for _, c := range []struct {
		layout Layout
		width  int
	}{{Rows, 24}, {TwoLines, 6}} {
		t.Run(c.layout.String(), func(t *testing.T) {
			rng := random(t, 2)
			s := mustNew[uint32](t, c.layout, rows, c.width)
			p := unseen(c.layout, rows, c.width, lanes, n, units)
			trials, hits := trial.Count(p, 0.08), 0
			for range trials {
				s.Reset()
				for range n {
					s.Add(rng.Uint64(), 1)
				}
				if s.Estimate(rng.Uint64()) >= units {
					hits++
				}
			}
			trial.Check(t, hits, trials, p)
		})
	}
}

// TestErrorBound checks the proven bound against the exact probability, and
// against a measurement of all flows of a skewed stream.
func TestErrorBound(t *testing.T) {
	for _, c := range []struct{ rows, width, n, excess int }{{1, 10, 100, 20}, {4, 24, 24, 2}, {4, 100, 1000, 40}, {8, 50, 50, 3}} {
		exact := unseen(Rows, c.rows, c.width, 0, c.n, c.excess)
		if bound := ErrorBound(c.rows, c.width, float64(c.excess), float64(c.n)); exact > bound {
			t.Errorf("%+v: exact %g above the bound %g", c, exact, bound)
		}
	}

	const epsilon, delta = 0.001, 0.01
	rows, width := Dimensions(epsilon, delta)
	if rows != 5 || width != 2719 { // ⌈ln 100⌉, ⌈1000 e⌉
		t.Errorf("Dimensions(%g, %g) = %d, %d", epsilon, delta, rows, width)
	}
	if got := ErrorBound(rows, width, epsilon, 1); got > delta {
		t.Errorf("bound at these dimensions %g, want ≤ %g", got, delta)
	}
	s := mustNew[uint64](t, Rows, rows, width)
	load := newWorkload(t, 3, 20_000, 200_000, 1.1)
	for _, f := range load.packets {
		s.Add(load.hash(f), 1)
	}
	over := 0
	for f, n := range load.truth {
		if s.Estimate(load.hash(uint32(f))) > n+uint64(epsilon*float64(len(load.packets))) {
			over++
		}
	}
	if got := float64(over) / float64(len(load.truth)); got > delta {
		t.Errorf("%g of the flows are off by more than ε·N, bound %g", got, delta)
	}
}

// workload is a stream of packets whose flows have Zipf sizes.
type workload struct {
	packets []uint32 // flow of each packet
	truth   []uint64 // packets of each flow
	seed    uint64
}

func newWorkload(t testing.TB, seed uint64, flows, packets int, alpha float64) *workload {
	t.Helper()
	t.Logf("seed %d", seed)
	// Inverts the distribution function with a table of starting points.
	const guides = 1 << 18
	upTo := make([]float64, flows)
	sum := 0.0
	for i := range upTo {
		sum += math.Pow(float64(i+1), -alpha)
		upTo[i] = sum
	}
	guide := make([]uint32, guides)
	for i, f := 0, uint32(0); i < guides; i++ {
		for upTo[f] < sum*float64(i)/guides {
			f++
		}
		guide[i] = f
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	w := &workload{make([]uint32, packets), make([]uint64, flows), seed}
	for i := range w.packets {
		u := rng.Float64()
		f := guide[int(u*guides)]
		for upTo[f] < u*sum {
			f++
		}
		w.packets[i] = f
		w.truth[f]++
	}
	return w
}

// hash returns a substitute for the hash of a flow's key.
func (w *workload) hash(flow uint32) uint64 { return hash.Nth(w.seed, uint64(flow)) }

// length returns the flow's packet length, from 64 to 1500 bytes.
func (w *workload) length(flow uint32) uint64 { return 64 + uint64(flow)*7919%1437 }

// heavy returns the flows at or above the threshold in packets or bytes, with
// their amounts.
func (w *workload) heavy(u Unit, threshold uint64) map[uint32]uint64 {
	h := make(map[uint32]uint64)
	for f, n := range w.truth {
		if n = u.of(n, n*w.length(uint32(f))); n >= threshold {
			h[uint32(f)] = n
		}
	}
	return h
}

// f1 returns the harmonic mean of precision and recall.
func f1(hit, wrong, missed int) float64 {
	return 2 * float64(hit) / float64(2*hit+wrong+missed)
}

// TestHeavySet finds the heavy hitters by the sketch alone, as the published
// comparisons do (a million flows, 10 million packets, threshold 1000 packets,
// 64 KB, 256 KB and 1 MB of counters), with a fifth of the flows, the packets
// and the memory, but the same threshold, so that the counters are as full of
// light flows as there. No heavy hitter is missed by either update.
func TestHeavySet(t *testing.T) {
	const threshold = 1000
	w := newWorkload(t, 11, 200_000, 2_000_000, 1.1)
	heavy := w.heavy(Packets, threshold)
	for _, method := range []struct {
		name string
		add  func(s *Sketch[uint32], h uint64)
		// A little below the figures of the full size, where a single flow
		// weighs less. Count-min in 64 KB is useless, and that is asserted
		// below.
		floors [3]float64
	}{
		{"count-min", func(s *Sketch[uint32], h uint64) { s.Add(h, 1) }, [3]float64{0, 0.90, 0.985}},
		{"conservative", func(s *Sketch[uint32], h uint64) { s.AddConservative(h, 1) }, [3]float64{0.70, 0.985, 0.995}},
	} {
		for i, size := range []int{64 << 10 / 5, 256 << 10 / 5, 1 << 20 / 5} {
			s := mustNew[uint32](t, Rows, 4, size/4/4)
			for _, f := range w.packets {
				method.add(s, w.hash(f))
			}
			hit, wrong, missed := 0, 0, 0
			for f, truth := range w.truth {
				if truth == 0 {
					continue // no flow: nothing asks for it
				}
				_, is := heavy[uint32(f)]
				switch says := s.Estimate(w.hash(uint32(f))) >= threshold; {
				case is && says:
					hit++
				case is:
					missed++
				case says:
					wrong++
				}
			}
			got := f1(hit, wrong, missed)
			t.Logf("%s, %d bytes: F1 %.4f", method.name, size, got)
			if missed > 0 {
				t.Errorf("%s, %d bytes: %d heavy hitters missed", method.name, size, missed)
			}
			if got < method.floors[i] {
				t.Errorf("%s, %d bytes: F1 %.4f, want at least %.4f", method.name, size, got, method.floors[i])
			}
			if method.floors[i] == 0 && got > 0.5 {
				t.Errorf("%s, %d bytes: F1 %.4f is implausibly high for so little memory", method.name, size, got)
			}
		}
	}
}

// TestPassingFlows checks the proven bound of the number of passing flows with
// a plain multistage filter, for which it is proven.
func TestPassingFlows(t *testing.T) {
	w := newWorkload(t, 33, 20_000, 400_000, 1.0)
	for _, width := range []int{2000, 4000, 16000} {
		const rows, threshold = 3, 1000
		bound := PassingFlows(rows, width, len(w.truth), threshold, float64(len(w.packets)))
		s := mustNew[uint64](t, Rows, rows, width)
		for _, f := range w.packets {
			s.Add(w.hash(f), 1)
		}
		pass := 0
		for f := range w.truth {
			if s.Estimate(w.hash(uint32(f))) >= threshold {
				pass++
			}
		}
		t.Logf("width %d: %d flows pass, at most %.0f expected", width, pass, bound)
		if float64(pass) > bound {
			t.Errorf("width %d: %d flows pass, bound %.1f", width, pass, bound)
		}
	}
	if got := PassingFlows(3, 1, 1000, 10, 1000); got != 1000 {
		t.Errorf("a filter of one counter a row passes %g of 1000 flows", got)
	}
}

func BenchmarkSketch(b *testing.B) {
	const size = 256 << 10
	load := newWorkload(b, 4, 200_000, 1<<20, 1.1)
	hashes := make([]uint64, len(load.packets))
	for i, f := range load.packets {
		hashes[i] = load.hash(f)
	}
	for _, layout := range layouts {
		width := size / 4 / 4
		if layout == TwoLines {
			width = size / lineBytes
		}
		s := mustNew[uint32](b, layout, 4, width)
		run := func(name string, f func(h uint64)) {
			b.Run(fmt.Sprintf("op=%s/layout=%v", name, layout), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					f(hashes[i&(len(hashes)-1)])
				}
			})
		}
		run("insert", func(h uint64) { s.Add(h, 1) })
		run("conservative", func(h uint64) { s.AddConservative(h, 1) })
		run("query", func(h uint64) { s.Estimate(h) })
	}
}
