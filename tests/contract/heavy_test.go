package contract

import (
	"math"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/sketch"
	"weir/tests/long"
)

// flowsOf are the trackers that are measured, with so much memory each.
func flowsOf(bytes int) map[string]sketch.Tracker {
	const tuple = key.FieldSrcPort | key.FieldDstPort | key.FieldProto
	geometry := sketch.PlanGeometry(bytes)
	return map[string]sketch.Tracker{
		"src": {V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: key.FieldV6, SrcBits: 128}, Geometry: geometry},
		"flow": {V4: key.Shape{Fields: tuple, SrcBits: 32, DstBits: 32},
			V6: key.Shape{Fields: tuple | key.FieldV6, SrcBits: 128, DstBits: 128}, Geometry: geometry},
	}
}

// The heavy hitters of the captures, all of them in one interval, against exact
// counts. (The kernel counts the same: TestTrackersOverCaptures.)
//
// The captures are small: 0.01 % of them is 39 packets, and of the packets
// counted so far even less. More flows than fit into 256 KB reach half of that
// at some time. Larger flows then replace smaller ones, which costs accuracy,
// but hardly ever a flow.
func TestHeavyFlowsOfCaptures(t *testing.T) {
	long.Seconds(t)
	traffic := frames(t)
	for _, test := range []struct {
		bytes     int
		share     float64
		f1, error float64 // to be reached: F1, and the mean error of the heavy hitters
	}{
		{256 << 10, 0.001, 0.995, 0.0015},
		{256 << 10, 0.0001, 0.985, 0.015},
		{1 << 20, 0.0001, 0.995, 0.001},
	} {
		for name, tracker := range flowsOf(test.bytes) {
			for _, unit := range []sketch.Unit{sketch.Packets, sketch.Bytes} {
				tracker.Secret, tracker.Unit = hash.NewSecret(hash.Seed{99}), unit
				threshold := sketch.Threshold{Share: test.share}
				m, err := sketch.NewMultistage(tracker, threshold)
				if err != nil {
					t.Fatal(err)
				}
				exact, total := make(map[key.Key]uint64), uint64(0)
				for _, f := range traffic {
					p, _ := packet.Parse(f.data)
					if !p.HasAddresses {
						continue
					}
					n := uint64(1)
					if unit == sketch.Bytes {
						n = uint64(len(f.data))
					}
					m.Count(p.Tuple, uint64(len(f.data)))
					exact[tracker.Key(p.Tuple)] += n
					total += n
				}
				heavy := threshold.Heavy(total, 0)
				var truly, reported, right int
				var off float64
				for _, n := range exact {
					if n >= heavy {
						truly++
					}
				}
				for f := range m.Heavy() {
					reported++
					if n := exact[f.Key]; n >= heavy {
						right++
						off += math.Abs(float64(f.Estimate(unit))-float64(n)) / float64(n)
					}
				}
				off /= float64(right)
				f1 := 2 * float64(right) / float64(truly+reported)
				t.Logf("%4d KB, %-4s by %-7v over %.2f %%: %3d of %d flows are heavy, %d missed, F1 %.4f, mean error %.4f %%, %d packets denied",
					test.bytes>>10, name, unit, 100*test.share, truly, len(exact), truly-right, f1, 100*off, m.Denied())
				if f1 < test.f1 || off > test.error || test.f1 > 0.99 && right < truly {
					t.Error("that is worse than it should be")
				}
			}
		}
	}
}
