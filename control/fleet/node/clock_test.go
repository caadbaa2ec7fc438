package node

import (
	"fmt"
	"testing"
	"time"

	"weir/control/fleet/wire"
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
		k := clock{local: func() time.Time { return start }}
		for _, d := range c.differences {
			k.hear(start.Add(-d))
		}
		if got := k.local().Sub(k.now()); got != c.want {
			t.Errorf("%v: %v, want %v", c.differences, got, c.want)
		}
	}
}
