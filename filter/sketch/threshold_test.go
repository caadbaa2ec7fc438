package sketch

import (
	"testing"

	"weir/tests/long"
)

func TestThreshold(t *testing.T) {
	for _, c := range []struct {
		threshold       Threshold
		total, previous uint64
		heavy           uint64
		banks           int
		floor           uint64
		share           float64
	}{
		{Threshold{Units: 1000}, 1e6, 1e6, 1000, 1, 500, 0},
		{Threshold{Units: 1000}, 1e6, 1e6, 1000, 2, 500, 0},
		{Threshold{Units: 1000}, 1e6, 1e6, 1000, 4, 250, 0},
		{Threshold{Units: 1000}, 1e6, 1e6, 1000, 10, 100, 0},
		{Threshold{Units: 1000}, 1e6, 1e6, 1000, 2000, 0, 0},
		{Threshold{Share: 0.01}, 1e6, 0, 10_000, 1, 0, 0.005},
		{Threshold{Share: 0.01}, 1e6, 1e6, 10_000, 1, 312, 0.005}, // half of 0.01·10⁶/16
		{Threshold{Share: 0.01}, 1e3, 1e6, 625, 1, 312, 0.005},    // a share of almost nothing
		{Threshold{Share: 0.01}, 1e6, 1e6, 10_000, 52, 6, 0.005},
		{Threshold{Units: 1000, Share: 0.01}, 1e3, 1e6, 1000, 4, 125, 0.005},
		{Threshold{Share: 0.01}, 1001, 0, 11, 1, 0, 0.005}, // 10.01 and more
		{Threshold{}, 0, 0, 1, 1, 0, 0},
	} {
		if got := c.threshold.Heavy(c.total, c.previous); got != c.heavy {
			t.Errorf("%+v: heavy from %d on, want %d", c, got, c.heavy)
		}
		if floor, share := c.threshold.Admission(c.previous, c.banks); floor != c.floor || share != c.share {
			t.Errorf("%+v: admission %d, %g", c, floor, share)
		}
	}
}

// TestNoHeavyFlowIsMissed counts flows, of any size, in any number of banks and
// in any order: as long as nothing is denied, all heavy ones are in a memory,
// and the truth lies between the exact count and the estimate.
func TestNoHeavyFlowIsMissed(t *testing.T) {
	long.Seconds(t)
	rng := random(t, 50)
	heavyFlows, admitted, all := 0, 0, 0
	for range 300 {
		const flows = 100
		threshold := Threshold{Units: rng.Uint64N(400)}
		if rng.IntN(2) == 0 {
			threshold.Share = rng.Float64() * 0.2
		}
		previous := rng.Uint64N(40_000)
		banks := make([]*Bank, 1+rng.IntN(16))
		for i := range banks {
			tracker := sources.of(Packets, 2+2*rng.Uint32N(50), flows)
			if i%2 == 0 {
				tracker.Cold = 4
			}
			banks[i] = mustNewBank(t, tracker)
			banks[i].Admit(threshold.Admission(previous, len(banks)))
		}

		var packets []uint32
		truth := make(map[uint32]uint64)
		for n := range uint32(flows) {
			truth[n] = uint64(2000 * pow4(rng.Float64()))
			for range truth[n] {
				packets = append(packets, n)
			}
		}
		order := []func(){
			func() {}, // flow after flow
			func() { rng.Shuffle(len(packets), func(i, j int) { packets[i], packets[j] = packets[j], packets[i] }) },
		}
		order[rng.IntN(len(order))]()
		spread := rng.IntN(3)
		for i, n := range packets {
			in := rng.IntN(len(banks)) // every flow everywhere
			switch spread {
			case 1: // each flow on one CPU
				in = int(n) % len(banks)
			case 2: // half of the traffic, of few flows, on one CPU
				if n < flows/4 && i%2 == 0 {
					in = 0
				}
			}
			banks[in].send(n, 1)
		}

		known := make(map[uint64]Flow)
		for _, f := range Merge(banks...) {
			known[f.Hash] = f
		}
		var denied uint64
		for _, b := range banks {
			denied += b.Denied()
		}
		if denied > 0 {
			t.Fatalf("%d packets denied by memories with room for all", denied)
		}
		heavy := threshold.Heavy(uint64(len(packets)), previous)
		for n, want := range truth {
			f, ok := known[banks[0].Hash(source(n))]
			if want >= heavy {
				heavyFlows++
				if !ok {
					t.Errorf("%+v, %d banks, %d packets, %d before: flow of %d is missed, heavy is %d",
						threshold, len(banks), len(packets), previous, want, heavy)
				}
			}
			if ok && (f.Exact(Packets) > want || f.Estimate(Packets) < want) {
				t.Errorf("flow of %d packets: exact %d, estimate %d", want, f.Exact(Packets), f.Estimate(Packets))
			}
			all++
		}
		admitted += len(known)
	}
	t.Logf("%d heavy, %d admitted of %d flows", heavyFlows, admitted, all)
	if heavyFlows < 1000 || admitted > all*3/4 {
		t.Error("too few heavy hitters or too many admitted to test anything")
	}
}

func pow4(x float64) float64 { return x * x * x * x }

// TestFloorAndShareTogether returns the worst case of Admission's proof: in
// seven banks a flow has slightly more than the floor, less than would suffice
// for an absolute threshold, and in the eighth, which has nearly all the
// traffic, it stays just below the share.
func TestFloorAndShareTogether(t *testing.T) {
	threshold := Threshold{Units: 800, Share: 0.1}
	banks := make([]*Bank, 8)
	for i := range banks {
		banks[i] = mustNewBank(t, sources.of(Packets, 1000, 1000))
		banks[i].Admit(threshold.Admission(0, len(banks)))
	}
	total := uint64(0)
	for n := range uint32(7200) {
		banks[7].send(1000+n, 1)
		total++
	}
	for _, b := range banks[:7] {
		b.send(1, 62)
	}
	h := banks[7].send(1, 366)
	total += 7*62 + 366
	if heavy := threshold.Heavy(total, 0); heavy != 7*62+366 {
		t.Fatalf("heavy from %d on: not the intended case", heavy)
	}
	if f, ok := banks[7].Lookup(h); ok {
		t.Fatalf("in the memory of the last bank at %+v: not the intended case", f)
	}
	for _, f := range Merge(banks...) {
		if f.Key == source(1) {
			return
		}
	}
	t.Error("the heavy hitter is in no memory")
}
