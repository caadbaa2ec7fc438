package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"weir/control/api"
)

// What buttons do beside changes of entries. All but refresh ask first.
const (
	monitorOn  = "monitor-on"
	monitorOff = "monitor-off"
	confirm    = "confirm"
	refresh    = "refresh" // of a list, as the following
	accept     = "accept"
	rollback   = "rollback"
	enforce    = "enforce"
	try        = "try"   // a list is put on trial
	heavyFlows = "heavy" // of a tracker, which are blocked
)

// monitorTime is for how long monitor mode is switched on.
const monitorTime = time.Hour

// readWithin is in what time sources are read. A page waits as long.
const readWithin = 25 * time.Second

// errMeanwhile says that a change is not the last one any more.
var errMeanwhile = errors.New("something else was changed meanwhile: see Last change")

// question is asked before something is done.
type question struct {
	do     string // with the name of a list, or a random name of the flows to block
	text   string // what becomes of it
	button string
	change api.Change // of entries, if it is one
}

// act does what buttons ask for, or asks whether that is meant.
func (o ofDaemon) act(ctx context.Context, form url.Values) (result, bool) {
	switch {
	case form.Get("leave") != "":
		return result{undo: -1, text: "Left as it was"}, true
	case form.Get("do") != "":
		q, err := o.ask(ctx, form.Get("do"))
		if err != nil {
			return failed(err), true
		}
		return result{undo: -1, text: q.text, ask: &q}, true
	case strings.HasPrefix(form.Get("sure"), heavyFlows+" "): // a change of entries
	case form.Get("sure") != "":
		text, err := o.do(ctx, form.Get("sure"))
		if err != nil {
			return failed(err), true
		}
		return result{undo: -1, text: text}, true
	case form.Get("revert") != "":
		text, err := o.revert(ctx, form.Get("revert"))
		if err != nil {
			return failed(err), true
		}
		return result{undo: -1, text: "Undone: " + text}, true
	}
	return result{}, false
}

// ask returns what to ask before something is done.
func (o ofDaemon) ask(ctx context.Context, do string) (question, error) {
	q := question{do: do}
	switch verb, list, _ := strings.Cut(do, " "); verb {
	case monitorOn:
		q.text, q.button = "In monitor mode nothing is dropped: floods and listed sources come through, for an hour.", "Drop nothing for 1 h"
	case monitorOff:
		q.text, q.button = "Packets are dropped again, as lists and trackers say.", "Drop again"
	case confirm:
		q.text, q.button = "The configuration that is active now stays, and is not rolled back.", "Keep it"
	case heavyFlows:
		// The answer is about these flows, whatever is above the limit by then.
		var err error
		if q.change, err = o.heavy(list); err != nil {
			return q, err
		}
		q.do = heavyFlows + " " + secret()
		q.text = fmt.Sprintf("The flows that are above the limit of tracker %s now are blocked for an hour: %s.", list, named(q.change.Entries))
		q.button = "Block " + count(len(q.change.Entries)) + " for 1 h"
	case accept:
		q.text, q.button = "List "+list+" takes what its sources have now, whatever was refused about it.", "Take it"
	case enforce:
		q.text, q.button = "What list "+list+" matches is dropped from now on, instead of counted.", "Drop it"
	case try:
		q.text, q.button = "List "+list+" is put on trial: what it alone matches comes through, and is counted.", "Drop nothing of it"
	case rollback:
		last, err := o.changedLast(ctx, list)
		if err != nil {
			return q, err
		}
		if last.before == nil {
			return q, fmt.Errorf("list %s: no version before this one is known", list)
		}
		q.do += " " + last.identity()
		q.text = fmt.Sprintf("%s returns from the %s entries that it has had for %s to the %s before. What the source has now is refused from then on.",
			last.name(), count(last.now.Entries), brief(o.c.sessions.now().Sub(last.now.Since)), count(last.before.Entries))
		q.button = "Return to " + count(last.before.Entries) + " entries"
	default:
		return q, fmt.Errorf("do=%.60q: that is unknown", do)
	}
	return q, nil
}

// errNoHeavy says that there is nothing to block.
var errNoHeavy = errors.New("no flow is above its limit now")

// errNotAsked says that the page shows another question, or none.
var errNotAsked = errors.New("this question is no longer open, or was answered: see Last change, or ask again")

// heavy returns the change that blocks the heavy hitters of a tracker, by its label.
func (o ofDaemon) heavy(label string) (api.Change, error) {
	change := api.Change{Action: api.Block, TTL: quickTTL.Seconds(), Reason: "weir console: above the limit of tracker " + label}
	if top := o.c.daemon.Top(); top != nil {
		for _, t := range top.Trackers {
			if t.Label() == label {
				change.Entries = heavyOf(&t)
			}
		}
	}
	if len(change.Entries) == 0 {
		return change, errNoHeavy
	}
	return change, nil
}

// heavyOf returns the flows of a tracker that are above its limit, and that no list blocks; none
// where none stands out, since the largest are then not who floods.
func heavyOf(t *api.Tracker) (all []string) {
	if t.Scattered() != "" {
		return nil
	}
	for _, f := range t.Flows {
		if f.Heavy && len(f.Lists) == 0 {
			all = append(all, f.Key)
		}
	}
	return all
}

// latest is the source of a list that has changed last, which a rollback is of.
type latest struct {
	list        string
	source      string
	several     bool             // the list has other sources, too
	now, before *api.FeedVersion // nil: no source has a version before the active one
}

// changedLast returns the source of a list that has changed last.
func (o ofDaemon) changedLast(ctx context.Context, list string) (l latest, err error) {
	versions, err := o.c.daemon.Versions(ctx, list)
	l.list, l.several = list, len(versions.Sources) > 1
	for _, s := range versions.Sources {
		if v := s.Versions; len(v) > 1 && (l.now == nil || v[0].Since.After(l.now.Since)) {
			l.source, l.now, l.before = s.Source, &v[0], &v[1]
		}
	}
	return l, err
}

// identity identifies the active version of the source, also among versions with the same
// contents.
func (l *latest) identity() string {
	sum := sha256.Sum256([]byte(l.now.Since.UTC().Format(time.RFC3339Nano) + " " + l.now.SHA256 + " " + l.source))
	return hex.EncodeToString(sum[:16])
}

// name names what is rolled back: the list, or its source where there are others.
func (l *latest) name() string {
	if l.several {
		return "Source " + l.source + " of list " + l.list
	}
	return "List " + l.list
}

// rollBack returns to the version before the active one, if the caller meant this active one.
func (o ofDaemon) rollBack(ctx context.Context, list string, meant func(*latest) bool) (string, error) {
	last, err := o.changedLast(ctx, list)
	if err != nil {
		return "", err
	}
	if last.before == nil || !meant(&last) {
		return "", errMeanwhile
	}
	outcome, err := o.c.daemon.Rollback(ctx, list)
	if err == nil && outcome.Error != "" {
		err = errors.New(outcome.Error)
	}
	return fmt.Sprintf("%s has the %s entries again that it had before", last.name(), count(outcome.Entries)), err
}

// do does something, and returns what has been done.
func (o ofDaemon) do(ctx context.Context, what string) (string, error) {
	d := o.c.daemon
	verb, list, _ := strings.Cut(what, " ")
	switch verb {
	case monitorOn, monitorOff:
		by, _ := api.CallerOf(ctx)
		on := verb == monitorOn
		change := api.MonitorChange{On: &on, UID: by.UID, Client: by.Client}
		if on {
			change.For = monitorTime.Seconds()
		}
		done, err := d.SetMonitor(ctx, change)
		if err != nil {
			return "", err
		}
		text := "Monitor mode has ended: packets are dropped again"
		switch {
		case done.Monitor && on:
			text = "Monitor mode: nothing is dropped for an hour"
		case done.Monitor:
			text = "Monitor mode stays on, as weir.yaml says"
		}
		if done.Unsaved != "" {
			text += "; a restart will forget this: " + done.Unsaved
		}
		return text, nil
	case confirm:
		return "The configuration is confirmed: it stays", d.Confirm(ctx)
	case enforce, try:
		by, _ := api.CallerOf(ctx)
		done, err := d.Enforce(ctx, list, api.EnforceChange{Off: verb == try, UID: by.UID, Client: by.Client, SSH: by.SSH, Connection: by.Connection})
		return "From now on " + done.String(), err
	case refresh, accept:
		// Reading goes on if the page is closed meanwhile.
		soon, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWithin)
		defer cancel()
		all, err := d.Refresh(soon, list, verb == accept)
		return outcomes(list, all), err
	case rollback:
		list, shown, _ := strings.Cut(list, " ")
		return o.rollBack(ctx, list, func(last *latest) bool { return last.identity() == shown })
	}
	return "", fmt.Errorf("sure=%.60q: that is unknown", what)
}

// outcomes says what became of reading the sources of a list.
func outcomes(list string, all []api.FetchOutcome) string {
	var parts []string
	for _, f := range all[:min(len(all), maxAlerts)] {
		text := fmt.Sprintf("%s: %s, %s entries", f.Source, f.Outcome, count(f.Entries))
		if f.Error != "" {
			text += " (" + f.Error + ")"
		}
		if f.Rejected {
			text += " (the source is still like what was rolled back)"
		}
		parts = append(parts, text)
	}
	if more := len(all) - maxAlerts; more > 0 {
		parts = append(parts, "and "+count(more)+" more sources")
	}
	return "List " + list + " was read: " + strings.Join(parts, "; ")
}

// revert undoes the last change, if it is the one of a time.
func (o ofDaemon) revert(ctx context.Context, at string) (string, error) {
	r := changing(o.c.daemon.Audit(maxChanges))
	if r == nil || r.Time.Format(time.RFC3339Nano) != at {
		return "", errMeanwhile
	}
	do, _ := reversal(r)
	verb, list, _ := strings.Cut(do, " ")
	switch verb {
	case "":
		return "", errNotUndone
	case rollback: // not where the source was read since
		return o.rollBack(ctx, list, func(last *latest) bool { return !last.now.Since.After(r.Time) })
	case "remove":
		by, _ := api.CallerOf(ctx)
		change := api.Change{Remove: true, Action: r.Change, List: r.List, Entries: r.First, UID: by.UID, Client: by.Client, SSH: by.SSH, Connection: by.Connection}
		if err := change.Check(); err != nil {
			return "", err
		}
		done, err := o.c.daemon.Change(ctx, change)
		return fmt.Sprintf("%s of %s entries removed from list %s", count(done.Removed), count(len(r.First)), r.List), err
	}
	return o.do(ctx, do)
}
