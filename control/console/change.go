package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/quantity"
)

// quickTTL is how long what is blocked with one click stays.
const quickTTL = time.Hour

// defaultReason is the reason of a change that has none.
const defaultReason = "weir console"

// result is the result of a change.
type result struct {
	failed bool
	text   string
	undo   int    // its number; -1: there is none
	what   string // undoing does
	ask    *question
}

// change makes the change that a form asks for.
func (c *Console) change(w http.ResponseWriter, q *http.Request, one *session) {
	if one.ReadOnly {
		sorry(w, q, http.StatusForbidden, "Nothing was changed", "This session may only read: another one may change something. "+c.another(q))
		return
	}
	if sure := q.PostForm.Get("sure"); one.once(sure) {
		r := c.act(q, one)
		one.show(&r)
		if !r.failed {
			one.carriedOut(sure)
		}
	}
	if !partial(q) {
		http.Redirect(w, q, sessionPath+one.id+"/#result", http.StatusSeeOther)
		return
	}
	show(w, q, c.changer.changed(q.Context(), one))
}

func failed(err error) result { return result{failed: true, text: err.Error(), undo: -1} }

// act makes a change. Buttons of a row have the entry in their own names.
func (c *Console) act(q *http.Request, one *session) result {
	form := q.PostForm
	if r, ok := c.changer.act(api.As(q.Context(), one.caller(q)), form); ok {
		return r
	}
	if text := form.Get("undo"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			return failed(errNotUndone)
		}
		u, err := one.recall(n)
		if err != nil {
			return failed(err)
		}
		done, r := c.apply(q, one, u.change)
		if done != nil {
			one.forget(n)
			r.text = "Undone: " + r.text
		}
		return r
	}
	change, err := asked(form)
	if sure := form.Get("sure"); strings.HasPrefix(sure, heavyFlows+" ") {
		change, err = one.confirmed(sure)
	}
	if err != nil {
		return failed(err)
	}
	before := c.changer.present(q.Context(), change)
	done, r := c.apply(q, one, change)
	if done == nil {
		return r
	}
	if u := inverse(change, *done, before, c.sessions.now()); u.what != "" {
		r.undo, r.what = one.remember(u), u.what
	}
	return r
}

// asked returns the change that a form asks for.
func asked(form url.Values) (api.Change, error) {
	if entry := form.Get("block"); entry != "" {
		return api.Change{Action: api.Block, Entries: []string{entry}, TTL: quickTTL.Seconds(), Reason: defaultReason}, nil
	}
	if entry := form.Get("allow"); entry != "" {
		return api.Change{Action: api.Allow, Entries: []string{entry}, TTL: quickTTL.Seconds(), Reason: defaultReason}, nil
	}
	if text := form.Get("remove"); text != "" {
		parts := strings.SplitN(text, " ", 3) // names of lists have no spaces
		if len(parts) != 3 {
			return api.Change{}, fmt.Errorf("remove=%.60q: want an action, a list and an entry", text)
		}
		return api.Change{Remove: true, Action: parts[0], List: parts[1], Entries: []string{parts[2]}}, nil
	}
	change := api.Change{Action: form.Get("action"), Entries: []string{strings.TrimSpace(form.Get("entry"))}, Reason: strings.TrimSpace(form.Get("reason"))}
	if change.Entries[0] == "" {
		return change, fmt.Errorf("which entry? An address, a prefix or a flow, as in 192.0.2.1, 198.51.100.0/24 or tcp *:* > 203.0.113.7:443")
	}
	if change.Reason == "" {
		change.Reason = defaultReason
	}
	if text := form.Get("ttl"); text != "" && text != "never" {
		var ttl quantity.Duration
		if err := ttl.UnmarshalText([]byte(text)); err != nil {
			return change, err
		}
		change.TTL = time.Duration(ttl).Seconds()
	}
	return change, nil
}

// apply makes a change, as the session's caller.
func (c *Console) apply(q *http.Request, one *session, change api.Change) (*api.Changed, result) {
	by := one.caller(q)
	change.UID, change.Client, change.SSH, change.Connection = by.UID, by.Client, by.SSH, by.Connection
	if err := change.Check(); err != nil {
		return nil, failed(err)
	}
	done, note, err := c.changer.apply(api.As(q.Context(), by), change)
	if err != nil {
		return nil, failed(err)
	}
	entry, r := named(change.Entries), result{undo: -1}
	is, was := "is", "was"
	if len(change.Entries) > 1 {
		is, was = "are", "were"
	}
	during := ""
	if change.TTL > 0 {
		during = " for " + brief(time.Duration(change.TTL*float64(time.Second)))
	}
	past := map[string]string{api.Block: "blocked", api.Allow: "allowed"}[change.Action]
	switch {
	case done.Queued:
		r.text = fmt.Sprintf("%s waits: the daemon has ended, and makes the change when it starts", entry)
	case change.Remove && done.Removed == 0:
		r.text = fmt.Sprintf("%s %s not in list %s: explain shows what lists it", entry, was, done.List)
	case change.Remove:
		r.text = fmt.Sprintf("%s %s no longer %s by list %s", entry, is, past, done.List)
	case done.Added == 0:
		r.text = fmt.Sprintf("%s %s in list %s already, and %s %s%s from now on", entry, was, done.List, is, past, during)
	default:
		r.text = fmt.Sprintf("%s %s %s%s, in list %s", entry, is, past, during, done.List)
	}
	r.text += note
	return &done, r
}

// named names entries by the first one.
func named(entries []string) string {
	if more := len(entries) - 1; more > 0 {
		return entries[0] + " and " + count(more) + " more"
	}
	return entries[0]
}

// changer makes changes at a daemon or a hub.
type changer interface {
	// apply makes a change. The note follows what it has done.
	apply(context.Context, api.Change) (done api.Changed, note string, err error)
	// act does what a form asks for that only this kind of page has, as the context's
	// caller, and reports whether that is so.
	act(context.Context, url.Values) (result, bool)
	// present returns the manual entry that a change is about, nil if there is none, or
	// it is unknown.
	present(context.Context, api.Change) *api.Entry
	// changed returns what writes the result of the last change, and the panels that it
	// is in.
	changed(context.Context, *session) func(*markup)
}

// ofDaemon makes changes at a daemon.
type ofDaemon struct{ c *Console }

func (o ofDaemon) apply(ctx context.Context, change api.Change) (api.Changed, string, error) {
	done, err := o.c.daemon.Change(ctx, change)
	return done, "", err
}

func (o ofDaemon) changed(ctx context.Context, one *session) func(*markup) {
	v := o.c.look(one)
	o.c.lookClosely(ctx, v)
	return v.changed
}

func (o ofDaemon) present(ctx context.Context, change api.Change) *api.Entry {
	e, err := o.c.daemon.Explain(ctx, change.Entries[0], true)
	if err != nil {
		return nil
	}
	for _, a := range e.Answers {
		for _, m := range a.Matches {
			if m.Source != "" || m.Derived != nil || m.Action != change.Action || m.Entry != change.Entries[0] || change.List != "" && m.List != change.List {
				continue
			}
			return &api.Entry{List: m.List, Action: m.Action, Entry: m.Entry, Expires: m.Expires, Reason: m.Reason}
		}
	}
	return nil
}

// inverse returns how to undo a change, given the entry that was there before, nil for
// none.
func inverse(change api.Change, done api.Changed, before *api.Entry, now time.Time) undo {
	back := api.Change{Action: change.Action, List: done.List, Entries: change.Entries}
	switch {
	case !change.Remove && done.Added > 0 && done.Unchanged == 0:
		back.Remove = true
		return undo{back, "remove " + named(change.Entries) + " again"}
	case len(change.Entries) > 1:
		return undo{}
	case before == nil || before.List != done.List || change.Remove && done.Removed == 0:
		return undo{}
	}
	back.Reason = before.Reason
	if before.Expires != nil {
		back.TTL = max(1, before.Expires.Sub(now).Seconds())
	}
	return undo{back, "restore " + change.Entries[0] + " as it was"}
}
