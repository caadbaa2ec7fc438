package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/audit"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/list/listfile"
	"weir/control/notify"
	"weir/control/observe/traffic"
	"weir/control/ruleset"
	"weir/control/stage"
	"weir/control/stage/tracker"
	"weir/filter/verdict"
	"weir/loader/netif"
)

// notices turns what happens into events of notifications, in its order: each method
// takes in one kind. The daemon's loop owns it, but for what says otherwise.
type notices struct {
	*notify.Notifier // safe for concurrent use

	interfaces map[netif.Target]attach.Condition // as last seen
	unfiltered map[netif.Target]bool             // those of which a begin was sent, and no end yet
	watcher    *tracker.Watcher                  // of the flows
	flows      map[flowID]bool                   // whose begin was sent, and whose end is to be
	heavy      notify.Throttle
	surge      notify.Meter // of dropped packets
	arrivals   notify.Meter // of all packets

	mu      sync.Mutex     // guards the rest, which feeds and API handlers use
	failing map[string]int // failed attempts of a source, by list and source
	refused notify.Throttle
}

// flowID identifies a heavy hitter of a tracker.
type flowID struct {
	tracker string
	hash    uint64
}

// maxFlowsNotified bounds the heavy hitters whose end is waited for.
const maxFlowsNotified = 1024

// notifyGrace is how long receivers have for the last events when the daemon ends.
const notifyGrace = 2 * time.Second

// newNotices returns notices of a daemon of a version, which go nowhere before Reconfigure.
func newNotices(version string, log *slog.Logger) *notices {
	return &notices{
		Notifier: notify.New(version, log), interfaces: make(map[netif.Target]attach.Condition),
		unfiltered: make(map[netif.Target]bool),
		flows:      make(map[flowID]bool), failing: make(map[string]int),
		heavy: notify.Throttle{Most: 10, Refill: time.Second}, refused: notify.Throttle{Most: 10, Refill: 10 * time.Second},
	}
}

// Reconfigure follows a configuration.
func (n *notices) Reconfigure(c *config.Config) {
	n.Configure(c.Notify.Targets)
	n.surge.SurgeSpec = c.Notify.Surge
	n.arrivals.Times = c.Notify.Surge.Times
	n.endSources(c.Lists)
}

// endSources ends the failures of sources that lists do not have.
func (n *notices) endSources(lists []config.List) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for id, failures := range n.failing {
		name, source, _ := strings.Cut(id, "\x00")
		if slices.ContainsFunc(lists, func(l config.List) bool {
			return l.Name == name && slices.Contains(l.SourceNames(), source)
		}) {
			continue
		}
		delete(n.failing, id)
		if failures >= 2 {
			n.Send(notify.Event{
				Kind: notify.Feed, State: notify.End, Severity: notify.Info, Feed: &notify.FeedEvent{List: name, Source: source},
				Text: fmt.Sprintf("list %s: %s is no longer configured", name, source),
			})
		}
	}
}

// HeavyHitters takes in which flows have become heavy, and which no longer are.
func (n *notices) HeavyHitters(of *tracker.Watcher, happened []tracker.Event, now time.Time) {
	if of != n.watcher { // it knows nothing of the flows of the one before
		n.watcher = of
		clear(n.flows)
	}
	for _, h := range happened {
		id := flowID{h.Spec.Label(), h.Flow.Hash}
		e := notify.Event{Time: now, Kind: notify.Heavy, State: notify.Begin, Severity: notify.Warning, Flow: &notify.FlowEvent{
			Flow: stage.FlowName(h.Flow.Key), Tracker: string(h.Spec.Key), Action: h.Spec.Action.String(),
			Packets: h.Flow.Packets, Bytes: h.Flow.Bytes, Interval: h.Over.Round(time.Millisecond).Seconds(), Unmet: h.Unmet, CutsOff: h.CutsOff,
		}, Text: h.String()}
		if h.Spec.Action != tracker.ReportOnly {
			e.Kind = notify.Penalty
		}
		switch {
		case h.Released:
			if !n.flows[id] {
				continue
			}
			delete(n.flows, id)
			e.State, e.Severity = notify.End, notify.Info
			n.Send(e)
			continue
		case h.Unmet && h.CutsOff == "":
			e.Severity = notify.Error
		}
		if len(n.flows) >= maxFlowsNotified {
			n.heavy.More++
			continue
		}
		var ok bool
		if e.More, ok = n.heavy.Pass(now); ok {
			n.flows[id] = true
			n.Send(e)
		}
	}
}

// Fetched takes in the outcome of an attempt to read a source. A first failure may be
// a restart of the server: the second, some seconds later, is sent. It is safe for
// concurrent use.
func (n *notices) Fetched(name string, o feed.Outcome) {
	n.mu.Lock()
	defer n.mu.Unlock() // while sending, too: for the order
	id := name + "\x00" + o.Source
	e := notify.Event{Kind: notify.Feed, Feed: &notify.FeedEvent{List: name, Source: o.Source, Entries: o.Entries}}
	if o.Result == feed.Failed {
		if n.failing[id]++; n.failing[id] != 2 {
			return
		}
		e.State, e.Severity = notify.Begin, notify.Warning
		e.Feed.Failure, e.Feed.Error = o.Failure.String(), o.Err.Error()
		e.Text = fmt.Sprintf("list %s: %s cannot be read, %s: %v", name, o.Source, remain(o.Entries), o.Err)
	} else {
		was := n.failing[id]
		delete(n.failing, id)
		if was < 2 {
			return
		}
		e.State, e.Severity = notify.End, notify.Info
		e.Text = fmt.Sprintf("list %s: %s can be read again", name, o.Source)
	}
	n.Send(e)
}

// Follow takes in the states of the interfaces. Interfaces that only a pattern names
// come and go.
func (n *notices) Follow(states []attach.State, named []netif.Target) {
	next := make(map[netif.Target]attach.Condition)
	passing := func(t netif.Target) bool { return !slices.Contains(named, t) }
	for _, s := range states {
		was, known := n.interfaces[s.Target]
		next[s.Target] = s.Condition
		e := notify.Event{Kind: notify.Interface, Interface: &notify.InterfaceEvent{
			Interface: s.Iface, Netns: s.Netns, State: string(s.Condition), Problem: s.Problem,
		}}
		switch {
		case s.Condition == was, s.Condition == attach.Gone && passing(s.Target):
			continue
		case s.Condition == attach.Filtered:
			if !known || was == attach.Gone && passing(s.Target) {
				continue
			}
			e.State, e.Severity, e.Text = notify.End, notify.Info, s.Target.String()+" is filtered again"
			if was == attach.Unpinned {
				e.Text = s.Target.String() + " is pinned again: filtering goes on when weir ends"
			}
		default:
			e.State, e.Severity = notify.Begin, notify.Error
			e.Text = fmt.Sprintf("%s is not filtered: it is %s", s.Target, s.Condition.Says())
			if s.Condition == attach.Unpinned {
				e.Text = fmt.Sprintf("%s is %s", s.Target, s.Condition.Says())
			}
			if s.Problem != "" {
				e.Text += ": " + s.Problem
			}
		}
		if e.State == notify.Begin {
			n.unfiltered[s.Target] = true
		} else {
			delete(n.unfiltered, s.Target)
		}
		n.Send(e)
	}
	for t := range n.unfiltered {
		if _, known := next[t]; !known {
			delete(n.unfiltered, t)
			n.Send(notify.Event{
				Kind: notify.Interface, State: notify.End, Severity: notify.Info,
				Interface: &notify.InterfaceEvent{Interface: t.Iface, Netns: t.Netns, State: string(attach.Gone)},
				Text:      t.String() + " is no longer to be filtered",
			})
		}
	}
	n.interfaces = next
}

// Second takes in the rates of a second, and the flood that is known by then, or nil.
func (n *notices) Second(r traffic.Rates, flood *api.Flood) {
	dropped, what := r.Dropped, "packets are dropped"
	if r.Monitor {
		dropped, what = float64(r.Grown[verdict.WouldBlock].Packets)/max(r.Interval.Seconds(), 1e-3), "packets would be dropped"
	}
	for _, of := range []struct {
		meter      *notify.Meter
		rate       float64
		arriving   bool
		name, unit string
	}{
		{&n.arrivals, r.Packets, true, "traffic", "packets arrive"},
		{&n.surge, dropped, false, "drops", what},
	} {
		state, drops := of.meter.Observe(of.rate)
		if drops == nil {
			continue
		}
		drops.Monitor, drops.Arriving = r.Monitor, of.arriving
		e := notify.Event{Kind: notify.Surge, State: state, Severity: notify.Warning, Drops: drops}
		e.Text = fmt.Sprintf("a surge of %s: %.0f %s a second, %.0f on average before", of.name, drops.Rate, of.unit, drops.Average)
		if state == notify.Begin && flood != nil {
			drops.Is, drops.Do = flood.Is(), flood.Do()
			e.Text += fmt.Sprintf(". It is: %s. Do: %s", strings.Join(drops.Is, "; "), drops.Do)
		}
		if state == notify.End {
			e.Severity, e.Text = notify.Info, fmt.Sprintf("the surge of %s is over: %.0f %s a second", of.name, drops.Rate, of.unit)
		}
		n.Send(e)
	}
}

// refuse sends that a change was refused. It is safe for concurrent use.
func (n *notices) refuse(c notify.ChangeEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	more, ok := n.refused.Pass(time.Now())
	if !ok {
		return
	}
	text := "refused: " + c.Error
	if c.User != "" {
		text = fmt.Sprintf("refused, by user %s: %s", c.User, c.Error)
	}
	n.Send(notify.Event{Kind: notify.Refused, Severity: notify.Warning, More: more, Change: &c, Text: c.Change + " " + text})
}

// RefusedChange takes in why a change of entries was refused, unless the request
// itself was wrong: who sent it knows, but for a change that was queued.
func (n *notices) RefusedChange(c api.Change, name string, err error) {
	var bad *api.BadRequest
	switch {
	case !c.Given.IsZero():
	case errors.Is(err, api.ErrNoList), errors.Is(err, context.Canceled):
		return
	case errors.As(err, &bad):
		if _, wrong := listfile.ParseEntry(bad.Text); bad.Entry == nil || wrong != nil {
			return
		}
	}
	r := audit.Record{}
	audit.By(&r, c.UID, c.Client)
	n.refuse(notify.ChangeEvent{
		Change: audit.NameOf(c), List: name, Error: err.Error(), Entries: len(c.Entries), UID: r.UID, User: r.User, Source: r.Source,
	})
}

// RefusedReload takes in why a configuration was refused.
func (n *notices) RefusedReload(ctx context.Context, err error) {
	r := audit.Record{Source: "signal"}
	audit.ByCaller(ctx, &r)
	n.refuse(notify.ChangeEvent{Change: audit.Reload, Error: err.Error(), UID: r.UID, User: r.User, Source: r.Source})
}

// RefusedList takes in why the contents of a list's sources were refused.
func (n *notices) RefusedList(l *ruleset.List) {
	n.refuse(notify.ChangeEvent{Change: "list", List: l.Name, Error: l.Refused.Error(), Entries: l.From.Status().Entries})
}

// TestNotify implements [server.Notifier]. It is safe for concurrent use.
func (n *notices) TestNotify(ctx context.Context, target string) (tested []api.NotifyTested, err error) {
	all, err := n.Test(ctx, target)
	if errors.Is(err, notify.ErrNoTarget) {
		return nil, fmt.Errorf("%w%s", api.ErrNoTarget, strings.TrimPrefix(err.Error(), notify.ErrNoTarget.Error()))
	}
	for _, t := range all {
		of := api.NotifyTested{
			Target: t.Target, To: t.Place, Delivered: t.Err == nil, Answer: t.Answer, Seconds: t.Took.Seconds(), Waiting: t.Waiting,
		}
		if t.Err != nil {
			of.Error = t.Err.Error()
		}
		tested = append(tested, of)
	}
	return tested, err
}

// remain says what a source has after a failure.
func remain(entries int) string {
	if entries == 0 {
		return "and it has no entries of before"
	}
	return "the old contents stay"
}
