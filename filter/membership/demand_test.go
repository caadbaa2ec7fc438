package membership

import (
	"math"
	"testing"

	"weir/filter/key"
)

func demanded(t *testing.T, n int, bits float64, most int, d Demand) Layout {
	t.Helper()
	l, err := PlanLayout(Census{Keys: map[key.Shape]int{{SrcBits: 32}: n}}, Approximate, bits, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.PlanWeights(most, d)
	return l
}

// Where nothing is known of the traffic, the table costs at most 2 %, and as much of them as it
// can. Where elements are known, it has room for them, unless they are not worth it.
func TestPlanWeights(t *testing.T) {
	for _, n := range []int{500_000, 1_000_000, 10_000_000} {
		for _, bits := range []float64{8, 10, 12, 16} {
			l := demanded(t, n, bits, 1<<20, Demand{})
			if cost := l.hotCost(l.HotBuckets); cost > 1.02 || l.hotCost(2*l.HotBuckets) <= 1.02 {
				t.Errorf("%d of %v bits: %d buckets cost %v", n, bits, l.HotBuckets, cost)
			}
			many := demanded(t, n, bits, 1<<20, Demand{Elements: 4000, Known: 100, Others: 5})
			if room := HotRoom(4000, int(many.HotBuckets)); room < 0.9 {
				t.Errorf("%d of %v bits: %d buckets have room for %v of 4000 elements", n, bits, many.HotBuckets, room)
			}
			if forged := demanded(t, n, bits, 1<<20, Demand{Elements: 4000, Known: 1, Others: 100}); forged.HotBuckets != l.HotBuckets {
				t.Errorf("%d of %v bits: %d buckets for elements with a hundredth of the packets, want %d", n, bits, forged.HotBuckets, l.HotBuckets)
			}
			if few := demanded(t, n, bits, 100, Demand{}); few.HotBuckets != MinHotBuckets {
				t.Errorf("%d buckets for 100 elements", few.HotBuckets)
			}
		}
	}
	if l := demanded(t, 1_000_000, 10, 0, Demand{Elements: 9, Known: 1}); l.HotBuckets != 0 {
		t.Errorf("%d buckets for no weights", l.HotBuckets)
	}
}

// Poisson's distribution, by hand.
func TestHotRoom(t *testing.T) {
	for _, c := range []struct {
		others  float64
		buckets int
		want    float64
	}{{0, 1, 1}, {5, 0, 0}, {8, 1, 0.45296}, {64, 32, 0.99890}} {
		if got := HotRoom(c.others, c.buckets); math.Abs(got-c.want) > 1e-4 {
			t.Errorf("%v in %d buckets: %v, want %v", c.others, c.buckets, got, c.want)
		}
	}
}
