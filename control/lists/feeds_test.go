package lists

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/feed"
	"weir/tests/must"
)

// owner has a list of a feed.
type owner struct {
	feed     *feed.Feed
	leave    func()       // called before an outcome is taken in; nil: nothing
	inactive func() error // why the list cannot have what was read; nil: it can
	stays    error        // why it is not rolled back

	mu   sync.Mutex
	news []bool // of the outcomes that were taken in
}

// taken returns what was said of each outcome that was taken in.
func (o *owner) taken() []bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.news)
}

func (o *owner) Do(ctx context.Context, fn func() error) error { return cmp.Or(ctx.Err(), fn()) }
func (o *owner) CanRollBack(string) error                      { return o.stays }

func (o *owner) Feeds(name string) ([]*feed.Feed, error) {
	if o.feed == nil {
		return nil, nil
	}
	switch name {
	case "", o.feed.Name:
		return []*feed.Feed{o.feed}, nil
	case "manual":
		return nil, nil
	}
	return nil, api.NoList(name, []string{o.feed.Name, "manual"})
}

func (o *owner) Take(ctx context.Context, f *feed.Feed, _ feed.Outcome, news bool) error {
	if o.leave != nil {
		o.leave()
	}
	o.mu.Lock()
	o.news = append(o.news, news)
	o.mu.Unlock()
	d := Decision{List: f.Name, From: f, Version: f.Version(), Err: ctx.Err()}
	if o.inactive != nil {
		d.Err = cmp.Or(d.Err, o.inactive())
	}
	if news {
		d.Settle(slog.New(slog.DiscardHandler))
	}
	return d.Err
}

// newOwner returns an owner, a reader of its feed, the audit, and what writes the feed's file.
func newOwner(t *testing.T) (o *owner, r *Reader, last func() audit.Record, write func(text string)) {
	t.Helper()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	file := filepath.Join(dir, "list")
	write = func(text string) {
		t.Helper()
		must.Write(t, file+".new", text)
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write("192.0.2.1\n")
	f, err := Open(t.Context(), feed.Config{Name: "drop", Spec: feed.DefaultSpec(feed.Source{File: feed.Path(file)}), Hold: true}, dir, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	records := audit.New("", log)
	o = &owner{feed: f}
	return o, NewReader(o, records, log), func() audit.Record {
		t.Helper()
		all := records.Last(1)
		if len(all) == 0 {
			t.Fatal("nothing is recorded")
		}
		return all[0]
	}, write
}

// What somebody has asked for is taken in although they leave, and said to them where the list
// cannot have it.
func TestRefresh(t *testing.T) {
	o, r, last, write := newOwner(t)
	refresh := func(ctx context.Context, accept bool) api.FetchOutcome {
		t.Helper()
		all, err := r.Refresh(ctx, "drop", accept)
		if err != nil || len(all) != 1 {
			t.Fatalf("%+v, %v", all, err)
		}
		return all[0]
	}
	ctx, leave := context.WithCancel(t.Context())
	o.leave = leave
	if got := refresh(ctx, false); got.Error != "" || !got.Changed || ctx.Err() == nil {
		t.Errorf("%+v", got)
	}
	o.leave = nil
	if got := refresh(t.Context(), false); got.Error != "" || got.Changed || !o.taken()[1] {
		t.Errorf("nothing new, as far as this reader knows: %+v, %v", got, o.taken())
	}
	write("192.0.2.1\n192.0.2.2\n")
	o.inactive = func() error { return errors.New("no memory") }
	if got := refresh(t.Context(), true); got.Outcome != api.Failed || got.Error != "no memory" || got.Entries != 1 {
		t.Errorf("%+v", got)
	}
	if got := last(); got.Change != audit.Accept || got.List != "drop" || !strings.Contains(got.Error, "no memory") || got.Changed != 0 {
		t.Errorf("recorded: %+v", got)
	}
	o.inactive = nil
	if got := refresh(t.Context(), true); got.Error != "" || got.Entries != 2 {
		t.Errorf("%+v", got)
	}
	if got := last(); got.Change != audit.Accept || got.Error != "" || got.Changed != 1 || got.Entries != 2 {
		t.Errorf("recorded: %+v", got)
	}
	if _, err := r.Refresh(t.Context(), "none", true); !errors.Is(err, api.ErrNoList) {
		t.Errorf("a list that is not there: %v", err)
	}
	if got := last(); got.List != "none" || got.Error == "" {
		t.Errorf("recorded: %+v", got)
	}
}

// A list returns to what its source had, unless there is a reason against it.
func TestRollback(t *testing.T) {
	o, r, last, write := newOwner(t)
	for _, text := range []string{"192.0.2.1\n", "192.0.2.1\n192.0.2.2\n"} {
		write(text)
		if all, err := r.Refresh(t.Context(), "", false); err != nil || len(all) != 1 || all[0].Error != "" {
			t.Fatalf("%+v, %v", all, err)
		}
	}
	if v, err := r.Versions(t.Context(), "drop"); err != nil || len(v.Sources) != 1 || len(v.Sources[0].Versions) != 2 {
		t.Errorf("%+v, %v", v, err)
	}
	o.stays = errors.New("a rollout is under way")
	if _, err := r.Rollback(t.Context(), "drop"); !errors.Is(err, o.stays) || last().Error != o.stays.Error() {
		t.Errorf("%v, recorded %+v", err, last())
	}
	o.stays = nil
	if got, err := r.Rollback(t.Context(), "drop"); err != nil || got.Entries != 1 || last().Change != audit.RollbackList || last().Changed != 1 {
		t.Errorf("%+v, %v, recorded %+v", got, err, last())
	}
	for list, want := range map[string]string{"none": "no such list", "manual": "has no sources"} {
		if _, err := r.Rollback(t.Context(), list); err == nil || !strings.Contains(err.Error(), want) || last().List != list {
			t.Errorf("%s: %v, recorded %+v", list, err, last())
		}
		if _, err := r.Versions(t.Context(), list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", list, err)
		}
	}
}

// The end waits for feeds, but not for one that hangs.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		r := NewReader(nil, nil, slog.New(slog.NewTextHandler(&log, nil)))
		saved := false
		r.Go(func() {
			time.Sleep(waitGrace / 2)
			saved = true
		})
		if r.Wait(); !saved || log.Len() > 0 {
			t.Errorf("saved: %t\n%s", saved, &log)
		}
		hangs := make(chan struct{})
		r.Go(func() { <-hangs })
		began := time.Now()
		if r.Wait(); time.Since(began) != waitGrace || !strings.Contains(log.String(), "hangs") {
			t.Errorf("after %v:\n%s", time.Since(began), &log)
		}
		close(hangs)
	})
}

// A feed that has left is read no more, although the others go on.
func TestFollowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, _, _, _ := newOwner(t)
		var log strings.Builder
		r := NewReader(o, nil, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})))
		r.Follow(t.Context())
		r.Follow(t.Context())
		synctest.Wait()
		if len(r.Running) != 1 || len(o.taken()) != 1 {
			t.Fatalf("%d feeds are read, %d times", len(r.Running), len(o.taken()))
		}
		time.Sleep(25 * time.Hour)
		if synctest.Wait(); len(o.taken()) < 2 {
			t.Fatal("it is not read again")
		}
		before := len(o.taken())
		o.feed = nil
		r.Follow(t.Context())
		if r.Wait(); log.Len() > 0 || len(r.Running) > 0 {
			t.Errorf("%d feeds are read\n%s", len(r.Running), &log)
		}
		time.Sleep(25 * time.Hour)
		if synctest.Wait(); len(o.taken()) != before {
			t.Errorf("read %d times after it has left", len(o.taken())-before)
		}
	})
}

// full is a source on a full disk that has entries of before only.
type full struct{}

func (full) Keep(uint64) error    { return errors.New("no space") }
func (full) Revert(uint64, error) {}

// The log does not say that a feed was read where it was not.
func TestSettleUnsaved(t *testing.T) {
	var text strings.Builder
	(&Decision{List: "drop", From: full{}}).Settle(slog.New(slog.NewTextHandler(&text, nil)))
	if got := text.String(); !strings.Contains(got, "could not be saved") || !strings.Contains(got, "no space") || strings.Contains(got, "feed read") {
		t.Error(got)
	}
}
