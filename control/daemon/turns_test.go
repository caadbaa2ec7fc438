package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Longest returns the longest turn of the last minutes. A long one is logged.
func TestLongestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var turns turnLog
		turns.Begin("trackers are read")
		time.Sleep(longTurn - time.Millisecond)
		if turns.Busy() != nil {
			t.Error("busy")
		}
		turns.End(slog.New(slog.NewTextHandler(&log, nil)))
		if log.Len() > 0 || turns.Longest() != longTurn-time.Millisecond {
			t.Errorf("%v, %s", turns.Longest(), &log)
		}
		turns.Begin("entries are changed")
		turns.Doing("what was read of a list is activated", "big")
		time.Sleep(3 * time.Second)
		if b := turns.Busy(); b == nil || b.List != "big" || turns.Longest() != 3*time.Second {
			t.Errorf("%+v, %v", b, turns.Longest())
		}
		turns.End(slog.New(slog.NewTextHandler(&log, nil)))
		if !strings.Contains(log.String(), `msg="commands had to wait" while="what was read of a list is activated" list=big took=3s`) {
			t.Error(log.String())
		}
		time.Sleep(time.Minute)
		if turns.Longest() != 3*time.Second {
			t.Errorf("a minute later %v", turns.Longest())
		}
		time.Sleep(3 * time.Minute)
		if turns.Longest() != 0 {
			t.Errorf("minutes later %v", turns.Longest())
		}
	})
}
