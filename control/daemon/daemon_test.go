package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/lists"
	"weir/control/ruleset"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/must"
)

// startFile runs a daemon until the test ends, with a list of a file.
func startFile(t *testing.T, l *lab.Lab, file string) *Daemon {
	return startLists(t, l, io.Discard, fmt.Sprintf("lists: {feed: {sources: [{file: %s}], interval: 24h}}", file))
}

// startLists is startFile with lists as the configuration has them.
func startLists(t *testing.T, l *lab.Lab, log io.Writer, lists string) *Daemon {
	t.Helper()
	dir := t.TempDir()
	pins := "/sys/fs/bpf/" + l.B.Netns
	file := filepath.Join(dir, "weir.yaml")
	write(t, file, fmt.Sprintf("interfaces: [{name: %s, netns: %s}]\npins: %s\nstate_dir: %s\napi: {socket: %s}\n"+
		"%s\n", l.B.Iface, l.B.Netns, pins, dir, filepath.Join(dir, "sock"), lists))
	d, err := Start(t.Context(), Options{Config: config.File(file), Version: "test", Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx, nil, time.Hour, nil) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := attach.DetachAll(loader.Pins(pins)); err != nil {
			t.Error(err)
		}
		os.Remove(pins)
	})
	return d
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.Write(t, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// leaver ends a request before what was read for it is taken in.
type leaver struct {
	lists.Owner
	leave func()
}

func (l leaver) Take(ctx context.Context, f *feed.Feed, o feed.Outcome, news bool) error {
	l.leave()
	return l.Owner.Take(ctx, f, o, news)
}

// What a refresh has read becomes active, also where the command was interrupted. What was read
// before and not taken in is so at the next reading, also where that finds nothing new.
func TestRefreshInterrupted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list")
	write(t, file, firstSource+"\n")
	d := startFile(t, lab.New(t), file)
	f := unscheduled(t, d)[0]
	interrupted := func() (context.Context, *lists.Reader) {
		ctx, leave := context.WithCancel(t.Context())
		return ctx, lists.NewReader(leaver{&d.feeds, leave}, d.audit, d.o.Log)
	}
	write(t, file, firstSource+"\n"+secondSource+"\n")
	ctx, r := interrupted()
	if all, err := r.Refresh(ctx, "feed", false); err != nil || ctx.Err() == nil || all[0].Error != "" {
		t.Errorf("%+v, %v", all, err)
	}
	if got := verdictOf(t, d, secondSource); got != verdict.Drop {
		t.Errorf("a refresh that was interrupted: %v", got)
	}
	ctx, r = interrupted()
	if one, err := r.Rollback(ctx, "feed"); err != nil || one.Error != "" {
		t.Errorf("%+v, %v", one, err)
	}
	if got := verdictOf(t, d, secondSource); got != verdict.Pass {
		t.Errorf("a rollback that was interrupted: %v", got)
	}
	write(t, file, firstSource+"\n"+cleanSource+"\n")
	for _, want := range []feed.Result{feed.New, feed.Unchanged} {
		all, err := f.Fetch(t.Context())
		if err != nil || all[0].Result != want {
			t.Fatal(all, err)
		}
		if want == feed.Unchanged {
			if err := d.feeds.Fetched(t.Context(), f, all[0]); err != nil {
				t.Error(err)
			}
		}
	}
	if got := verdictOf(t, d, cleanSource); got != verdict.Drop {
		t.Errorf("what was read before: %v", got)
	}
}

// A refresh returns when what was read is active, also if the schedule has just read
// it and is about to activate it.
func TestRefreshCatchesUp(t *testing.T) {
	file := filepath.Join(t.TempDir(), "list")
	write(t, file, "192.0.2.1\n")
	d := startFile(t, lab.New(t), file)
	var l *ruleset.List
	if err := d.loop.Do(t.Context(), func() error { l = d.active.prepared.List("feed"); return nil }); err != nil {
		t.Fatal(err)
	}
	unscheduled(t, d)
	write(t, file, "192.0.2.1\n192.0.2.2\n")
	// As the schedule does; the outcome is reported later.
	read, err := l.FromFeed.Fetch(t.Context())
	if err != nil || !read[0].Changed {
		t.Fatal(read, err)
	}
	outcomes, err := d.api.Refresh(t.Context(), "feed", false)
	if err != nil || len(outcomes) != 1 || outcomes[0].Outcome != "unchanged" || outcomes[0].Error != "" {
		t.Errorf("refreshed: %+v, %v", outcomes, err)
	}
	if e, err := d.api.Explainer.Explain(t.Context(), "192.0.2.2", true); err != nil || e.Answers[0].Verdict != api.VerdictDrop {
		t.Errorf("refreshed, but %+v, %v", e, err)
	}
	if err := d.feeds.Fetched(t.Context(), l.FromFeed, read[0]); err != nil { // late
		t.Error(err)
	}

	// While something is not active, a refresh does not succeed.
	if err := d.loop.doAlone(t.Context(), func() error { l.Behind, d.backlog.retry = true, time.Now().Add(time.Hour); return nil }); err != nil {
		t.Fatal(err)
	}
	if outcomes, err := d.api.Refresh(t.Context(), "feed", false); err != nil || outcomes[0].Failure != "inactive" {
		t.Errorf("refreshed while it is overdue: %+v, %v", outcomes, err)
	}
}
