// Package receive turns blackhole routes and FlowSpec rules that BGP neighbors announce into
// entries of a list of the daemon, and patterns and limits. The daemon knows nothing of BGP.
package receive

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"weir/control/api"
	"weir/control/durable"
)

// Daemon is a running daemon, as [client.Client] asks it.
type Daemon interface {
	Change(ctx context.Context, change api.Change) (*api.Changed, error)
	SetPolice(ctx context.Context, change api.PoliceChange) (*api.Policed, error)
}

// Change reports a route that was taken, refused, kept or withdrawn.
type Change struct {
	Time     time.Time  `json:"time"`
	Action   string     `json:"action"` // Taken, Refused, Kept or Withdrawn
	Neighbor netip.Addr `json:"neighbor"`
	Route    string     `json:"route"`
	Entries  []string   `json:"entries,omitempty"`  // of the list
	Patterns []string   `json:"patterns,omitempty"` // with their rates
	Reason   string     `json:"reason,omitempty"`
	Until    time.Time  `json:"until,omitzero"` // if it is kept
}

// The actions of changes.
const (
	Taken     = "taken"
	Refused   = "refused"
	Kept      = "kept" // its session has ended
	Withdrawn = "withdrawn"
)

const (
	gather    = 100 * time.Millisecond // in which messages are made one change
	turn      = 500 * time.Millisecond // for entries that are new, before withdrawals have another look
	tryAgain  = time.Second            // when the daemon does not answer
	askAgain  = time.Minute            // what the daemon has refused
	batch     = 1000                   // entries of a change
	mostLines = 50                     // of the log in a second

	// mostPassing is how many rules that let packets pass are compared with each later one: each rule would
	// be compared with thousands, and withdrawals would wait.
	mostPassing = 64
)

// Receiver keeps the list and the patterns of a daemon equal to what neighbors announce.
type Receiver struct {
	Spec

	Out   io.Writer // of Changes as JSON, a line each; nil: none
	State string    // the file that says what there is; "": none
	Dry   bool      // the daemon is not asked for anything
	Log   *slog.Logger

	routes   map[netip.Addr]map[string]*route
	sessions map[netip.Addr]*session
	serial   uint64
	has      map[item]has
	problem  string // as logged
	lines    *rate.Limiter
	unsaid   int
	unsaved  bool
	full     map[netip.Addr]bool
	hidden   map[*route]*route // by shadows; nil: routes have changed
}

// has is an item in the daemon.
type has struct {
	label string
	until time.Time // when it ends by itself
}

// Run receives until ctx is done. What the daemon has stays for the hold time.
func (r *Receiver) Run(ctx context.Context, d Daemon) error {
	r.prepare()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l, err := r.listen(ctx)
	if err != nil {
		return err
	}
	s := &speaker{Spec: &r.Spec, events: make(chan event, 64), sessions: make(map[netip.Addr]*session), connections: make(map[netip.Addr]int)}
	failed := make(chan error, 1)
	go func() { failed <- s.serve(ctx, l) }()
	r.Log.Info("waiting for neighbors", "at", l.Addr())
	err = r.loop(ctx, d, s.events, failed)
	cancel()
	l.Close()
	if err != nil {
		return err
	}
	return <-failed // when all sessions have ended
}

func (r *Receiver) prepare() {
	r.routes, r.sessions = make(map[netip.Addr]map[string]*route), make(map[netip.Addr]*session)
	r.has, r.full, r.lines = make(map[item]has), make(map[netip.Addr]bool), rate.NewLimiter(mostLines, mostLines)
}

// loop takes what sessions receive, and has the daemon follow.
func (r *Receiver) loop(ctx context.Context, d Daemon, events <-chan event, failed <-chan error) error {
	next := time.NewTimer(0)
	defer next.Stop()
	gathering := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return cmp.Or(err, errors.New("the port was closed"))
		case e := <-events:
			r.take(e, time.Now())
			if !gathering {
				gathering = true
				next.Reset(gather) // more of them come at once
			}
			continue
		case <-next.C:
		}
		for began := time.Now(); time.Since(began) < gather && r.takeWaiting(events); {
			// Withdrawals do not wait for routes that are still to be added.
		}
		gathering = false
		next.Reset(r.follow(ctx, d, time.Now()))
	}
}

// takeWaiting takes an event, if one waits.
func (r *Receiver) takeWaiting(events <-chan event) bool {
	select {
	case e := <-events:
		r.take(e, time.Now())
		return true
	default:
		return false
	}
}

// take takes an event of a session.
func (r *Receiver) take(e event, now time.Time) {
	at := e.of.Address
	current := r.sessions[at] == e.of
	switch {
	case e.up:
		r.sessions[at], r.unsaved = e.of, true
		r.Log.Info("a session begins", "neighbor", at)
	case e.down != nil && !current:
		r.say(slog.LevelWarn, "a connection is refused: "+e.down.Error(), "neighbor", at)
	case e.down != nil:
		delete(r.sessions, at)
		r.unsaved = true
		for _, of := range r.routes[at] {
			if of.ends.IsZero() {
				of.ends = now.Add(r.Hold)
			}
		}
		r.Log.Warn("a session has ended, its routes stay for the hold time: "+e.down.Error(), "neighbor", at, "routes", len(r.routes[at]), "hold", r.Hold)
	case !current:
	case e.ended: // what the former session had is not there any more
		for id, of := range r.routes[at] {
			if !of.ends.IsZero() && strings.HasPrefix(id, idOf(e.family)) {
				r.forget(at, id, now)
			}
		}
	default:
		for _, n := range e.update.withdrawn {
			r.forget(at, n.identify(), now)
		}
		for _, n := range e.update.announced {
			r.learn(n, e, now)
		}
	}
}

// learn takes a route.
func (r *Receiver) learn(n nlri, e event, now time.Time) {
	at, id := e.of.Address, n.identify()
	of := r.route(n, e.of.Neighbor, &e.update.attributes)
	former := r.routes[at][id]
	switch {
	case of == nil:
		r.forget(at, id, now)
		return
	case former == nil && len(r.routes[at]) >= r.MaxRoutes:
		if !r.full[at] {
			r.full[at] = true
			r.say(slog.LevelWarn, "a neighbor has more routes than may be (--max-routes), which are refused", "neighbor", at, "first", of.text)
		}
		return
	case r.routes[at] == nil:
		r.routes[at] = make(map[string]*route)
	}
	r.serial++
	of.number = r.serial
	if former != nil { // it does not lose its place
		of.number, of.said = former.number, former.said
		if slices.Equal(of.items, former.items) {
			of.refused, of.again = former.refused, former.again
		}
	}
	r.routes[at][id] = of
	r.hidden = nil
}

// forget removes a route.
func (r *Receiver) forget(at netip.Addr, id string, now time.Time) {
	of := r.routes[at][id]
	if of == nil {
		return
	}
	delete(r.routes[at], id)
	r.full[at], r.hidden = false, nil
	r.report(of, Change{Action: Withdrawn}, now)
}

// wanted decides about all routes, and returns the items of those that are taken, each with the route that
// lasts longest.
func (r *Receiver) wanted(now time.Time) map[item]*route {
	var all, rules []*route
	for at, of := range r.routes {
		for id, one := range of {
			if !one.ends.IsZero() && !now.Before(one.ends) {
				r.forget(at, id, now)
				continue
			}
			all = append(all, one)
			if one.rule != nil {
				rules = append(rules, one)
			}
		}
	}
	if r.hidden == nil {
		r.hidden = shadows(rules)
	}
	slices.SortFunc(all, func(a, b *route) int { return cmp.Compare(a.number, b.number) })
	want, scopes, patterns, sum := make(map[item]*route), make(map[netip.Prefix]bool), 0, 0.0
	for _, of := range all {
		switch {
		case of.wrong != nil:
			of.refused = of.wrong
			continue
		case !of.again.IsZero() && now.Before(of.again): // the daemon has refused it
			continue
		}
		of.again, of.refused = time.Time{}, nil
		more, wider := 0, 0.0
		if !scopes[of.scope] {
			wider = covered(of.scope)
		}
		for _, i := range of.items {
			if _, there := want[i]; !there && i.rate != "" {
				more++
			}
		}
		switch {
		case r.hidden[of] != nil:
			of.refused = fmt.Errorf("an earlier rule may let packets of it pass: %s", r.hidden[of].text)
		case sum+wider > float64(r.MaxCovered):
			of.refused = errors.New("it would cover more addresses, with the routes before it, than may be (--max-covered)")
		case patterns+more > r.MaxPatterns:
			of.refused = errors.New("it takes more patterns, with the routes before it, than may be (--max-patterns)")
		default:
			sum, patterns, scopes[of.scope] = sum+wider, patterns+more, true
			for _, i := range of.items {
				if former := want[i]; former == nil || of.ends.IsZero() || !former.ends.IsZero() && of.ends.After(former.ends) {
					want[i] = of
				}
			}
		}
	}
	return want
}

// shadows returns rules whose packets may pass by an earlier rule, each with that one: dropping what they
// match would drop more than was asked for.
func shadows(rules []*route) map[*route]*route {
	slices.SortFunc(rules, func(a, b *route) int {
		switch {
		case a.rule.unread != b.rule.unread:
			if a.rule.unread {
				return -1
			}
			return 1
		case a.rule.precedes(b.rule):
			return -1
		case b.rule.precedes(a.rule):
			return 1
		}
		return cmp.Compare(a.number, b.number)
	})
	var passing []*route
	hidden := make(map[*route]*route)
	for _, of := range rules {
		if len(passing) >= mostPassing { // which is on the safe side
			hidden[of] = passing[mostPassing-1]
			continue
		}
		for _, p := range passing {
			if of.rule.dst.Addr().Is4() == p.rule.dst.Addr().Is4() && p.rule.mayMeet(of.rule) {
				hidden[of] = p
				break
			}
		}
		if of.passes {
			passing = append(passing, of)
		}
	}
	return hidden
}

// follow has the daemon have what is wanted, and returns when it has to be looked at again.
func (r *Receiver) follow(ctx context.Context, d Daemon, now time.Time) time.Duration {
	want := r.wanted(now)
	if r.Dry {
		r.reportAll(now)
		return tryAgain
	}
	err := r.remove(ctx, d, want)
	again := tryAgain
	if err == nil {
		var more bool // in the next turn, which removes first what is not wanted any more
		if more, err = r.add(ctx, d, want, now); more {
			again = 0
		}
	}
	if ctx.Err() != nil {
		return again
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != r.problem {
		if r.problem = text; err != nil {
			r.Log.Error("the daemon does not follow: " + text)
		} else {
			r.Log.Info("the daemon follows again")
		}
	}
	r.reportAll(now)
	return again
}

// remove removes what is not wanted.
func (r *Receiver) remove(ctx context.Context, d Daemon, want map[item]*route) error {
	var entries []item
	for i, h := range r.has {
		if want[i] != nil {
			continue
		}
		if !time.Now().Before(h.until) { // it has ended
			delete(r.has, i)
			continue
		}
		if i.rate == "" {
			entries = append(entries, i)
			continue
		}
		if _, err := d.SetPolice(ctx, api.PoliceChange{Pattern: i.text, Off: true, Reason: h.label}); err != nil {
			return err
		}
		delete(r.has, i)
	}
	for some := range slices.Chunk(entries, batch) {
		if _, err := d.Change(ctx, api.Change{Action: api.Block, List: r.List, Remove: true, Entries: texts(some)}); err != nil {
			return err
		}
		for _, i := range some {
			delete(r.has, i)
		}
	}
	return nil
}

func texts(all []item) (t []string) {
	for _, i := range all {
		t = append(t, i.text)
	}
	return t
}

// add adds what is missing, and renews what would end by itself. It reports whether there is more.
func (r *Receiver) add(ctx context.Context, d Daemon, want map[item]*route, now time.Time) (more bool, err error) {
	missing := make(map[has][]item)
	for i, of := range want {
		due := has{label: "BGP " + of.neighbor.String() + ": " + of.label, until: of.ends}
		if h, there := r.has[i]; of.ends.IsZero() {
			if due.until = now.Add(r.Hold); there && h.until.Sub(now) > r.Hold/2 && h.label == due.label {
				continue
			}
		} else if there && !h.until.Before(of.ends) {
			continue
		}
		missing[due] = append(missing[due], i)
	}
	began := time.Now()
	for due, items := range missing {
		slices.SortFunc(items, func(a, b item) int { return cmp.Compare(want[a].number, want[b].number) })
		for len(items) > 0 {
			if time.Since(began) > turn {
				return true, nil
			}
			n := min(len(items), batch)
			if at := slices.IndexFunc(items[:n], func(i item) bool { return i.rate != "" }); at > 0 {
				n = at
			} else if at == 0 {
				n = 1
			}
			done, err := r.set(ctx, d, due, items[:n], want)
			if err != nil {
				return false, err
			}
			for _, i := range items[:done] {
				more = more || want[i].refused != nil // what the daemon has of its route is to go
			}
			items = items[done:]
		}
	}
	return more, nil
}

// set adds or renews entries, or a pattern, and returns how many of them are settled: the daemon has them,
// or their routes are refused.
func (r *Receiver) set(ctx context.Context, d Daemon, due has, items []item, want map[item]*route) (int, error) {
	all := len(items)
	items = slices.Clone(items)
	refuse := func(at int, why error) {
		of := want[items[at]]
		of.refused, of.again = why, time.Now().Add(askAgain)
		items = slices.Delete(items, at, at+1)
	}
	ttl := time.Until(due.until).Seconds()
	for len(items) > 0 && ttl > api.MinTTL {
		items = slices.DeleteFunc(items, func(i item) bool { return want[i].refused != nil })
		if len(items) == 0 {
			break
		}
		var err error
		if i := items[0]; i.rate != "" {
			_, err = d.SetPolice(ctx, api.PoliceChange{Pattern: i.text, Rate: i.rate, For: ttl, Reason: due.label})
		} else {
			_, err = d.Change(ctx, api.Change{Action: api.Block, List: r.List, Entries: texts(items), TTL: ttl, Reason: due.label})
		}
		var bad *api.BadRequest
		switch {
		case err == nil:
			for _, i := range items {
				r.has[i] = due
			}
			return all, nil
		case !errors.As(err, &bad):
			return 0, err
		case len(items) == 1:
			refuse(0, err)
		case bad.Entry != nil && *bad.Entry >= 0 && *bad.Entry < len(items):
			refuse(*bad.Entry, err)
		default: // some of them
			all -= len(items) - len(items)/2
			items = items[:len(items)/2]
		}
	}
	return all, nil
}

// reportAll reports what has become of routes, and saves it.
func (r *Receiver) reportAll(now time.Time) {
	for _, all := range r.routes {
		for _, of := range all {
			if c, ok := r.stateOf(of); ok {
				r.report(of, c, now)
			}
		}
	}
	if r.unsaid > 0 && r.lines.Allow() {
		r.Log.Warn("more has happened than the log has lines for", "left_out", r.unsaid)
		r.unsaid = 0
	}
	if r.State != "" && r.unsaved {
		r.unsaved = false
		r.save(now)
	}
}

// stateOf returns what has become of a route, and false while that is not settled.
func (r *Receiver) stateOf(of *route) (c Change, settled bool) {
	if of.refused != nil {
		return Change{Action: Refused, Reason: of.refused.Error()}, true
	}
	for _, i := range of.items {
		if _, there := r.has[i]; !there && !r.Dry {
			return c, false
		}
		if i.rate == "" {
			c.Entries = append(c.Entries, i.text)
		} else {
			c.Patterns = append(c.Patterns, i.text+" "+i.rate)
		}
	}
	if c.Action, c.Reason = Taken, of.label; !of.ends.IsZero() {
		c.Action, c.Until = Kept, of.ends.Round(0)
	}
	return c, true
}

// report says what has become of a route, once.
func (r *Receiver) report(of *route, c Change, now time.Time) {
	said := c.Action + c.Reason
	if of.said == said || c.Action == Withdrawn && of.said == "" {
		return
	}
	of.said, r.unsaved = said, true
	c.Time, c.Neighbor, c.Route = now, of.neighbor, of.text
	if r.Out != nil {
		_ = encode(r.Out, c) // who reads it may have gone
	}
	level, text, args := slog.LevelInfo, c.Action, []any{"neighbor", c.Neighbor, "route", c.Route}
	if c.Action == Refused {
		level, text = slog.LevelWarn, text+": "+c.Reason
	}
	if len(c.Entries) > 0 {
		args = append(args, "entries", c.Entries)
	}
	if len(c.Patterns) > 0 {
		args = append(args, "patterns", c.Patterns)
	}
	r.say(level, text, args...)
}

// say logs a line, if there is room for it.
func (r *Receiver) say(level slog.Level, text string, args ...any) {
	if !r.lines.Allow() {
		r.unsaid++
		return
	}
	r.Log.Log(context.Background(), level, text, args...)
}

// encode writes JSON in a line; entries have a > in them.
func encode(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// saved is the contents of the state file.
type saved struct {
	Neighbors []savedNeighbor `json:"neighbors"`
	Routes    []Change        `json:"routes"`
}

type savedNeighbor struct {
	Address netip.Addr `json:"address"`
	AS      uint32     `json:"as"`
	Session bool       `json:"session"`
	Routes  int        `json:"routes"`
}

// save writes the state file.
func (r *Receiver) save(now time.Time) {
	s := saved{Routes: []Change{}}
	for _, n := range r.Neighbors {
		s.Neighbors = append(s.Neighbors, savedNeighbor{n.Address, n.AS, r.sessions[n.Address] != nil, len(r.routes[n.Address])})
		for _, id := range slices.Sorted(maps.Keys(r.routes[n.Address])) {
			of := r.routes[n.Address][id]
			if c, ok := r.stateOf(of); ok {
				c.Time, c.Neighbor, c.Route = now, of.neighbor, of.text
				s.Routes = append(s.Routes, c)
			}
		}
	}
	var text bytes.Buffer
	err := encode(&text, s)
	if err == nil {
		err = durable.WriteFile(r.State, text.Bytes())
	}
	if err != nil {
		r.Log.Error("--state: " + err.Error())
	}
}
