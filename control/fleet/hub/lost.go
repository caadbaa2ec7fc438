package hub

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir/control/audit"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
)

const (
	// settleReports is how long after a start commands wait for the first reports of the
	// nodes that were enrolled before: nodes connect again within three seconds.
	settleReports = 4 * time.Second

	// epochPause is between two epochs that begin after reports of nodes: each has all nodes fetch all
	// lists.
	epochPause = 10 * time.Second

	// maxProofs bounds the seals that are verified for a report.
	maxProofs = 8

	// lostShown is how long the status says that history was lost.
	lostShown = 24 * time.Hour
)

// lost says that the hub's history is an older copy, by the report of a node.
type lost struct {
	what  string
	epoch uint64 // in which the node has what the hub does not
	of    uint64 // the hub's epoch
	empty bool   // it is of a state before this one, which began empty, in a later epoch
}

// claims compares the report of a node with the hub's history. It returns what the node
// has, with the hub's signature, and the hub has not, nil for nothing, and in what the node
// differs, "" for nothing. It is safe for concurrent use.
func (p *publisher) claims(name string, s *wire.Status) (l *lost, differs string) {
	key, used, tried := p.authority.PublicKey(), p.store.Used(), 0
	if p.contest.overlaps(s.Term, time.Now()) && wire.PlaceProved(key, s.Catalog, s.Term, s.Seal) {
		p.meet(wire.Hub{Instance: s.Term.Instance, Claim: s.Term.Claim, Nodes: []string{name}}, byReport, ", as node "+name+" reports")
	}
	if l := p.emptied(s.Catalog, fmt.Sprintf("node %s", name)); l != nil && wire.PlaceProved(key, s.Catalog, s.Term, s.Seal) {
		return l, ""
	}
	find := func(found lost, proved bool) {
		tried++
		if !proved {
			return
		}
		found.of = used.Epoch
		if l == nil || found.epoch > l.epoch {
			l = &found
		}
	}
	if used.Before(s.Catalog) {
		what := fmt.Sprintf("node %s has catalog %v, this hub's last one is %v or before", name, s.Catalog, used)
		proved := wire.PlaceProved(key, s.Catalog, s.Term, s.Seal)
		if !proved {
			differs = what
		}
		find(lost{what: what, epoch: s.Catalog.Epoch}, proved)
	}
	for _, r := range s.Lists {
		history := p.lists.history(r.Name)
		v := wire.Version{Place: r.Active, ID: r.ID, Sum: r.Sum}
		// The epoch comes after those before it, also where a list has not entered it yet.
		if history == nil || tried > maxProofs {
			continue
		}
		if r.Active.Epoch < used.Epoch {
			if p.before.lacks(r.Name, v) {
				if tried++; v.Proved(key, r.Name, r.Seal) {
					p.before.isLate(r.Name)
					p.wake()
				}
			}
			continue
		}
		switch history.Compare(v) {
		case store.Later:
			differs = fmt.Sprintf("node %s has version %v of list %s, which this hub has not made", name, r.Active, r.Name)
		case store.Another:
			differs = fmt.Sprintf("node %s has another version %v of list %s than this hub", name, r.Active, r.Name)
		case store.Damaged:
			differs = fmt.Sprintf("node %s: list %s: its entries are not those of version %v: restart weir there", name, r.Name, r.Active)
			continue
		default:
			continue
		}
		find(lost{what: differs, epoch: r.Active.Epoch}, v.Proved(key, r.Name, r.Seal))
	}
	return l, differs
}

// emptied returns that the state before this one was lost, if someone has a catalog of that; nil: it
// is of no state before, or the loss was said. It is safe for concurrent use.
func (p *publisher) emptied(catalog wire.Place, who string) *lost {
	if catalog.Version == 0 || catalog.Epoch >= p.store.First() {
		return nil
	}
	return &lost{what: fmt.Sprintf("%s has catalog %v of before", who, catalog), epoch: catalog.Epoch, of: p.store.Used().Epoch, empty: true}
}

// recover begins a new epoch where a node has what the hub's history has not.
func (p *publisher) recover(ctx context.Context) error {
	if !p.contest.settled() {
		return nil // what nodes have may be another hub's
	}
	if err := p.listLate(ctx); err != nil {
		return err
	}
	now := time.Now()
	l := p.takeLost(p.store.Used().Epoch, now)
	if l == nil {
		return nil
	}
	if l.empty {
		return p.beganEmpty(ctx, l)
	}
	_, err := p.look(ctx)
	if ahead, ok := errors.AsType[errAhead](err); ok && p.began {
		return anotherHub(ahead)
	} else if err != nil && !ok {
		return err
	}
	if err := p.newEpoch(ctx, l.epoch, l.what); err != nil {
		return err
	}
	p.rest(now.Add(epochPause))
	time.AfterFunc(epochPause, p.wake)
	p.at = nil
	return nil
}

// anotherHub is the error where another hub publishes to the same stream.
func anotherHub(ahead errAhead) error {
	return fmt.Errorf("%s: another hub has published: run only one, and restart it if that is this one", ahead.what)
}

// newEpoch begins an epoch after another one, since the hub's state is an older copy.
func (p *publisher) newEpoch(ctx context.Context, after uint64, why string) error {
	back, err := p.recoverLists(ctx)
	if err != nil {
		return err
	}
	var epoch uint64
	if err := p.loop.Do(ctx, func() error {
		defer func() { epoch = p.store.Epoch() }()
		for _, l := range p.lists.all {
			p.before.add(l.Name, l.history.Versions())
			p.before.isLate(l.Name) // by a report that has come meanwhile
		}
		return p.releases.newEpoch(after)
	}); err != nil {
		return err
	}
	cause, lost := "the hub goes on from an older copy of its state", back.String()
	if r := p.contest.other(); r != nil {
		cause, lost = "nodes have obeyed another hub with the same keys"+r.where, "Changes by commands at the other hub are lost: weir fleet audit there has them"
	}
	p.sayLost(fmt.Sprintf("%s: %s. Epoch %d has begun, and all nodes get what this hub has. %s", cause, why, epoch, lost), why)
	return p.listLate(ctx)
}

// beganEmpty says that the state before this one was lost, once. Numbers of its epoch do not come again:
// the state began another one. A crash before that is noted has it said again, rather than never.
func (p *publisher) beganEmpty(ctx context.Context, l *lost) error {
	if p.store.First() == 0 {
		return nil // said, while another report came
	}
	if !p.saidEmpty {
		back, err := p.recoverLists(ctx)
		if err != nil {
			return err
		}
		p.saidEmpty = true
		p.sayLost("the hub began with an empty state: "+l.what+". All nodes get what the hub has. "+back.String()+", or restore a backup", l.what)
	}
	err := p.loop.Do(ctx, p.store.Said)
	if err != nil {
		p.putBack(l)
	}
	return err
}

// sayLost says in the log, the audit and the status that history was lost.
func (p *publisher) sayLost(text, why string) {
	p.log.Error(text)
	p.audit.Record(audit.Record{Change: audit.NewEpoch, Reason: why, Source: "weir-hub"})
	p.note(func(s *publisherState) { s.lost, s.lostAt = text, time.Now() })
}
