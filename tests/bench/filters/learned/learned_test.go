package learned

import (
	"math"
	"testing"

	"weir/tests/seed"
)

// Each kind has all that is listed, keeps to the memory, and drops as many packets as it
// predicts. Shares are nearly equal, so that no single source decides the outcome.
func TestKinds(t *testing.T) {
	const tasks = 3
	r := seed.New(t)
	for _, differ := range []bool{true, false} {
		counted, predicted, squares := make([]float64, len(Kinds)), make([]float64, len(Kinds)), 0.0
		for range tasks {
			task := NewTask(10_000, 30_000, 90_000, 60_000, 0.2, differ, r.Uint64())
			for _, share := range task.Shares {
				squares += share * share / tasks / tasks
			}
			for i, k := range Kinds {
				f, p := k.New(task, r.Uint64())
				if f.Bits() > task.Bits || f.Bits() < task.Bits*97/100 {
					t.Errorf("%s: %d bits of %d", k.Name, f.Bits(), task.Bits)
				}
				for _, key := range task.Listed {
					if !f.Contains(key) {
						t.Fatalf("%s: a listed key is missing", k.Name)
					}
				}
				counted[i] += task.FalseDrops(f) / tasks
				predicted[i] += p / tasks
			}
		}
		for i, k := range Kinds {
			t.Logf("%s: predicted %.5f, counted %.5f", k.Name, predicted[i], counted[i])
			// A tenth for what was learned by chance, and chance in which sources are dropped.
			if off := math.Abs(counted[i] - predicted[i]); off > 0.1*predicted[i]+6*math.Sqrt(predicted[i]*squares) {
				t.Errorf("%s: predicted %.5f, counted %.5f", k.Name, predicted[i], counted[i])
			}
		}
	}
}

// The hottest sources are hardly ever dropped by what knows them, and are otherwise.
func TestHottest(t *testing.T) {
	const tasks, hottest = 6, 60
	r := seed.New(t)
	dropped := make([]int, len(Kinds))
	for range tasks {
		task := NewTask(20_000, 20_000, 120_000, 100_000, 1.1, false, r.Uint64())
		for i, k := range Kinds {
			f, _ := k.New(task, r.Uint64())
			for _, key := range task.Sources[:hottest] {
				if f.Contains(key) {
					dropped[i]++
				}
			}
		}
	}
	// At 6 bits an entry a filter that has learned nothing drops 0.056: 20 of 360.
	for i, k := range Kinds {
		switch k.Name {
		case "Bloom, nothing learned":
			if dropped[i] < 3 {
				t.Errorf("%s: %d of %d are dropped", k.Name, dropped[i], tasks*hottest)
			}
		case "cascade and hot table (weir)", "stacked":
			if dropped[i] > 6 {
				t.Errorf("%s: %d of %d are dropped", k.Name, dropped[i], tasks*hottest)
			}
		}
	}
}

// Shares and networks are as asked for.
func TestTask(t *testing.T) {
	task := NewTask(1000, 5000, 8000, 100_000, 1, true, seed.New(t).Uint64())
	if got := task.Shares[0] / task.Shares[9]; math.Abs(got-10) > 1e-9 {
		t.Errorf("the first has %g times as much as the tenth", got)
	}
	if task.order[0] != 0 || math.Abs(task.shares[1]/task.Shares[0]-1) > 0.1 {
		t.Errorf("the hottest is %d, with a share of %g, want 0 with %g", task.order[0], task.shares[1], task.Shares[0])
	}
	var most, sum float64
	for _, n := range task.listed {
		most, sum = max(most, n), sum+n
	}
	if sum != 1000 || most < 70 { // 122 by Zipf's distribution
		t.Errorf("%g listed, %g in one network", sum, most)
	}
}
