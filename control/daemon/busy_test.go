package daemon

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// While Run's goroutine is busy, the lists and the status are answered, and say why.
func TestBusy(t *testing.T) {
	m := newMachine(t)
	path := filepath.Join(m.dir, "list")
	write(t, path, firstSource+"\n")
	d, stop := m.start(fmt.Sprintf("state_dir: \"\"\nlists: {culprit: {sources: [{file: %s}]}}", path))
	defer stop()
	release, busy := make(chan struct{}), make(chan struct{})
	go func() {
		_ = d.loop.Do(context.Background(), func() error {
			d.loop.doing("what was read of a list is activated", "culprit")
			close(busy)
			<-release
			return nil
		})
	}()
	<-busy
	defer func() {
		select {
		case <-release:
		default:
			close(release)
		}
	}()
	if lists := d.readings.Lists(); len(lists) != 3 || lists[0].Name != "culprit" || lists[0].Entries != 1 {
		t.Errorf("%+v", lists)
	}
	m.until("the status says that it is busy", func() bool {
		b := d.readings.Status().Busy
		return b != nil && b.List == "culprit" && b.What == "what was read of a list is activated" && !b.Since.IsZero()
	})
	if longest := d.readings.Metrics().LongestTurn; longest < longTurn {
		t.Errorf("the longest turn takes %v", longest)
	}
	close(release)
	m.until("it is busy no more", func() bool { return d.readings.Status().Busy == nil })
	if longest := d.readings.Metrics().LongestTurn; longest < longTurn {
		t.Errorf("the longest turn took %v", longest)
	}
}

// The longest turn is that of the last minutes, and is logged.
func TestLongestTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		var turns turnLog
		turns.begin("trackers are read")
		time.Sleep(longTurn - time.Millisecond)
		if turns.busy() != nil {
			t.Error("busy")
		}
		turns.end(slog.New(slog.NewTextHandler(&log, nil)))
		if log.Len() > 0 || turns.longest() != longTurn-time.Millisecond {
			t.Errorf("%v, %s", turns.longest(), &log)
		}
		turns.begin("entries are changed")
		turns.doing("what was read of a list is activated", "big")
		time.Sleep(3 * time.Second)
		if b := turns.busy(); b == nil || b.List != "big" || turns.longest() != 3*time.Second {
			t.Errorf("%+v, %v", b, turns.longest())
		}
		turns.end(slog.New(slog.NewTextHandler(&log, nil)))
		if !strings.Contains(log.String(), `msg="commands had to wait" while="what was read of a list is activated" list=big took=3s`) {
			t.Error(log.String())
		}
		time.Sleep(time.Minute)
		if turns.longest() != 3*time.Second {
			t.Errorf("a minute later %v", turns.longest())
		}
		time.Sleep(3 * time.Minute)
		if turns.longest() != 0 {
			t.Errorf("minutes later %v", turns.longest())
		}
	})
}
