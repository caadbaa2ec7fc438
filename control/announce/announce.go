// Package announce turns heavy hitters into routes that a BGP speaker announces, so that
// their packets are dropped before they come here. The speaker is ExaBGP, which reads
// lines; weir knows nothing of BGP.
package announce

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/durable"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/ordered"
)

// Daemon is a running daemon, as [client.Client] asks it.
type Daemon interface {
	Top(ctx context.Context) (*api.Top, error)
	Status(ctx context.Context) (*api.Status, error)
	ExplainSoon(ctx context.Context, question string) (*api.Explanation, error)
}

// Peer is a neighbour that must not be cut off.
type Peer struct {
	What     string
	Prefixes []netip.Prefix
}

// Change is an announcement or the end of one.
type Change struct {
	Time   time.Time `json:"time"`
	Action string    `json:"action"` // announce or withdraw
	Flow   string    `json:"flow"`   // in the format of lists
	Kind   Kind      `json:"kind"`
	Route  string    `json:"route"`           // as ExaBGP reads it
	Until  time.Time `json:"until,omitzero"`  // when it expires, unless it is heavy again
	Reason string    `json:"reason,omitzero"` // for which it is withdrawn
}

// The actions of changes.
const (
	Announce = "announce"
	Withdraw = "withdraw"
)

// The reasons for which a route is withdrawn, beside those for which it is refused.
const (
	expired = "it has expired"
	ended   = "weir announce ends"
)

// lookAgain is how often it is asked what must not be announced, and askingTime how long the daemon
// is asked about flows in one turn: routes have to expire meanwhile.
const (
	lookAgain  = 5 * time.Second
	askingTime = time.Second
)

// Announcer announces the heavy hitters of a daemon.
type Announcer struct {
	Spec

	Out   io.Writer // ExaBGP's
	JSON  bool      // write Changes as JSON instead
	Dry   bool      // write the lines as comments, which ExaBGP ignores
	State string    // the file of the current announcements; "": none
	Log   *slog.Logger

	routes    map[key.Key]time.Time // until when each is announced
	changes   []Change              // of routes, which are yet to be written
	saved     time.Time
	refused   map[key.Key]string // why, as logged
	protected []Peer
	known     bool // protected is known
	looked    time.Time
	unchecked []key.Key // routes that are still to be rechecked
	full      bool      // there were too many, as logged
	problem   string    // as logged
}

// candidate is a flow that is heavy.
type candidate struct {
	key  key.Key
	rate float64 // in the tracker's unit
}

// Run announces until ctx is done, and then withdraws everything.
func (a *Announcer) Run(ctx context.Context, d Daemon, interval time.Duration) error {
	if err := a.begin(time.Now()); err != nil {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if err := a.once(ctx, d, time.Now()); err != nil {
			return errors.Join(err, a.end(time.Now())) // as far as that can be written
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return a.end(time.Now())
		}
	}
}

// begin goes on where a former process has ended.
func (a *Announcer) begin(now time.Time) error {
	a.routes, a.refused = make(map[key.Key]time.Time), make(map[key.Key]string)
	return a.resume(now)
}

// once looks once. It fails only where changes cannot be written.
func (a *Announcer) once(ctx context.Context, d Daemon, now time.Time) error {
	heavy, err := a.look(ctx, d, now)
	if ctx.Err() == nil {
		a.report(err)
		a.update(ctx, d, now, heavy)
	}
	return a.commit(now)
}

// end withdraws everything.
func (a *Announcer) end(now time.Time) error {
	for _, k := range a.sorted() {
		a.withdraw(now, k, ended)
	}
	return a.commit(now)
}

func (a *Announcer) sorted() []key.Key {
	return ordered.Of(maps.Keys(a.routes), func(a, b key.Key) int { return strings.Compare(a.String(), b.String()) })
}

// report logs a problem, and its end, once.
func (a *Announcer) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == a.problem:
	case text == "":
		a.Log.Info("the daemon answers again")
	default:
		a.Log.Warn("nothing new is announced: "+text, "announced", len(a.routes))
	}
	a.problem = text
}

// look asks the daemon which flows are heavy, the heaviest first, and now and then what
// must not be announced.
func (a *Announcer) look(ctx context.Context, d Daemon, now time.Time) ([]candidate, error) {
	if !a.known || now.Sub(a.looked) >= lookAgain {
		s, err := d.Status(ctx)
		if err != nil {
			return nil, err
		}
		if s.Protected == nil { // it has just started
			return nil, errors.New("the daemon has yet to find out what must not be cut off")
		}
		a.protected, a.known, a.looked = peersOf(s.Protected), true, now
		if len(a.unchecked) == 0 {
			a.unchecked = a.sorted()
		}
	}
	if err := a.recheck(ctx, d, now); err != nil {
		return nil, err
	}
	t, err := d.Top(ctx)
	switch {
	case err != nil:
		return nil, err
	case t.Monitor:
		return nil, errors.New("monitor mode is on, in which nothing is dropped")
	}
	return a.heavy(t)
}

// peersOf returns the peers that a daemon has named.
func peersOf(all []api.Protected) (peers []Peer) {
	for _, p := range all {
		entry, err := listfile.ParseEntry(p.Entry)
		if err != nil {
			continue // of a newer version
		}
		peer := Peer{What: p.What, Prefixes: entry.V6}
		for _, v4 := range entry.V4 {
			peer.Prefixes = append(peer.Prefixes, v4.Prefix())
		}
		for _, k := range entry.Flows {
			src, dst := target(k)
			for _, p := range []netip.Prefix{src, dst} {
				if p.IsValid() {
					peer.Prefixes = append(peer.Prefixes, p)
				}
			}
		}
		peers = append(peers, peer)
	}
	return peers
}

// heavy returns the heavy hitters of the trackers.
func (a *Announcer) heavy(t *api.Top) (all []candidate, err error) {
	for _, name := range a.Trackers {
		found := false
		for _, tracker := range t.Trackers {
			if tracker.Key != name || tracker.Unit != "packets" && tracker.Unit != "bytes" {
				continue
			}
			found = true
			for _, f := range tracker.Flows {
				rate, least := f.Packets, f.LeastPackets
				if tracker.Unit == "bytes" {
					rate, least = f.Bytes, f.LeastBytes
				}
				// An estimate may be that of others: a route needs more than suspicion.
				if k, ok := keyOf(name, f.Key); ok && f.Heavy && 2*least >= rate {
					all = append(all, candidate{k, rate})
				}
			}
		}
		if !found {
			err = fmt.Errorf("the daemon has no tracker %s: add {key: %s, …} to trackers in weir.yaml", name, name)
		}
	}
	ordered.By(all, func(a, b candidate) int { return cmp.Compare(b.rate, a.rate) })
	return all, err
}

// keyOf returns the key of a tracker's flow.
func keyOf(tracker, text string) (key.Key, bool) {
	if strings.HasPrefix(tracker, "dst") {
		text = "> " + text
	}
	e, err := listfile.ParseEntry(text)
	switch {
	case err != nil:
	case len(e.Flows) == 1:
		return e.Flows[0], true
	case len(e.V4) == 1:
		return key.Source(e.V4[0].Prefix()), true
	case len(e.V6) == 1:
		return key.Source(e.V6[0]), true
	}
	return key.Key{}, false
}

// allowed returns why a key must not be announced, by what its packets pass.
func allowed(ctx context.Context, d Daemon, k key.Key) (why, failed error) {
	question := k.String()
	if !k.Tuple() { // in either direction: who allows an address means it
		question = strings.TrimPrefix(question, "> ")
	}
	e, err := d.ExplainSoon(ctx, question)
	if err != nil {
		return nil, err
	}
	for _, answer := range e.Answers {
		for _, s := range answer.Stages {
			if s.Met && s.Stage == api.StageFailsafe {
				return fmt.Errorf("failsafe: %s", s.By), nil
			}
		}
		for _, m := range answer.Matches {
			if m.Action == "allow" {
				return fmt.Errorf("list %s allows %s", m.List, m.Entry), nil
			}
		}
		for _, some := range answer.Depends {
			if m := some.Match; m != nil && m.Action == "allow" {
				if of, ok := keyOf("", m.Entry); ok && names(of, k) {
					return fmt.Errorf("list %s allows %s, which is in it", m.List, m.Entry), nil
				}
			}
			if _, from, _ := strings.Cut(some.Packets, " "); some.Stage == api.StageFailsafe {
				if p, err := netip.ParsePrefix(from); err == nil && names(key.Source(p), k) {
					return fmt.Errorf("failsafe: %s, which is in it", p), nil
				}
			}
		}
	}
	return nil, nil
}

// names reports whether an entry names an address that the packets of k come from or go
// to, beside all others.
func names(entry, k key.Key) bool {
	overlap := func(a, b netip.Prefix) bool { return a.IsValid() && b.IsValid() && a.Overlaps(b) }
	src, dst := target(entry)
	from, to := target(k)
	return overlap(src, from) || overlap(src, to) || overlap(dst, from) || overlap(dst, to)
}

// recheck withdraws what must no longer be announced. Where that takes long it goes on in the next
// turn.
func (a *Announcer) recheck(ctx context.Context, d Daemon, now time.Time) error {
	for began := time.Now(); len(a.unchecked) > 0 && time.Since(began) < askingTime; a.unchecked = a.unchecked[1:] {
		k := a.unchecked[0]
		if _, announced := a.routes[k]; !announced {
			continue
		}
		why := a.refuse(k, a.protected)
		if why == nil {
			var err error
			if why, err = allowed(ctx, d, k); err != nil {
				return err
			}
		}
		if why != nil {
			a.refused[k] = why.Error()
			a.withdraw(now, k, why.Error())
		}
	}
	return nil
}

// update announces what is heavy, and withdraws what has expired.
func (a *Announcer) update(ctx context.Context, d Daemon, now time.Time, heavy []candidate) {
	full := 0
	until := now.Add(a.Hold)
	seen := make(map[key.Key]bool)
	began := time.Now()
	for _, c := range heavy {
		seen[c.key] = true
		if _, known := a.refused[c.key]; known && now != a.looked {
			continue
		}
		if _, announced := a.routes[c.key]; announced {
			a.routes[c.key] = until
			continue
		}
		why := a.refuse(c.key, a.protected)
		if why == nil && len(a.routes) >= a.Max {
			full++
			continue
		}
		if why == nil {
			if time.Since(began) > askingTime {
				continue // in the next turn
			}
			var err error
			if why, err = allowed(ctx, d, c.key); err != nil {
				a.report(err)
				break
			}
		}
		if why != nil {
			if a.refused[c.key] != why.Error() {
				a.Log.Warn("a heavy hitter is not announced: "+why.Error(), "flow", c.key.String())
				a.refused[c.key] = why.Error()
			}
			continue
		}
		delete(a.refused, c.key)
		a.announce(now, c.key, until)
	}
	maps.DeleteFunc(a.refused, func(k key.Key, _ string) bool { return !seen[k] })
	if (full > 0) != a.full {
		if a.full = full > 0; a.full {
			a.Log.Warn("there are as many announcements as may be (--max-routes), and more heavy hitters", "announced", len(a.routes), "more", full)
		}
	}
	for _, k := range a.sorted() {
		if !now.Before(a.routes[k]) {
			a.withdraw(now, k, expired)
		}
	}
}

// announce adds a route, which commit writes.
func (a *Announcer) announce(now time.Time, k key.Key, until time.Time) {
	a.Log.Info("announced", "flow", k.String(), "until", until.Format(time.RFC3339))
	a.routes[k] = until
	a.changes = append(a.changes, Change{Time: now, Action: Announce, Flow: k.String(), Route: a.route(k), Until: until})
}

// withdraw removes a route, which commit writes.
func (a *Announcer) withdraw(now time.Time, k key.Key, why string) {
	a.Log.Info("withdrawn: "+why, "flow", k.String())
	delete(a.routes, k)
	a.changes = append(a.changes, Change{Time: now, Action: Withdraw, Flow: k.String(), Route: a.route(k), Reason: why})
}

// commit writes the changes. At any time the state file has all that ExaBGP may announce,
// whenever the process is killed. It is also written as routes stay, so that the next
// process does not take them for expired.
func (a *Announcer) commit(now time.Time) error {
	changes := a.changes
	a.changes = nil
	if len(changes) == 0 {
		if len(a.routes) == 0 || now.Sub(a.saved) < a.Hold/2 {
			return nil
		}
		return a.save(now, nil)
	}
	unsaved := a.save(now, changes)
	for _, c := range changes {
		if unsaved != nil && c.Action == Announce {
			continue // it might stay for good
		}
		if err := a.write(c); err != nil {
			return err
		}
	}
	if unsaved != nil {
		return unsaved
	}
	if !slices.ContainsFunc(changes, func(c Change) bool { return c.Action == Withdraw }) {
		return nil
	}
	return a.save(now, nil)
}

// write writes a change.
func (a *Announcer) write(c Change) error {
	if c.Kind = a.Kind; a.JSON {
		return json.NewEncoder(a.Out).Encode(c)
	}
	line := c.Action + " " + c.Route + "\n"
	if a.Dry {
		line = "# " + line
	}
	_, err := io.WriteString(a.Out, line)
	return err
}

// saved is the contents of the state file.
type saved struct {
	Routes []savedRoute `json:"routes"`
}

type savedRoute struct {
	Flow  string    `json:"flow"`
	Route string    `json:"route"`
	Until time.Time `json:"until"`
}

// maxState bounds the state file: a route has less than 512 bytes.
const maxState = mostRoutes * 512

// save saves the announcements, with those that are about to be withdrawn.
func (a *Announcer) save(now time.Time, changes []Change) error {
	if a.State == "" || a.Dry {
		return nil
	}
	var s saved
	for _, k := range a.sorted() {
		s.Routes = append(s.Routes, savedRoute{k.String(), a.route(k), a.routes[k]})
	}
	for _, c := range changes {
		if c.Action == Withdraw {
			s.Routes = append(s.Routes, savedRoute{Flow: c.Flow, Route: c.Route}) // expired
		}
	}
	text, err := json.Marshal(s)
	if err == nil {
		err = durable.WriteFile(a.State, text)
	}
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	a.saved = now
	return nil
}

// resume announces again what a former process has left, which ExaBGP may still announce.
// It withdraws what has expired meanwhile, or is announced otherwise now.
func (a *Announcer) resume(now time.Time) error {
	if a.State == "" || a.Dry {
		return nil
	}
	f, err := os.Open(a.State)
	if errors.Is(err, fs.ErrNotExist) {
		return a.save(now, nil) // so that it is known now if it fails
	}
	if err != nil {
		return fmt.Errorf("--state: %w", err)
	}
	defer f.Close()
	var s saved
	if err := json.NewDecoder(io.LimitReader(f, maxState)).Decode(&s); err != nil {
		return fmt.Errorf("--state: %s: %w: remove it, and restart ExaBGP, so that nothing stays announced", a.State, err)
	}
	for _, r := range s.Routes {
		k, ok := keyOf("", r.Flow)
		switch {
		case ok && now.Before(r.Until) && a.route(k) == r.Route && a.refuse(k, nil) == nil && len(a.routes) < a.Max:
			a.announce(now, k, now.Add(min(r.Until.Sub(now), a.Hold))) // no longer where the clock was ahead
		case !strings.ContainsAny(r.Route, "\r\n"):
			err = a.write(Change{Time: now, Action: Withdraw, Flow: r.Flow, Route: r.Route, Reason: expired})
		}
		if err != nil {
			return err
		}
	}
	if err := a.commit(now); err != nil {
		return err
	}
	return a.save(now, nil) // also where nothing is left to announce
}
