package contract

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/observe/heavy"
	"weir/control/observe/learn"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/bench/probe"
	"weir/tests/lab"
	"weir/tests/long"
)

// Elements get weights, others, and none again: the kernel decides as the
// reference does over the same memory, and in the end as it did at first.
func TestWeights(t *testing.T) {
	lab.Root(t)
	for _, c := range []struct {
		name       string
		mode       membership.Mode
		bitsPerKey float64 // so few that many unlisted packets pass them
	}{
		{"exact", membership.Exact, 0},
		{"approximate, in one line", membership.Approximate, 3},
		{"approximate, in two lines", membership.Approximate, 7},
	} {
		t.Run(c.name, func(t *testing.T) { testWeights(t, c.mode, c.bitsPerKey) })
	}
}

func testWeights(t *testing.T, mode membership.Mode, bitsPerKey float64) {
	const (
		packets = 6000
		listed  = packets / 3 // these have one entry each, of any shape
		rounds  = 30
	)
	r := newRandom(t)
	var shapes [2][]key.Shape // by family
	for i, v6 := range []key.Fields{0, key.FieldV6} {
		all, port, ports := []uint8{32, 128}[i], key.FieldDstPort|key.FieldProto, key.FieldSrcPort|key.FieldDstPort
		shapes[i] = []key.Shape{
			{Fields: v6, SrcBits: all}, {Fields: v6, DstBits: all}, {Fields: v6, SrcBits: all - 8},
			{Fields: v6 | port, DstBits: all}, {Fields: v6 | port | ports, SrcBits: all, DstBits: all},
		}
	}
	var (
		tuples  []key.Tuple
		frames  [][]byte
		keys    []key.Key // all that the packets can match
		entries list.Entries
	)
	for i := range packets {
		tuple := r.anyTuple(i%2 == 0)
		tuples, frames = append(tuples, tuple), append(frames, packet.Frame(tuple))
		var own []key.Key
		for _, s := range shapes[(i+1)%2] {
			k, _ := s.Of(tuple)
			own = append(own, k)
		}
		keys = append(keys, own...)
		if i < listed {
			entries.Flows = append(entries.Flows, own[r.IntN(len(own))])
		}
	}
	g, k := engines(t, []engine.List{{Name: "block", Contents: list.SetOf(entries.Flows...)}}, engine.Config{Mode: mode, BitsPerKey: bitsPerKey, Telemetry: engine.Telemetry{Hot: packets}})
	seen := map[string]int{}
	decide := func(i int) verdict.Outcome {
		t.Helper()
		o, err := agree(g, k, frames[i])
		if err == nil && i < listed && o.Reason != verdict.Blocked {
			err = fmt.Errorf("it is listed, and leaves with %+v", o)
		}
		if err != nil {
			t.Fatalf("%v: %v", tuples[i], err)
		}
		return o
	}
	var first []verdict.Outcome
	for i := range frames {
		first = append(first, decide(i))
	}

	// Each bit alone: a listed element has one more than were set for it, which
	// may be set by chance. The set must not know that it is listed.
	tried := 0
	for i, e := range entries.Flows {
		if !g.Block.Hashed(e.Shape) {
			continue
		}
		if tried++; tried > 100 {
			break
		}
		for extra := 1; extra <= membership.MaxExtra; extra++ {
			knows := g.Block.Listed
			err := g.Block.SetWeight(e, extra-1)
			g.Block.Listed = func(key.Key) bool { return false }
			err = errors.Join(err, g.Block.SetWeight(e, extra))
			g.Block.Listed = knows
			if err != nil {
				t.Fatal(err)
			}
			o, err := agree(g, k, frames[i])
			if err != nil {
				t.Fatalf("%v, by the last of %d extra bits: %v", tuples[i], extra, err)
			}
			seen["one more is "+o.Reason.String()]++
		}
		g.Block.Cool(e.Hash(g.Block.Secret))
	}
	g.Block.Settle() // no program is running
	for range rounds {
		for range 1000 {
			e := keys[r.IntN(len(keys))]
			switch err := g.Block.SetWeight(e, r.pick(0, 1, 1+r.IntN(membership.MaxExtra))); {
			case errors.Is(err, membership.ErrHotFull):
				seen["refused"]++
			case err != nil:
				t.Fatal(err)
			case g.Block.Listed(e):
				seen["listed"]++
			default:
				seen["unlisted"]++
			}
		}
		if r.IntN(4) == 0 {
			g.Block.Settle()
		}
		for range 1000 {
			if i := r.IntN(packets); decide(i) != first[i] {
				seen["decided otherwise"]++
			}
		}
	}
	t.Logf("%d+%d bits: %v", g.Block.First, g.Block.Rest, seen)
	if seen["refused"] < 50 || seen["listed"] < 1000 ||
		seen["one more is clean"] < 200 || seen["one more is blocked"] < 200 || seen["unlisted"] < 1000 ||
		mode == membership.Approximate && seen["decided otherwise"] < 200 {
		t.Error("the test is too narrow")
	}
	for h := range g.Block.Weights() {
		g.Block.Cool(h)
	}
	g.Block.Settle()
	for i := range frames {
		if o := decide(i); o != first[i] {
			t.Fatalf("%v: %+v before it had a weight, %+v after it", tuples[i], first[i], o)
		}
	}
}

// exponent of Zipf's law, by which the packets of the flows are distributed.
const exponent = 1.2

// skewed is the share of each flow in all packets, the hottest first. Flow i is
// that of source(i), which is not listed.
type skewed []float64

func newSkewed(flows int) skewed {
	share, sum := make(skewed, flows), 0.
	for i := range share {
		share[i] = math.Pow(float64(i+1), -exponent)
		sum += share[i]
	}
	for i := range share {
		share[i] /= sum
	}
	return share
}

// newBench loads the programs that measure a generation, with keys of their own.
func newBench(t *testing.T, g *engine.Generation) (*probe.Programs, *probe.Keys) {
	t.Helper()
	keys, err := probe.NewKeys()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	b, err := probe.Load(g.Kernel(), keys)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b, keys
}

// learn passes packets, each drawn independently, through the kernel's tracker,
// and learns from it as weir run does, on a clock of its own.
func (s skewed) learn(t *testing.T, g *engine.Generation, spec heavy.Spec, elements, intervals, packets int) *learn.Learner {
	t.Helper()
	b, keys := newBench(t, g)
	var (
		zipf    = rand.NewZipf(newRandom(t).Rand, exponent, 1, uint64(len(s)-1))
		w       = heavy.NewWatcher([]heavy.Watched{{Spec: spec, Role: heavy.Learning}})
		l       = learn.New(learn.Config{Elements: elements, Trackers: []key.Shape{spec.Tracker().V4}})
		now     = time.Second
		learned learn.Weights
	)
	clock := func() time.Duration { return now }
	w.Tick(clock, g, []*loader.Stats{b.Stats()})
	for range intervals {
		for range packets / probe.KeysLen {
			if err := keys.Set(func() [4]byte { return source(int(zipf.Uint64())).Src.As4() }); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Loop("track", probe.KeysLen); err != nil {
				t.Fatal(err)
			}
		}
		now += time.Duration(spec.Interval)
		reports, _ := w.Tick(clock, g, []*loader.Stats{b.Stats()})
		r := reports[0]
		i := learn.Interval{Length: r.Interval, Packets: r.Packets}
		for _, f := range r.Flows {
			i.Flows = append(i.Flows, learn.Flow{Key: f.Key, Packets: f.Estimate(spec.Counts())})
		}
		c, err := g.OpenTrackers(b.Stats())
		if err != nil {
			t.Fatal(err)
		}
		i.Distinct = sketch.Distinct(c.Banks(0, 1-c.Active(0))...)
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		learned = l.Learn(i, g.Block)
		t.Logf("%d packets of some %.0f flows; %d flows in memory, %d packets denied; predicted %.4g",
			r.Packets, i.Distinct, len(r.Flows), r.Denied, learned.Predicted)
	}
	return l
}

// answers are those about all flows, over all filters.
type answers struct {
	filters int
	plain   float64 // the shares of all false positives, summed
	classes [membership.MaxExtra + 1]class
}

// class is the class of all flows of one weight. They are alike to a filter under a
// random seed.
type class struct {
	expected, wrong float64 // number of false positives among the flows
	predicted       float64 // rate of false positives among the packets, over all filters
}

// ask looks up all flows in the kernel. Flows are weighted by their true
// shares, not by the learned ones.
func (s skewed) ask(t *testing.T, b *probe.Programs, keys *probe.Keys, set *membership.Set, a *answers) {
	t.Helper()
	var rates [membership.MaxExtra + 1]float64
	for extra := range rates {
		rates[extra] = set.HotFalsePositiveRate(set.Len(), extra)
	}
	for from := 0; from < len(s); from += probe.KeysLen {
		next := from
		if err := keys.Set(func() [4]byte {
			next++
			return source(next - 1).Src.As4()
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Loop("ask", probe.KeysLen); err != nil {
			t.Fatal(err)
		}
		listed, err := keys.Listed()
		if err != nil {
			t.Fatal(err)
		}
		for i := from; i < min(next, len(s)); i++ {
			extra := set.Weight(source(i).Hash(set.Secret))
			c := &a.classes[extra]
			c.expected += rates[extra]
			c.predicted += s[i] * rates[extra]
			if listed[i-from] {
				c.wrong++
				a.plain += s[i]
			}
		}
	}
	a.filters++
}

// rates returns the false-positive rates among the packets of one filter,
// measured and predicted, and the relative standard deviation of the measured
// one. Classes are pooled, from the largest weight on, until a pool expects
// enough false positives for a comparison.
func (a *answers) rates() (measured, predicted, deviation float64) {
	const enough = 25
	var pool class
	for extra := membership.MaxExtra; extra >= 0; extra-- {
		c := a.classes[extra]
		pool.expected += c.expected
		pool.wrong += c.wrong
		pool.predicted += c.predicted
		if pool.expected >= enough {
			measured += pool.predicted * pool.wrong / pool.expected
			deviation += pool.predicted * pool.predicted / pool.expected
			pool = class{}
		}
		predicted += c.predicted
	}
	n := float64(a.filters)
	return measured / n, predicted / n, math.Sqrt(deviation) / measured
}

// The false positives of an approximate set, with weights that were learned
// from the kernel's trackers, compared with the same set without weights: all
// answers are given by the pipeline's own function in the kernel.
//
// The rate is that of packets, each flow counting by its share r_e, and is
// heavy-tailed: a fifth of all packets belong to one flow, which without a
// weight is a false positive in one of 700 filters. The variance of the plain
// mean over S filters is f·Σr_e²/S: a standard deviation of 5 % takes 13 000 of
// them, and with weights r_e²·f_e has a heavy tail, too. But all flows with the
// same number of bits are equivalent for a filter with a random seed. So the
// test measures the number of false positives among the flows of each k_e,
// against the predicted one, each k_e weighted by its contribution to the
// predicted rate. That has the same mean, whatever the shares of its flows are,
// and so little variance that a few seeds suffice. The plain means are logged,
// too.
func TestWeightedRate(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	flows, entries, elements := probe.KeysLen, 250_000, 1<<14
	intervals, packets, seeds := 4, 2*probe.KeysLen, 8
	if long.Enabled {
		flows, entries, elements = 4_000_000, 1_000_000, 1<<16
		intervals, packets, seeds = 8, 8*probe.KeysLen, 20
	}
	const tolerance = 0.1
	traffic := newSkewed(flows)
	var listed list.Entries
	for i := range entries {
		listed.Flows = append(listed.Flows, source(flows+i))
	}
	lists := []engine.List{{Name: "block", Contents: listed.Set()}}
	// As much memory as weir run takes for this number of elements on all CPUs
	// together, since one sees all packets here.
	spec, err := heavy.Parse(fmt.Sprintf("key=src,interval=5s,memory=%dB", 2*144*elements))
	if err != nil {
		t.Fatal(err)
	}
	config := engine.Config{Mode: membership.Approximate, BitsPerKey: 14}
	config.Hot, config.Trackers, config.TrackerSeed = elements, []engine.Tracker{spec.Tracker()}, hash.Seed{1}
	g, err := engine.Build(lists, config)
	if err != nil {
		t.Fatal(err)
	}
	learner := traffic.learn(t, g, spec, elements, intervals, packets)
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}

	config.Trackers = nil
	var (
		uniform, weighted answers
		learned           learn.Weights
		layout            membership.Layout
	)
	for range seeds {
		func() {
			g, err := engine.Build(lists, config)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			b, keys := newBench(t, g)
			traffic.ask(t, b, keys, g.Block, &uniform)
			layout, learned = g.Block.Layout, learner.Learn(learn.Interval{}, g.Block)
			if _, err := learn.Publish(g.Block, learned, loader.Grace); err != nil {
				t.Fatal(err)
			}
			traffic.ask(t, b, keys, g.Block, &weighted)
		}()
	}

	measure := func(name string, a *answers) float64 {
		measured, predicted, deviation := a.rates()
		t.Logf("%s, %d seeds: measured %.4g ± %.1f %%, plain %.4g, predicted %.4g",
			name, seeds, measured, 100*deviation, a.plain/float64(seeds), predicted)
		if math.Abs(measured/predicted-1) > tolerance {
			t.Errorf("%s: measured %.4g, predicted %.4g", name, measured, predicted)
		}
		if deviation > tolerance/5 {
			t.Errorf("%s: a standard deviation of %.1f %% takes more seeds", name, 100*deviation)
		}
		return measured
	}
	before, after := measure("uniform", &uniform), measure("weighted", &weighted)
	// What weir reports, which only knows the learned shares. It is rather too high: what
	// is in the tracker's memory in some of the intervals counts as cold in the others.
	if ratio := learned.Predicted / after; ratio < 1-tolerance || ratio > 1+2*tolerance {
		t.Errorf("measured %.4g, predicted from the learned weights %.4g", after, learned.Predicted)
	}
	improvement := before / after
	t.Logf("%.2f times lower; predicted from the learned weights: %.4g, %.2f times lower",
		improvement, learned.Predicted, learned.Uniform/learned.Predicted)
	if improvement < 8 {
		t.Errorf("weights make the rate %.2f times lower, want 8", improvement)
	}
	// The hot table and its effect do not grow with the entries; the effect of
	// the same memory in the cascade shrinks with them.
	hot := float64(layout.HotBuckets) * membership.LineBits
	for n := entries; n <= 100*entries; n *= 10 {
		larger, err := membership.PlanLayout(membership.Census{Keys: map[key.Shape]int{source(0).Shape: n}}, membership.Approximate, 14+hot/float64(n), hash.NewSecret(hash.Seed{1}))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("with %d entries, the hot table's memory in the cascade makes the rate %.2f times lower",
			n, layout.FalsePositiveRate(entries)/larger.FalsePositiveRate(n))
	}
}
