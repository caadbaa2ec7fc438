package daemon

import (
	"testing"
	"testing/synctest"
	"time"
)

// Seconds wait for the ends of intervals, so that an idle daemon wakes once for both, but go on
// however often and whenever these end.
func TestSeconds(t *testing.T) {
	for _, interval := range []time.Duration{300 * time.Millisecond, 500 * time.Millisecond, time.Second, 10 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			var l loop
			l.start(time.Hour, nil)
			defer l.stop()
			time.Sleep(time.Second / 3)
			end := time.NewTimer(0)
			seconds, wakes, last := 0, 0, time.Time{}
			for began := time.Now(); time.Since(began) < time.Minute; {
				select { // either may come first
				case now := <-l.second.C:
					l.nextSecond(now)
					seconds++
				case <-end.C:
					end.Reset(interval)
					l.postpone(interval)
				}
				if now := time.Now(); now != last {
					wakes, last = wakes+1, now
				}
			}
			if seconds < 57 || seconds > 61 {
				t.Errorf("%d seconds in a minute", seconds)
			}
			if interval == time.Second && wakes > 65 {
				t.Errorf("%d wake-ups in a minute, with intervals of %v", wakes, interval)
			}
		})
	}
}
