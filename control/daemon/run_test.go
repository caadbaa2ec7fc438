package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/lists"
	"weir/control/observe/events"
	"weir/tests/lab"
	"weir/tests/wait"
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
	ctx, cancel := context.WithTimeout(t.Context(), wait.Patience)
	defer cancel()
	if err := d.loop.Do(ctx, func() error { t.Error("called"); return nil }); err == nil || ctx.Err() != nil {
		t.Errorf("after the end: %v, %v", err, ctx.Err())
	}
	if _, err := d.changes.Change(ctx, api.Change{Action: api.Block, Entries: []string{cleanSource}}); err == nil || ctx.Err() != nil {
		t.Errorf("a command after the end: %v, %v", err, ctx.Err())
	}
	if after, last := d.readings.Lists(), d.readings.lister.last.Load(); last == nil && after.Lists != nil || last != nil && !reflect.DeepEqual(after, *last) {
		t.Errorf("lists after the end: %+v", after)
	}
}

// slow takes in the first list only once the context has ended.
type slow struct {
	lists.Owner
	began, taken chan struct{}
}

func (s slow) Take(ctx context.Context, f *feed.Feed, o feed.Outcome, news bool) error {
	if f.Name != "first" {
		return s.Owner.Take(ctx, f, o, news)
	}
	close(s.began)
	<-ctx.Done()
	time.Sleep(100 * time.Millisecond)
	close(s.taken)
	return ctx.Err()
}

// Run waits for its feeds: what one has read is saved before the program ends. A request without
// an answer does not hold that up.
func TestRunWaitsForFeeds(t *testing.T) {
	var requests atomic.Int64
	hangs := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if requests.Add(1) == 1 {
			fmt.Fprintln(w, secondSource)
			return
		}
		close(hangs)
		<-q.Context().Done()
	}))
	defer s.Close()
	r := configure(t, lab.New(t).B)
	r.lists(t, feedFile(t, "first.txt", firstSource+"\n"), feedFile(t, "second.txt", ""))
	r.change(func(c *config.Config) { c.Lists[1].Sources[0].File, c.Lists[1].Sources[0].URL = "", feed.URL(s.URL) })
	var log strings.Builder
	d, err := Start(t.Context(), Options{Config: r, Version: "test", Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	owner := slow{&d.feeds, make(chan struct{}), make(chan struct{})}
	d.feeds.Reader = lists.NewReader(owner, d.audit, d.o.Log)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- d.Run(ctx, nil, time.Hour, nil) }()
	for _, event := range []chan struct{}{owner.began, hangs} {
		select {
		case <-event:
		case <-time.After(wait.Patience):
			t.Error("a source is not read")
		}
	}
	stop()
	err = <-done
	select {
	case <-owner.taken:
	default:
		t.Error("a feed goes on after the end")
	}
	if strings.Contains(log.String(), "hangs") { // it was waited for in vain
		t.Error(log.String())
	}
	if err := errors.Join(err, d.Stop()); err != nil {
		t.Error(err)
	}
}

// While the daemon stops, its lists are as last described: an answer without any would say that
// there are none.
func TestListsWhileItStops(t *testing.T) {
	n := &lister{loop: newLoop(nil)}
	at := time.Now().Add(-time.Minute)
	n.last.Store(&api.Lists{Lists: []api.List{{Name: "drop"}}, At: at})
	close(n.loop.ended)
	if all := n.Lists(); len(all.Lists) != 1 || all.Lists[0].Name != "drop" || !all.At.Equal(at) {
		t.Errorf("%+v", all)
	}
}
