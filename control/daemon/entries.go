package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/journal"
	"weir/control/list"
	"weir/filter/key"
)

// reasonLeft is the reason of an entry that has left a feed, and stays for its
// list's TTL. It was added by no user.
const reasonLeft = "left the feed"

// manualList is a list's manual entries at some moment.
type manualList struct {
	name, action string
	contents     *list.Set
}

// Entries implements [api.Daemon]. Run's goroutine only lends its sets, which are
// immutable: however many entries there are, filtering goes on.
func (d *Daemon) Entries(ctx context.Context, asked api.EntriesQuestion) (page api.Entries, err error) {
	var lists []manualList
	if err := d.Do(ctx, func() error {
		if asked.List != "" && d.prepared.list(asked.List) == nil {
			return fmt.Errorf("%w: %q", api.ErrNoList, asked.List)
		}
		for _, l := range d.prepared.lists {
			if asked.List == "" || asked.List == l.Name {
				lists = append(lists, manualList{l.Name, string(l.Action), d.prepared.contents(l.manual)})
			}
		}
		return nil
	}); err != nil {
		return page, err
	}
	slices.SortFunc(lists, func(a, b manualList) int { return strings.Compare(a.name, b.name) })
	users := make(map[uint32]string)
	now := time.Now()
	for _, l := range lists {
		if l.name < asked.After.List {
			continue
		}
		var after *key.Key
		if l.name == asked.After.List {
			after = &asked.After.Key
		}
		// One more than the page has, to know whether there is another page.
		for _, e := range d.firstEntries(ctx, l, after, asked, now, asked.Limit+1-len(page.Entries)) {
			if len(page.Entries) == asked.Limit {
				next, err := api.Cursor{List: page.Entries[asked.Limit-1].List, Key: asked.After.Key}.MarshalText()
				page.Next = string(next)
				return page, err
			}
			asked.After.Key = e.Key
			page.Entries = append(page.Entries, entryOf(l, e, users))
		}
		if ctx.Err() != nil {
			return api.Entries{}, ctx.Err()
		}
	}
	return page, nil
}

// firstEntries returns the first entries of a list after a key, n at most.
func (d *Daemon) firstEntries(ctx context.Context, l manualList, after *key.Key, asked api.EntriesQuestion, now time.Time, n int) []journal.Entry {
	var first []journal.Entry
	byKey := func(a, b journal.Entry) int { return a.Key.Compare(b.Key) }
	shorten := func() {
		slices.SortFunc(first, byKey)
		first = first[:min(n, len(first))]
	}
	sorted, seen := false, 0 // sorted: there are n, in order, and what comes after the last is not wanted
	for k := range l.contents.All() {
		if seen++; seen%4096 == 0 && ctx.Err() != nil {
			return nil
		}
		if after != nil && k.Compare(*after) <= 0 || sorted && k.Compare(first[n-1].Key) > 0 {
			continue
		}
		e, ok := d.journal.Get(l.name, k)
		switch {
		case !ok: // removed since
		case asked.Expiring > 0 && (e.Expires.IsZero() || e.Expires.After(now.Add(asked.Expiring))):
		case asked.Manual && lingers(e):
		default:
			if first = append(first, e); len(first) >= 2*n {
				shorten()
				sorted = true
			}
		}
	}
	shorten()
	return first
}

// lingers reports whether an entry has left a feed, and was added by no user.
func lingers(e journal.Entry) bool { return e.UID == api.NoUID && e.Reason == reasonLeft }

func entryOf(l manualList, e journal.Entry, users map[uint32]string) api.Entry {
	out := api.Entry{
		List: l.name, Action: l.action, Entry: e.Key.String(), Manual: !lingers(e), Added: e.Added, Reason: e.Reason,
	}
	if !e.Expires.IsZero() {
		out.Expires = &e.Expires
	}
	if e.UID != api.NoUID {
		name, known := users[e.UID]
		if !known {
			name = userName(e.UID)
			users[e.UID] = name
		}
		out.UID, out.User = &e.UID, name
	}
	return out
}

// Flush implements [api.Daemon].
func (d *Daemon) Flush(ctx context.Context, name string) (changed api.Changed, err error) {
	changed.List = name
	var batch []journal.Change
	if err := d.Do(ctx, func() error {
		l := d.prepared.list(name)
		if l == nil {
			return fmt.Errorf("%w: %q", api.ErrNoList, name)
		}
		for k := range d.prepared.contents(l.manual).All() {
			batch = append(batch, journal.Change{Remove: true, Entry: journal.Entry{List: name, Key: k, Allow: l.Action == config.Allow}})
		}
		if len(batch) == 0 {
			return nil
		}
		changed.Removed, err = d.change(batch)
		return err
	}); err != nil {
		return changed, err
	}
	r := auditRecord{Time: time.Now(), Change: auditFlush, List: name, Entries: len(batch), Changed: changed.Removed, First: firstKeys(batch)}
	if caller, ok := api.CallerOf(ctx); ok {
		r.by(caller.UID, caller.Client)
	}
	d.audit.record(r)
	return changed, nil
}

// Export implements [api.Daemon].
func (d *Daemon) Export(ctx context.Context, name, format string) (api.Export, error) {
	var of engine.List
	var sets []*list.Set
	if err := d.Do(ctx, func() error {
		l := d.prepared.list(name)
		if l == nil {
			return fmt.Errorf("%w: %q", api.ErrNoList, name)
		}
		of = l.rule()
		if sets = []*list.Set{d.prepared.contents(l.manual)}; l.source != 0 {
			sets = append(sets, d.prepared.contents(l.source))
		}
		return nil
	}); err != nil {
		return api.Export{}, err
	}
	slices.SortFunc(sets, func(a, b *list.Set) int { return cmp.Compare(b.Len(), a.Len()) }) // a small addition to a large set is cheap
	all := list.Union(sets...)
	var e list.Export
	switch src, dst := of.Direction != engine.Destination, of.Direction != engine.Source; format {
	case api.FormatPlain:
		e = all.Plain()
	case api.FormatIPSet:
		e = all.IPSet(name, src, dst)
	case api.FormatNFT:
		e = all.NFT(name, src, dst)
	default:
		return api.Export{}, &api.BadRequest{Err: fmt.Errorf("unknown format %q", format)}
	}
	return api.Export{Text: e, LeftOut: e.LeftOut()}, nil
}
