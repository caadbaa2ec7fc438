package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/journal"
	"weir/control/notify"
	"weir/control/queue"
	"weir/filter/verdict"
	"weir/tests/crash"
	"weir/tests/receiver"
	"weir/tests/wait"
)

const queuedSource = "192.0.2.77"

// queuedMachine is a daemon with a queue, and how commands fill it.
func queuedMachine(t *testing.T) (d *Daemon, give func(remove bool)) {
	t.Helper()
	m := newMachine(t)
	d, stop := m.start(fmt.Sprintf("state_dir: %s/state", m.dir))
	t.Cleanup(stop)
	return d, func(remove bool) {
		t.Helper()
		if err := queue.In(m.dir + "/state").Add(queue.Command{
			Time: time.Now(), Change: api.Change{Action: api.Block, Remove: remove, Entries: []string{queuedSource}},
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func isEmpty(d *Daemon) bool {
	names, err := queue.In(d.changes.queued.StateDir()).Waiting()
	return err == nil && len(names) == 0
}

// A command that gives up while the loop is busy has queued its change: that is made before
// the changes of later commands, which wait for the same turn.
func TestQueuedComesFirst(t *testing.T) {
	for _, remove := range []bool{false, true} {
		d, give := queuedMachine(t)
		block := api.Change{Action: api.Block, Entries: []string{queuedSource}, UID: api.NoUID}
		if _, err := d.changes.Change(t.Context(), block); err != nil {
			t.Fatal(err)
		}
		held, release := make(chan struct{}), make(chan struct{})
		go func() {
			_ = d.loop.Do(t.Context(), func() error { close(held); <-release; return nil })
		}()
		<-held
		later := block
		later.Remove = remove
		made := make(chan error, 1)
		go func() {
			_, err := d.changes.Change(t.Context(), later)
			made <- err
		}()
		wait.For(t, "the later change waits for its turn", func() bool {
			d.changes.mu.Lock()
			defer d.changes.mu.Unlock()
			return len(d.changes.waiting) > 0
		})
		give(!remove)
		close(release)
		if err := <-made; err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the queue is empty", func() bool { return isEmpty(d) })
		want := verdict.Drop
		if remove {
			want = verdict.Pass
		}
		if got := verdictOf(t, d, queuedSource); got != want {
			t.Errorf("the later change removes: %v: got %v, want %v", remove, got, want)
		}
	}
}

// Where a queued change cannot be made yet, later ones wait behind it.
func TestChangesBehindTheQueue(t *testing.T) {
	disk := crash.Watch(t, "entries")
	d, give := queuedMachine(t)
	disk.Fail(true)
	give(false)
	remove := api.Change{Action: api.Block, Remove: true, Entries: []string{queuedSource}, UID: api.NoUID}
	if done, err := d.changes.Change(t.Context(), remove); err != nil || !done.Queued {
		t.Errorf("%+v, %v; want it queued", done, err)
	}
	if _, err := d.changes.Flush(t.Context(), config.DefaultBlock, api.FlushChange{}); !errors.Is(err, errOthersWait) {
		t.Errorf("flush: %v", err)
	}
	disk.Fail(false)
	wait.For(t, "the queue is empty", func() bool { d.changes.queued.Take(t.Context()); return isEmpty(d) })
	if got := verdictOf(t, d, queuedSource); got != verdict.Pass {
		t.Errorf("got %v: the changes were not made in their order", got)
	}
}

// failingFilter cannot enforce anything while fail is set.
type failingFilter struct {
	filter
	fail atomic.Bool
}

func (f *failingFilter) enforce(batch []journal.Change) (int, error) {
	if f.fail.Load() {
		return 0, errors.New("cannot allocate memory")
	}
	return f.filter.enforce(batch)
}

// A queued change that the engine cannot take is tried again, for some time. Then receivers of
// notifications hear of it.
func TestQueuedIsTriedAgain(t *testing.T) {
	d, give := queuedMachine(t)
	events := notified(t, d.observers.notifier)
	patience := d.changes.queued.SetPatience
	failing := &failingFilter{filter: d.changes.filter}
	take := func() bool { return d.changes.queued.Take(context.WithoutCancel(t.Context())) }
	_ = d.loop.Do(t.Context(), func() error { d.changes.filter = failing; return nil })

	failing.fail.Store(true)
	give(false)
	if !take() || isEmpty(d) {
		t.Fatal("a change that could not be made is gone")
	}
	failing.fail.Store(false)
	patience(time.Minute)
	wait.For(t, "the queue is empty", func() bool { take(); return isEmpty(d) })
	if got := verdictOf(t, d, queuedSource); got != verdict.Drop {
		t.Errorf("got %v: the change was not made", got)
	}

	failing.fail.Store(true)
	patience(0)
	give(true)
	wait.For(t, "the change is given up", func() bool { take(); return isEmpty(d) })
	if last := d.audit.Last(1); len(last) != 1 || last[0].Error == "" || last[0].Given == nil {
		t.Errorf("the audit: %+v", last)
	}
	wait.For(t, "a notification", func() bool { return len(events) > 0 })
	if e := <-events; e.Kind != notify.Refused || e.Change == nil || e.Change.Change != "unblock" || e.Change.List != config.DefaultBlock || e.Change.Error == "" || len(events) > 0 {
		t.Errorf("%d more notifications than %+v", len(events), e)
	}

	if err := queue.In(d.changes.queued.StateDir()).Add(queue.Command{Time: time.Now(), Change: api.Change{Action: api.Block, List: "gone", Entries: []string{queuedSource}}}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "a notification", func() bool { return len(events) > 0 })
	if e := <-events; e.Change == nil || e.Change.List != "gone" {
		t.Errorf("of a list that is gone: %+v", e)
	}
}

// notified has a notifier send to a receiver, and returns what that has received.
func notified(t *testing.T, n *notices) <-chan notify.Event {
	t.Helper()
	target, events := receiver.New(t)
	n.Configure([]notify.Target{target})
	return events
}
