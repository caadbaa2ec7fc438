package hub

import (
	"context"
	"sync"
	"time"

	"weir/control/fleet/wire"
	"weir/control/metrics"
)

// publishTimeout is how long a command waits for the broker. It is a variable for tests.
var publishTimeout = 5 * time.Second

// progress has the state of publishing, and what waits for it. It is safe for concurrent use.
type progress struct {
	heard   func() bool // whether most nodes have reported since the start
	contest *contest
	ended   <-chan struct{} // closed when the hub ends
	work    chan struct{}   // has room for one: there is something to do

	mu        sync.Mutex
	lost      *lost     // what a node has and the hub has not; nil: nothing
	pausing   time.Time // until when no such epoch begins
	first     time.Time // when there was first something to acknowledge
	isSettled bool

	waiting map[string][]waiter
	state   publisherState
	next    []chan struct{} // closed when a catalog of the present state is published
}

type waiter struct {
	place wire.Place
	done  chan struct{}
}

// publisherState says how publishing goes.
type publisherState struct {
	reached   map[string]wire.Place // published, by list; replaced, not changed
	connected bool
	failed    string    // why it does not go on; "": it does
	full      bool      // that is an errFull, and nodes are assured
	catalog   time.Time // the last one; zero: none yet
	published metrics.HubPublished
	failures  uint64   // attempts to publish
	stream    uint64   // its size in bytes
	replicas  []string // what is wrong with its replicas, a line each
	lost      string   // of the history; "": nothing
	lostAt    time.Time

	unrefreshed string // why the broker does not know who is revoked; "": it does
	unrevoked   string // why servers of sites do not; "": they do
}

func newProgress(heard func() bool, against *contest, ended <-chan struct{}) *progress {
	return &progress{heard: heard, contest: against, ended: ended, work: make(chan struct{}, 1), waiting: make(map[string][]waiter)}
}

// wake says that there is something to publish.
func (p *progress) wake() {
	select {
	case p.work <- struct{}{}:
	default:
	}
}

// published returns a channel that is closed when a version is in the stream and in
// the catalog.
func (p *progress) published(list string, place wire.Place) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := waiter{place, make(chan struct{})}
	if p.isSettled && p.lost == nil && p.contest.settled() && !p.state.reached[list].Before(place) {
		close(w.done)
	} else {
		p.waiting[list] = append(p.waiting[list], w)
	}
	return w.done
}

// again returns a channel that is closed when a catalog of the hub's present state is
// published. It is for Run's goroutine.
func (p *progress) again() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := make(chan struct{})
	p.next = append(p.next, done)
	p.wake()
	return done
}

// current returns how publishing goes.
func (p *progress) current() publisherState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// note changes the state of publishing.
func (p *progress) note(change func(*publisherState)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.state)
}

// awaited returns how many wait for a catalog of the present state, and whether nodes are to
// report: their first reports may have come before the hub listened.
func (p *progress) awaited() (waiting int, report bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.next), !p.isSettled
}

// stored takes in that a catalog was stored, for which the first of next have waited, their
// number awaited.
func (p *progress) stored(reached map[string]wire.Place, catalog time.Time, awaited int, settled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state.reached, p.state.catalog = reached, catalog
	p.state.published.Catalogs++
	if !settled { // what is published may be an older copy
		return
	}
	for _, done := range p.next[:awaited] {
		close(done)
	}
	p.next = p.next[awaited:]
	for name, all := range p.waiting {
		var still []waiter
		for _, w := range all {
			if reached[name].Before(w.place) {
				still = append(still, w)
			} else {
				close(w.done)
			}
		}
		p.waiting[name] = still
		if len(still) == 0 {
			delete(p.waiting, name)
		}
	}
}

// history takes in that the hub's history is an older copy, if a node says so: a new epoch
// begins.
func (p *progress) history(l *lost) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == nil || l.epoch > p.lost.epoch {
		p.lost = l
		p.wake()
	}
}

// takeLost returns what a node has and the hub has not, if a new epoch is to begin because of
// it: used is the present one.
func (p *progress) takeLost(used uint64, now time.Time) *lost {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil && p.lost.of < used {
		p.lost = nil // an epoch has begun since
	}
	l := p.lost
	if l == nil || now.Before(p.pausing) {
		return nil
	}
	p.lost = nil
	return l
}

// putBack has takeLost return l again, unless another report came meanwhile. Publishing is tried again
// after a pause, since it has failed.
func (p *progress) putBack(l *lost) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost == nil {
		p.lost = l
	}
}

// rest has no other epoch begin before a time.
func (p *progress) rest(until time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pausing = until
}

// settled reports whether enough nodes have been heard since the start to say that the
// hub's history is not an older copy: more than half of those that were enrolled before, or
// those that connect in time.
func (p *progress) settled(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lost != nil || !p.contest.settled() {
		return false
	}
	if !p.isSettled {
		if p.first.IsZero() {
			p.first = now
			time.AfterFunc(settleReports, p.wake)
		}
		p.isSettled = p.heard() || now.Sub(p.first) >= settleReports
	}
	return p.isSettled
}

// decided reports whether it was settled once since the start.
func (p *progress) decided() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.isSettled
}

// patience returns how long a command waits until it is published.
func (p *progress) patience() time.Duration {
	if !p.decided() {
		return publishTimeout + settleReports
	}
	return publishTimeout
}

// wait waits until something is published, and reports whether it is. It does not wait
// long, nor while another hub keeps this one from acknowledging.
func (p *progress) wait(ctx context.Context, published <-chan struct{}) bool {
	select {
	case <-published:
		return true
	case <-time.After(p.patience()):
	case <-p.contest.stops():
	case <-ctx.Done():
	case <-p.ended:
	}
	return false
}
