package journal

import (
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
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
