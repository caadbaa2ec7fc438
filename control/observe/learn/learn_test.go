package learn

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/tests/long"
	"weir/tests/predict"
	"weir/tests/seed"
)

var src32 = key.Shape{SrcBits: 32}

// newSet returns an approximate set of n sources from source(1<<31) on, and which are listed.
// It has room for others.
func newSet(t testing.TB, s uint64, n int, bitsPerKey float64, hot int) (*membership.Set, map[key.Key]bool) {
	t.Helper()
	var of hash.Seed
	for i := range 8 {
		of[i] = byte(s >> (8 * i))
	}
	l, err := membership.PlanLayout(membership.Census{Keys: map[key.Shape]int{src32: n}}, membership.Approximate, bitsPerKey, hash.NewSecret(of))
	if err != nil {
		t.Fatal(err)
	}
	l.PlanHot(hot)
	set, err := membership.NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[key.Key]bool)
	set.Listed = func(k key.Key) bool { return listed[k] }
	c := membership.Column{Shape: src32, Lists: make([]uint16, n)}
	for i := range n {
		k := source(1<<31 + i)
		listed[k] = true
		c.Keys = k.Append(c.Keys)
	}
	if err := set.Fill([]membership.Column{c}); err != nil {
		t.Fatal(err)
	}
	return set, listed
}

func source(i int) key.Key {
	return key.Source(netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)}), 32))
}

// passing returns unlisted sources that the cascade passes.
func passing(s *membership.Set, n int) (all []key.Key) {
	for i := 0; len(all) < n; i++ {
		if k := source(i); s.Passes(k) {
			all = append(all, k)
		}
	}
	return all
}

func dropped(s *membership.Set, k key.Key) bool {
	_, ok := s.Lookup(k)
	return ok
}

func mistake(t *testing.T, l *Learner, k key.Key, packets float64, at time.Duration) {
	t.Helper()
	if err := l.Mistake(k, packets, at); err != nil {
		t.Fatal(err)
	}
}

func follow(t *testing.T, l *Learner, s *membership.Set, at time.Duration) {
	t.Helper()
	if err := l.Follow(s, at); err != nil {
		t.Fatal(err)
	}
}

// An element is dropped by mistake once, and a listed one always: also if it is listed while
// it has a weight, and after that.
func TestMistakesEnd(t *testing.T) {
	s, listed := newSet(t, seed.New(t).Uint64(), 2000, 6, 100)
	l := New(Config{})
	follow(t, l, s, 0)
	all := passing(s, 20)
	for _, k := range all {
		if !dropped(s, k) {
			t.Fatalf("%v passes", k)
		}
		mistake(t, l, k, 1, time.Second)
	}
	spared(t, l, s, all)
	w := l.Weights()
	if l.Hot() != len(all) || len(w.Elements) != len(all) || w.Elements[0].K != 24 || w.Base != s.First+s.Rest || math.Abs(w.Uniform/s.FalsePositiveRate(s.Len())-1) > 1e-9 {
		t.Errorf("%d have weights: %+v", l.Hot(), w)
	}
	// One is listed, and then removed.
	k := all[slices.IndexFunc(all, func(k key.Key) bool { return !dropped(s, k) })]
	waited := 0
	for range 2 {
		listed[k] = true
		if err := s.Add(k, 1); err != nil {
			t.Fatal(err)
		}
		if !dropped(s, k) {
			t.Fatalf("%v is listed, and passes", k)
		}
		l.Tidy(2*time.Second, func() {
			waited++
			if !dropped(s, k) {
				t.Errorf("%v is listed, and passes as its weight goes", k)
			}
		})
		if !dropped(s, k) || s.Weight(s.Hash(k)) != 0 || l.Hot() != len(all)-1 {
			t.Errorf("%v is listed, and has a weight", k)
		}
		delete(listed, k)
		s.Remove(k)
		if s.Passes(k) {
			mistake(t, l, k, 1, 3*time.Second)
			if dropped(s, k) {
				t.Errorf("%v is no longer listed, and dropped", k)
			}
		}
	}
	if waited == 0 {
		t.Error("the bits of a listed element are gone before programs have ended")
	}
	for k := range listed {
		if !dropped(s, k) {
			t.Fatalf("%v is listed, and passes", k)
		}
	}
}

// The hot table has no elements that the cascade passes no longer.
func TestTidy(t *testing.T) {
	s, listed := newSet(t, seed.New(t).Uint64(), 3000, 6, 100)
	l := New(Config{HalfLife: time.Minute})
	follow(t, l, s, 0)
	for _, k := range passing(s, 50) {
		mistake(t, l, k, 4, 0)
	}
	for k := range listed {
		s.Remove(k)
	}
	clear(listed)
	l.Tidy(0, func() { t.Error("waits for nothing") })
	if n := l.Hot(); n != 0 {
		t.Errorf("%d elements have weights, and the list is empty", n)
	}
	if len(l.elements) != 50 {
		t.Errorf("%d elements are remembered, want 50", len(l.elements))
	}
	l.Tidy(4*time.Minute, nil)
	if len(l.elements) != 0 {
		t.Errorf("%d elements are remembered after four half-lives of four packets", len(l.elements))
	}
}

// Another generation has another secret: the known elements that it passes have weights from
// the beginning.
func TestFollow(t *testing.T) {
	r := seed.New(t)
	s, _ := newSet(t, r.Uint64(), 4000, 4, 1000)
	l := New(Config{})
	follow(t, l, s, 0)
	all := passing(s, 300)
	for _, k := range all {
		mistake(t, l, k, 1, 0)
	}
	next, _ := newSet(t, r.Uint64(), 4000, 4, 1000)
	want := 0
	for _, k := range all {
		if dropped(next, k) {
			want++
		}
	}
	follow(t, l, next, time.Second)
	spared(t, l, next, all)
	if l.Hot() != want || want == 0 {
		t.Errorf("%d have weights in the next, want %d", l.Hot(), want)
	}
	// The old one filters on for a while, and its weights stay.
	follow(t, l, s, time.Second)
	spared(t, l, s, all)
}

// spared checks that the set drops none of the elements that it passes, but those whose bucket is
// full. The additional bits of one or two in some hundred can be set by chance, in a full block.
func spared(t *testing.T, l *Learner, s *membership.Set, all []key.Key) {
	t.Helper()
	chance := 0
	for _, k := range all {
		switch full := len(l.hot[s.WeightBucket(s.Hash(k))]) == membership.BucketSlots; {
		case !dropped(s, k):
		case l.elements[k].hot:
			if chance++; chance > 1+len(all)/50 {
				t.Errorf("%v is dropped, and has %d bits more", k, s.Weight(s.Hash(k)))
			}
		case !full:
			t.Errorf("%v is known, and has no weight where there is room", k)
		}
	}
}

// Where there is no room, elements that are dropped again and again replace others, and sources
// with one packet replace nothing.
func TestFullTable(t *testing.T) {
	r := seed.New(t)
	s, _ := newSet(t, r.Uint64(), 4000, 4, 1) // 256 slots
	l := New(Config{})
	follow(t, l, s, 0)
	all := passing(s, 4000)
	steady, flood := all[:100], all[100:]
	for i, k := range steady {
		mistake(t, l, k, 3, time.Duration(i)*time.Millisecond)
	}
	had := make(map[key.Key]bool)
	for _, k := range steady {
		had[k] = !dropped(s, k)
	}
	for _, k := range flood {
		mistake(t, l, k, 1000, time.Hour) // one that is reported stands for as many that were dropped
		if len(l.elements) > 8*256 {
			t.Fatalf("%d elements are remembered", len(l.elements))
		}
	}
	for _, k := range steady {
		if had[k] && dropped(s, k) {
			t.Errorf("a flood of single packets has taken the weight of %v", k)
		}
	}
	if n := l.Hot(); n > 256 || n < 200 {
		t.Errorf("%d of 256 slots have elements", n)
	}
	if l.Weights().Refused == 0 {
		t.Error("a full table refuses nothing")
	}
	// One of the flood stays: it gets a weight in place of another.
	var late key.Key
	for _, k := range flood {
		if dropped(s, k) {
			late = k
		}
	}
	for range 3 {
		mistake(t, l, late, 1, time.Hour+time.Second)
	}
	if dropped(s, late) {
		t.Errorf("%v was dropped three times, and still is", late)
	}
	for bucket, in := range l.hot {
		for _, e := range in {
			if h := s.Hash(e.key); s.WeightBucket(h) != bucket || s.Weight(h) == 0 || !e.hot {
				t.Fatalf("%v has no weight in bucket %d", e.key, bucket)
			}
		}
	}
}

// An element that begins to send late, and sends far more than those that its bucket is full of,
// gets their room soon: it loses no more packets the longer they have sent.
func TestLateElement(t *testing.T) {
	s, _ := newSet(t, 1, 4000, 4, 1)
	var all []key.Key // of one bucket
	for _, k := range passing(s, 2000) {
		if len(all) < 2*membership.BucketSlots && s.WeightBucket(s.Hash(k)) == 0 {
			all = append(all, k)
		}
	}
	if len(all) < 2*membership.BucketSlots {
		t.Fatalf("%d elements in a bucket", len(all))
	}
	late, old := all[0], all[1:]
	for _, after := range []time.Duration{time.Hour, 24 * time.Hour, 10 * 24 * time.Hour} {
		l := New(Config{})
		follow(t, l, s, 0)
		var at time.Duration
		for at < after {
			for _, k := range old { // each sends a packet a minute
				at += 4 * time.Second
				if dropped(s, k) {
					mistake(t, l, k, 1, at)
				}
			}
		}
		lost := 0
		for ; dropped(s, late) && lost < 100; lost++ {
			at += 10 * time.Millisecond
			mistake(t, l, late, 1, at)
		}
		t.Logf("after %v it loses %d packets", after, lost)
		if lost < 2 || lost > 60 { // they send 20 in a half-life and as much again
			t.Errorf("after %v it loses %d packets, want 2 to 60", after, lost)
		}
	}
}

// The rate of an element counts the time in which its packets were dropped: without a weight.
func TestRate(t *testing.T) {
	s, _ := newSet(t, 1, 2000, 6, 100)
	l := New(Config{HalfLife: 10 * time.Minute})
	follow(t, l, s, 0)
	k := passing(s, 1)[0]
	const got, lost = 100 * time.Second, 700 * time.Second // its weight
	for range 4 {                                          // three were on their way when the first one brought the weight
		mistake(t, l, k, 4, got)
	}
	e := l.elements[k]
	if !e.hot {
		t.Fatal("it has no weight")
	}
	check := func(what string, at time.Duration, exposed float64) {
		t.Helper()
		want := 0.5 * 16 / exposed * math.Exp2(-(at-got).Seconds()/600)
		if rate := l.rate(e, at); math.Abs(rate/want-1) > 1e-9 {
			t.Errorf("%s: %g packets/s, want %g", what, rate, want)
		}
	}
	check("with a new weight", got, 100)
	check("with a weight for a half-life", lost, 100)
	l.cool(e, lost)
	check("without it", lost, 100)
	check("without it for a while", lost+50*time.Second, 150)
	if err := l.heat(e, lost+50*time.Second); err != nil || !e.hot {
		t.Fatal(err)
	}
	check("with a weight again", lost+time.Hour, 150)
}

// A set without a hot table, or one with as many bits as there may be, has no weights.
func TestNoWeights(t *testing.T) {
	s, _ := newSet(t, 1, 2000, 6, 0)
	l := New(Config{})
	follow(t, l, s, 0)
	for _, k := range passing(s, 5) {
		mistake(t, l, k, 1, 0)
	}
	if l.Hot() != 0 || l.Weights().Refused != 5 {
		t.Errorf("%d of no slots, %d refused", l.Hot(), l.Weights().Refused)
	}
	if w := New(Config{}).Weights(); w.Uniform != 0 || len(w.Elements) != 0 {
		t.Errorf("%+v of no set", w)
	}
}

// Learned from packets, and counted over the next ones: the model predicts the rate, also where there
// is room for few elements.
func TestPredictedRate(t *testing.T) {
	long.Seconds(t)
	r := seed.New(t)
	for _, c := range []struct {
		hot     int
		zipf    float64
		packets int
	}{{10_000, 1.1, 300_000}, {10_000, 0.8, 300_000}, {10_000, 1.4, 20_000}, {1, 1.1, 300_000}, {1000, 0.8, 300_000}} {
		t.Run(fmt.Sprintf("%d hot, Zipf %v", c.hot, c.zipf), func(t *testing.T) {
			const flows, sets = 30_000, 20
			shares := zipf(flows, c.zipf)
			var counted, uniform float64
			var buckets int
			for range sets {
				s, _ := newSet(t, r.Uint64(), 20_000, 6, c.hot)
				l := New(Config{HalfLife: 1000 * time.Hour})
				follow(t, l, s, 0)
				for n, i := range draws(r, shares, c.packets) {
					if k := source(i); dropped(s, k) {
						mistake(t, l, k, 1, time.Duration(n)*time.Millisecond)
					}
				}
				for i, share := range shares {
					if dropped(s, source(i)) {
						counted += share / sets
					}
				}
				uniform, buckets = s.FalsePositiveRate(s.Len()), int(s.HotBuckets)
			}
			const runs = 100
			predicted, deviation := predict.Mean(runs, func() float64 {
				return predict.Dropped(r, shares, uniform, buckets, float64(c.packets))
			})
			t.Logf("counted %.4g, predicted %.4g ± %.2g, without weights %.4g", counted, predicted, deviation, uniform)
			if off := math.Abs(counted - predicted); off > predicted/10 && off > 3*deviation*math.Sqrt(1./sets+1./runs) {
				t.Errorf("counted %.4g, predicted %.4g ± %.2g", counted, predicted, deviation)
			}
		})
	}
}

func zipf(n int, exponent float64) []float64 {
	shares, sum := make([]float64, n), 0.
	for i := range shares {
		shares[i] = math.Pow(float64(i+1), -exponent)
		sum += shares[i]
	}
	for i := range shares {
		shares[i] /= sum
	}
	return shares
}

// draws returns n packets, each the number of its flow.
func draws(r *rand.Rand, shares []float64, n int) []int {
	sums, sum := make([]float64, len(shares)), 0.
	for i, s := range shares {
		sum += s
		sums[i] = sum
	}
	all := make([]int, n)
	for i := range all {
		x, from, to := r.Float64()*sum, 0, len(sums)-1
		for from < to {
			if mid := (from + to) / 2; sums[mid] < x {
				from = mid + 1
			} else {
				to = mid
			}
		}
		all[i] = from
	}
	return all
}

// Of the elements that were found, a learner knows which networks send; a filter that is built by that
// makes fewer mistakes, and what is found then leads to the same.
func TestClassesAreLearned(t *testing.T) {
	r := seed.New(t)
	in := func(network, networks int) key.Key { return source((network+r.IntN(networks))<<16 | r.IntN(1<<16)) }
	var listed []list.V4Prefix
	for range 30_000 {
		k := in(0x0b00, 20).Src.As4()
		listed = append(listed, list.V4(binary.BigEndian.Uint32(k[:]), 32))
	}
	lists := []engine.List{{Name: "feed", Contents: list.Entries{V4: listed}.Set()}}
	config := engine.Config{Mode: membership.Approximate, BitsPerKey: 6}
	l := New(Config{})
	var rates []float64
	var at time.Duration
	for round := range 5 {
		if round == 3 { // another process goes on, with what the set has
			l = New(Config{})
		}
		e, err := engine.Reference(lists, config)
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		follow(t, l, e.Block, at)
		asked, mistakes := 0, 0
		for asked < 240_000 {
			k := in(0x2d00, 20)
			if r.IntN(20) == 0 {
				k = in(0x0b00, 20)
			}
			if e.Block.Listed(k) {
				continue
			}
			if asked++; asked%5000 == 0 {
				l.Tidy(at, func() {})
			}
			at += time.Millisecond
			if dropped(e.Block, k) {
				mistakes++
				mistake(t, l, k, 1, at)
			}
		}
		rate := float64(mistakes) / float64(asked)
		rates = append(rates, rate)
		if predicted := e.Block.FalsePositiveRate(e.Block.Len()); round > 0 && math.Abs(rate/predicted-1) > 0.25 {
			t.Errorf("round %d: rate %.3g, predicted %.3g", round, rate, predicted)
		}
		config.Demand = l.Demand(at)
		now, next := e.Replanned(config.Demand)
		t.Logf("round %d: rate %.3g; %.3g predicted, %.3g with the next filter", round, rate, now, next)
		if config.Demand.Sightings == nil {
			t.Fatalf("round %d: nothing is known", round)
		}
		// How much better the second filter would be is cautious where the periods differ by chance;
		// how much better it is, is compared below.
		if better := now > 2*next; round > 0 && better || round == 0 && next >= now {
			t.Errorf("round %d: another filter would be better: %t", round, better)
		}
	}
	if slices.Max(rates[1:]) > rates[0]/2 {
		t.Errorf("rates %v: classes win nothing", rates)
	}
}

// Where networks do not differ, they do not get bits for elements that are forgotten and found again: the next
// set passes others.
func TestClassesOfElements(t *testing.T) {
	long.Seconds(t)
	r := seed.New(t)
	const flows, packets = 300_000, 3_000_000
	s, _ := newSet(t, r.Uint64(), 20_000, 8, 1)
	l := New(Config{Elements: 1})
	follow(t, l, s, 0)
	at := time.Duration(0)
	for n, i := range draws(r, zipf(flows, 0.6), packets) {
		if k := source(i * 7919); dropped(s, k) {
			mistake(t, l, k, 1, at)
		}
		if at += 100 * time.Microsecond; n%50_000 == 0 {
			l.Tidy(at, func() {})
		}
	}
	d := l.Demand(at)
	if d.Sightings == nil {
		t.Fatal("too few elements were found")
	}
	next := s.Layout
	var listed membership.ClassCounts
	for i := range listed {
		listed[i] = 20_000. / membership.NumClasses
	}
	next.PlanClasses(&listed, d.Sightings, 20_000)
	t.Logf("%d shares, rate %.3g, %.3g with classes", len(next.ClassShares), s.FalsePositiveRate(s.Len()), next.FalsePositiveRate(s.Len()))
	if next.Classes != nil {
		t.Error("networks have bits of their own, and are alike")
	}
}

// In a flood of forged sources, a bounded number counts, as long as it took to find them.
func TestFloodOfElements(t *testing.T) {
	s, _ := newSet(t, 1, 20_000, 3, 10)
	l := New(Config{})
	follow(t, l, s, 0)
	all := passing(s, 3*mostRecent)
	for i, k := range all {
		mistake(t, l, k, 1, time.Duration(i)*time.Millisecond)
	}
	l.Tidy(tidyPeriod, func() {})
	rate := s.FalsePositiveRate(s.Len())
	got := l.classes.Periods[0]
	if n := l.classes.found(); math.Abs(n-mostRecent) > 1 {
		t.Errorf("%v elements count, want %d", n, mostRecent)
	}
	if want := rate * mostRecent / 1000; math.Abs(got.Exposed/want-1) > 0.01 {
		t.Errorf("they were exposed for %v, want %v", got.Exposed, want)
	}
}

// A few elements say nothing of networks.
func TestFewElements(t *testing.T) {
	s, _ := newSet(t, 1, 20_000, 3, 10)
	l := New(Config{})
	follow(t, l, s, 0)
	for i, k := range passing(s, leastFound+1) {
		if i < leastFound && l.Demand(time.Second).Sightings != nil {
			t.Fatalf("%d elements are enough", i)
		}
		mistake(t, l, k, 1, 0)
		mistake(t, l, k, 1, 0) // counts once
	}
	if l.Demand(time.Second).Sightings == nil {
		t.Error("enough elements, and nothing is known")
	}
}

// An adversary knows of each packet that it has sent whether it was dropped, and chooses the next source by that: one
// that was dropped again, a neighbour of it, another of its network, or one that has passed. Each source is
// dropped once, and of new ones no larger share than of sources that are chosen at random.
func TestAdaptiveAdversary(t *testing.T) {
	const queries = 60_000
	r := seed.New(t)
	s, listed := newSet(t, r.Uint64(), 20_000, 10, 1000)
	l := New(Config{})
	follow(t, l, s, 0)
	times := make(map[key.Key]int) // that each source was dropped
	var won []int                  // sources that were dropped
	asked := make(map[int]bool)
	rate := s.FalsePositiveRate(s.Len())
	for i := range queries {
		next := r.IntN(1 << 30)
		if len(won) > 0 {
			switch last := won[r.IntN(len(won))]; r.IntN(4) {
			case 0: // again
				next = last
			case 1:
				next = last ^ 1<<r.IntN(8)
			case 2:
				next = last&^0xffff | r.IntN(1<<16)
			}
		}
		k := source(next)
		if s.Listed(k) {
			continue
		}
		asked[next] = true
		if dropped(s, k) {
			times[k]++
			won = append(won, next)
			mistake(t, l, k, 1, time.Duration(i)*time.Millisecond)
		}
	}
	for k, n := range times {
		if n > 1 {
			t.Errorf("%v was dropped %d times", k, n)
		}
	}
	n, want := float64(len(times)), rate*float64(len(asked))
	t.Logf("%d queries of %d sources, %v of them dropped, %d listed; %.1f predicted", queries, len(asked), n, len(listed), want)
	if n > 1.04*want+4*math.Sqrt(want) || n < 10 {
		t.Errorf("%v sources are dropped, %.1f predicted", n, want)
	}
}

// The present period, which has few elements at first, does not count beside enough complete ones.
func TestPeriods(t *testing.T) {
	s, _ := newSet(t, 1, 1000, 8, 0)
	var c classes
	c.follow(nil, s, 0)
	at, next := time.Duration(0), 0
	find := func(n int) {
		for range n {
			c.add(source(next<<8), uint64(next), at)
			next++
		}
	}
	for period := range membership.MaxPeriods + 3 {
		find(leastFound)
		at += periodTime
		c.expose(s, at)
		find(1)
		known := c.known()
		if want := min(period+2, membership.MaxPeriods); known == nil || len(known.Periods) != want {
			t.Fatalf("after %d periods: %+v", period+1, known)
		}
		for i, p := range known.Periods {
			if last := period+1 < membership.MaxPeriods && i == period+1; last != (p.Found() == 1) {
				t.Errorf("after %d periods: period %d has %v elements", period+1, i, p.Found())
			}
		}
	}
}
