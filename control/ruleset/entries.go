package ruleset

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/engine"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/ordered"
)

// manualList is a list's manual entries at some moment.
type manualList struct {
	journal      *journal.Journal
	name, action string
	contents     *list.Set

	// What CrowdSec says of the entries that come from there, as far as they are
	// active; nil: none do.
	decisions *feed.Feed
	active    *list.Set
	rule      engine.List
}

// shownEntry is an entry of a page.
type shownEntry struct {
	journal.Entry
	origin string // of a decision of CrowdSec
}

// pageCursor is the position of an entry among all.
type pageCursor struct {
	list string
	key  key.Key
}

// text returns the form of the cursor that clients give back.
func (c pageCursor) text() string {
	return base64.RawURLEncoding.EncodeToString(c.key.Append([]byte(c.list + "\x00")))
}

// parsePageCursor reads such a text; "": before all.
func parsePageCursor(text string) (c pageCursor, err error) {
	if text == "" {
		return c, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(text)
	name, serial, ok := strings.Cut(string(b), "\x00")
	if err == nil && ok && name != "" {
		if k, err := key.Parse([]byte(serial)); err == nil {
			return pageCursor{name, k}, nil
		}
	}
	return c, &api.BadRequest{Err: fmt.Errorf("after=%.60q: want the next of the page before", text)}
}

// Pages reads the entries of lists. It is safe for concurrent use.
type Pages struct{ host Host }

// NewPages returns what reads the lists of a host.
func NewPages(host Host) *Pages { return &Pages{host} }

// Entries implements [server.EntriesReader]. The loop only lends its sets, which are
// immutable: however many entries there are, filtering goes on.
func (r *Pages) Entries(ctx context.Context, asked api.EntriesQuestion) (page api.Entries, err error) {
	at, err := parsePageCursor(asked.After)
	if err != nil {
		return page, err
	}
	var lists []manualList
	if err := r.host.Lend(ctx, func(a Active) error {
		if asked.List != "" {
			if _, err := a.ByName.Find(asked.List); err != nil {
				return err
			}
		}
		for _, l := range a.Lists {
			if asked.List == "" || asked.List == l.Name {
				m := manualList{journal: a.Journal, name: l.Name, action: string(l.Action), contents: a.Contents(l.ManualNumber)}
				if l.FromFeed != nil && l.Format.Kind == feed.CrowdSec {
					m.decisions, m.active, m.rule = l.FromFeed, a.Contents(l.SourceNumber), l.EngineList()
				}
				lists = append(lists, m)
			}
		}
		return nil
	}); err != nil {
		return page, err
	}
	ordered.By(lists, func(a, b manualList) int { return strings.Compare(a.name, b.name) })
	users := make(map[uint32]string)
	now := time.Now()
	for _, l := range lists {
		if l.name < at.list {
			continue
		}
		var after *key.Key
		if l.name == at.list {
			after = &at.key
		}
		// One more than the page has, to know whether there is another page.
		for _, e := range l.first(ctx, after, asked, now, asked.Limit+1-len(page.Entries)) {
			if len(page.Entries) == asked.Limit {
				page.Next = pageCursor{page.Entries[asked.Limit-1].List, at.key}.text()
				return page, nil
			}
			at.key = e.Key
			page.Entries = append(page.Entries, entryOf(l, e, users))
		}
		if ctx.Err() != nil {
			return api.Entries{}, ctx.Err()
		}
	}
	return page, nil
}

// first returns the first entries of the list after a key, n at most.
func (l *manualList) first(ctx context.Context, after *key.Key, asked api.EntriesQuestion, now time.Time, n int) []shownEntry {
	var first []shownEntry
	byKey := func(a, b shownEntry) int { return a.Key.Compare(b.Key) }
	shorten := func() {
		ordered.By(first, byKey)
		first = first[:min(n, len(first))]
	}
	sorted, seen := false, 0 // sorted: there are n, in order, and what comes after the last is not wanted
	wanted := func(k key.Key) bool {
		return (after == nil || k.Compare(*after) > 0) && (!sorted || k.Compare(first[n-1].Key) <= 0)
	}
	add := func(e shownEntry) {
		if asked.Expiring > 0 && (e.Expires.IsZero() || e.Expires.After(now.Add(asked.Expiring))) {
			return
		}
		if first = append(first, e); len(first) >= 2*n {
			shorten()
			sorted = true
		}
	}
	for k := range l.contents.All() {
		if seen++; seen%4096 == 0 && ctx.Err() != nil {
			return nil
		}
		if !wanted(k) {
			continue
		}
		if e, ok := l.journal.Get(l.name, k); ok && !(asked.Manual && Lingers(e)) { // else it was removed since
			add(shownEntry{Entry: e})
		}
	}
	if l.decisions != nil && !asked.Manual {
		for p, by := range l.decisions.Decisions() {
			if seen++; seen%4096 == 0 && ctx.Err() != nil {
				return nil
			}
			for _, k := range l.rule.Keys(p) {
				if !wanted(k) || !l.active.Has(k) {
					continue
				}
				if _, ok := l.journal.Get(l.name, k); !ok { // else it is a manual entry, too
					e := journal.Entry{List: l.name, Key: k, Added: by.Added, Expires: by.Expires, Reason: by.Scenario, UID: api.NoUID}
					add(shownEntry{e, cmp.Or(by.Origin, "unknown")})
				}
			}
		}
	}
	shorten()
	return first
}

func entryOf(l manualList, e shownEntry, users map[uint32]string) api.Entry {
	out := api.Entry{
		List: l.name, Action: l.action, Entry: e.Key.String(), Manual: e.origin == "" && !Lingers(e.Entry), Added: e.Added, Reason: e.Reason, Origin: e.origin,
	}
	if !e.Expires.IsZero() {
		out.Expires = &e.Expires
	}
	if e.UID != api.NoUID {
		name, known := users[e.UID]
		if !known {
			name = audit.UserName(e.UID)
			users[e.UID] = name
		}
		out.UID, out.User = &e.UID, name
	}
	return out
}

// Export implements [server.EntriesReader].
func (r *Pages) Export(ctx context.Context, name, format string) (api.Export, error) {
	var of engine.List
	var sets []*list.Set
	if err := r.host.Lend(ctx, func(a Active) error {
		l, err := a.ByName.Find(name)
		if err != nil {
			return err
		}
		of = l.EngineList()
		if sets = []*list.Set{a.Contents(l.ManualNumber)}; l.SourceNumber != 0 {
			sets = append(sets, a.Contents(l.SourceNumber))
		}
		if l.DerivedNumber != 0 {
			sets = append(sets, a.Contents(l.DerivedNumber))
		}
		return nil
	}); err != nil {
		return api.Export{}, err
	}
	ordered.By(sets, func(a, b *list.Set) int { return cmp.Compare(b.Len(), a.Len()) }) // a small addition to a large set is cheap
	all := list.Union(sets...)
	var e listfile.Export
	switch src, dst := of.Direction.Sides(); format {
	case api.FormatPlain:
		e = listfile.PlainFor(all, src, dst)
	case api.FormatIPSet:
		e = listfile.IPSet(all, name, src, dst)
	case api.FormatNFT:
		e = listfile.NFT(all, name, src, dst)
	default:
		return api.Export{}, &api.BadRequest{Err: fmt.Errorf("unknown format %q", format)}
	}
	return api.Export{Text: e, LeftOut: e.LeftOut()}, nil
}
