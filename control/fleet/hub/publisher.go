package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"weir/control/audit"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/store"
	"weir/control/fleet/wire"
)

// retryInterval is how soon publishing is tried again.
const retryInterval = time.Second

// publisher brings the broker's stream up to the store.
type publisher struct {
	*progress

	log       *slog.Logger
	conf      func() *config.Hub
	authority *authority.Authority
	broker    *dialer
	dir       stateDir
	audit     *audit.Log
	nodes     *nodes
	asker     *asker
	listed    *lostChanges
	before    *before

	loop     *loop
	store    *store.Store // for loop, as lists and releases
	lists    *table
	releases *releases
	patterns *patterns

	// Those of run's goroutine.
	conn     *nats.Conn // to the nodes
	stream   stream
	at       map[string]*published // by list; nil: it is to be found out
	last     uint64                // sequence of the last catalog
	issued   wire.Catalog          // the last one that was stored
	began    bool                  // the stream was brought up to the store once
	stamp    authority.Stamp       // of the authority, when the account was published; zero: it was not
	measured time.Time             // the stream

	saidEmpty bool // that the state before this one was lost, though perhaps it is not noted yet
}

// published describes a list in the stream.
type published struct {
	place    wire.Place // the last delta, or the snapshot if that is later
	sequence uint64     // of the last message on the delta subject
	snapshot wire.Place // the last one of the epoch
	head     wire.Place // the last one, of any epoch, which nodes may be fetching
	trim     uint64     // sequence up to which deltas may go with the next snapshot
}

func (p *publisher) run(ctx context.Context) {
	defer func() {
		for _, c := range []*nats.Conn{p.conn, p.stream.conn} {
			if c != nil {
				c.Close()
			}
		}
	}()
	every := p.conf().Heartbeat
	heartbeat := time.NewTicker(time.Duration(every))
	defer heartbeat.Stop()
	failed := ""
	for {
		if now := p.conf().Heartbeat; now != every {
			every = now
			heartbeat.Reset(time.Duration(every))
		}
		err := p.publish(ctx)
		text := ""
		if err != nil && ctx.Err() == nil {
			text = err.Error()
			if text != failed { // once while it stays the same
				p.log.Error("publishing failed, retrying: " + text)
			}
		}
		failed = text
		p.broker.tried(p.stream.conn, err, p.conf().Broker.Replicas, time.Now())
		p.note(func(s *publisherState) {
			if text != "" {
				s.failures++
			}
			_, s.full = errors.AsType[errFull](err)
			s.failed, s.connected = text, p.conn != nil && p.conn.IsConnected() && p.stream.conn != nil && p.stream.conn.IsConnected()
		})
		var retry <-chan time.Time
		if err != nil {
			if unanswered(err) == 0 { // making it waits for another leader than that of the stream
				p.stream.in = nil
			}
			p.forget()
			retry = time.After(retryInterval)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.work:
		case <-heartbeat.C:
		case <-retry:
		}
	}
}

// forget has the next publish read again what the stream has.
func (p *publisher) forget() { p.at, p.stamp = nil, authority.Stamp{} }

// dialBoth connects to the broker, with both accounts.
func (p *publisher) dialBoth() error {
	if p.conn == nil {
		c, err := p.broker.dial("weir-hub", p.broker.own, nats.ReconnectHandler(func(*nats.Conn) { p.wake() }))
		if err != nil {
			return err
		}
		err = p.nodes.subscribe(c)
		if err == nil {
			_, err = c.Subscribe(wire.HubSubject, p.answer)
		}
		if err != nil {
			c.Close()
			return err
		}
		p.conn = c
	}
	if err := p.stream.dial(p.broker, p.wake); err != nil {
		return err
	}
	p.nodes.listen(time.Now())
	return nil
}

// connect connects to the broker, and makes the stream.
func (p *publisher) connect(ctx context.Context) error {
	if err := p.dialBoth(); err != nil {
		return err
	}
	if p.stream.in != nil {
		return nil
	}
	return p.stream.make(ctx, p.conf().Broker.Replicas)
}

// publish publishes what the stream does not have yet, and a catalog.
func (p *publisher) publish(ctx context.Context) error {
	if p.contest.overruled() {
		return errOverruled
	}
	if full := p.dir.room(); full != nil {
		if err := p.assure(ctx); err != nil {
			return fmt.Errorf("%s; nodes are not assured either: %w", full.Error(), err) // no errFull: nodes are not assured
		}
		return full
	}
	if err := p.connect(ctx); err != nil {
		return err
	}
	if err := p.recover(ctx); err != nil {
		return err
	}
	names := p.lists.names()
	// The stream may have something of a list that was added.
	if p.at == nil || slices.ContainsFunc(names, func(name string) bool { return p.at[name] == nil }) {
		known := p.at
		if err := p.compare(ctx); err != nil {
			return err
		}
		maps.Copy(p.at, known)
	}
	// Once nodes have the first catalog, they do not say any more that there was a state before, and have
	// nothing of it. The stream may have said that first.
	if p.store.IsNew() && p.store.First() > 0 && !p.began && !p.settled(time.Now()) {
		return nil
	}
	for _, name := range names {
		if err := p.list(ctx, name); err != nil && !errors.Is(err, errRemoved) {
			return fmt.Errorf("list %s: %w", name, err)
		}
	}
	if err := p.catalog(ctx); err != nil {
		return err
	}
	p.began = true
	p.account(ctx)
	p.measure(ctx)
	// A delta that nodes refuse would keep those that start from the ones before.
	if p.stream.gap {
		p.log.Warn("the stream has messages that this hub did not store: checking what nodes need")
		p.forget()
		p.wake()
	}
	return nil
}

// measure finds out how large the stream is, each heartbeat.
func (p *publisher) measure(ctx context.Context) {
	if now := time.Now(); now.Sub(p.measured) >= time.Duration(p.conf().Heartbeat)/2 {
		if info, err := p.stream.info(ctx); err == nil { // or publishing fails next
			p.measured = now
			p.note(func(s *publisherState) {
				s.stream, s.replicas = info.State.Bytes, replicas(info.Cluster, p.conf().Broker.Replicas)
			})
		}
	}
}

// errAhead means that the stream has what the store does not.
type errAhead struct {
	what  string
	epoch uint64
}

func (e errAhead) Error() string { return e.what }

// compare finds out what the stream has. Where it has what the store has not, the
// store's history was lost, and a new epoch begins: a version number must not stand
// for two contents. While the hub runs, it cannot have been lost.
func (p *publisher) compare(ctx context.Context) error {
	for {
		at, err := p.look(ctx)
		if ahead, ok := errors.AsType[errAhead](err); ok && p.began {
			return anotherHub(ahead)
		} else if ok {
			if err := p.newEpoch(ctx, ahead.epoch, ahead.what); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		p.at = at
		return nil
	}
}

// errRemoved means that a reload has removed a list.
var errRemoved = errors.New("it was removed")

// kept describes a list in the store.
type kept struct {
	history     *store.List // safe for concurrent use are its Compare and ID
	place, base wire.Place
	behind      bool // it has not entered the epoch
	messages    map[uint64][]byte
	order       []uint64
}

// kept returns what the store has of a list, with the deltas after a version.
func (p *publisher) kept(ctx context.Context, name string, after wire.Place) (k kept, err error) {
	err = p.loop.Do(ctx, func() error {
		l := p.lists.get(name)
		if l == nil {
			return errRemoved
		}
		k = kept{history: l.history, place: l.history.Place(), base: l.history.Base().Place, messages: make(map[uint64][]byte)}
		k.behind = k.place.Epoch != p.store.Epoch()
		from := uint64(0)
		if after.Epoch == k.place.Epoch {
			from = after.Version
		}
		return l.history.Deltas(from, func(to uint64, message []byte) error {
			k.order = append(k.order, to)
			k.messages[to] = message
			return nil
		})
	})
	return k, err
}

func (p *publisher) look(ctx context.Context) (map[string]*published, error) {
	public := p.authority.PublicKey()
	at := make(map[string]*published)
	var epoch, last uint64
	if err := p.loop.Do(ctx, func() error {
		epoch, last = p.store.Epoch(), p.store.LastCatalog()
		return nil
	}); err != nil {
		return nil, err
	}
	info, err := p.stream.info(ctx)
	if err != nil {
		return nil, err
	}
	p.stream.last, p.stream.gap = info.State.LastSeq, false
	m, err := p.stream.lastMessage(ctx, wire.CatalogSubject())
	if err != nil {
		return nil, err
	}
	p.last = 0
	if m != nil {
		p.last = m.Sequence
		c, err := wire.OpenCatalog(public, m.Data)
		switch {
		case err != nil:
			p.log.Error("the stream has a catalog that this hub has not signed, replacing it: " + err.Error())
		case c.Epoch > epoch || c.Epoch == epoch && c.Version > last:
			return nil, errAhead{fmt.Sprintf("the stream has catalog %v, the store reached %d.%d", c.Place, epoch, last), c.Epoch}
		default:
			if l := p.emptied(c.Place, "the stream"); l != nil {
				p.history(l)
			}
		}
	}
	for _, name := range p.lists.names() {
		found, err := p.lookAt(ctx, name, epoch)
		if errors.Is(err, errRemoved) {
			continue
		}
		if err != nil {
			return nil, err
		}
		at[name] = found
	}
	return at, nil
}

// lookAt finds out what the stream has of a list.
func (p *publisher) lookAt(ctx context.Context, name string, epoch uint64) (*published, error) {
	public := p.authority.PublicKey()
	at := &published{}
	k, err := p.kept(ctx, name, wire.Place{})
	if err != nil {
		return nil, err
	}
	if k.behind { // it comes after all of the epochs before
		k.place, k.messages = wire.Place{Epoch: epoch}, nil
	}
	head, err := p.stream.lastMessage(ctx, wire.HeadSubject(name))
	if err != nil {
		return nil, err
	}
	if head != nil {
		h, err := wire.OpenHead(public, head.Data)
		if err == nil && h.List == name {
			at.head, at.trim = h.Place, head.Sequence
		}
		switch {
		case err != nil:
			p.log.Error("the stream has a snapshot that this hub has not signed, replacing it: "+err.Error(), "list", name)
		case k.place.Before(h.Place):
			return nil, errAhead{fmt.Sprintf("list %s: the stream has snapshot %v, the store reached %v", name, h.Place, k.place), h.Epoch}
		case h.Epoch == epoch && h.List == name && k.history.Compare(wire.Version{Place: h.Place, ID: h.ID, Sum: h.Sum}) == store.Another:
			return nil, errAhead{fmt.Sprintf("list %s: snapshot %v of the stream is another than that of the store", name, h.Place), h.Epoch}
		case h.Epoch == epoch && h.List == name:
			at.place, at.snapshot = h.Place, h.Place
		}
	}
	delta, err := p.stream.lastMessage(ctx, wire.DeltaSubject(name))
	if err != nil || delta == nil {
		return at, err
	}
	at.sequence = delta.Sequence
	d, err := wire.OpenDelta(public, delta.Data)
	if err != nil {
		p.log.Error("the stream has a delta that this hub has not signed, nodes refuse it: "+err.Error(), "list", name)
		at.place, at.snapshot = wire.Place{}, wire.Place{} // what is before it is in doubt, too
		return at, nil
	}
	to := wire.Place{Epoch: d.Epoch, Version: d.To}
	ours := k.messages[d.To]
	switch {
	case k.place.Before(to):
		return nil, errAhead{fmt.Sprintf("list %s: the stream has version %v, the store reached %v", name, to, k.place), d.Epoch}
	case d.Epoch == epoch && ours != nil && !bytes.Equal(ours, delta.Data):
		return nil, errAhead{fmt.Sprintf("list %s: version %v of the stream is another than that of the store", name, to), d.Epoch}
	case d.Epoch == epoch && at.place.Before(to):
		at.place = to
	}
	return at, nil
}

// list publishes what the stream does not have of a list.
func (p *publisher) list(ctx context.Context, name string) error {
	at := p.at[name]
	if at == nil {
		return errRemoved // and maybe added again
	}
	k, err := p.kept(ctx, name, at.place)
	if err != nil {
		return err
	}
	deltas := func() error {
		for _, to := range k.order {
			if to > at.place.Version {
				if err := p.delta(ctx, name, at, to, k.messages[to]); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if k.behind { // what the stream has of it may be later
		return nil
	}
	// Deltas first: nodes that follow need no snapshot.
	if at.place.Epoch == k.place.Epoch && !at.place.Before(k.base) {
		if err := deltas(); err != nil {
			return err
		}
	}
	if at.snapshot != k.base {
		if err := p.snapshot(ctx, name, at); err != nil {
			return err
		}
	}
	return deltas()
}

// delta publishes a delta. No other publisher may come in between.
func (p *publisher) delta(ctx context.Context, name string, at *published, to uint64, message []byte) error {
	d, err := wire.OpenDelta(p.authority.PublicKey(), message)
	if err != nil {
		return err
	}
	if at.sequence, err = p.stream.put(ctx, &nats.Msg{Subject: wire.DeltaSubject(name), Data: message}, at.sequence); err != nil {
		return err
	}
	at.place = wire.Place{Epoch: d.Epoch, Version: to}
	p.note(func(s *publisherState) { s.published.Deltas++ })
	return nil
}

// snapshot publishes the base of a list: the chunks, then the head, with which it
// exists.
func (p *publisher) snapshot(ctx context.Context, name string, at *published) error {
	var chunks [][]byte
	var head []byte
	var place wire.Place
	if err := p.loop.Do(ctx, func() (err error) {
		l := p.lists.get(name)
		if l == nil {
			return errRemoved
		}
		place = l.history.Base().Place
		chunks, head, err = l.history.Snapshot()
		return err
	}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, operationTimeout+time.Duration(len(chunks))*time.Second)
	defer cancel()
	for i, chunk := range chunks {
		m := nats.NewMsg(wire.ChunkSubject(name, place.Epoch, place.Version, i))
		m.Data = chunk
		if _, err := p.stream.store(ctx, m); err != nil {
			return err
		}
	}
	m := nats.NewMsg(wire.HeadSubject(name))
	m.Data = head
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	if _, err := p.stream.store(ctx, m); err != nil {
		return err
	}
	p.note(func(s *publisherState) { s.published.Snapshots++ })
	p.trim(ctx, name, at, place)
	if at.place.Before(place) {
		at.place = place
	}
	return nil
}

// trim removes what a new snapshot supersedes, apart from the one before it, and the
// deltas since then: nodes may be fetching those.
func (p *publisher) trim(ctx context.Context, name string, at *published, place wire.Place) {
	former := at.head
	at.snapshot, at.head = place, place
	stays := func(err error) {
		if err != nil {
			p.log.Warn("old snapshots stay in the stream: "+err.Error(), "list", name)
		}
	}
	purge := func(o ...jetstream.StreamPurgeOpt) { stays(p.stream.in.Purge(ctx, o...)) }
	all, err := p.stream.snapshots(ctx, name) // also of a hub that ran before, or was interrupted
	stays(err)
	delete(all, place)
	if _, ok := all[former]; !ok { // the last one was published once more
		former = latest(maps.Keys(all))
	}
	delete(all, former)
	for old := range all {
		purge(jetstream.WithPurgeSubject(wire.ChunksSubject(name, old.Epoch, old.Version)))
	}
	if at.trim > 0 {
		purge(jetstream.WithPurgeSubject(wire.DeltaSubject(name)), jetstream.WithPurgeSequence(at.trim))
	}
	at.trim = at.sequence
}

// latest returns the last of versions, the zero Place if there are none.
func latest(all iter.Seq[wire.Place]) (last wire.Place) {
	for p := range all {
		if last.Before(p) {
			last = p
		}
	}
	return last
}

// catalog publishes what each group of nodes is to have.
func (p *publisher) catalog(ctx context.Context) error {
	var text []byte
	c := wire.Catalog{
		Term: p.contest.term(), MaxAge: int64(time.Duration(p.conf().MaxAge).Seconds()), Beat: time.Duration(p.conf().Heartbeat).Milliseconds(),
	}
	for _, l := range p.conf().Links {
		c.Links = append(c.Links, wire.Link{Groups: l.Labels, MaxRate: int64(l.MaxRate.PerSecond())})
	}
	reached := make(map[string]wire.Place)
	unpublished, waiting := false, 0
	if err := p.loop.Do(ctx, func() (err error) {
		waiting, c.Report = p.awaited()
		if all, err := p.releases.members.read(); err == nil {
			c.Spread = int64(len(all)) // a report costs less of a core than a millisecond
		}
		if c.Place, err = p.store.NextCatalog(); err != nil {
			return err
		}
		c.Patterns = p.patterns.current(time.Now())
		c.Seal = wire.SealPlace(p.authority.Key(), c.Place, c.Term)
		for _, l := range p.lists.all {
			var place wire.Place // the zero Place, nodes keep what they have: it is about to be published
			if at := p.at[l.Name]; at != nil && at.place.Epoch == c.Epoch {
				place = at.place
			}
			if !l.unread {
				reached[l.Name] = place
			}
			state := l.wanted(place)
			unpublished = unpublished || slices.ContainsFunc(state.Releases, func(r wire.Release) bool { return place.Before(r.Place) })
			c.Lists = append(c.Lists, state)
		}
		text, err = wire.SealCatalog(p.authority.Key(), c)
		return err
	}); err != nil {
		return err
	}
	if unpublished { // it has come since
		p.wake()
		return nil
	}
	m := nats.NewMsg(wire.CatalogSubject())
	m.Data = text
	// Where the stream is an older copy, its sequence numbers come again, too.
	m.Header.Set(wire.StreamHeader, fmt.Sprintf("%s %d", p.stream.in.CachedInfo().Created.UTC().Format(time.RFC3339Nano), c.Epoch))
	m.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	var err error
	if p.last, err = p.stream.put(ctx, m, p.last); err != nil {
		return err
	}
	p.issued = c
	p.contest.published(c.Issued)
	p.stored(reached, c.Issued, waiting, p.settled(time.Now()))
	return nil
}
