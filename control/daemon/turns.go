package daemon

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"weir/control/api"
)

// longTurn is how long a turn takes at least to be shown and logged:
// commands wait for its end.
const longTurn = time.Second

// longWait is from when on a turn is logged as a warning: the verifier alone may take seconds
// on a busy machine.
const longWait = 10 * time.Second

// turn is one round of a loop, after which it answers the next command.
type turn struct {
	began time.Time
	what  string
	list  string // "": of no list
}

// turnLog knows the turn in progress, and the longest ones. The loop's goroutine writes it;
// it may be read at any time.
type turnLog struct {
	current atomic.Pointer[turn] // nil: none
	outer   atomic.Pointer[turn] // whose long work goes on beside the other turns; nil: none

	mu      sync.Mutex
	minute  time.Time // when last began
	last    time.Duration
	earlier time.Duration // of the minute before
}

// Begin begins a turn.
func (t *turnLog) Begin(what string) { t.current.Store(&turn{began: time.Now(), what: what}) }

// Doing says what the turn in progress does now.
func (t *turnLog) Doing(what, list string) {
	if one := t.current.Load(); one != nil {
		t.current.Store(&turn{one.began, what, list})
	}
}

// End ends the turn in progress, and logs it where it took long.
func (t *turnLog) End(log *slog.Logger) {
	one := t.current.Swap(nil)
	if one == nil {
		return
	}
	took := time.Since(one.began)
	t.note(took)
	if took >= longTurn {
		level := slog.LevelInfo
		if took >= longWait {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "commands had to wait", "while", one.what, "list", one.list, "took", took.Round(time.Millisecond).String())
	}
}

// Leave ends the turn in progress until [turnLog.Enter], while its work goes on beside others.
func (t *turnLog) Leave() *turn {
	one := t.current.Swap(nil)
	if one != nil {
		t.note(time.Since(one.began))
		t.outer.Store(one)
	}
	return one
}

// Enter goes on with a turn that was left.
func (t *turnLog) Enter(one *turn) {
	t.outer.Store(nil)
	if one != nil {
		t.current.Store(&turn{time.Now(), one.what, one.list})
	}
}

// note records the length of a turn, and forgets those of minutes ago.
func (t *turnLog) note(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if past := time.Since(t.minute); past >= time.Minute {
		if t.earlier = t.last; past >= 2*time.Minute {
			t.earlier = 0
		}
		t.minute, t.last = time.Now(), 0
	}
	t.last = max(t.last, took)
}

// Longest returns the longest turn of the last minute or two, which may be in progress.
func (t *turnLog) Longest() time.Duration {
	t.note(0)
	t.mu.Lock()
	most := max(t.last, t.earlier)
	t.mu.Unlock()
	if one := t.current.Load(); one != nil {
		most = max(most, time.Since(one.began))
	}
	return most
}

// Busy returns the turn in progress if it takes long, or else the long work beside other
// turns. It returns nil where there is neither.
func (t *turnLog) Busy() *api.Busy {
	current, outer := t.current.Load(), t.outer.Load()
	for _, one := range []*turn{current, outer} {
		if one != nil && time.Since(one.began) >= longTurn {
			return &api.Busy{What: one.what, List: one.list, Since: one.began, Beside: one == outer}
		}
	}
	return nil
}
