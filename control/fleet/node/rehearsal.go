package node

import (
	"context"
	"time"

	"weir/control/fleet/wire"
	"weir/control/list"
)

// Candidate is a version of a list to rehearse.
type Candidate struct {
	List string // as the hub calls it
	wire.Settings
	Contents *list.Set
}

// rehearsal is a version that a follower rehearses.
type rehearsal struct {
	state *state // verified; nil: it is not known yet
	place wire.Place
	begun bool
	err   error // why it does not begin
}

// rehearseAgain is how soon a rehearsal that could not begin is tried again.
const rehearseAgain = 10 * time.Second

// rehearse has the daemon count what the version would drop in addition that the hub
// wants to be rehearsed, if any. It returns how soon that is to be tried again.
func (f *follower) rehearse(ctx context.Context) time.Duration {
	f.mu.Lock()
	want, last := f.want, f.rehearsing
	f.mu.Unlock()
	wanted := want
	wanted.Place, wanted.id = want.rehearse, want.rehearseID
	if want.rehearse == (wire.Place{}) || f.at != nil && !f.at.Before(want.rehearse) {
		keep := rehearsal{state: last.state} // it may be enforced next
		if f.at != nil && !f.at.Before(last.state.place()) {
			keep.state = nil
		}
		if last.begun {
			_ = f.n.daemon.Rehearse(ctx, f.name, nil) // which does not fail
		}
		if last != keep {
			f.setRehearsal(keep)
		}
		return time.Hour
	}
	if last.begun && last.place == want.rehearse {
		return time.Hour
	}
	next := rehearsal{place: want.rehearse, state: last.state, begun: last.begun}
	if last.place != want.rehearse && last.begun {
		_ = f.n.daemon.Rehearse(ctx, f.name, nil)
		last.begun, next.begun = false, false
		f.setRehearsal(last) // what is counted next is not of the place in reports
	}
	if next.state.place() != want.rehearse {
		from := f.at
		if s := next.state; s != nil && from.place().Before(s.Place) && s.Before(want.rehearse) && s.Epoch == want.rehearse.Epoch {
			from = s
		}
		var u update
		if u, next.err = f.reach(ctx, from, wanted); next.err == nil {
			next.state = u.state
		}
	}
	if next.err == nil {
		next.err = f.n.daemon.Rehearse(ctx, f.name, &Candidate{List: f.name, Settings: want.Settings, Contents: next.state.active(f.n.clock.now())})
		next.begun = next.err == nil
	}
	if ctx.Err() != nil {
		return time.Hour
	}
	if next.begun {
		f.n.log.Info("a version of a fleet's list is rehearsed", "list", f.name, "version", want.rehearse.String(), "entries", next.state.entries.Len())
	} else if last.err == nil || last.err.Error() != next.err.Error() {
		f.n.log.Warn("a version of a fleet's list is not rehearsed, retrying: "+next.err.Error(), "list", f.name, "version", want.rehearse.String())
	}
	f.setRehearsal(next)
	if next.err != nil {
		return rehearseAgain
	}
	return time.Hour
}

// endRehearsal ends a rehearsal for good.
func (f *follower) endRehearsal(ctx context.Context) {
	f.mu.Lock()
	begun := f.rehearsing.begun
	f.rehearsing = rehearsal{}
	f.mu.Unlock()
	if begun {
		_ = f.n.daemon.Rehearse(ctx, f.name, nil)
	}
}

func (f *follower) setRehearsal(r rehearsal) {
	f.mu.Lock()
	f.rehearsing = r
	f.mu.Unlock()
	f.n.reportSoon()
}

// rehearsed returns the wanted version if it was rehearsed before: nothing has to be
// fetched then.
func (f *follower) rehearsed(want wanted) *state {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.rehearsing.state
	if !s.is(want) {
		return nil
	}
	return s
}

// rehearses reports whether a version of a list is rehearsed.
func (n *Node) rehearses() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.followers {
		f.mu.Lock()
		begun := f.rehearsing.begun
		f.mu.Unlock()
		if begun {
			return true
		}
	}
	return false
}

// reported returns what the node reports of the rehearsal, nil for none.
func (f *follower) reported() *wire.Rehearsal {
	f.mu.Lock()
	r := f.rehearsing
	f.mu.Unlock()
	if r.place == (wire.Place{}) {
		return nil
	}
	var out wire.Rehearsal
	if r.begun {
		out = f.n.daemon.Rehearsed(f.name)
	}
	if out.Place = r.place; r.err != nil && r.state.place() == r.place {
		text := r.err.Error()
		out.Error = text[:min(len(text), maxText)]
	}
	return &out
}
