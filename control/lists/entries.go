package lists

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/feed"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/ordered"
)

// ManualEntries has a list's manual entries at some moment.
type ManualEntries struct {
	Journal      *journal.Journal
	Name, Action string
	Contents     *list.Set

	// What CrowdSec says of the entries that come from there, as far as they are
	// active; nil: none do.
	Decisions *feed.Feed
	Active    *list.Set
	Rule      interface {
		Keys(netip.Prefix) []key.Key // of a decision, by the sides that the list has
	}
}

// ReasonLeft is the reason of an entry that has left a feed, and stays for its
// list's TTL. It was added by no user.
const ReasonLeft = "left the feed"

// Lingers reports whether an entry has left a feed, and was added by no user.
func Lingers(e journal.Entry) bool { return e.UID == api.NoUID && e.Reason == ReasonLeft }

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

// Page returns the manual entries of lists that are asked for, after a position.
func Page(ctx context.Context, all []ManualEntries, asked api.EntriesQuestion) (page api.Entries, err error) {
	at, err := parsePageCursor(asked.After)
	if err != nil {
		return page, err
	}
	ordered.By(all, func(a, b ManualEntries) int { return strings.Compare(a.Name, b.Name) })
	users := make(map[uint32]string)
	now := time.Now()
	for _, l := range all {
		if l.Name < at.list {
			continue
		}
		var after *key.Key
		if l.Name == at.list {
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
func (l *ManualEntries) first(ctx context.Context, after *key.Key, asked api.EntriesQuestion, now time.Time, n int) []shownEntry {
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
	for k := range l.Contents.All() {
		if seen++; seen%4096 == 0 && ctx.Err() != nil {
			return nil
		}
		if !wanted(k) {
			continue
		}
		if e, ok := l.Journal.Get(l.Name, k); ok && !(asked.Manual && Lingers(e)) { // else it was removed since
			add(shownEntry{Entry: e})
		}
	}
	if l.Decisions != nil && !asked.Manual {
		for p, by := range l.Decisions.Decisions() {
			if seen++; seen%4096 == 0 && ctx.Err() != nil {
				return nil
			}
			for _, k := range l.Rule.Keys(p) {
				if !wanted(k) || !l.Active.Has(k) {
					continue
				}
				if _, ok := l.Journal.Get(l.Name, k); !ok { // else it is a manual entry, too
					e := journal.Entry{List: l.Name, Key: k, Added: by.Added, Expires: by.Expires, Reason: by.Scenario, UID: api.NoUID}
					add(shownEntry{e, cmp.Or(by.Origin, "unknown")})
				}
			}
		}
	}
	shorten()
	return first
}

func entryOf(l ManualEntries, e shownEntry, users map[uint32]string) api.Entry {
	out := api.Entry{
		List: l.Name, Action: l.Action, Entry: e.Key.String(), Manual: e.origin == "" && !Lingers(e.Entry), Added: e.Added, Reason: e.Reason, Origin: e.origin,
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
	out.Client = e.Client
	return out
}

// Export returns entries in one of the formats, of a list for sources, destinations or both.
func Export(all *list.Set, name, format string, src, dst bool) (api.Export, error) {
	var e listfile.Export
	switch format {
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
