package plan

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"weir/filter/fpr"
)

func isInvalid(err error) bool { return errors.As(err, new(InvalidError)) }

func size(t *testing.T, r Request) Sizing {
	t.Helper()
	s, err := Size(r)
	if err != nil {
		t.Fatalf("%+v: %v", r, err)
	}
	return s
}

func TestSizeExact(t *testing.T) {
	s := size(t, Request{Entries: 10_000_000})
	if s.Mode != "exact" || s.LaneBits != 15 || s.First != 0 || s.Rest != 0 {
		t.Errorf("layout %+v", s)
	}
	if s.SecondLine != 0 || s.Cascade != 0 || s.FalseDrop != 0 {
		t.Errorf("rates %+v", s)
	}
	// At most so many bytes an entry, of 15 lists.
	for n, most := range map[int]float64{10_000: 7, 100_000: 6, 1_000_000: 4.2, 10_000_000: 3.6, 100_000_000: 2.7} {
		s := size(t, Request{Entries: n, Lists: 15})
		if perEntry := float64(s.KernelBytes) / float64(n); perEntry > most {
			t.Errorf("%d entries: %.2f bytes an entry in the kernel, want at most %v", n, perEntry, most)
		}
	}
}

func TestSizeApproximate(t *testing.T) {
	s := size(t, Request{Entries: 10_000_000, Mode: "approx"})
	if s.First != fpr.ApproxFirst || s.Rest == 0 || s.Buckets != 0 {
		t.Errorf("layout %+v", s)
	}
	if perEntry := float64(s.KernelBytes) / 10e6; perEntry > 2.1 {
		t.Errorf("%.2f bytes an entry in the kernel, want at most 2.1", perEntry)
	}
	if s.DaemonBytes != 4*64*s.Lines {
		t.Errorf("%d bytes of counters for %d lines, want 4 bits a bit", s.DaemonBytes, s.Lines)
	}
	if exact := size(t, Request{Entries: 10_000_000}); s.ExactBytes != exact.KernelBytes || exact.DaemonBytes != 0 {
		t.Errorf("%d bytes in exact mode, of which the plan has %d", s.ExactBytes, exact.KernelBytes)
	}
	if s.FalseDrop != s.Cascade || s.SecondLine > 0.035 {
		t.Errorf("rates %+v", s)
	}
	if s.BitsPerEntry < 16 || s.BitsPerEntry > 16.001 {
		t.Errorf("%v bits an entry, want the default", s.BitsPerEntry)
	}
	for bits := 10.; bits <= 16; bits += 0.5 {
		s := size(t, Request{Entries: 10_000_000, BitsPerEntry: bits})
		if s.Cascade > 1.2*s.Standard.Exact {
			t.Errorf("%.2f bits an entry: rate %v is too far above the standard filter's %v", s.BitsPerEntry, s.Cascade, s.Standard.Exact)
		}
	}
	if s.Standard.Classic >= s.Standard.Exact {
		t.Errorf("classic rate %v is not below the exact %v", s.Standard.Classic, s.Standard.Exact)
	}
}

func TestSizeForRate(t *testing.T) {
	for _, target := range []float64{1e-2, 1e-3, 1e-4} {
		s := size(t, Request{Entries: 1_000_000, Rate: target})
		if s.Mode != "approx" || s.Cascade > target || s.Cascade < 0.99*target {
			t.Errorf("target %v: %+v", target, s)
		}
	}
	if _, err := Size(Request{Entries: 1_000_000, Rate: 1e-30}); err == nil {
		t.Error("an impossible rate was planned")
	}
}

// The table of hot flows is part of the memory: it has room for those that the filter passes. The
// rate without weights that it could buy instead is beside that with weights, and higher.
func TestSizeOfWeights(t *testing.T) {
	for n, bytes := range map[int]int{100_000: 32 << 10, 10_000_000: 64 << 10} {
		r := Request{Entries: n, BitsPerEntry: 8, Zipf: 1.1, Flows: 300_000}
		plain := size(t, r)
		r.Hot = 65_536
		s := size(t, r)
		if s.KernelBytes != plain.KernelBytes+bytes || s.BitsPerEntry != plain.BitsPerEntry || s.Lines != plain.Lines {
			t.Errorf("%d entries: %+v with weights, %+v without", n, s, plain)
		}
		if s.Traffic.SameMemory > plain.FalseDrop || s.Traffic.Weighted > s.Traffic.SameMemory/3 {
			t.Errorf("%d entries: %+v", n, s.Traffic)
		}
		if plain.Traffic.SameMemory != plain.Traffic.Plain {
			t.Errorf("%d entries without weights: %+v", n, plain.Traffic)
		}
	}
	if s := size(t, Request{Entries: 1_000_000, Mode: "approx", Memory: 1 << 20, Flows: 300_000, Hot: 300_000}); s.KernelBytes > 1<<20 || s.BitsPerEntry > 8.2 {
		t.Errorf("of 1 MiB, with the table of hot flows: %+v", s)
	}
}

func TestSizeForMemory(t *testing.T) {
	const memory = 32 << 20
	s := size(t, Request{Entries: 15_000_000, Memory: memory})
	if s.Mode != "approx" || s.KernelBytes > memory || s.KernelBytes < memory*99/100 {
		t.Errorf("%d bytes of %d in mode %s", s.KernelBytes, memory, s.Mode)
	}
	if s := size(t, Request{Entries: 1_000_000, Memory: memory}); s.Mode != "exact" || s.KernelBytes > memory {
		t.Errorf("exact mode fits %d bytes: %+v", memory, s)
	}
	for _, r := range []Request{
		{Entries: 20_000_000, Memory: memory, Mode: "exact"},
		{Entries: 10_000_000, Memory: 1000},
	} {
		if _, err := Size(r); err == nil || isInvalid(err) || !strings.Contains(err.Error(), "memory") {
			t.Errorf("%+v: error %v", r, err)
		}
	}
}

func TestTraffic(t *testing.T) {
	r := Request{Entries: 1_000_000, Mode: "approx", BitsPerEntry: 14, Zipf: 1.1, Flows: 4_000_000, Hot: 65536}
	s := size(t, r)
	if s.Traffic.Plain != s.Cascade {
		t.Errorf("without weights packets pass at %v, keys at %v", s.Traffic.Plain, s.Cascade)
	}
	// At best all hot packets are spared.
	if best := 1 / (1 - s.Traffic.HotShare); s.Traffic.Improvement < 2 || s.Traffic.Improvement > best {
		t.Errorf("improvement %v, want between 2 and %v", s.Traffic.Improvement, best)
	}
	// And they are, but for flows that are no hot ones.
	if want := s.Traffic.Plain * (1 - s.Traffic.HotShare); s.Traffic.Weighted < want || s.Traffic.Weighted > 1.2*want {
		t.Errorf("with weights %v, want %v", s.Traffic.Weighted, want)
	}
	if s := size(t, Request{Entries: 1_000_000, Mode: "approx", BitsPerEntry: 12, Flows: 100, Hot: 10}); math.Abs(s.Traffic.Improvement-1/0.9) > 1e-3 {
		t.Errorf("a tenth of all packets is spared, and the rate is %v times lower", s.Traffic.Improvement)
	}
	if s.Traffic.MostBits <= s.First+s.Rest || s.Traffic.MostBits > mostBits {
		t.Errorf("the hottest flow has %d bits", s.Traffic.MostBits)
	}
	for _, alike := range []Request{
		{Entries: 1000, Mode: "approx", Zipf: 1, Flows: 100},            // none known to be hot
		{Entries: 1000, Mode: "exact", Zipf: 1, Flows: 1000, Hot: 1000}, // a table
	} {
		if s := size(t, alike); math.Abs(s.Traffic.Improvement-1) > 1e-9 {
			t.Errorf("%+v: improvement %v, want 1", alike, s.Traffic.Improvement)
		}
	}
	if s := size(t, Request{Entries: 1000}); s.Traffic != nil {
		t.Errorf("no flows, but traffic %+v", s.Traffic)
	}
}

func TestSizeRefuses(t *testing.T) {
	for field, r := range map[string]Request{
		"entries":                       {},
		"bits per entry, rate":          {Entries: 1, BitsPerEntry: 8, Rate: 0.1},
		"bits per entry: 0.5":           {Entries: 1, BitsPerEntry: 0.5},
		"bits per entry: NaN":           {Entries: 1, BitsPerEntry: math.NaN()},
		"rate: 1":                       {Entries: 1, Rate: 1},
		"memory: -1":                    {Entries: 1, Memory: -1},
		`mode: "fast"`:                  {Entries: 1, Mode: "fast"},
		"mode: in exact mode there are": {Entries: 1, Mode: "exact", BitsPerEntry: 8},
		"hot: 2 of 1":                   {Entries: 1, Flows: 1, Hot: 2},
		"hot: 1000000000000000 of 1000000000000000 flows": {Entries: 1, Flows: 1e15, Hot: 1e15},
		"zipf: exponent -1":            {Entries: 1, Flows: 1, Zipf: -1},
		"zipf: exponent 1 of no flows": {Entries: 1, Zipf: 1},
	} {
		if _, err := Size(r); !isInvalid(err) || !strings.HasPrefix(err.Error(), "plan: "+field) {
			t.Errorf("%+v: error %v, want one of %s", r, err, field)
		}
	}
}

func TestJSON(t *testing.T) {
	r, err := FPR(2, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(r)
	if want := `{"classic":0.5625,"exact":0.625,"bloom1970":1}`; err != nil || string(b) != want {
		t.Errorf("%s, %v, want %s", b, err, want)
	}
	for _, c := range [][3]int{{0, 1, 1}, {1, -1, 1}, {8, 1, -1}, {4, 1, 5}} {
		if _, err := FPR(c[0], c[1], c[2]); !isInvalid(err) {
			t.Errorf("FPR%v was planned", c)
		}
	}
}

func TestFilterOf(t *testing.T) {
	if f, err := FilterOf(1<<20, 1, 0, false); err != nil || f.K != 1075 {
		t.Errorf("the best k: %+v, %v", f, err)
	}
	if f, err := FilterOf(1<<20, 1000, 1024, true); err != nil || f.K != 1024 {
		t.Errorf("the largest k: %+v, %v", f, err)
	}
	if f, err := FilterOf(1<<20, 1000, 2048, true); !isInvalid(err) {
		t.Errorf("a larger k: %+v, %v", f, err)
	}
}

func TestSmallestFor(t *testing.T) {
	s, err := SmallestFor(100000, 1e-3)
	if err != nil {
		t.Fatal(err)
	}
	if s.K != 10 || math.Abs(s.BitsPerEntry-14.38) > 0.005 || s.Exact > 1e-3 || math.Abs(s.AboveLowerBound-1.443) > 0.002 {
		t.Errorf("%+v", s)
	}
	for _, rate := range []float64{0, 1, math.NaN()} {
		if _, err := SmallestFor(1, rate); !isInvalid(err) {
			t.Errorf("rate %v was planned", rate)
		}
	}
}

func TestCountingFor(t *testing.T) {
	c, err := CountingFor(1<<20, 1<<17, 0)
	if err != nil {
		t.Fatal(err)
	}
	if c.K != 5 && c.K != 6 || c.Bytes != 1<<19 || c.Overflow > c.OverflowBound {
		t.Errorf("%+v", c)
	}
	// Both hold for any k.
	if c, err := CountingFor(1<<20, 1<<17, 20); err != nil || c.Overflow < 0.01 || c.OverflowBound < c.Overflow {
		t.Errorf("%+v, %v", c, err)
	}
	for _, x := range [][3]int{{0, 1, 1}, {1, 0, 1}, {8, 1, -1}, {8, 1, 1000}} {
		if _, err := CountingFor(x[0], x[1], x[2]); !isInvalid(err) {
			t.Errorf("CountingFor%v was planned", x)
		}
	}
}

func TestCompressFor(t *testing.T) {
	// The survey's table 1 sends 16 bits an element: 48 in memory with k = 3
	// have 2.224e-4, none compressed 4.587e-4.
	c, err := CompressFor(100000, 16, 48)
	if err != nil {
		t.Fatal(err)
	}
	if c.K != 3 || c.SentBits > 16*100000 || math.Abs(c.Rate-2.224e-4) > 0.001e-4 || math.Abs(c.Plain-4.587e-4) > 0.01e-4 {
		t.Errorf("%+v", c)
	}
	for _, x := range []struct{ n, sent, memory float64 }{{0, 8, 8}, {1, 0, 8}, {1, 8, 0}, {1, 8, math.Inf(1)}, {1, math.NaN(), 8}} {
		if _, err := CompressFor(int(x.n), x.sent, x.memory); !isInvalid(err) {
			t.Errorf("%+v was planned", x)
		}
	}
}
