package contract

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/observe/learn"
	"weir/control/replay"
	"weir/filter/fpr"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/bench/probe"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/predict"
)

// Elements get weights, others, and none again: the kernel decides as the
// reference does over the same memory, and in the end as it did at first.
func TestWeights(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	for _, c := range []struct {
		name       string
		mode       membership.Mode
		bitsPerKey float64 // so few that many unlisted packets pass them
		classed    bool
		shapes     []int // of those below; nil: all, which are too many for the lean path
	}{
		{"exact", membership.Exact, 0, false, nil},
		{"approximate, in one line", membership.Approximate, 3, false, nil},
		{"approximate, in two lines", membership.Approximate, 7, false, nil},
		{"approximate, with classes", membership.Approximate, 3, true, nil},
		{"approximate, in two lines with classes", membership.Approximate, 7, true, nil},
		{"lean, sources with classes", membership.Approximate, 7, true, []int{0}},
		{"lean, destinations with classes", membership.Approximate, 7, true, []int{1}},
		{"lean, flows with classes", membership.Approximate, 6, true, []int{4}},
		{"lean, several shapes with classes", membership.Approximate, 7, true, []int{0, 1, 2, 4}},
		{"lean, with classes and without", membership.Approximate, 7, true, []int{0, 5}},
	} {
		t.Run(c.name, func(t *testing.T) { testWeights(t, c.mode, c.bitsPerKey, c.classed, c.shapes) })
	}
}

// halfOfNetworks says that all unlisted elements are in half of the networks.
func halfOfNetworks() *membership.Sightings {
	p := membership.Period{Networks: make(map[uint32]membership.Sighting)}
	for i := range uint32(1 << 15) {
		p.Networks[i<<17] = membership.Sighting{Found: 1, Exposed: 1}
	}
	return &membership.Sightings{Periods: slices.Repeat([]membership.Period{p}, membership.MaxPeriods)}
}

func testWeights(t *testing.T, mode membership.Mode, bitsPerKey float64, classed bool, of []int) {
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
		shapes[i] = append(shapes[i], key.Shape{Fields: v6, SrcBits: 14}) // without a class
		if of == nil {
			shapes[i] = shapes[i][:5]
		} else {
			var some []key.Shape
			for _, n := range of {
				some = append(some, shapes[i][n])
			}
			shapes[i] = some
		}
	}
	each := len(shapes[0])
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
	config := engine.Config{Mode: mode, BitsPerKey: bitsPerKey, Hot: packets}
	if classed {
		config.Demand.Sightings = halfOfNetworks()
	}
	g, k := engines(t, []engine.List{{Name: "block", Contents: list.SetOf(entries.Flows...)}}, config)
	if (g.Block.Classes != nil) != classed {
		t.Fatalf("classes: %t", g.Block.Classes != nil)
	}
	if why := g.General(); of != nil && why != nil {
		t.Fatalf("general path: %v", why)
	}
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

	// Few enough for a small table, and enough to fill it: listed ones, those that are dropped by mistake, others.
	pool := slices.Clone(entries.Flows[:100])
	for _, mistaken := range []bool{true, false} {
		for i := listed; i < packets && len(pool) < 400; i++ {
			if (first[i].Reason == verdict.Blocked) == mistaken {
				pool = append(pool, keys[each*i:each*i+each]...)
			}
		}
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
		h := g.Block.Hash(e)
		least := g.Block.Classes.Extra(h)
		for extra := least + 1; extra <= membership.MaxExtra; extra++ {
			knows := g.Block.Listed
			var err error
			if extra > least+1 {
				err = g.Block.SetWeight(e, extra-1)
			}
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
		g.Block.Cool(h)
	}
	g.Block.Settle() // no program is running
	narrow := func() bool {
		return seen["refused"] < 50 || seen["listed"] < 1000 ||
			seen["one more is clean"] < 200 || seen["one more is blocked"] < 200 || seen["unlisted"] < 1000 ||
			mode == membership.Approximate && seen["decided otherwise"] < 50
	}
	for round := 0; round < rounds || narrow() && round < 20*rounds; round++ {
		for range 1000 {
			e := pool[r.IntN(len(pool))]
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
			i, refuted := r.IntN(packets), k.Stats().Refuted()
			o := decide(i)
			if o == first[i] {
				continue
			}
			seen["decided otherwise"]++
			if o.Reason == verdict.Clean && k.Stats().Refuted() == refuted {
				t.Fatalf("%v: spared, and not counted", tuples[i])
			}
		}
	}
	t.Logf("%d+%d bits: %v", g.Block.First, g.Block.Rest, seen)
	if narrow() {
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

// shares are the shares of flows in all packets, the largest first. Flow i comes from
// source(i), which is not listed.
type shares []float64

func zipf(flows int, exponent float64) shares {
	all, sum := make(shares, flows), 0.
	for i := range all {
		all[i] = math.Pow(float64(i+1), -exponent)
		sum += all[i]
	}
	for i := range all {
		all[i] /= sum
	}
	return all
}

// askKeys asks the kernel which of the next addresses it drops, as many as keys have room for.
func askKeys(t *testing.T, b *probe.Programs, keys *probe.Keys, next func() [4]byte) []bool {
	t.Helper()
	if err := keys.Set(next); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Loop("ask", probe.KeysLen); err != nil {
		t.Fatal(err)
	}
	dropped, err := keys.Listed()
	if err != nil {
		t.Fatal(err)
	}
	return dropped
}

// dropped asks the kernel which flows it drops.
func (s shares) dropped(t *testing.T, b *probe.Programs, keys *probe.Keys) (all []int) {
	t.Helper()
	for from := 0; from < len(s); from += probe.KeysLen {
		next := from
		listed := askKeys(t, b, keys, func() [4]byte {
			next++
			return source(next - 1).Src.As4()
		})
		for i := from; i < min(next, len(s)); i++ {
			if listed[i-from] {
				all = append(all, i)
			}
		}
	}
	return all
}

// droppedFrames is dropped for IPv6, a test run for each flow.
func (s shares) droppedFrames(t *testing.T, k *replay.Kernel) (all []int) {
	t.Helper()
	for i := range s {
		o, err := k.Decide(packet.Frame(key.Tuple{Src: source6(i).Src, Dst: netip.IPv6LinkLocalAllNodes(), Proto: 17}))
		if err != nil {
			t.Fatal(err)
		}
		if o.Reason == verdict.Blocked {
			all = append(all, i)
		}
	}
	return all
}

// source6 returns an address of IPv6 as a key.
func source6(i int) key.Key {
	var b [16]byte
	binary.BigEndian.PutUint32(b[:], 0x20000000|uint32(i)*0x9e3779b1>>3)
	binary.BigEndian.PutUint64(b[8:], uint64(i))
	return key.Source(netip.PrefixFrom(netip.AddrFrom16(b), 128))
}

// learn has packets come independently of one another, a millisecond between two, and the
// learner see those that the kernel drops. So those of each flow are a Poisson process, which
// begins anew when the flow loses its weight to another.
func (s shares) learn(t *testing.T, r *rand.Rand, l *learn.Learner, g *engine.Generation, source func(int) key.Key, drops []int, packets float64) {
	t.Helper()
	var next predict.Arrivals[int]
	spared := make(map[int][]int) // flows with weights, by bucket
	// await waits for the next packet of those flows that are dropped, and returns the others.
	await := func(now float64, flows []int) (others []int) {
		for _, i := range flows {
			if _, ok := g.Block.Lookup(source(i)); ok {
				next.Add(now+r.ExpFloat64()/s[i], i)
			} else {
				others = append(others, i)
			}
		}
		return others
	}
	await(0, drops)
	for flow, at := range next.Until(packets) {
		k := source(flow)
		if err := l.Mistake(k, 1, time.Duration(at*1e6)); err != nil {
			t.Fatal(err)
		}
		bucket := g.Block.WeightBucket(g.Block.Hash(k))
		spared[bucket] = await(at, append(spared[bucket], flow))
	}
	l.Tidy(time.Duration(packets*1e6), loader.Grace)
}

// The packets that an approximate set drops by mistake, after it has learned from those that it
// has dropped before, against an unweighted filter that has as much memory: all answers are
// given by the pipeline's own function in the kernel.
func TestWeightedRate(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	onOneCPU(t)
	const runs = 24 // of the model that predicts
	type load struct {
		entries  int
		bits     float64
		exponent float64
		least    float64 // times fewer than without weights
		v6       bool
	}
	// The hot table has as much memory as may be lost where it wins nothing; then as much as
	// what was learned takes.
	loads := []load{{250_000, 10, 1.1, 4, false}}
	flows, packets, seeds := 1<<17, 1e6, 4
	if long.Enabled {
		flows, packets, seeds = 1<<20, 2e7, 2
		loads = []load{{1_000_000, 8, 0.8, 1 / 1.02, false}, {1_000_000, 12, 1.1, 4, false}, {1_000_000, 8, 1.4, 1 / 1.02, false}, {10_000_000, 8, 1.1, 10, false}}
	}
	if os.Getenv("WEIR_RATES") == "all" { // docs/benchmarks.md: half an hour
		seeds, loads = 6, nil
		for _, entries := range []int{1_000_000, 10_000_000} {
			for _, exponent := range []float64{0.8, 1.1, 1.4} {
				for _, bits := range []float64{8, 10, 12, 16} {
					least := 1 / 1.02
					if exponent == 1.1 {
						least = map[int]float64{1_000_000: 4, 10_000_000: 10}[entries]
					}
					loads = append(loads, load{entries, bits, exponent, least, false})
					if entries == 10_000_000 {
						loads = append(loads, load{entries, bits, exponent, least, true})
					}
				}
			}
		}
	}
	r := newRandom(t).Rand
	for _, of := range loads {
		t.Run(fmt.Sprintf("%d entries, %v bits, Zipf %v, IPv6 %t", of.entries, of.bits, of.exponent, of.v6), func(t *testing.T) {
			flows, seeds, element, contents := flows, seeds, source, sources
			if of.v6 { // a test run for each flow takes longer
				flows, seeds, element, contents = flows/2, 3, source6, sources6
			}
			traffic := zipf(flows, of.exponent)
			lists := []engine.List{{Name: "block", Contents: contents(flows, of.entries)}}
			var demand, learned membership.Demand
			for round := range 2 {
				var counted, predicted, deviation, unweighted float64
				var layout membership.Layout
				sets := 0
				// Where few flows are dropped, it is chance which: their number varies by the deviation.
				// Of less than a packet in a million, a single flow decides.
				agrees := func() bool {
					if max(counted/float64(sets), predicted) < 1e-6 {
						return true
					}
					off := math.Abs(counted/float64(sets) - predicted)
					return off < predicted/10 || off < 3*deviation*math.Sqrt(1/float64(sets)+1./runs)
				}
				for ; sets < seeds || sets < 4*seeds && !agrees(); sets++ {
					func() {
						config := engine.Config{Mode: membership.Approximate, BitsPerKey: of.bits}
						config.Hot, config.Demand = learn.DefaultElements, demand
						g, err := engine.Build(lists, config)
						if err != nil {
							t.Fatal(err)
						}
						defer g.Close()
						dropped, stats := asked(t, g, traffic, of.v6)
						l := learn.New(learn.Config{HalfLife: 1e6 * time.Hour})
						if err := l.Follow(g.Block, 0); err != nil {
							t.Fatal(err)
						}
						first := dropped()
						traffic.learn(t, r, l, g, element, first, packets)
						refuted := stats.Refuted()
						last := dropped()
						for _, i := range last {
							counted += traffic[i]
						}
						if n := stats.Refuted() - refuted; int(n) != len(first)-len(last) || n == 0 {
							t.Errorf("%d packets are counted as saved, and were %d", n, len(first)-len(last))
						}
						layout = g.Block.Layout
						rate := layout.FalsePositiveRate(of.entries)
						if sets == 0 {
							predicted, deviation = predict.Mean(runs, func() float64 {
								return predict.Dropped(r, traffic, rate, int(layout.HotBuckets), packets)
							})
						}
						unweighted = fpr.BestCascade(of.entries, layout.Lines+layout.HotBuckets, fpr.MaxFurther).Rate(of.entries)
						learned = l.Demand(time.Duration(packets * 1e6))
					}()
				}
				if !agrees() {
					t.Errorf("counted %.4g, predicted %.4g ± %.2g", counted/float64(sets), predicted, deviation)
				}
				counted, demand = counted/float64(sets), learned
				t.Logf("round %d: %d buckets of %d lines; counted %.4g in %d filters, predicted %.4g ± %.2g, without weights in the same memory %.4g: %.1f times fewer",
					round+1, layout.HotBuckets, layout.Lines, counted, sets, predicted, deviation, unweighted, unweighted/counted)
				if unweighted/counted < of.least {
					t.Errorf("%.2f times fewer, want %v", unweighted/counted, of.least)
				}
			}
		})
	}
}

// asked returns a function that asks the kernel which flows it drops, until the test ends, and its counters.
func asked(t *testing.T, g *engine.Generation, traffic shares, v6 bool) (dropped func() []int, stats *loader.Stats) {
	if !v6 {
		b, keys := newBench(t, g)
		return func() []int { return traffic.dropped(t, b, keys) }, b.Stats()
	}
	k, err := replay.NewKernel(g, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return func() []int { return traffic.droppedFrames(t, k) }, k.Stats()
}

// sources6 is sources for IPv6.
func sources6(from, n int) *list.Set {
	all := make([]netip.Prefix, n)
	for i := range all {
		all[i] = netip.PrefixFrom(source6(from+i).Src, 128)
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	return list.Entries{V6: all}.Set()
}

// sources returns n sources that are listed, from the given one on.
func sources(from, n int) *list.Set {
	all := make([]list.V4Prefix, n)
	for i := range all {
		k := source(from + i)
		all[i] = list.V4(binary.BigEndian.Uint32(k.Src.AsSlice()), 32)
	}
	slices.Sort(all)
	return list.Entries{V4: all}.Set()
}

// Where the networks that send are not those that are listed, the kernel drops as few of their elements by
// mistake as predicted, with bits by network that were learned from others, and each listed one.
func TestClassedRate(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	const networks = 500
	listed, asked := 500_000, long.Or(1<<19, 1<<20)
	r := newRandom(t).Rand
	var sums [2][]float64                // of the networks' shares, among listed and among others: Zipf's, independent
	ranks := rand.New(rand.NewPCG(2, 0)) // the same in each run: how much there is to win depends on them
	for i := range sums {
		sum := 0.
		for _, rank := range ranks.Perm(networks) {
			sum += 1 / float64(rank+1)
			sums[i] = append(sums[i], sum)
		}
	}
	address := func(sums []float64) [4]byte {
		network, _ := slices.BinarySearch(sums, r.Float64()*sums[networks-1])
		return [4]byte(binary.BigEndian.AppendUint32(nil, uint32(1<<28|network<<16|r.IntN(1<<16))))
	}
	entries := make(map[[4]byte]bool)
	var all []list.V4Prefix
	for len(all) < listed {
		if a := address(sums[0]); !entries[a] {
			entries[a] = true
			all = append(all, list.V4(binary.BigEndian.Uint32(a[:]), 32))
		}
	}
	lists := []engine.List{{Name: "block", Contents: list.Entries{V4: all}.Set()}}
	config := engine.Config{Mode: membership.Approximate, BitsPerKey: 8}
	first, err := engine.Reference(lists, config)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	l := learn.New(learn.Config{})
	if err := l.Follow(first.Block, 0); err != nil {
		t.Fatal(err)
	}
	pause := 60 * time.Hour / time.Duration(asked) // so that they are of more than eight periods
	for at := range asked {
		if at%5000 == 0 { // elements of the next ones count
			l.Tidy(time.Duration(at)*pause, func() {})
		}
		a := address(sums[1])
		if k := key.Source(netip.PrefixFrom(netip.AddrFrom4(a), 32)); !entries[a] && first.Block.Passes(k) {
			if err := l.Mistake(k, 1, time.Duration(at)*pause); err != nil {
				t.Fatal(err)
			}
		}
	}
	config.Demand = l.Demand(time.Duration(asked) * pause)
	g := built(t, lists, config)
	if g.Block.Classes == nil {
		t.Fatal("all networks have the same bits")
	}
	b, keys := newBench(t, g)
	mistakes, draws, elements := 0, 0, make(map[[4]byte]bool) // each element counts once, as the learner has it
	ask := func(next func() [4]byte, draw bool) {
		var batch [][4]byte
		dropped := askKeys(t, b, keys, func() [4]byte {
			batch = append(batch, next())
			return batch[len(batch)-1]
		})
		for i, a := range batch {
			switch {
			case entries[a] && !dropped[i]:
				t.Fatalf("%v is listed, and passes", a)
			case draw && draws < asked:
				draws++
				if entries[a] || elements[a] {
					continue
				}
				if elements[a] = true; dropped[i] {
					mistakes++
				}
			}
		}
	}
	for from := 0; from < len(all); from += probe.KeysLen {
		next := from
		ask(func() [4]byte {
			next++
			return [4]byte(binary.BigEndian.AppendUint32(nil, all[min(next, len(all))-1].Addr()))
		}, false)
	}
	for draws < asked {
		ask(func() [4]byte { return address(sums[1]) }, true)
	}
	counted, predicted := float64(mistakes)/float64(len(elements)), g.Block.FalsePositiveRate(listed)
	equal := fpr.BestCascade(listed, g.Block.Lines, fpr.MaxFurther).Rate(listed)
	t.Logf("%d entries: counted %.4g, predicted %.4g, with equal bits %.4g: %.1f times fewer", listed, counted, predicted, equal, equal/counted)
	if math.Abs(counted/predicted-1) > 0.1+3/math.Sqrt(float64(mistakes)) {
		t.Errorf("counted %.4g, predicted %.4g", counted, predicted)
	}
	// Whether the periods agree that much is to win, and it is 4 to 5 times fewer, is chance: see TestPlanClasses.
	if equal/counted < 1.05 {
		t.Errorf("%.2f times fewer", equal/counted)
	}
}
