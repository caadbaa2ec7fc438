package tracker

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"weir/control/plan"
	"weir/filter/blocked"
	"weir/filter/verdict"
)

func isInvalid(err error) bool { return errors.As(err, new(plan.InvalidError)) }

func TestSketchFor(t *testing.T) {
	s, err := sketchFor(1_000_000, 10e6, 50_000, 0)
	if err != nil || s.Passing > float64(s.Room)/2 || s.Heavy != 200 || s.Passing < 200 {
		t.Errorf("%+v, %v", s, err)
	}
	if less, err := sketchFor(1_000_000, 10e6, 50_000, s.Memory/2); s.Memory > leastSketch && (err != nil || less.Passing <= float64(less.Room)/2) {
		t.Errorf("%+v suffices, too, %v", less, err)
	}
	// The excess has its probability, by the bound of two rows; a cold filter adds to it.
	for _, memory := range []int{64 << 10, 512 << 10} {
		s, err := sketchFor(1_000_000, 10e6, 50_000, memory)
		if err != nil {
			t.Fatal(err)
		}
		if memory > 64<<10 {
			s.Excess -= s.Threshold / 8
		}
		if chance := math.Pow(s.Total/(float64(s.Counters)/2*s.Excess), 2); math.Abs(chance-0.01) > 1e-9 {
			t.Errorf("%+v: %v", s, chance)
		}
	}
	for _, x := range []struct {
		flows            int
		total, threshold float64
		memory           int
	}{{0, 1, 1, 0}, {1, 0, 1, 0}, {1, 1, 2, 0}, {1, 1, math.NaN(), 0}, {1, 1, 1, 1 << 10}} {
		if s, err := sketchFor(x.flows, x.total, x.threshold, x.memory); !isInvalid(err) {
			t.Errorf("%+v: %+v, %v", x, s, err)
		}
	}
}

func TestScanFor(t *testing.T) {
	scan := func(r ScanRequest) PlannedScan {
		t.Helper()
		s, err := ScanFor(r)
		if err != nil {
			t.Fatalf("%+v: %v", r, err)
		}
		return s
	}
	// The memory that is planned suffices, and less does not.
	least := scan(ScanRequest{Pairs: 1_000_000, Threshold: 64})
	if least.Windows != 1 || least.Capacity < least.Pairs {
		t.Errorf("%+v", least)
	}
	if s := scan(ScanRequest{Pairs: 1_000_000, Threshold: 64, Memory: least.Memory - 1<<10}); s.Windows <= 1 {
		t.Errorf("a kibibyte less is enough: %+v", s)
	}
	// Without a flood, one and a half times the threshold; on two CPUs, twice of it.
	quiet := scan(ScanRequest{Pairs: 1000, Threshold: 64, Memory: 512 << 10, CPUs: 1})
	if quiet.FoundFrom != 95 || quiet.Missed > 1e-6 || quiet.KernelBytes != 1<<20 {
		t.Errorf("%+v", quiet)
	}
	if s := scan(ScanRequest{Pairs: 1000, Threshold: 64, Memory: 512 << 10, CPUs: 2}); s.FoundFrom != 126 || s.KernelBytes != 1<<20+256<<10 {
		t.Errorf("on two CPUs %+v", s)
	}
	flood := scan(ScanRequest{Pairs: 4_000_000, Threshold: 64, Memory: 512 << 10, Destinations: 150})
	if *flood.Found > 1e-6 || flood.FoundFrom < 250 || flood.FoundFrom > 1000 || flood.Windows < 3 {
		t.Errorf("in a flood %+v", flood)
	}
	if s := scan(ScanRequest{Pairs: 1_000_000, Threshold: 1 << 20, Memory: verdict.MaxScanMemory, CPUs: 64}); s.FoundFrom < 1<<20 {
		t.Errorf("%+v", s)
	}
	for field, r := range map[string]ScanRequest{
		"pairs":     {Threshold: 64},
		"threshold": {Pairs: 1, Threshold: 1},
		"memory":    {Pairs: 1, Threshold: 64, Memory: 1000},

		"1 CPUs, a scan of -1": {Pairs: 1, Threshold: 64, Destinations: -1},
	} {
		if _, err := ScanFor(r); !isInvalid(err) || !strings.HasPrefix(err.Error(), "plan scan: "+field) {
			t.Errorf("%+v: error %v", r, err)
		}
	}
	if _, err := ScanFor(ScanRequest{Pairs: math.MaxInt32, Threshold: 64}); err == nil || isInvalid(err) {
		t.Errorf("error %v", err)
	}
}

// The filter of a scan detector misses as many pairs as planned, and is full when it is.
func TestScanMisses(t *testing.T) {
	s, err := ScanFor(ScanRequest{Pairs: 1 << 20, Threshold: 64, Memory: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	g := scanMemoryOf(64 << 10)
	f := blocked.New(g.pairs)
	r := rand.New(rand.NewPCG(1, 2))
	counted := 0
	for range s.Capacity {
		if !f.Observe(r.Uint64()) {
			counted++
		}
	}
	full := float64(verdict.ScanPairs(g.pairs.Lines))
	missed := 1 - float64(counted)/float64(s.Capacity)
	if math.Abs(float64(counted)-full) > 0.01*full || math.Abs(missed-s.Missed) > 0.005 {
		t.Errorf("of %d pairs %d are counted, %.4f missed; planned %.0f, %.4f", s.Capacity, counted, missed, full, s.Missed)
	}
}

func TestAtLeast(t *testing.T) {
	for _, c := range []struct {
		k, n    int
		p, want float64
	}{{0, 10, 0.5, 1}, {11, 10, 0.5, 0}, {1, 2, 0.5, 0.75}, {2, 2, 0.5, 0.25}, {10, 10, 1, 1}, {500, 1000, 0.5, 0.512613}, {60, 1000, 0.05, 0.08673}} {
		if got := atLeast(c.k, c.n, c.p); math.Abs(got-c.want) > 1e-4 {
			t.Errorf("atLeast(%d, %d, %v) = %v, want %v", c.k, c.n, c.p, got, c.want)
		}
	}
}
