package plan

import (
	"encoding/binary"
	"math"
	"slices"
	"testing"

	"weir/filter/bloom"
	"weir/filter/invertible"
	"weir/filter/reconcile"
	"weir/filter/stable"
)

func TestStableFor(t *testing.T) {
	request := StableRequest{Memory: 64 << 10, Gap: 20_000, Bits: 3, Rate: 0.01}
	s, err := StableFor(request)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Filters) != 4 {
		t.Fatalf("%+v", s)
	}
	for i, f := range s.Filters {
		if !(f.FP >= 0 && f.Weighted > 0 && f.Weighted < 1) {
			t.Errorf("%+v", f)
		}
		if i > 0 && f.Weighted < s.Filters[i-1].Weighted {
			t.Errorf("%s is better than %s", f.Algorithm, s.Filters[i-1].Algorithm)
		}
		// No other choice of it is better, and one with less P is not allowed.
		again := request
		again.Algorithm = f.Algorithm
		for again.K = 1; again.K <= mostStableK; again.K++ {
			if other, err := StableFor(again); err == nil && other.Filters[0].Weighted < f.Weighted {
				t.Errorf("%+v, but %+v is better", f, other.Filters[0])
			}
		}
		again.K, again.P = f.K, f.P-1
		if other, err := StableFor(again); f.FP > 0.01 || f.P > 1 && (err != nil || other.Filters[0].FP <= 0.01) {
			t.Errorf("%+v; with less p %+v, %v", f, other, err)
		}
		// The figures agree with the filter.
		algorithm := slices.IndexFunc(stable.Algorithms, func(a stable.Algorithm) bool { return algorithmName(a) == f.Algorithm })
		p := stable.Params{Algorithm: stable.Algorithm(algorithm), Cells: f.Cells, Bits: f.Bits, K: f.K, P: f.P}
		var plain, weighted float64
		for level := 1; level <= 7; level++ {
			fn, err := p.FalseNegative(p.Uniform(), level, s.Gap)
			if err != nil || math.Abs(fn-f.ByLevel[level-1]) > 1e-12 {
				t.Errorf("level %d: %v, %v; planned %v", level, fn, err, f.ByLevel)
			}
			plain += fn / 7
			weighted += fn * float64(level) / 28
		}
		if math.Abs(plain-f.FN) > 1e-12 || math.Abs(weighted-f.Weighted) > 1e-12 || f.Cells != 8*s.Memory/3 {
			t.Errorf("%+v: false negatives %v, weighted %v", f, plain, weighted)
		}
	}
	// Where the important items are few, they are remembered better.
	few := request
	few.Algorithm, few.Shares = "ibf-mc", []float64{90, 5, 1, 1, 1, 1, 1}
	rare, err := StableFor(few)
	few.Shares = nil
	even, err2 := StableFor(few)
	if err != nil || err2 != nil || rare.Filters[0].ByLevel[6] >= even.Filters[0].ByLevel[6] || !slices.IsSortedFunc(rare.Filters[0].ByLevel, func(a, b float64) int { return int(math.Copysign(1, b-a)) }) {
		t.Errorf("%+v, %v; equal shares %+v, %v", rare, err, even, err2)
	}
	for _, change := range []func(*StableRequest){
		func(r *StableRequest) { r.Memory = 0 },
		func(r *StableRequest) { r.Gap = 0 },
		func(r *StableRequest) { r.Bits = 7 },
		func(r *StableRequest) { r.Bits = -1 },
		func(r *StableRequest) { r.K = 17 },
		func(r *StableRequest) { r.Rate = 0 },
		func(r *StableRequest) { r.Algorithm = "bf" },
		func(r *StableRequest) { r.Shares = []float64{1} },
		func(r *StableRequest) { r.Shares = make([]float64, 7) },
		func(r *StableRequest) { r.Shares = []float64{1, 1, 1, 1, 1, 1, math.NaN()} },
	} {
		r := request
		change(&r)
		if s, err := StableFor(r); !isInvalid(err) {
			t.Errorf("%+v: %+v, %v", r, s, err)
		}
	}
}

func TestInvertibleFor(t *testing.T) {
	p, err := InvertibleFor(20_000)
	if err != nil || p.Bytes != 8*invertible.Words(20_000) || p.Cells != p.Bytes/24 || p.Fails > 0.002 || p.PerElement > 34 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := InvertibleFor(0); !isInvalid(err) {
		t.Errorf("error %v", err)
	}
}

// A publisher's messages have the planned sizes.
func TestSummaryFor(t *testing.T) {
	r := SummaryRequest{Entries: 20_000, Bits: 8, Changes: 500, Peers: 10}
	s, err := SummaryFor(r)
	if err != nil {
		t.Fatal(err)
	}
	g, err := bloom.Standard(uint32(s.M), s.K)
	if err != nil {
		t.Fatal(err)
	}
	p := reconcile.NewPublisher(g, 1, 1)
	element := func(i int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(i)) }
	for i := range r.Entries {
		p.Add(element(i))
	}
	full := len(p.Publish())
	for i := range r.Changes {
		if !p.Remove(element(i)) {
			t.Fatal("an element cannot be removed")
		}
		p.Add(element(r.Entries + i))
	}
	delta := len(p.Publish())
	t.Logf("%+v; sent %d and %d bytes", s, full, delta)
	near := func(got, want int) bool { return math.Abs(float64(got)/float64(want)-1) < 0.05 }
	if !near(full, s.FullBytes) || !near(delta, s.DeltaBytes) || s.Stale != 0.025 {
		t.Errorf("%d and %d bytes are sent, planned %+v", full, delta, s)
	}
	if want := 1 - math.Pow(1-s.Rate, 10); math.Abs(s.Wasted-want) > 1e-12 {
		t.Errorf("%v of the requests are sent in vain, want %v", s.Wasted, want)
	}
	for _, change := range []func(*SummaryRequest){
		func(r *SummaryRequest) { r.Entries = 0 },
		func(r *SummaryRequest) { r.Bits = math.NaN() },
		func(r *SummaryRequest) { r.K = 1000 },
		func(r *SummaryRequest) { r.Changes = 20_001 },
		func(r *SummaryRequest) { r.Peers = 0 },
	} {
		r := r
		change(&r)
		if s, err := SummaryFor(r); !isInvalid(err) {
			t.Errorf("%+v: %+v, %v", r, s, err)
		}
	}
}
