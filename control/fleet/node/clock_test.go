package node

import (
	"fmt"
	"testing"
	"time"

	"weir/control/fleet/wire"
	"weir/tests/clock"
	"weir/tests/wait"
)

// Entries expire by the hub's clock, from the first catalog on that comes live.
func TestWrongClock(t *testing.T) {
	t.Parallel() // it waits a lot
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 2 * time.Second} {
		t.Run(fmt.Sprint(ahead), func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			h.clock = ahead
			n := h.start(t.TempDir())
			h.change(set(t, "192.0.2.1"))
			h.snapshot()
			h.release()
			n.reaches(h)
			at := time.Now().Add(5 * time.Second)
			h.change(set(t, "192.0.2.1", "192.0.2.2"), wire.Expiry{Entry: "192.0.2.2", At: at})
			h.release()
			wait.For(t, "the entry", func() bool { return n.has(name).Len() == 2 })
			wait.For(t, "its end", func() bool { return n.has(name).Len() == 1 })
			late := time.Since(at)
			if ahead == 2*time.Second { // no more than a delay
				late += ahead
			}
			if late < 0 || late > 5*time.Second {
				t.Errorf("it has expired %v late", late)
			}
		})
	}
}

func TestClock(t *testing.T) {
	start := time.Now()
	for _, c := range []struct {
		differences []time.Duration
		want        time.Duration
	}{
		{nil, 0},
		{[]time.Duration{time.Second, 9 * time.Second, -9 * time.Second}, 0},
		{[]time.Duration{11 * time.Second}, 11 * time.Second},
		{[]time.Duration{-11 * time.Second}, -11 * time.Second},
		{[]time.Duration{time.Hour}, time.Hour},
		{[]time.Duration{-time.Hour}, -time.Hour},
		{[]time.Duration{0, time.Minute}, 0}, // a minute late
		{[]time.Duration{0, 0, time.Minute, 0}, 0},
		{[]time.Duration{0, time.Hour, time.Hour, time.Hour}, time.Hour}, // it was changed
		{[]time.Duration{time.Hour, 0}, 0},
		{[]time.Duration{time.Hour, time.Hour + time.Second}, time.Hour},
	} {
		k := hubClock{local: func() time.Time { return start }}
		for _, d := range c.differences {
			k.hear(start.Add(-d))
		}
		if got := k.local().Sub(k.now()); got != c.want {
			t.Errorf("%v: %v, want %v", c.differences, got, c.want)
		}
	}
}

// A step of the node's clock moves no expiry: between catalogs, and after them.
func TestStepOfTheClock(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, 20 * time.Second} {
		for _, ahead := range []time.Duration{0, 2 * time.Hour} {
			t.Run(fmt.Sprintf("%v, %v ahead", step, ahead), func(t *testing.T) {
				start := time.Now()
				elapsed, stepped := time.Duration(0), time.Duration(0)
				k := hubClock{local: func() time.Time { return clock.Set(t, start.Add(elapsed), ahead+stepped) }}
				is := func() {
					t.Helper()
					if off := k.now().Round(0).Sub(start.Round(0).Add(elapsed)); off.Abs() > time.Second {
						t.Errorf("after %v: %v off", elapsed, off)
					}
				}
				hear := func() bool { return k.hear(start.Round(0).Add(elapsed)) }
				if !hear() {
					t.Error("the time is not known from the first catalog on")
				}
				is()
				for range 5 {
					elapsed += 10 * time.Second
					is()
					stepped = step
					is()
					if hear() {
						t.Error("the time has changed")
					}
					is()
				}
			})
		}
	}
}
