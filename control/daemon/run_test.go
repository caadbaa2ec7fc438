package daemon

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/observe/events"
	"weir/tests/lab"
)

// When Run has ended, no goroutine waits for it, and it has left nothing behind.
func TestRunEnds(t *testing.T) {
	r := configure(t, lab.New(t).B)
	socket := filepath.Join(t.TempDir(), "weir.sock")
	r.c.API.Socket = config.Path(socket)
	d := begin(t, r)
	if err := d.loop.Do(t.Context(), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	found, _ := d.readings.Events(events.Want{})
	d.stop()
	if _, ok := <-found; ok {
		t.Error("an event after the end")
	}
	if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is there: %v", err)
	}
	buffer := make([]byte, 1<<20)
	for one := range strings.SplitSeq(string(buffer[:runtime.Stack(buffer, true)]), "\n\n") {
		if strings.Contains(one, "weir/control/") && !strings.Contains(one, "testing.tRunner") {
			t.Errorf("a goroutine is left:\n%s", one)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := d.loop.Do(ctx, func() error { t.Error("called"); return nil }); err == nil || ctx.Err() != nil {
		t.Errorf("after the end: %v, %v", err, ctx.Err())
	}
	if _, err := d.changes.Change(ctx, api.Change{Action: api.Block, Entries: []string{cleanSource}}); err == nil || ctx.Err() != nil {
		t.Errorf("a command after the end: %v, %v", err, ctx.Err())
	}
	if after, last := d.readings.Lists(), d.readings.lister.last.Load(); last == nil && after != nil || last != nil && !reflect.DeepEqual(after, *last) {
		t.Errorf("lists after the end: %+v", after)
	}
}

// While the daemon stops, its lists are as last described: an answer without any would say that
// there are none.
func TestListsWhileItStops(t *testing.T) {
	n := &lister{loop: newLoop(nil)}
	n.last.Store(&[]api.List{{Name: "drop"}})
	close(n.loop.ended)
	if all := n.Lists(); len(all) != 1 || all[0].Name != "drop" {
		t.Errorf("%+v", all)
	}
}
