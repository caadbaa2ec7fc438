package journal

import (
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"weir/control/clock"
	machines "weir/tests/clock"
)

// However the clock is set, no entry ends early, and none lasts longer than its TTL and the time that
// the host was off: after restarts and crashes, too, and in boots that begin in 1970.
func TestClockSet(t *testing.T) {
	const day = 24 * time.Hour
	random := rand.New(rand.NewPCG(1, 2))
	m := machines.NewMachine(t)
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	var by *clock.Clock
	var j *Journal
	open := func() {
		by = clock.Open(m.Host(), dir, log)
		by.Save()
		var err error
		if j, err = Open(filepath.Join(dir, "journal"), by, log); err != nil {
			t.Fatal(err)
		}
	}
	open()
	defer func() { j.Close() }()
	type promise struct {
		ttl      time.Duration
		on, ever time.Duration // that have passed, with the host on, and all in all
	}
	all := map[int]*promise{}
	pass := func(d time.Duration, on bool) {
		for _, p := range all {
			if p.ever += d; on {
				p.on += d
			}
		}
	}
	ended, shown, crashes := 0, 0, 0
	const slack = time.Minute // the test itself takes time
	look := func(what string) {
		t.Helper()
		by.Follow()
		batch := j.Expired(m.Now())
		apply(t, j, batch)
		for i, p := range all {
			e, there := j.Get(nth(i).List, nth(i).Key)
			switch {
			case !there && p.ever < p.ttl:
				t.Fatalf("%s: an entry with TTL %v has ended after %v", what, p.ttl, p.ever)
			case there && p.on > p.ttl+slack+time.Duration(crashes)*clock.Interval:
				t.Fatalf("%s: an entry with TTL %v is there after %v, and %v with the host on", what, p.ttl, p.ever, p.on)
			case !there:
				ended++
				delete(all, i)
			case e.Expires.Sub(m.Now().Round(0)) > p.ttl-p.on+slack+time.Duration(crashes)*clock.Interval:
				t.Fatalf("%s: an entry with TTL %v is shown to end in %v after %v", what, p.ttl, e.Expires.Sub(m.Now().Round(0)), p.on)
			default:
				shown++
			}
		}
	}
	sizes := []time.Duration{time.Second, time.Minute, time.Hour, day, 365 * day, 3650 * day}
	ahead := time.Duration(0)
	for i := range 400 {
		what := ""
		switch n := random.IntN(8); n {
		case 0, 1, 2:
			if ahead = sizes[random.IntN(len(sizes))]; n == 1 {
				ahead = -ahead
			} else if n == 2 {
				ahead = -m.Now().Sub(time.Unix(0, 0)).Round(time.Second) + ahead%time.Hour // in 1970
				if random.IntN(2) == 0 {
					ahead = 0
				}
			}
			what = "the clock is set"
			before := len(by.Status().Settings)
			last := by.Ahead()
			m.Set(ahead, ahead == 0)
			by.Follow()
			if s := by.Status().Settings; by.Ahead() != last && (len(s) == 0 || len(s) < before ||
				math.Abs(s[len(s)-1].By-(by.Ahead()-last).Seconds()) > 0.01) {
				t.Fatalf("by %v: %+v", by.Ahead()-last, s)
			}
		case 3, 4, 5:
			what = "time passes"
			for range random.IntN(40) {
				d := time.Duration(random.Int64N(int64(time.Minute)))
				m.Pass(d)
				pass(d, true)
				by.Follow()
			}
		case 6:
			what = "a restart"
			j.Close()
			open()
		case 7:
			what = "a reboot"
			j.Close()
			crashes++
			off := time.Duration(random.Int64N(int64(2 * day)))
			m.Reboot(off)
			pass(off, false)
			if random.IntN(2) == 0 {
				ahead = -m.Now().Sub(time.Unix(0, 0)).Round(time.Second)
			}
			m.Set(ahead, ahead == 0 && random.IntN(2) == 0)
			open()
		}
		look(what)
		c := Change{Entry: nth(i)}
		ttl := time.Duration(1+random.IntN(100)) * time.Minute
		c.Added = m.Now()
		c.Expires = c.Added.Add(ttl)
		apply(t, j, []Change{c})
		all[i] = &promise{ttl: ttl}
	}
	if ended < 200 || shown < 1000 || crashes < 20 {
		t.Errorf("%d entries have ended, %d were shown, %d reboots: that shows little", ended, shown, crashes)
	}
}

// stepping is a host whose clock is set by somebody else while it is read.
type stepping struct {
	clock.Host
	m  *machines.Machine
	in int // readings until it is set, if above 0
	to time.Duration
}

func (h *stepping) Wall() time.Time {
	now := h.Host.Wall() // the process is interrupted then
	if h.in--; h.in == 0 {
		h.m.Set(h.to, false)
	}
	return now
}

// Whenever the clock is set while entries are read or recorded, they count, and end when they would have.
func TestClockSetMeanwhile(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour, 3650 * 24 * time.Hour, -3650 * 24 * time.Hour} {
		for in := range 8 {
			for _, recording := range []bool{true, false} {
				m := machines.NewMachine(t)
				h := &stepping{Host: m.Host(), m: m, to: by}
				j, err := Open(filepath.Join(t.TempDir(), "journal"), clock.Open(h, "", slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				c := Change{Entry: nth(1)}
				c.Added = m.Now()
				c.Expires = c.Added.Add(time.Minute)
				if h.in = 0; recording {
					h.in = in
				}
				apply(t, j, []Change{c})
				if h.in = 0; !recording {
					h.in = in
				}
				there := len(slices.Collect(j.EntriesOf(c.List)))
				if !recording {
					h.in = in
				}
				if e, ok := j.Current(c.List, c.Key); !ok || there != 1 {
					t.Errorf("by %v at reading %d (recording: %t): %d entries, %+v", by, in, recording, there, e)
				}
				h.in = 0
				if n := len(j.Expired(m.Now().Add(50 * time.Second))); n != 0 {
					t.Errorf("by %v at reading %d (recording: %t): it has ended early", by, in, recording)
				}
				m.Pass(70 * time.Second)
				if n := len(j.Expired(m.Now())); n != 1 {
					t.Errorf("by %v at reading %d (recording: %t): it has not ended", by, in, recording)
				}
				if n := len(slices.Collect(j.EntriesOf(c.List))); n != 0 {
					t.Errorf("by %v at reading %d: it is not over after its time", by, in)
				}
				j.Close()
			}
		}
	}
}
