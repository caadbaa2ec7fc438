package penalty

import (
	"testing"
	"time"

	"weir/tests/seed"
)

func newWindows(t *testing.T, buckets int) *Windows {
	t.Helper()
	w, err := NewWindows(make([]uint64, buckets*WindowBucketWords))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A flow that has no threshold's units in any window of its length never exceeds it; one that
// has them in half of it does, within twice the units.
func TestWindow(t *testing.T) {
	random := seed.New(t)
	const units = 50
	for range 200 {
		threshold := Threshold{Units: units, Window: time.Second}
		w := newWindows(t, 1)
		var at []time.Duration // of the last units
		now := time.Hour
		for range 2000 {
			now += time.Duration(random.ExpFloat64() * float64(time.Second) / units * (0.5 + random.Float64()))
			at = append(at, now)
			// A window begins with a unit that does not count.
			inWindow := len(at) > units && now-at[len(at)-1-units] <= time.Second
			if exceeded := w.Add(threshold, 7, 1, now); exceeded && !inWindow {
				t.Fatalf("%d units in %v exceed the threshold", units, now-at[max(0, len(at)-1-units)])
			}
		}
		for n := 1; ; n++ {
			now += time.Second / (2 * units)
			if w.Add(threshold, 7, 1, now) {
				break
			}
			if n > 2*units+1 {
				t.Fatalf("%d units in a row, at twice the threshold, do not exceed it", n)
			}
		}
	}
}

// Windows that are spared stay, whatever else begins in their bucket.
func TestSpare(t *testing.T) {
	w := newWindows(t, 1)
	once := Threshold{Units: 1, Window: time.Hour}
	exceeds := func(h uint64) bool {
		w.Add(once, h, 1, time.Hour)
		return w.Add(once, h, 1, time.Hour)
	}
	for h := range uint64(Slots) {
		if !exceeds(100 + h) {
			t.Fatalf("flow %d does not exceed the threshold", h)
		}
	}
	if !w.Spare([]uint64{1, 2, 103}) {
		t.Fatal("there is no room to spare three flows")
	}
	for h := range uint64(1000) {
		exceeds(200 + h)
	}
	for _, h := range []uint64{1, 2, 103} {
		if exceeds(h) || !w.Spares(h) {
			t.Errorf("%d exceeds a threshold, and is spared", h)
		}
	}
	if !w.Spare([]uint64{2}) || w.Spares(1) || !w.Spares(2) || !exceeds(1) {
		t.Error("what is not to be spared any more still is, or the reverse")
	}
	many := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}
	if w.Spare(many) {
		t.Error("a bucket of eight has room for nine")
	}
	if _, err := NewWindows(make([]uint64, 5)); err == nil {
		t.Error("a part of a bucket is none")
	}
}

// A program replaces expired penalties in a full bucket, and no others.
func TestImpose(t *testing.T) {
	table, err := NewTable(make([]uint64, BucketWords))
	if err != nil {
		t.Fatal(err)
	}
	for h := range uint64(Slots) {
		table.Impose(1+h, Penalty{Until: time.Duration(1+h) * time.Minute}, 0)
	}
	table.Impose(100, Penalty{Until: time.Hour}, time.Minute/2)
	if table.Contains(100) {
		t.Error("a penalty that has not expired is replaced")
	}
	table.Impose(100, Penalty{Until: time.Hour}, time.Minute)
	if !table.Contains(100) || table.Contains(1) || table.Len() != Slots {
		t.Errorf("100: %t, 1: %t; %d penalties", table.Contains(100), table.Contains(1), table.Len())
	}
	// Its rate is its own: it does not begin where the expired one was.
	limit := Penalty{Until: 2 * time.Hour, Rate: 1, Burst: 1}
	table.Impose(101, limit, time.Hour)
	if at := 2*time.Hour - time.Second; table.Check(101, 1, at) != None || table.Check(101, 1, at) != Limited {
		t.Fatal("the limit is not one per second")
	}
	table.Impose(102, Penalty{Until: 3 * time.Hour, Rate: 1, Burst: 1}, 2*time.Hour)
	if table.Contains(101) {
		t.Fatal("another one was replaced")
	}
	if table.Check(102, 1, 2*time.Hour-time.Second) != None {
		t.Error("a penalty has the packets of the one that it replaced")
	}
	n := 0
	for h, until := range table.All() {
		if !table.Contains(h) || until < time.Minute {
			t.Errorf("%d until %v", h, until)
		}
		n++
	}
	if n != Slots {
		t.Errorf("%d of %d penalties", n, Slots)
	}
}
