package hub

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
)

const (
	// assignAgain is after which time a node that does not report what was assigned is sent that again: it doubles up
	// to mostAssignAgain.
	assignAgain     = 15 * time.Second
	mostAssignAgain = 5 * time.Minute

	maxAssigning = 16 // nodes at once
)

// assigner has nodes obey the labels, servers and CA certificates that the hub has for them.
type assigner struct {
	log       *slog.Logger
	authority *authority.Authority
	asker     *asker
	nodes     *nodes
	servers   func() []string // of the hub

	// What nodes are to have when they were last looked at.
	stamp authority.Stamp
	at    []string // the servers
	ca    []byte   // the certificates that they are to trust

	mu  sync.Mutex
	all map[string]*assigning // nodes that report other settings, by name
}

// assigning is a node that is to obey an assignment.
type assigning struct {
	of     wire.Assignment
	again  time.Time // when it is sent again
	pause  time.Duration
	beyond time.Time // what is issued must be later
	why    string    // it does not obey; "": that is not known
}

// reported returns the settings of nodes that are heard, by name: of all, or of some and of those that report other
// settings than before.
func (n *nodes) reported(all bool, some map[string]*assigning, maxAge time.Duration, now time.Time) map[string]api.NodeSettings {
	reported := make(map[string]api.NodeSettings)
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, from := range n.all {
		switch heard := from.status.Settings != nil && !from.revoked && now.Sub(from.seen) < maxAge; {
		case !all && some[name] == nil && from.judged:
		case heard:
			from.judged, reported[name] = true, *from.status.Settings
		default:
			from.judged = false
		}
	}
	return reported
}

// look compares what members are to have with what they report, and sends assignments to those that report something
// else.
func (a *assigner) look(ctx context.Context, members map[string]authority.Member, stamp authority.Stamp, maxAge time.Duration, now time.Time) {
	servers := a.servers()
	var due []*assigning
	a.mu.Lock()
	_, ca := a.authority.Next()
	reported := a.nodes.reported(stamp != a.stamp || !slices.Equal(servers, a.at) || !bytes.Equal(ca, a.ca), a.all, maxAge, now)
	a.stamp, a.at, a.ca = stamp, servers, ca
	maps.DeleteFunc(a.all, func(name string, _ *assigning) bool {
		return !members[name].Revoked.IsZero() || members[name].Name == ""
	})
	for name, is := range reported {
		m, ok := members[name]
		if !ok || !m.Revoked.IsZero() {
			continue
		}
		of, err := a.authority.Assignment(m, servers, is.Servers)
		want := of.Settings()
		if err == nil && want.Equal(is) {
			delete(a.all, name)
			continue
		}
		to := a.all[name]
		if to == nil || !to.of.Settings().Equal(want) {
			to = &assigning{pause: assignAgain}
			a.all[name] = to
		}
		to.of = of
		if err != nil { // of its site
			to.why = err.Error()
		} else if !now.Before(to.again) && len(due) < maxAssigning {
			to.again, to.pause = now.Add(to.pause), min(2*to.pause, mostAssignAgain)
			if !to.of.Issued.After(to.beyond) {
				to.of.Issued = to.beyond.Add(time.Millisecond)
			}
			due = append(due, to)
		}
	}
	a.mu.Unlock()
	var all sync.WaitGroup
	defer all.Wait()
	for _, to := range due {
		all.Go(func() { a.send(ctx, to) })
	}
}

// send has a node obey an assignment.
func (a *assigner) send(ctx context.Context, to *assigning) {
	of := to.of
	message, err := a.authority.SealAssignment(of)
	if err != nil {
		a.note(to, err)
		return
	}
	answers, err := ask[wire.Assigned](ctx, a.asker, []string{of.Node}, wire.AskAssign, wire.AssignQuestion{Message: message}, wire.AnswerTimeout+time.Second, nil)
	if err == nil {
		err = answers[0].err
	}
	if err == nil && answers[0].value.Later != nil {
		err = a.takeBack(to, answers[0].value.Later)
	}
	a.note(to, err)
}

// takeBack takes in what a node obeys instead: the hub's keys are an older copy, or its clock was set.
func (a *assigner) takeBack(to *assigning, message []byte) error {
	node := to.of.Node
	has, later, err := a.authority.TakeBack(node, message)
	if err != nil {
		return fmt.Errorf("what it obeys is not of this hub: %w", err)
	}
	if later {
		a.log.Warn("node "+node+" has later labels than the hub, which takes them back", "labels", strings.Join(has.Labels, ","))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	to.beyond, to.again, to.pause = has.Issued, time.Time{}, assignAgain
	return nil
}

// note takes in how an attempt has ended.
func (a *assigner) note(to *assigning, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := to.why
	if to.why = ""; err != nil {
		if to.why = err.Error(); to.why != before {
			a.log.Warn("node " + to.of.Node + " does not obey what is assigned: " + to.why)
		}
	}
}

// problems returns which nodes do not obey what is assigned, and why.
func (a *assigner) problems() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var some []string
	for _, name := range slices.Sorted(maps.Keys(a.all)) {
		if why := a.all[name].why; why != "" {
			some = append(some, name+" ("+why+")")
		}
	}
	if len(some) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d nodes do not have the labels and servers that the hub has for them: %s", len(some), named(some))}
}

// assign has nodes obey what is assigned, until ctx is done.
func (h *Hub) assign(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			h.rotation.reread()
			if !h.publisher.decided() || !h.publisher.contest.settled() {
				continue // another hub may rule the nodes, or this one be an older copy
			}
			known := h.noted.Load()
			maxAge := time.Duration(h.conf().MaxAge)
			h.assigner.look(ctx, known.members, known.stamp, maxAge, now)
			h.rotation.look(known.members, maxAge, now)
		}
	}
}
