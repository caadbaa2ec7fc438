package feed

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"weir/control/quantity"
	"weir/tests/must"
)

// TestSchedule runs a feed with a fake clock: good, failing, good again.
func TestSchedule(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	state := t.TempDir()
	for _, c := range []struct {
		name   string
		random float64
		want   []time.Duration // between attempts
	}{
		{"no jitter", 0, []time.Duration{
			10 * time.Minute, 10 * time.Minute, 10 * time.Minute, // after successes
			7500 * time.Millisecond, 15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute, // half of 15s, 30s … 10m
			10 * time.Minute,
		}},
		{"most jitter", 1, []time.Duration{
			11 * time.Minute, 11 * time.Minute, 11 * time.Minute,
			15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 8 * time.Minute, 10 * time.Minute, 10 * time.Minute,
			11 * time.Minute,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				must.Write(t, path, good)
				backdate(t, path)
				conf := config(Source{File: Path(path)})
				conf.Interval, conf.Jitter = quantity.Duration(10*time.Minute), quantity.Duration(time.Minute)
				f := mustOpen(t, conf, filepath.Join(state, c.name))
				f.random = func() float64 { return c.random }

				ctx, cancel := context.WithCancel(t.Context())
				var got []time.Duration
				last := time.Now()
				f.Run(ctx, func(o Outcome) {
					if o.Began.Sub(last) > 0 {
						got = append(got, o.Began.Sub(last))
					}
					last = o.Began
					switch n := len(got); {
					case n == 2:
						if err := os.Remove(path); err != nil {
							t.Error(err)
						}
					case n == 3 && (o.Failure != Unreachable || f.Status().Sources[0].Failures != 1):
						t.Errorf("%+v", o)
					case n == 10:
						must.Write(t, path, good)
						backdate(t, path)
					case n == len(c.want):
						cancel()
						return
					}
					next := f.Status().Sources[0].Next
					if next.Before(last.Add(firstRetry/2)) || next.After(last.Add(11*time.Minute)) {
						t.Errorf("next attempt at %v, the last was at %v", next, last)
					}
				})
				if !slices.Equal(got, c.want) {
					t.Errorf("waited\n%v, want\n%v", got, c.want)
				}
			})
		})
	}
}

func TestWait(t *testing.T) {
	f := &Feed{random: func() float64 { return 0.5 }}
	for _, c := range []struct {
		interval, jitter time.Duration
		failures         int
		retryAfter, want time.Duration
	}{
		{interval: time.Hour, want: time.Hour},
		{interval: time.Hour, jitter: 10 * time.Minute, want: time.Hour + 5*time.Minute},
		{interval: time.Hour, failures: 1, want: firstRetry * 3 / 4},
		{interval: time.Hour, failures: 2, want: firstRetry * 3 / 2},
		{interval: time.Hour, failures: 1 << 40, want: 45 * time.Minute},
		{interval: 10 * time.Second, failures: 1, want: 7500 * time.Millisecond},
		{interval: 10 * time.Second, failures: 100, want: 7500 * time.Millisecond},
		{interval: time.Minute, failures: 1, retryAfter: time.Hour, want: time.Hour},
		{interval: time.Minute, failures: 5, retryAfter: time.Second, want: 45 * time.Second},
	} {
		f.Interval, f.Jitter = quantity.Duration(c.interval), quantity.Duration(c.jitter)
		if got := f.wait(c.failures, c.retryAfter); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A file that cannot be activated is tried again soon, however often that has failed.
func TestRetries(t *testing.T) {
	for failures := range 4 {
		at := source{Source: Source{URL: "https://192.0.2.1"}, failures: failures}
		file := source{Source: Source{File: "/a"}, failures: failures}
		if at.retries() != failures || file.retries() != min(failures, 1) {
			t.Errorf("%d failures: %d retries at a URL, %d of a file", failures, at.retries(), file.retries())
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Duration{
		"":                              0,
		"120":                           2 * time.Minute,
		"-1":                            0,
		"99999999999":                   24 * time.Hour,
		"9999999999999999999999":        0,
		"soon":                          0,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute,
		"Fri, 02 Jan 2026 03:03:05 GMT": 0,
		"Fri, 02 Jan 2099 03:03:05 GMT": 24 * time.Hour,
	} {
		if got := retryAfter(s, now); got != want {
			t.Errorf("%q: %v, want %v", s, got, want)
		}
	}
}

// TestSourcesRun checks that Run tries all sources immediately, reports one
// outcome at a time, and ends with its context.
func TestSourcesRun(t *testing.T) {
	dir := t.TempDir()
	var sources []Source
	for _, name := range []string{"a", "b", "c"} {
		path := filepath.Join(dir, name)
		must.Write(t, path, good)
		sources = append(sources, Source{File: Path(path)})
	}
	f := mustOpen(t, config(sources...), t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	var seen []string
	f.Run(ctx, func(o Outcome) {
		if seen = append(seen, filepath.Base(o.Source)); len(seen) == len(sources) {
			cancel()
		}
	})
	slices.Sort(seen)
	if !slices.Equal(seen, []string{"a", "b", "c"}) {
		t.Errorf("outcomes of %v", seen)
	}
}
