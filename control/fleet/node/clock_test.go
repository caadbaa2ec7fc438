package node

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	steady "weir/control/clock"
	"weir/control/fleet/wire"
	"weir/tests/clock"
	"weir/tests/seed"
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

// However the clock of a node's host is set, while the node runs or does not, entries of the hub end in their time:
// also before the hub is heard after a restart, whose clock is another one.
func TestClockIsSet(t *testing.T) {
	t.Parallel() // it waits a lot
	random := seed.New(t)
	h, host, dir, state := newHub(t), clock.NewMachine(t), t.TempDir(), t.TempDir()
	h.ahead = 2 * time.Hour
	open := func() *steady.Clock {
		c := steady.Open(host.Host(), state, slog.New(slog.DiscardHandler))
		c.Save()
		h.steady = c
		return c
	}
	c := open()
	n := h.start(dir)
	const lasting, brief, ttl = "192.0.2.1", "192.0.2.2", time.Second
	ends := wire.Expiry{Entry: lasting, At: time.Now().Add(h.ahead + time.Hour)}
	h.change(set(t, lasting), ends)
	h.snapshot(ends)
	h.release()
	n.reaches(h)

	const day = 24 * time.Hour
	sizes := []time.Duration{time.Second, time.Minute, time.Hour, day, 365 * day, 3650 * day}
	restarts := 0
	for step := range 20 {
		ahead := sizes[random.IntN(len(sizes))]
		switch random.IntN(4) {
		case 0:
			ahead = -ahead
		case 1:
			ahead = -time.Since(time.Unix(0, 0)).Round(time.Second) // in 1970
		}
		if random.IntN(3) == 0 {
			host.Set(ahead, true)
			c.Follow()
		}
		h.change(set(t, lasting))
		at := time.Now().Add(ttl)
		h.change(set(t, lasting, brief), wire.Expiry{Entry: brief, At: at.Add(h.ahead)})
		h.release()
		n.reaches(h)
		switch host.Set(ahead, true); {
		case random.IntN(2) == 0:
			n.stop()
			c.Save()
			c = open()
			n = h.start(dir)
			restarts++
		default:
			c.Follow()
		}
		wait.For(t, fmt.Sprintf("step %d, %v ahead: the end of an entry", step, ahead), func() bool {
			entries := n.has(name)
			if entries == nil {
				return false // the node has just begun
			}
			if left := entries.Len(); left == 0 || left == 1 && time.Now().Before(at) {
				t.Fatalf("step %d, %v ahead: %d entries are left %v before the end of one", step, ahead, entries.Len(), time.Until(at))
			}
			return entries.Len() == 1
		})
		if late := time.Since(at); late > 30*time.Second { // a busy machine may take some
			t.Errorf("step %d, %v ahead: an entry has ended %v late", step, ahead, late)
		}
	}
	if restarts == 0 {
		t.Error("without a restart the test sees little")
	}
}
