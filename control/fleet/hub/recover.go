package hub

import (
	"context"
	"fmt"
	"slices"
	"time"

	"weir/control/audit"
	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/control/journal"
	"weir/control/list/listfile"
	"weir/filter/key"
)

const (
	// recoverTime bounds the wait for reports before changes are recovered: the node that has most may not be the
	// first one.
	recoverTime = 3 * time.Second

	// maxRecovered bounds the changes of a list that are.
	maxRecovered = 100_000
)

// recovered are changes of lists that the hub's state had lost, and from which nodes they came.
type recovered struct {
	changes int
	nodes   []string
}

func (r recovered) String() string {
	return fmt.Sprintf("%d changes by commands were taken back from what the keys had signed for %q, and the audit has them; those that no node has are lost", r.changes, r.nodes)
}

// recoverLists takes in the changes of lists without feeds that nodes have, as the hub has signed them, and its
// state has not. Each begins at the version before, so that none is missing in between.
func (p *publisher) recoverLists(ctx context.Context) (r recovered, err error) {
	within, cancel := context.WithTimeout(ctx, recoverTime)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for within.Err() == nil && !(p.heard() && p.asker.connection() != nil) {
		select {
		case <-again.C:
		case <-within.Done():
		}
	}
	var names []string
	if err := p.loop.Do(ctx, func() error {
		for _, l := range p.lists.all {
			if l.feed == nil && l.released == nil {
				names = append(names, l.Name)
			}
		}
		return nil
	}); err != nil {
		return r, err
	}
	for _, name := range names {
		at := p.lists.history(name)
		if at == nil {
			continue
		}
		k, err := p.kept(ctx, name, wire.Place{})
		if err != nil {
			continue // a reload has removed it
		}
		for _, node := range p.nodes.ahead(name, k.place) {
			changes, err := p.laterOf(ctx, node, name, k.place, at.ID(k.place))
			if err != nil {
				p.log.Warn("what a node has of a list and the hub has not cannot be read: "+err.Error(), "node", node, "list", name)
			}
			if len(changes) == 0 {
				continue
			}
			if err := p.takeBack(ctx, node, name, changes); err != nil {
				return r, err
			}
			r.changes += len(changes)
			if !slices.Contains(r.nodes, node) {
				r.nodes = append(r.nodes, node)
			}
			break
		}
	}
	return r, nil
}

// laterOf returns the changes that a node has after a version of a list.
func (p *publisher) laterOf(ctx context.Context, node, name string, at wire.Place, id string) (changes []journal.Change, err error) {
	for len(changes) < maxRecovered {
		answers, err := ask[wire.Later](ctx, p.asker, []string{node}, wire.AskLater, wire.LaterQuestion{List: name, After: at}, patience, nil)
		if err == nil {
			err = answers[0].err
		}
		if err != nil {
			return changes, err
		}
		if len(answers[0].value.Deltas) == 0 {
			return changes, nil
		}
		for _, message := range answers[0].value.Deltas {
			d, err := wire.OpenDelta(p.authority.PublicKey(), message)
			if err != nil {
				return changes, err
			}
			if d.List != name || d.Epoch != at.Epoch || d.From != at.Version || d.To <= d.From || id != "" && d.FromID != id {
				return changes, fmt.Errorf("version %d of list %s does not come after %v of the hub", d.To, d.List, at)
			}
			some, err := changesOf(d, node)
			if err != nil {
				return changes, err
			}
			changes, at, id = append(changes, some...), wire.Place{Epoch: d.Epoch, Version: d.To}, d.ID
		}
	}
	return changes, nil
}

// changesOf returns the changes of a delta.
func changesOf(d wire.Delta, node string) (all []journal.Change, err error) {
	set, err := d.Set()
	if err != nil {
		return nil, err
	}
	expires := make(map[key.Key]time.Time)
	for _, e := range d.Expires {
		entry, err := listfile.ParseEntry(e.Entry)
		if err != nil {
			return nil, err
		}
		for k := range entry.Set().All() {
			expires[k] = e.At
		}
	}
	for k := range set.Remove.All() {
		all = append(all, journal.Change{Remove: true, Entry: journal.Entry{List: d.List, Key: k}})
	}
	add := func(k key.Key) {
		all = append(all, journal.Change{Entry: journal.Entry{
			List: d.List, Key: k, Added: d.Issued, Expires: expires[k], Reason: "taken back from node " + node,
		}})
	}
	for k := range set.Add.All() {
		add(k)
	}
	for k := range expires {
		if !set.Add.Has(k) && !set.Remove.Has(k) {
			add(k)
		}
	}
	return all, nil
}

// takeBack makes changes of a list once more. They become a version with the new epoch.
func (p *publisher) takeBack(ctx context.Context, node, name string, changes []journal.Change) error {
	r := audit.Record{Change: audit.TakeBack, List: name, Entries: len(changes), Changed: len(changes), Reason: "from node " + node, Source: "weir-hub"}
	for _, c := range changes[:min(len(changes), audit.MaxFirst)] {
		text := c.Key.String()
		if c.Remove {
			text = "-" + text
		}
		r.First = append(r.First, text)
	}
	err := p.loop.Do(ctx, func() error {
		l, err := p.lists.byName.Find(name)
		if err != nil {
			return err
		}
		for i := range changes {
			changes[i].Allow = l.Action == config.Allow
		}
		return l.journal.Apply(changes)
	})
	if err == nil {
		p.audit.Record(r)
	}
	return err
}

// commitAll makes versions of the changes that were taken back.
func (p *publisher) commitAll(ctx context.Context) error {
	return p.loop.Do(ctx, func() error {
		for _, l := range p.lists.all {
			if err := p.releases.commit(l); err != nil {
				return err
			}
		}
		return nil
	})
}
