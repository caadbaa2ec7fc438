package contract

import (
	"testing"
	"time"

	"weir/control/stage/tracker"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// The packets that lift flows over thresholds are the same in the kernel and in Go: so are
// the windows and the penalties, other than in their times, and the verdicts.
func TestThresholds(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	onOneCPU(t)
	random := seed.New(t)
	traffic := frames(t)
	for _, limited := range []bool{false, true} {
		trackers := trackersOfAllKinds()
		for i := range 4 {
			trackers[i].Punishes = true
		}
		c := newFiltering(t, nil, verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 17, Port: 53}}}, trackers)
		c.next(t, 40, 0)
		words := func(buckets, words int) []uint64 { return make([]uint64, buckets*words) }
		windows, err := penalty.NewWindows(words(loader.WindowBuckets, penalty.WindowBucketWords))
		if err != nil {
			t.Fatal(err)
		}
		tableWords := words(loader.PenaltyBuckets, penalty.BucketWords)
		table, err := penalty.NewTable(tableWords)
		if err != nil {
			t.Fatal(err)
		}
		twin := c.oracle.Tracked
		twin.Windows, twin.Now = windows, loader.Monotonic
		steps := []uint64{1, 100, 3, 2000}
		var spared []uint64
		c.watch(t, func(n *tracker.Memory) {
			for i, tr := range tracker.Of(c.generation)[:4] {
				units := 40 * steps[i]
				x := verdict.Threshold{
					Threshold: penalty.Threshold{Units: units, Window: time.Hour},
					Penalty:   penalty.Penalty{Until: time.Hour}, Secret: tr.Secret,
				}
				if limited {
					x.Penalty.Rate, x.Penalty.Burst = 0.001, float64(10*steps[i])
				}
				twin.Penalties[i] = table
				twin.Thresholds = append(twin.Thresholds, x)
				p := loader.Threshold{Units: units, Window: uint64(time.Hour), Lasts: uint64(time.Hour)}
				p.Cost, p.Burst = x.Penalty.Words()
				n.SetThreshold(i, p)
				for _, b := range n.Banks(i, n.Active(i)) {
					b.SetStep(steps[i])
				}
				c.twins[i][n.Active(i)].SetStep(steps[i])
			}
			// Of some flows nothing is punished, and of others no flow of their source.
			for range 20 {
				f := traffic[random.IntN(len(traffic))]
				p, _ := packet.Parse(f.data)
				if !p.HasAddresses {
					continue
				}
				first := tracker.Of(c.generation)[0]
				spared = append(spared, first.Hash(first.Key(p.Tuple)), n.SourceHash(2, p.Src))
			}
			in, err := penalty.NewWindows(n.Windows)
			if err != nil {
				t.Fatal(err)
			}
			if !in.Spare(spared) || !windows.Spare(spared) {
				t.Fatal("no room for what is spared")
			}
		})
		dropped := 0
		for range 4 {
			for i := 0; i < len(traffic); i += long.Or(8, 1) {
				data := traffic[i].data[:min(len(traffic[i].data), 2048)]
				if len(data) < 14 {
					continue
				}
				action, err := c.program.Test(data)
				if err != nil {
					t.Fatal(err)
				}
				got := c.oracle.Decide(data)
				if (action == loader.ActionDrop) != (got.Action == verdict.Drop) {
					t.Fatalf("action %d of a packet of %d bytes, in Go %v (%v)", action, len(data), got.Action, got.Reason)
				}
				if action == loader.ActionDrop {
					dropped++
				}
			}
		}
		c.same(t)
		imposed := 0
		c.watch(t, func(n *tracker.Memory) {
			for b := range loader.WindowBuckets {
				for i := range penalty.Slots {
					at := b*penalty.WindowBucketWords + i
					units := b*penalty.WindowBucketWords + penalty.Slots + 2*i + 1
					kernel, twin := [2]uint64{n.Windows[at], n.Windows[units]}, [2]uint64{windows.Words()[at], windows.Words()[units]}
					if kernel != twin {
						t.Fatalf("window %d of bucket %d: %x, in Go %x", i, b, kernel, twin)
					}
				}
			}
			for b := range loader.PenaltyBuckets {
				for i := range penalty.Slots {
					at := b*penalty.BucketWords + i
					if n.Penalties[at] != tableWords[at] {
						t.Fatalf("penalty %d of bucket %d: %x, in Go %x", i, b, n.Penalties[at], tableWords[at])
					}
					if n.Penalties[at] != 0 {
						imposed++
					}
				}
			}
		})
		t.Logf("limited %t: %d penalties, %d packets dropped", limited, imposed, dropped)
		if imposed < 20 || dropped < 1000 {
			t.Errorf("limited %t: %d penalties, %d packets dropped: too few to test anything", limited, imposed, dropped)
		}
	}
}
