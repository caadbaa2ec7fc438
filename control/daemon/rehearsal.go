package daemon

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir/control/config"
	"weir/control/engine"
	"weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/observe/events"
	"weir/control/ruleset"
	"weir/filter/key"
	"weir/filter/ordered"
	"weir/filter/packet"
	"weir/filter/verdict"
)

// conversationRecord is the record of the addresses with which this host converses.
type conversationRecord interface {
	// Records reports whether there is one.
	Records() bool
	// ConversedWith returns with which addresses that additions drop this host has conversed
	// lately, nil where that is unknown. A datagram counts where its source was heard.
	ConversedWith(_ context.Context, _ engine.Additions, heard func(netip.Addr) bool) *wire.Conversed
}

// measureInterval is how often conversations are measured.
const measureInterval = time.Minute

// rehearsals has the rehearsals of all lists. It is safe for concurrent use, but for what says
// otherwise.
//
// Programs report packets that match nothing, too, while a version is rehearsed: all of them, or samples
// where there are too many. What a version would drop in addition it drops by the entries that it adds,
// or that it removes from an allow list; each packet is matched against these.
type rehearsals struct {
	host       hosting
	hub        *events.Hub
	collateral conversationRecord

	mu     sync.Mutex
	byList map[string]*rehearsal // as the hub calls the list
}

// Any reports whether there is a rehearsal.
func (x *rehearsals) Any() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.byList) > 0
}

// rehearsal is one of a version.
type rehearsal struct {
	contents *list.Set
	before   *list.Set // that they come after; nil: the active ones
	end      context.CancelFunc
	ended    chan struct{}

	// Of its goroutine.
	out      bool             // the list is of outgoing packets
	vlans    bool             // a list is for packets of some VLANs alone, which frames show
	monitor  bool             // nothing is dropped
	added    engine.Finder    // the entries that would drop more
	allowed  engine.Finder    // the allow lists as they would be
	allow    bool             // the version is of an allow list
	compared []engine.List    // the active lists that these follow from
	drops    engine.Additions // the same for conversations

	mu   sync.Mutex
	sum  wire.Rehearsal
	from map[netip.Addr]*wire.Affected
}

// maxAffected bounds the sources that are counted one by one.
const maxAffected = 1024

// rehearsed are the reasons of packets that pass, and that lists are asked for. Those of lists on
// trial pass as would-block.
var rehearsed = []verdict.Reason{verdict.Clean, verdict.Allowed, verdict.WouldBlock, verdict.Truncated, verdict.Malformed, verdict.Unparsed}

// Rehearse implements [node.Daemon].
func (x *rehearsals) Rehearse(ctx context.Context, name string, c *node.Candidate) error {
	x.mu.Lock()
	before := x.byList[name]
	delete(x.byList, name)
	x.mu.Unlock()
	if before != nil {
		before.end()
		<-before.ended
	}
	if c == nil {
		return x.host.LendAlone(ctx, func(ruleset.Active) error { return x.host.SampleClean(x.Any()) })
	}
	of, err := listOf(name, c.Settings)
	if err != nil {
		return err
	}
	within, end := context.WithCancel(context.WithoutCancel(ctx)) // the hub ends the channel of packets, too
	r := &rehearsal{
		contents: c.Contents, allow: of.Action == config.Allow, from: make(map[netip.Addr]*wire.Affected),
		sum: wire.Rehearsal{Since: time.Now().UTC()}, end: end, ended: make(chan struct{}),
	}
	err = x.followActive(ctx, r, of)
	if err == nil {
		err = x.host.LendAlone(ctx, func(ruleset.Active) error {
			x.mu.Lock()
			if x.byList == nil {
				x.byList = make(map[string]*rehearsal)
			}
			x.byList[name] = r
			x.mu.Unlock()
			return x.host.SampleClean(x.Any())
		})
	}
	if err != nil {
		end()
		x.mu.Lock()
		delete(x.byList, name)
		x.mu.Unlock()
		return err
	}
	packets, unsubscribe := x.hub.Subscribe(events.Want{Reasons: rehearsed, Frames: r.vlans})
	go func() {
		defer close(r.ended)
		defer unsubscribe()
		x.count(within, r, of, packets)
	}()
	return nil
}

// Rehearsed implements [node.Daemon].
func (x *rehearsals) Rehearsed(name string) wire.Rehearsal {
	x.mu.Lock()
	r := x.byList[name]
	x.mu.Unlock()
	if r == nil {
		return wire.Rehearsal{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.sum
	for _, a := range ordered.Of(maps.Values(r.from), func(a, b *wire.Affected) int { return cmp.Compare(b.Packets, a.Packets) }) {
		if len(out.Top) == wire.MaxTop {
			break
		}
		out.Top = append(out.Top, *a)
	}
	return out
}

// Measure implements [node.Daemon].
func (x *rehearsals) Measure(ctx context.Context, name string, c *node.Candidate, before *list.Set) *wire.Conversed {
	of, err := listOf(name, c.Settings)
	if err != nil || of.Action == config.Allow || !x.collateral.Records() {
		return nil
	}
	r := &rehearsal{contents: c.Contents, before: before}
	if err := x.followActive(ctx, r, of); err != nil {
		return nil // the daemon ends
	}
	return x.collateral.ConversedWith(ctx, r.drops, func(netip.Addr) bool { return false })
}

// followActive sets what a rehearsal matches packets against, by what is active now, unless that
// is as it was. With millions of entries it takes seconds, of which the loop has only the beginning.
// It is for the goroutine of the rehearsal, or before that runs.
func (x *rehearsals) followActive(ctx context.Context, r *rehearsal, of config.List) error {
	var p *ruleset.Ruleset // what is active
	if err := x.host.LendAlone(ctx, func(a ruleset.Active) error {
		p = a.Copy()
		p.Rules, r.monitor = a.Engine.Lists(), a.Engine.Monitor
		return nil
	}); err != nil {
		return err
	}
	if r.compared == nil && r.before == nil {
		if err := ruleset.RefuseRead(p.Config, of, r.contents, false); err != nil {
			return fmt.Errorf("refused: %w", err)
		}
	}
	l, rules := p.List(of.Name), p.Rules
	if l == nil || l.SourceNumber == 0 {
		l = &ruleset.List{List: of, SourceNumber: uint16(len(rules) + 1)}
		rules = append(rules, l.EngineList())
	}
	compared := slices.DeleteFunc(slices.Clone(rules), func(l engine.List) bool { return !l.Allow })
	active := rules[l.SourceNumber-1].Contents
	compared = append(compared, engine.List{Contents: active})
	if slices.EqualFunc(compared, r.compared, engine.List.Equal) {
		return nil
	}
	r.compared = compared
	dropping, prefixes := slices.Clone(rules), new(list.Set) // those that the active contents derive
	if r.before != nil {
		active, _ = p.Admit(l, r.before)
		prefixes = p.WouldDerive(l, active, rules)
	} else if l.DerivedNumber != 0 {
		prefixes = rules[l.DerivedNumber-1].Contents
	}
	dropping[l.SourceNumber-1].Contents = active
	if l.DerivedNumber != 0 {
		dropping[l.DerivedNumber-1].Contents = prefixes
	}
	dropping = slices.DeleteFunc(dropping, func(l engine.List) bool { return l.Allow })
	contents, _ := p.Admit(l, r.contents)
	delta := contents.Diff(active)
	rules[l.SourceNumber-1].Contents = contents
	more := l.EngineList()
	if more.Allow, more.Contents = false, list.Union(delta.Add, p.WouldDerive(l, contents, rules).Diff(prefixes).Add); r.allow {
		more.Contents = delta.Remove
	}
	r.out = more.Direction == engine.Out
	r.vlans = slices.ContainsFunc(append(slices.Clone(rules), more), func(l engine.List) bool { return l.Rule != nil && len(l.Rule.VLANs) > 0 })
	r.added = engine.NewFinder([]engine.List{more}, r.out)
	r.allowed = engine.NewFinder(slices.DeleteFunc(rules, func(l engine.List) bool { return !l.Allow }), r.out)
	r.drops = engine.AdditionsOf(more, r.allowed, engine.NewFinder(dropping, r.out))
	return nil
}

// count counts what a version would drop until ctx is done.
func (x *rehearsals) count(ctx context.Context, r *rehearsal, of config.List, packets <-chan events.Event) {
	again, measure := time.NewTicker(time.Second), time.NewTicker(measureInterval)
	defer again.Stop()
	defer measure.Stop()
	var measuring sync.WaitGroup // of one goroutine: each is over by the time of the next
	defer measuring.Wait()
	converse := func() {
		if r.allow {
			return // which of its packets would be dropped depends on other lists
		}
		measuring.Wait()
		more := r.drops
		measuring.Go(func() {
			c := x.collateral.ConversedWith(ctx, more, r.hears)
			r.mu.Lock()
			defer r.mu.Unlock()
			r.sum.Conversed = c
		})
	}
	converse()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C: // lists may have changed
			_ = x.followActive(ctx, r, of)
		case <-measure.C:
			converse()
		case e, ok := <-packets:
			if !ok {
				return
			}
			r.see(&e)
		}
	}
}

// hears reports whether the version would have dropped packets from a source.
func (r *rehearsal) hears(source netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.from[source] != nil
}

// see counts a packet.
func (r *rehearsal) see(e *events.Event) {
	if e.Dropped || !e.Tuple.Src.IsValid() || e.OneIn == 0 || e.Out != r.out {
		return
	}
	if e.Reason == verdict.WouldBlock && r.monitor {
		return // it would be dropped without the version, too
	}
	var entry key.Key
	drops := false
	where := verdict.Where{Interface: e.Iface, VLAN: packet.VLAN(e.Frame)}
	if r.allow == (e.Reason == verdict.Allowed) {
		if found := r.added.Deciding(e.Tuple, where); len(found) > 0 && len(r.allowed.Deciding(e.Tuple, where)) == 0 {
			entry, drops = found[0].Key, true
		}
	}
	n := uint64(e.OneIn)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Looked++
	r.sum.Passed += n
	if !drops {
		return
	}
	r.sum.WouldDrop += n
	a := r.from[e.Tuple.Src]
	if a == nil {
		if len(r.from) == maxAffected {
			return
		}
		a = &wire.Affected{Source: e.Tuple.Src.String(), Packet: e.Tuple.Key().String(), Entry: entry.String()}
		r.from[e.Tuple.Src] = a
	}
	a.Packets += n
}
