package hub

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/lists"
)

// Process follows reloads outside the hub: listeners, the log.
type Process interface {
	// Check returns why a configuration cannot be had.
	Check(*config.Hub) error
	// Configure takes in a configuration that was checked.
	Configure(*config.Hub)
}

// Reload implements [server.Hub]: it reads the configuration again, and takes in all of it or
// nothing.
func (h *Hub) Reload(ctx context.Context) (r api.FleetReloaded, err error) {
	h.reloading.Lock()
	defer h.reloading.Unlock()
	var wait <-chan struct{}
	r.Changes, wait, err = h.reload(ctx)
	done := api.FleetReload{Time: time.Now().UTC()}
	record := audit.Record{Change: audit.Reload, Entries: len(r.Changes), Changed: len(r.Changes), First: r.Changes, Source: "signal"}
	audit.ByCaller(ctx, &record)
	if err != nil {
		done.Error = err.Error()
		err = fmt.Errorf("reload, the old configuration stays: %w", err)
		h.o.Log.Error(err.Error())
	}
	h.reloaded.Store(&done)
	h.audit.Attempt(record, err)
	if err != nil {
		return r, err
	}
	for _, line := range r.Changes {
		h.o.Log.Info("configuration", "change", line)
	}
	r.Published = h.publisher.wait(ctx, wait)
	return r, nil
}

func (h *Hub) reload(ctx context.Context) (changes []string, wait <-chan struct{}, err error) {
	next, err := h.o.Reader.Read()
	if err != nil {
		return nil, nil, err
	}
	changes = config.Diff(h.conf(), next)
	if fixed := config.Fixed(changes); len(fixed) > 0 {
		return nil, nil, errors.New("a running hub cannot change this, restart it: " + strings.Join(fixed, "; "))
	}
	if h.o.Process != nil {
		if err := h.o.Process.Check(next); err != nil {
			return nil, nil, err
		}
	}
	var before lists.ByName[*managed]
	if err := h.Do(ctx, func() error { before = h.lists.byName; return nil }); err != nil {
		return nil, nil, err
	}
	lists, err := h.openLists(ctx, next, before)
	if err != nil {
		return nil, nil, err
	}
	// What was read is taken in whether the caller waits or not.
	err = h.Do(context.WithoutCancel(ctx), func() error {
		if err := h.replace(next, lists); err != nil {
			return err
		}
		changes = append(changes, h.trials.Follow()...)
		wait = h.publisher.again()
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for _, l := range lists {
		if l.feed == nil || l == before[l.Name] {
			continue
		}
		// What it keeps until its sources are read: Take comes once they are, and a restart before that.
		if err := l.feed.Keep(0); err != nil {
			h.o.Log.Error("reload: what the list has could not be saved, a restart would not find it: "+err.Error(), "list", l.Name)
		}
	}
	if h.o.Process != nil {
		h.o.Process.Configure(next)
	}
	return changes, wait, nil
}

// openLists returns the lists of a configuration: those there are whose settings are the
// same, and others without a history.
func (h *Hub) openLists(ctx context.Context, next *config.Hub, before lists.ByName[*managed]) (all []*managed, err error) {
	wide := next.MaxCoverage != h.conf().MaxCoverage
	for _, c := range next.AllLists() {
		former := before[c.Name]
		if former != nil && reflect.DeepEqual(former.List, c) && (former.feed == nil || !wide) {
			all = append(all, former)
			continue
		}
		l, err := h.openList(ctx, c, next, former)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// replace makes lists those of the hub, by a configuration, or changes nothing.
func (h *Hub) replace(next *config.Hub, lists []*managed) error {
	if err := h.dir.room(); err != nil {
		return err
	}
	var added, opened []*managed
	undo := func() {
		for _, l := range added {
			h.store.Release(l.Name)
		}
	}
	for _, l := range lists {
		former := h.lists.get(l.Name)
		if former == l {
			continue
		}
		opened = append(opened, l)
		if former != nil {
			l.history, l.released, l.since, l.gate, l.waiting = former.history, former.released, former.since, former.gate, former.waiting
			l.behind = former.behind
			continue
		}
		history, damaged, err := h.store.List(l.Name)
		if err != nil {
			undo()
			return err
		}
		l.history, added = history, append(added, l)
		if damaged != nil {
			h.o.Log.Error("a new epoch begins: "+damaged.Error(), "epoch", h.store.Epoch())
			for _, l := range h.lists.all {
				l.rebased()
			}
		}
		l.released = h.releases.last(l)
	}
	if err := h.releases.plan(next, lists); err != nil {
		undo()
		return err
	}
	before := h.lists.all
	h.lists.set(lists)
	h.take(next)
	_ = h.trials.Decide(h.trials.Decided())
	for _, l := range before {
		if h.lists.get(l.Name) == nil {
			h.store.Release(l.Name)
		}
	}
	for _, l := range opened {
		l.fill(next, h.o.Log)
		if err := h.releases.commit(l); err != nil { // which is tried again
			h.o.Log.Error("reload: "+err.Error(), "list", l.Name)
		}
	}
	h.Follow(h.loop.ctx)
	h.note()
	return nil
}
