package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
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
			d.loop.Doing("what was read of a list is activated", "culprit")
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
	if lists := d.readings.Lists().Lists; len(lists) != 3 || lists[0].Name != "culprit" || lists[0].Entries != 1 {
		t.Errorf("%+v", lists)
	}
	m.until("the status says that it is busy", func() bool {
		b := d.readings.Status().Busy
		return b != nil && b.List == "culprit" && b.What == "what was read of a list is activated" && !b.Since.IsZero()
	})
	if longest := d.readings.Metrics().LongestTurn; longest < time.Second {
		t.Errorf("the longest turn takes %v", longest)
	}
	close(release)
	m.until("it is busy no more", func() bool { return d.readings.Status().Busy == nil })
	if longest := d.readings.Metrics().LongestTurn; longest < time.Second {
		t.Errorf("the longest turn took %v", longest)
	}
}
