package node

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"weir/control/fleet/wire"
	"weir/control/list"
)

const (
	// maxAhead bounds the live deltas that wait to be verified, and those that wait for the catalog
	// to want them, and maxAheadBytes the length of each. Others are fetched when they are wanted.
	maxAhead      = 64
	maxAheadBytes = 8 << 20

	// maxUnconfirmed bounds the versions that wait to become active.
	maxUnconfirmed = 16

	// fewDeltas are fetched without asking whether a snapshot would be shorter.
	fewDeltas = 16

	// maxHeads bounds the heads that are looked through for one that is old enough.
	maxHeads = 256

	// maxRefused bounds the refused deltas in a row that are passed over.
	maxRefused = 16

	leastRetry, mostRetry = time.Second, time.Minute

	// keepLost is for how long a version that the hub has no more filters on, while the hub learns of it, and takes its
	// changes back: longer than a hub waits for reports, and asks.
	keepLost = 30 * time.Second

	// leaveWithin bounds how long a list that the catalog has no more filters on, until the lists that
	// have come in its stead do.
	leaveWithin = time.Minute

	// manyEntries is from when on a snapshot takes memory that is worth giving back.
	manyEntries = 1 << 19
)

// follower follows one list.
type follower struct {
	n      *Node
	name   string
	wake   chan struct{}
	cancel context.CancelFunc // nil: it does not run yet

	ended chan struct{} // closed when it does not run any more; nil: it has not run yet

	// Of a list that the catalog has no more, which filters until others do, or until a time; zero: the
	// catalog has it. The node's mu protects both.
	leaveBy  time.Time
	leaveFor []string

	// Of the follower's goroutine.
	at    *state
	ahead map[uint64]opened // live deltas, by the version that they begin at
	lost  *state            // that the hub has no more; nil: none
	since time.Time         // when that was noticed

	saving sync.Mutex // held while the file is written
	disk   disk

	mu          sync.Mutex // protects what follows
	want        wanted
	inbox       []message // live deltas
	inboxBytes  int
	list        *List // nil: nothing is known yet
	version     uint64
	loaded      uint64 // the version that was loaded from the disk
	newest      *state
	hidden      int       // entries of newest that have expired
	contents    *list.Set // of newest, but for those
	unconfirmed []update
	active      *state // the version that filters; nil: none
	refused     error  // why newest is not active
	unsaved     error
	err         error // why the wanted version is not known
	failures    int
	rehearsing  rehearsal
	measuring   measuring
	measured    measured
}

// measuring says what is to be measured of a version of a wave, once that is active.
type measuring struct {
	before *state // what filtered when the version was published; nil: nothing
	now    *state // nil: there is nothing to measure
}

// measured says with whom the host has conversed that a version has added.
type measured struct {
	place     wire.Place
	conversed *wire.Conversed
}

// wanted has the catalog's settings of a list, and the version to have.
type wanted struct {
	wire.Settings
	wire.Place            // to filter by; the zero Place: what there is
	id         string     // of that version; "": unknown
	inWave     bool       // of a rollout
	rehearse   wire.Place // the zero Place: none
	rehearseID string     // of that version
}

// opened is a verified delta.
type opened struct {
	message
	wire.Delta
}

// update is a version with what is to be saved of it: deltas from the version before,
// or a snapshot and deltas.
type update struct {
	*state
	version uint64
	whole   bool // from a snapshot
	head    wire.Head
	body    []byte
	deltas  [][]byte
}

// leaves reports whether the catalog has the list no more. The node's mu is held.
func (f *follower) leaves() bool { return !f.leaveBy.IsZero() }

// removeFile removes what is saved of a list that is gone.
func (f *follower) removeFile() {
	f.saving.Lock()
	defer f.saving.Unlock()
	f.disk.remove()
	f.disk.path = ""
}

// filters reports whether a version filters.
func (f *follower) filters() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active != nil
}

// arrived takes in a live delta. It must not wait.
func (f *follower) arrived(m message) {
	f.mu.Lock()
	if len(f.inbox) < maxAhead && f.inboxBytes+len(m.data) <= maxAheadBytes {
		f.inbox = append(f.inbox, m)
		f.inboxBytes += len(m.data)
	}
	f.mu.Unlock()
	poke(f.wake)
}

// run follows the list until ctx is done.
func (f *follower) run(ctx context.Context) {
	wait := time.NewTimer(0)
	defer wait.Stop()
	defer f.endRehearsal(context.WithoutCancel(ctx))
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-wait.C:
		}
		err := f.sync(ctx)
		if ctx.Err() != nil {
			return
		}
		f.measure(ctx)
		f.mu.Lock()
		text := ""
		if f.err != nil {
			text = f.err.Error()
		}
		if f.err = err; err != nil {
			f.failures++
		} else {
			f.failures = 0
		}
		failures := f.failures
		f.mu.Unlock()
		if (err != nil || text != "") && (err == nil || text != err.Error()) {
			if err != nil {
				f.n.log.Warn("the wanted version of a fleet's list is not known, the old one stays: "+err.Error(), "list", f.name)
			}
			f.n.reportSoon()
		}
		next := f.expire(ctx)
		if err != nil {
			backoff := min(mostRetry, leastRetry<<min(failures-1, 6))
			backoff = backoff/2 + rand.N(backoff/2+1)
			next = min(next, backoff)
		}
		wait.Reset(min(next, f.tidy(), f.rehearse(ctx)))
	}
}

// expire lets entries expire whose time has come. It returns how long to wait for the
// next ones.
func (f *follower) expire(ctx context.Context) time.Duration {
	now := f.n.clock.now()
	f.mu.Lock()
	s := f.newest
	if s == nil {
		f.mu.Unlock()
		return time.Hour
	}
	over, next := s.expired(now)
	changed := over != f.hidden
	if changed {
		f.hidden, f.contents = over, s.active(now)
		f.version++
	}
	l := f.list
	f.mu.Unlock()
	if changed {
		f.n.log.Info("entries of a fleet's list have expired", "list", f.name, "entries", over)
		_ = f.n.daemon.TakeContents(ctx, l) // it is in the log
	}
	if next.IsZero() {
		return time.Hour
	}
	return max(next.Sub(f.n.clock.now()), 0) + time.Millisecond
}

// sync brings the list to the wanted version, or says why it cannot.
func (f *follower) sync(ctx context.Context) error {
	f.mu.Lock()
	want, inbox := f.want, f.inbox
	f.inbox, f.inboxBytes = nil, 0
	current := f.list != nil && f.list.settings == want.Settings
	f.mu.Unlock()
	f.sort(inbox, want)
	from := f.at
	if from != nil && from.Place == want.Place && !from.is(want) {
		if err := f.keeps(from); err != nil {
			return err
		}
		from = nil
	} else if !from.place().Before(want.Place) {
		if f.at != nil && !current {
			return f.publish(ctx, want, update{state: f.at, whole: true})
		}
		return nil
	}
	u := update{state: f.rehearsed(want), whole: true}
	if u.state == nil {
		var err error
		if u, err = f.reach(ctx, from, want); err != nil {
			return err
		}
	}
	f.at = u.state
	f.sort(nil, want) // what is no longer ahead
	f.mu.Lock()
	if f.measuring = (measuring{}); want.inWave {
		f.measuring = measuring{f.active, u.state}
	}
	f.mu.Unlock()
	return f.publish(ctx, want, u)
}

// measure has the daemon say with whom the host has conversed that a version of a wave has added, as
// soon as that is active: the first contents of a list become so with the lists, and others later
// where they could not at first. What arrives meanwhile waits: lists that have waves have no urgent
// changes.
func (f *follower) measure(ctx context.Context) {
	f.mu.Lock()
	m, contents, settings := f.measuring, f.contents, f.want.Settings
	if m.now == nil || f.active != m.now {
		f.mu.Unlock()
		return
	}
	f.measuring = measuring{}
	f.mu.Unlock()
	former := new(list.Set)
	if m.before != nil {
		former = m.before.active(f.n.clock.now())
	}
	c := f.n.daemon.Measure(ctx, f.name, &Candidate{List: f.name, Settings: settings, Contents: contents}, former)
	f.mu.Lock()
	f.measured = measured{m.now.Place, c}
	f.mu.Unlock()
	f.n.reportSoon()
}

// open verifies a delta, or refuses it. It returns where it is in the stream in any case.
func (f *follower) open(m message) (opened, error) {
	d, err := wire.OpenDelta(f.n.key, m.data)
	if err == nil && d.List != f.name {
		err = fmt.Errorf("delta of list %q, stored as one of %q: %w", d.List, f.name, wire.ErrForged)
	}
	if err != nil {
		f.n.refuse(err)
	}
	return opened{m, d}, err
}

// sort verifies live deltas, and keeps those ahead of the current version.
func (f *follower) sort(inbox []message, want wanted) {
	size := 0
	for _, d := range f.ahead {
		size += len(d.data)
	}
	for _, m := range inbox {
		d, err := f.open(m)
		if err != nil {
			continue
		}
		former := len(f.ahead[d.From].data)
		if d.Epoch == want.Epoch && len(f.ahead) < maxAhead && size-former+len(m.data) <= maxAheadBytes {
			f.ahead[d.From] = d
			size += len(m.data) - former
		}
	}
	for from, d := range f.ahead {
		if d.Epoch != want.Epoch || f.at != nil && f.at.Epoch == d.Epoch && from < f.at.Version {
			delete(f.ahead, from)
		}
	}
}

// keeps returns that a version, which is of a history that the hub has lost, is not to be replaced yet: the hub can
// take back what it can be proved to have made, and what is saved.
func (f *follower) keeps(s *state) error {
	if f.lost != s {
		f.lost, f.since = s, time.Now()
	}
	if s.seal == "" || f.disk.path == "" || time.Since(f.since) >= keepLost {
		return nil
	}
	f.n.reportSoon()
	return fmt.Errorf("list %q: the hub has no version %v %s any more, which stays for %v, so that the hub takes its changes back", f.name, s.Place, s.id, keepLost)
}

// errGap means that no delta leads on.
var errGap = errors.New("a delta is missing")

// reach returns the wanted version, by deltas where they lead there from another one,
// which may be nil.
func (f *follower) reach(ctx context.Context, from *state, want wanted) (update, error) {
	u, err := f.lead(ctx, from, want)
	if err == nil && !u.is(want) {
		err = fmt.Errorf("list %q: the stream leads to another version %v than the one that the hub wants", f.name, want.Place)
	}
	return u, err
}

func (f *follower) lead(ctx context.Context, from *state, want wanted) (update, error) {
	u := update{state: from}
	if u.state == nil || u.Epoch != want.Epoch {
		return f.begin(ctx, from, want)
	}
	budget := int64(-1) // of bytes: unlimited
	if want.Version-u.Version > fewDeltas && len(f.ahead) < int(min(want.Version-u.Version, maxAhead)) {
		if h, err := f.head(ctx, want); err == nil && u.Place.Before(h.Place) {
			budget = int64(h.Size)
		}
	}
	err := f.catchUp(ctx, &u, want, budget)
	switch {
	case err == nil:
		return u, nil
	case errors.Is(err, errGap), errors.Is(err, errBroken), errors.Is(err, wire.ErrForged):
		f.n.log.Debug("deltas do not lead to the wanted version: "+err.Error(), "list", f.name)
		if errors.Is(err, errBroken) {
			if u.state == from {
				if err := f.keeps(from); err != nil {
					return u, err
				}
			}
			from = nil
		}
		again, failed := f.begin(ctx, from, want)
		if failed != nil {
			return again, fmt.Errorf("%w; %w", err, failed)
		}
		return again, nil
	}
	return u, err
}

// begin returns the wanted version from a snapshot of a later version than one, which
// may be nil.
func (f *follower) begin(ctx context.Context, from *state, want wanted) (update, error) {
	h, err := f.head(ctx, want)
	if err != nil {
		return update{}, err
	}
	if from != nil && from.Epoch == h.Epoch && !from.Before(h.Place) && !f.leadsTo(ctx, want) {
		return update{}, fmt.Errorf("list %q: the last snapshot is of version %v, which is not after %v", f.name, h.Place, from.Place)
	}
	began := time.Now()
	var whole []byte
	for i := range h.Chunks() {
		m, err := f.n.fetch(ctx, last(wire.ChunkSubject(f.name, h.Epoch, h.Version, i)))
		if err != nil {
			return update{}, fmt.Errorf("list %q: snapshot %v, chunk %d of %d: %w", f.name, h.Place, i+1, h.Chunks(), err)
		}
		if len(whole)+len(m.data) > h.Size {
			err := fmt.Errorf("snapshot %v of list %q: too long: %w", h.Place, f.name, wire.ErrForged)
			f.n.refuse(err)
			return update{}, err
		}
		whole = append(whole, m.data...)
	}
	s, err := stateOf(h, whole)
	if err != nil {
		if errors.Is(err, wire.ErrForged) {
			f.n.refuse(err)
		}
		return update{}, err
	}
	f.n.log.Info("snapshot of a fleet's list", "list", f.name, "version", h.Place.String(), "entries", h.Entries, "bytes", h.Size,
		"took", time.Since(began).Round(time.Millisecond).String())
	u := update{state: s, whole: true, head: h, body: whole}
	return u, f.catchUp(ctx, &u, want, -1)
}

// leadsTo reports whether the stream has the wanted version: what is missing before is not
// still to come.
func (f *follower) leadsTo(ctx context.Context, want wanted) bool {
	m, err := f.n.fetch(ctx, last(wire.DeltaSubject(f.name)))
	if err != nil {
		return false
	}
	d, err := wire.OpenDelta(f.n.key, m.data)
	return err == nil && d.Epoch == want.Epoch && d.To >= want.Version
}

// head returns the newest head that is not after the wanted version.
func (f *follower) head(ctx context.Context, want wanted) (wire.Head, error) {
	subject := wire.HeadSubject(f.name)
	open := func(m message) (wire.Head, error) {
		h, err := wire.OpenHead(f.n.key, m.data)
		if err == nil && h.List != f.name {
			err = fmt.Errorf("head of list %q, stored as one of %q: %w", h.List, f.name, wire.ErrForged)
		}
		if err != nil {
			f.n.refuse(err)
		}
		return h, err
	}
	fits := func(h wire.Head) bool { return h.Epoch == want.Epoch && h.Version <= want.Version }
	m, err := f.n.fetch(ctx, last(subject))
	if err != nil {
		return wire.Head{}, fmt.Errorf("list %q: head of the last snapshot: %w", f.name, err)
	}
	if h, err := open(m); err != nil || fits(h) {
		return h, err
	}
	// Another group of nodes is ahead, or the stream behind.
	var best wire.Head
	seq := uint64(1)
	for range maxHeads {
		m, err := f.n.fetch(ctx, next(subject, seq))
		if err != nil || m.seq < seq {
			break
		}
		seq = m.seq + 1
		if h, err := open(m); err == nil && fits(h) {
			best = h
		} else if best.Size > 0 {
			break
		}
	}
	if best.Size == 0 {
		return best, fmt.Errorf("list %q: the hub has no snapshot that leads to version %v", f.name, want.Place)
	}
	return best, nil
}

// catchUp applies deltas to u until it is the wanted version. It fails with errGap
// where they take more bytes than the budget; less than 0: no matter how many.
func (f *follower) catchUp(ctx context.Context, u *update, want wanted, budget int64) error {
	spent := int64(0)
	for u.Version < want.Version {
		d, live := f.ahead[u.Version]
		if !live {
			var err error
			if d, err = f.fetch(ctx, u.state, want); err != nil {
				return err
			}
			if spent += int64(len(d.data)); budget >= 0 && spent > budget {
				return fmt.Errorf("list %q: a snapshot is shorter: %w", f.name, errGap)
			}
		}
		if d.To > want.Version {
			return fmt.Errorf("list %q: the next delta leads from version %d to %d, beyond %d: %w", f.name, d.From, d.To, want.Version, errGap)
		}
		s, err := u.apply(d.Delta, d.seq)
		if err != nil {
			delete(f.ahead, d.From)
			return err
		}
		u.state, u.deltas = s, append(u.deltas, d.data)
	}
	return nil
}

// delta returns a delta of the stream, or its place there and why it is refused.
func (f *follower) delta(ctx context.Context, what wire.Fetch) (opened, error) {
	m, err := f.n.fetch(ctx, what)
	if err != nil {
		if errors.Is(err, errNone) {
			err = fmt.Errorf("list %q: no delta: %w", f.name, errGap)
		}
		return opened{}, err
	}
	return f.open(m)
}

// deltaFrom returns the first delta that is not refused, from a place in the stream on.
func (f *follower) deltaFrom(ctx context.Context, seq uint64) (d opened, err error) {
	for range maxRefused {
		if d, err = f.delta(ctx, next(wire.DeltaSubject(f.name), seq)); !errors.Is(err, wire.ErrForged) {
			break
		}
		seq = d.seq + 1
	}
	return d, err
}

// fetch returns the delta that begins at a version, from the stream.
func (f *follower) fetch(ctx context.Context, s *state, want wanted) (opened, error) {
	begins := func(d opened) wire.Place { return wire.Place{Epoch: d.Epoch, Version: d.From} }
	if s.seq > 0 { // the usual case
		if d, err := f.deltaFrom(ctx, s.seq+1); err == nil && begins(d) == s.Place {
			return d, nil
		}
	}
	high, err := f.delta(ctx, last(wire.DeltaSubject(f.name)))
	refused := errors.Is(err, wire.ErrForged) // what it begins at is not known
	if err != nil && !refused || err == nil && begins(high) == s.Place {
		return high, err
	}
	// Deltas are stored in the order of their versions: search.
	for low := uint64(1); low < high.seq && (refused || s.Before(begins(high))); {
		mid := low + (high.seq-low)/2
		d, err := f.deltaFrom(ctx, mid)
		switch {
		case refused && errors.Is(err, wire.ErrForged), refused && errors.Is(err, errGap): // none from mid on
			high.seq = mid
		case err != nil:
			return opened{}, err
		case begins(d) == s.Place:
			return d, nil
		case d.seq < mid:
			return opened{}, fmt.Errorf("list %q: the stream is out of order: %w", f.name, errGap)
		case begins(d).Before(s.Place):
			low = d.seq + 1
		case d.seq >= high.seq: // there is none from mid to there
			high.seq = mid
		default:
			high, refused = d, false
		}
	}
	return opened{}, fmt.Errorf("list %q: no delta from version %v: %w", f.name, s.Place, errGap)
}

// publish makes a version known, to become active.
func (f *follower) publish(ctx context.Context, want wanted, u update) error {
	f.mu.Lock()
	f.version++
	u.version = f.version
	f.newest, f.err = u.state, nil
	now := f.n.clock.now()
	f.hidden, _ = u.expired(now)
	f.contents = u.state.active(now)
	f.unconfirmed = append(f.unconfirmed, u)
	if over := len(f.unconfirmed) - maxUnconfirmed; over > 0 {
		f.unconfirmed = slices.Delete(f.unconfirmed, 0, over)
		first := &f.unconfirmed[0]
		*first = update{state: first.state, version: first.version, whole: true}
	}
	fresh := f.list == nil || f.list.settings != want.Settings
	if fresh {
		f.list = &List{f: f, settings: want.Settings}
	}
	l := f.list
	f.mu.Unlock()
	if u.entries.Len() >= manyEntries && u.whole {
		defer debug.FreeOSMemory()
	}
	if fresh {
		poke(f.n.changed)
	} else {
		_ = f.n.daemon.TakeContents(ctx, l) // it is in the log, and tried again
	}
	return nil
}

// keep saves what leads to a version, which is active.
func (f *follower) keep(version uint64) error {
	f.saving.Lock()
	defer f.saving.Unlock()
	f.mu.Lock()
	n := 0
	for n < len(f.unconfirmed) && f.unconfirmed[n].version <= version {
		n++
	}
	done := slices.Clone(f.unconfirmed[:n])
	f.unconfirmed = slices.Delete(f.unconfirmed, 0, n)
	f.mu.Unlock()
	if len(done) == 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.refused = nil
		return f.unsaved
	}
	err := f.save(done)
	f.mu.Lock()
	f.active, f.refused, f.unsaved = done[len(done)-1].state, nil, err
	if f.measuring.now == f.active {
		poke(f.wake)
	}
	f.mu.Unlock()
	f.n.reportSoon()
	return err
}

// save saves versions, each of which leads to the next.
func (f *follower) save(all []update) error {
	newest := all[len(all)-1]
	if f.disk.path == "" || newest.version == f.loaded {
		return nil
	}
	first := update{}
	var deltas [][]byte
	for _, u := range all {
		if u.whole {
			first, deltas = u, nil
		}
		deltas = append(deltas, u.deltas...)
	}
	switch {
	case first.body != nil:
		return f.disk.replace(first.head, first.body, deltas)
	case first.whole || f.disk.base == 0:
		return f.disk.compact(f.name, newest.state)
	}
	return f.disk.append(deltas)
}

// tidy writes the file anew if its deltas have become long, or what is active could
// not be saved. It returns when to look again.
func (f *follower) tidy() time.Duration {
	f.saving.Lock() // before active, which must not go back
	defer f.saving.Unlock()
	f.mu.Lock()
	active, unsaved := f.active, f.unsaved
	f.mu.Unlock()
	if active == nil || f.disk.path == "" || unsaved == nil && !f.disk.full() {
		return time.Hour
	}
	err := f.disk.compact(f.name, active)
	f.mu.Lock()
	f.unsaved = err
	f.mu.Unlock()
	if (err == nil) != (unsaved == nil) {
		f.n.reportSoon()
	}
	if err != nil {
		return 10 * leastRetry
	}
	return time.Hour
}
