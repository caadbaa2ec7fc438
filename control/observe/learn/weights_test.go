package learn

import (
	"math"
	"testing"
	"time"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
)

// Weights computed by hand: unlisted elements have 24 bits, listed ones k, whatever the
// others are.
func TestTheorem(t *testing.T) {
	s := newSet(t, 1000, 14, 0, src32)
	base := s.First + s.Rest
	learn := func(distinct float64, listed int) Weights {
		s.Listed = func(k key.Key) bool { return k == source(listed) }
		return New(Config{Trackers: []key.Shape{src32}}).Learn(Interval{
			Length: time.Second, Packets: 1000, Distinct: distinct,
			Flows: []Flow{{source(1), 512}, {source(2), 64}, {source(3), 2}, {source(4), 1}},
		}, s)
	}
	f := func(extra int) float64 { return s.HotFalsePositiveRate(s.Len(), extra) }
	most := 24 - base
	all := [4]int{most, most, most, most}
	for _, c := range []struct {
		name     string
		distinct float64
		listed   int
		extra    [4]int
		rate     float64
		uniform  float64
	}{
		{"others unknown", 0, 0, all, .579*f(most) + .421*f(0), f(0)},
		{"others known", 4 * 421, 0, all, .579*f(most) + .421*f(0), f(0)},
		{"listed", 0, 2, [4]int{most, 0, most, most}, .515*f(most) + .421*f(0), .936 * f(0)},
		{"the coolest is listed", 0, 4, [4]int{most, most, most, 0}, .578*f(most) + .421*f(0), .999 * f(0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := learn(c.distinct, c.listed)
			if w.Base != base || len(w.Elements) != 4 {
				t.Fatalf("%+v", w)
			}
			var sum float64
			for i, e := range w.Elements {
				if e.Key != source(i+1) || e.K != base+c.extra[i] || e.Listed != (c.listed == i+1) {
					t.Errorf("element %d: %+v, want %d+%d bits", i, e, base, c.extra[i])
				}
				near(t, "the share", e.Share, []float64{.512, .064, .002, .001}[i])
				if want := e.Share * f(c.extra[i]); e.Listed && e.Contribution != 0 {
					t.Errorf("the listed element contributes %v", e.Contribution)
				} else if !e.Listed {
					near(t, "the contribution", e.Contribution, want)
				}
				sum += e.Contribution
			}
			near(t, "the predicted rate", w.Predicted, c.rate)
			near(t, "the uniform rate", w.Uniform, c.uniform)
			if sum > w.Predicted {
				t.Errorf("the elements contribute %v of %v", sum, w.Predicted)
			}
		})
	}
}

// Several shapes of both families, each of which has its own cold packets.
func TestTheoremShapes(t *testing.T) {
	six := key.Shape{Fields: v6, SrcBits: 128}
	s := newSet(t, 1000, 14, 0, src32, dst32, src24, six)
	f := s.HotFalsePositiveRate(s.Len(), 0)
	l := New(Config{Trackers: []key.Shape{src32, six}})
	k6, _ := six.Of(key.Tuple{Src: address(true, 1), Dst: address(true, 1)})
	// Of 1000 packets 3/4 are IPv4, like the observed ones; they count in three
	// shapes.
	w := l.Learn(Interval{Length: time.Second, Packets: 1000, Flows: []Flow{{source(1), 300}, {k6, 100}}}, s)
	near(t, "the uniform rate", w.Uniform, (3*.75+.25)*f)
	if len(w.Elements) != 3 {
		t.Fatalf("%+v", w.Elements)
	}
	var hot, want float64
	for _, e := range w.Elements {
		hot += e.Share
		want += e.Share * s.HotFalsePositiveRate(s.Len(), e.K-w.Base)
	}
	near(t, "the predicted rate", w.Predicted, want+(3*.75+.25-hot)*f)

	// Without observations all packets may be of either family.
	w = New(Config{}).Learn(Interval{Length: time.Second, Packets: 1000}, s)
	near(t, "the rate without flows", w.Predicted, 4*f)
	near(t, "the uniform rate without flows", w.Uniform, 4*f)
}

// All traffic is hot, none is, or there is none: rates are still numbers.
func TestWeighAtTheEdges(t *testing.T) {
	s := newSet(t, 1000, 14, 0, src32)
	for name, i := range map[string]Interval{
		"all hot":                 {Length: time.Second, Packets: 10, Flows: []Flow{{source(1), 9}, {source(2), 1}}},
		"more hot than there are": {Length: time.Second, Packets: 10, Flows: []Flow{{source(1), 90}, {source(2), 1}}},
		"no flows":                {Length: time.Second, Packets: 10},
		"no packets":              {Length: time.Second},
	} {
		w := New(Config{Trackers: []key.Shape{src32}}).Learn(i, s)
		for _, f := range []float64{w.Predicted, w.Uniform} {
			if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
				t.Errorf("%s: %+v", name, w)
			}
		}
		for _, e := range w.Elements {
			if e.K < w.Base || e.K > 24 || math.IsNaN(e.Contribution) {
				t.Errorf("%s: %+v", name, e)
			}
		}
	}
	// A set without keys has no false positives.
	l, _ := membership.PlanLayout(membership.Census{}, membership.Exact, 0, hash.NewSecret(hash.Seed{1}))
	empty, err := membership.NewSet(l, l.Alloc())
	if err != nil {
		t.Fatal(err)
	}
	w := New(Config{Trackers: []key.Shape{src32}}).Learn(Interval{Length: time.Second, Packets: 10, Flows: []Flow{{source(1), 9}}}, empty)
	if w.Predicted != 0 || w.Uniform != 0 || len(w.Elements) != 0 {
		t.Errorf("%+v of a set without keys", w)
	}
}

// zipf returns the packets of n flows, scaled to the given total.
func zipf(n int, exponent, packets float64) []float64 {
	shares := make([]float64, n)
	var sum float64
	for i := range shares {
		shares[i] = math.Pow(float64(i+1), -exponent)
		sum += shares[i]
	}
	for i := range shares {
		shares[i] *= packets / sum
	}
	return shares
}

// The purpose of weights: with the 64k hottest of 4M flows known, the rate is
// many times lower than without.
func TestImprovementForZipf(t *testing.T) {
	const flows, entries = 4_000_000, 1_000_000
	s := filledSet(t, 1, entries-1, entries, 14, DefaultElements, src32)
	packets := zipf(flows, 1.2, 1e12)
	// At best, no packet of a hot flow is a false positive.
	best := 0.
	for _, p := range packets[DefaultElements:] {
		best += p / 1e12
	}
	for _, distinct := range []float64{0, flows} {
		l := New(Config{Trackers: []key.Shape{src32}})
		i := Interval{Length: time.Second, Packets: 1e12, Distinct: distinct}
		for n, p := range packets[:DefaultElements] {
			i.Flows = append(i.Flows, Flow{source(n), uint64(p)})
		}
		w := l.Learn(i, s)
		t.Logf("%v flows known: uniform %.4g, predicted %.4g, %.2f times lower; k_e from %d to %d",
			distinct, w.Uniform, w.Predicted, w.Uniform/w.Predicted, w.Elements[len(w.Elements)-1].K, w.Elements[0].K)
		if got := w.Predicted / w.Uniform; got > 1.001*best {
			t.Errorf("%v flows known: %.4f of the rate without weights, at best it is %.4f", distinct, got, best)
		}
		near(t, "the uniform rate", w.Uniform, s.FalsePositiveRate(s.Len()))
	}
}

// The predicted rate is that of filters with the weights published, over all
// packets of all flows but the hottest. A false positive of one of those, which
// occurs once in thousands of filters, outweighs all others; they are left out
// on both sides. By the variance of the others, these filters are within 1.5 %
// (one standard deviation), with fixed seeds.
func TestPredictedIsMeasured(t *testing.T) {
	const flows, hottest, hot, entries, filters = 50_000, 50, 2000, 20_000, 150
	packets := zipf(flows, 1.1, 1e12)
	i := Interval{Length: time.Second, Packets: 1e12}
	for n, p := range packets[:hot] {
		i.Flows = append(i.Flows, Flow{source(n), uint64(p)})
	}
	var predicted, uniform, measured float64
	for n := range uint64(filters) {
		s := filledSet(t, hash.Nth(1, n), entries-1, entries, 10, hot, src32)
		w := New(Config{Elements: hot, Trackers: []key.Shape{src32}}).Learn(i, s)
		p, err := Publish(s, w, func() { t.Error("waiting although no listed key has a weight") })
		if err != nil || p.Refused > hot/50 {
			t.Fatalf("%+v, %v", p, err)
		}
		predicted, uniform = w.Predicted, w.Uniform
		for _, e := range w.Elements[:hottest] {
			predicted -= e.Contribution
		}
		for n, p := range packets[hottest:] {
			if _, ok := s.Lookup(source(hottest + n)); ok {
				measured += p / 1e12 / filters
			}
		}
	}
	t.Logf("predicted %.4g, measured %.4g, ratio %.3f; uniform %.4g", predicted, measured, measured/predicted, uniform)
	if math.Abs(measured/predicted-1) > 0.05 {
		t.Errorf("predicted %.4g, measured %.4g", predicted, measured)
	}
	if predicted > uniform/2 {
		t.Error("the weights improve too little to test anything")
	}
}
