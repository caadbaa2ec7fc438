package heavy

import (
	"math"
	"math/rand/v2"
	"testing"

	"weir/filter/hash"
	"weir/tests/seed"
)

// stream returns packets of Zipf's distribution, and how many each flow has.
func stream(r *rand.Rand, packets int, flows uint64) (all []uint64, truth map[uint64]uint64) {
	truth = make(map[uint64]uint64)
	z := rand.NewZipf(r, 1.1, 1, flows-1)
	names := r.Uint64()
	for range packets {
		f := hash.Nth(names, 1+z.Uint64())
		all = append(all, f)
		truth[f]++
	}
	return all, truth
}

func build(t *testing.T, k Kind, bytes, slot int, threshold uint64, all []uint64, seed uint64) Sketch {
	t.Helper()
	s, err := k.New(bytes, slot, threshold, seed)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		s.Count(f)
	}
	return s
}

// With more memory than flows, all kinds count exactly, but for flows that meet another one
// everywhere.
func TestAmple(t *testing.T) {
	r := seed.New(t)
	all, truth := stream(r, 20_000, 200)
	for _, k := range Kinds {
		flows := build(t, k, 1<<20, Slot, 1, all, r.Uint64()).Flows()
		off := 0
		for f, n := range truth {
			if flows[f] != float64(n) {
				off++
			}
		}
		if off > 4 {
			t.Errorf("%s: %d of %d flows are not counted exactly", k.Name, off, len(truth))
		}
	}
}

// With less memory than flows, each kind keeps the bounds that its paper proves.
func TestBounds(t *testing.T) {
	r := seed.New(t)
	const packets, bytes, threshold = 200_000, 32 << 10, 100
	all, truth := stream(r, packets, 100_000)
	for _, k := range Kinds {
		s := build(t, k, bytes, Slot, threshold, all, r.Uint64())
		var sum float64
		off := 0
		for f, e := range s.Flows() {
			sum += e
			n, known := truth[f]
			if !known {
				t.Errorf("%s names a flow that was not there", k.Name)
			}
			over := e - float64(n)
			switch s.(type) {
			case bank, countMin:
				if over < 0 {
					t.Errorf("%s: %g of %d packets", k.Name, e, n)
				}
			case guaranteed:
				if over > 0 {
					t.Errorf("%s: at least %g of %d packets", k.Name, e, n)
				}
			case spaceSaving: // lemmas 3.3 and 3.4: at most the least too much, which is N/m at most
				if over < 0 || over > packets*Slot/bytes {
					t.Errorf("%s: %g of %d packets", k.Name, e, n)
				}
			case *heavyKeeper: // theorem 2: never too much, but for equal fingerprints, of which there are few
				if over > 0.05*float64(n)+20 {
					off++
				}
			}
		}
		if off > 2 {
			t.Errorf("%s: %d flows have far too many packets", k.Name, off)
		}
		switch s.(type) {
		case *coco, spaceSaving: // each packet is in one count
			if sum != packets {
				t.Errorf("%s: counts add up to %g of %d packets", k.Name, sum, packets)
			}
		}
		score := Judge(s, truth, threshold)
		t.Logf("%s: F1 %.3f", k.Name, score.F1)
		if score.F1 < 0.9 {
			t.Errorf("%s: F1 %.3f", k.Name, score.F1)
		}
	}
}

// CocoSketch is unbiased: over many sketches, the mean of an estimate is the truth.
func TestCocoIsUnbiased(t *testing.T) {
	r := seed.New(t)
	const flows, sketches = 40, 4000
	var sum, squares [flows]float64
	for range sketches {
		s, err := newCoco(8*Slot, Slot, 0, r.Uint64())
		if err != nil {
			t.Fatal(err)
		}
		names := r.Uint64()
		for round := range 4 { // the flow of number i has i/10+1 packets
			for i := range flows {
				if i/10 >= round {
					s.Count(hash.Nth(names, uint64(i)))
				}
			}
		}
		found := s.Flows()
		for i := range flows {
			e := found[hash.Nth(names, uint64(i))]
			sum[i] += e
			squares[i] += e * e
		}
	}
	for i := range flows {
		mean := sum[i] / sketches
		deviation := math.Sqrt((squares[i]/sketches - mean*mean) / sketches)
		if want := float64(i/10 + 1); math.Abs(mean-want) > 6*deviation {
			t.Errorf("flow %d: %.3f packets on average, want %g ± %.3f", i, mean, want, deviation)
		}
	}
}

// In HeavyKeeper, a flow of n packets gives way to another after Σ 1.08^i packets, i = 1…n, on
// average, and a flow that is not named is only named if it has more than the least that is.
func TestHeavyKeeperDecays(t *testing.T) {
	r := seed.New(t)
	const packets, sketches = 10, 4000
	var sum, squares float64
	for range sketches {
		first, second := r.Uint64(), r.Uint64()
		for keeperFingerprint(second) == keeperFingerprint(first) {
			second++
		}
		s, err := newHeavyKeeper(20, 5, 0, r.Uint64()) // a bucket in each array, a named flow
		if err != nil {
			t.Fatal(err)
		}
		keeper := s.(*heavyKeeper)
		for range packets {
			s.Count(first)
		}
		before, n := keeper.arrays[0][0].fingerprint, 0.0
		for keeper.arrays[0][0].fingerprint == before {
			s.Count(second)
			n++
			if _, ok := s.Flows()[first]; !ok && n <= packets {
				t.Fatal("a flow of fewer packets is named")
			}
		}
		sum += n
		squares += n * n
	}
	want := 0.0
	for i := range packets {
		want += math.Pow(decay, float64(i+1))
	}
	mean := sum / sketches
	if deviation := math.Sqrt((squares/sketches - mean*mean) / sketches); math.Abs(mean-want) > 6*deviation+0.01*want {
		t.Errorf("%.2f packets on average, want %.2f ± %.2f", mean, want, deviation)
	}
}

// Elastic loses no packet before a light counter is full: heavy and light parts add up.
func TestElasticLosesNothing(t *testing.T) {
	r := seed.New(t)
	all, _ := stream(r, 50_000, 1000)
	s := build(t, Kinds[5], 64<<10, Slot, 0, all, 0).(*elastic)
	sum, full := 0, false
	for _, b := range s.heavy {
		for _, n := range b.counts {
			sum += int(n)
		}
	}
	for _, n := range s.light {
		full = full || n == math.MaxUint8
		sum += int(n)
	}
	if sum > len(all) || sum < len(all) && !full {
		t.Errorf("%d of %d packets are counted", sum, len(all))
	}
}

func TestJudge(t *testing.T) {
	truth := map[uint64]uint64{1: 100, 2: 50, 3: 10, 4: 9}
	s := spaceSaving{newTop(4)}
	s.put(1, 110)
	s.put(2, 9)  // missed
	s.put(4, 20) // wrong
	got := Judge(s, truth, 10)
	if got.Precision != 0.5 || math.Abs(got.Recall-1./3) > 1e-12 || math.Abs(got.F1-0.4) > 1e-12 || math.Abs(got.Error-0.1) > 1e-12 {
		t.Errorf("%+v", got)
	}
}
