package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/engine"
	"weir/control/geo"
	"weir/control/observe/drops"
	"weir/control/observe/heavy"
	"weir/control/observe/traffic"
	"weir/filter/ordered"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// dropped records the sources that were dropped: the last interval of the tracker of dropped packets,
// and the last hour. It is safe for concurrent use, but for what says otherwise.
type dropped struct {
	loop   *loop
	active *active
	log    *slog.Logger

	history  drops.History
	unvalued drops.Sum // the history does not have their worth yet

	inherits bool // the trackers count for programs of an earlier process first

	mu      sync.Mutex // guards the following
	tracked bool       // dropped packets are tracked
	phases  []phase    // in order; the last one goes on
	last    drops.Interval
	lastOut drops.Interval            // of outgoing packets
	lists   map[string]loader.Counter // what each list had matched at the last report
	counted [2]traffic.Counters       // of incoming and of outgoing packets, at the last report of any
}

// tally has the counters of programs at a time.
type tally struct {
	lists   map[string]loader.Counter // that each list has matched
	in, out traffic.Counters
}

func tallyOf(m *traffic.Meter) tally {
	c := tally{lists: m.Hits(), out: m.Outgoing()}
	c.in, _ = m.Counters()
	return c
}

func (c *tally) of(out bool) *traffic.Counters {
	if out {
		return &c.out
	}
	return &c.in
}

// phase is a time in which the numbers of lists and the mode stayed.
type phase struct {
	begin   time.Time
	lists   []string // their names, from number 1 on
	policy  *verdict.Policy
	monitor bool
	trial   map[string]bool // the lists that are on trial
}

func (p *phase) equal(o phase) bool {
	return slices.Equal(p.lists, o.lists) && p.monitor == o.monitor && maps.Equal(p.trial, o.trial)
}

// maxPhases bounds the phases that are known: an interval that began before is taken to have begun
// in the first of them.
const maxPhases = 64

// follow notes whether dropped packets are tracked, and notes the lists and the mode from now on. If
// tracking begins now, the first interval has none of the packets that lists matched before.
func (d *dropped) follow(now time.Time, m attach.Metadata, trial map[string]bool, tracked bool, counted func() tally) {
	d.mu.Lock()
	defer d.mu.Unlock()
	next := phase{begin: now, policy: m.Policy(), monitor: m.Monitor, trial: trial}
	for _, l := range m.Lists {
		next.lists = append(next.lists, api.ListOf(l.Name))
	}
	if len(d.phases) == 0 && d.inherits {
		d.phases = append(d.phases, phase{policy: m.Policy(), monitor: m.Monitor})
	}
	if last := len(d.phases) - 1; last < 0 || !d.phases[last].equal(next) {
		d.phases = append(d.phases, next)
	}
	d.phases = slices.Delete(d.phases, 0, max(0, len(d.phases)-maxPhases))
	if tracked && !d.tracked {
		now := counted()
		d.lists, d.counted = now.lists, [2]traffic.Counters{now.in, now.out}
		d.last, d.lastOut = drops.Interval{}, drops.Interval{}
	}
	d.tracked = tracked
}

// since returns the phases from a time on.
func (d *dropped) since(begin time.Time) []phase {
	first := len(d.phases) - 1
	for first > 0 && d.phases[first].begin.After(begin) {
		first--
	}
	return d.phases[max(first, 0):]
}

// listOf returns the name of the list that had a number in all phases, "" if there is none.
func listOf(number int, all []phase) (name string) {
	for i, p := range all {
		if number < 1 || number > len(p.lists) || i > 0 && p.lists[number-1] != name {
			return ""
		}
		name = p.lists[number-1]
	}
	return name
}

// onTrial returns how many packets of a report passed, since lists are on trial. The counters before and
// now are exact, but not read at quite the same times as trackers. It reports false where they have not
// grown.
func onTrial(r *heavy.Report, before, now *traffic.Counters, p *verdict.Policy) (t drops.Total, ok bool) {
	var passed, dropped, perhaps drops.Total // by the counters
	for reason := range verdict.NumReasons {
		grown := drops.Total{Packets: now[reason].Packets - before[reason].Packets, Bytes: now[reason].Bytes - before[reason].Bytes}
		switch reason {
		case verdict.WouldBlock:
			passed = grown
		case verdict.Blocked, verdict.RateLimited, verdict.Heavy:
			dropped = dropped.Plus(grown)
		default: // trackers count only packets with addresses
			if p.Action(reason) == verdict.Drop {
				perhaps = perhaps.Plus(grown)
			}
		}
	}
	part := func(whole, passed, dropped, perhaps uint64) uint64 {
		known := passed + dropped
		if whole > known {
			known += min(perhaps, whole-known)
		}
		if known == 0 {
			return 0
		}
		return uint64(float64(whole)*float64(passed)/float64(known) + 0.5)
	}
	return drops.Total{
		Packets: part(r.Packets, passed.Packets, dropped.Packets, perhaps.Packets),
		Bytes:   part(r.Bytes, passed.Bytes, dropped.Bytes, perhaps.Bytes),
	}, passed.Packets+dropped.Packets+perhaps.Packets > 0
}

// add adds the report of an interval, with the counters of now.
func (d *dropped) add(now time.Time, r *heavy.Report, out bool, counted tally) {
	i := drops.Interval{
		Begin: now.Add(-r.Interval), End: now, Packets: r.Packets, Bytes: r.Bytes,
		Flows: make(map[drops.Flow]drops.Count), Lists: make(map[string]uint64), ListsMonitored: make(map[string]uint64),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	last, reasons := &d.last, &d.counted[0]
	if out {
		last, reasons = &d.lastOut, &d.counted[1]
	}
	began := i.Begin
	if e := last.End; !e.IsZero() && e.Before(began) {
		began = e // it is added a little after its end
	}
	phases, mode := d.since(began), phase{}
	for n, p := range phases {
		if n == 0 || !p.begin.After(i.Begin.Add(r.Interval/2)) {
			mode = p // for most of the interval
		}
	}
	var trial drops.Total // as far as its flows are known
	for _, f := range r.Flows {
		flow := drops.Flow{Remote: f.Key.Src, Reason: verdict.Reason(f.Cause.Reason), Out: out}
		if out {
			flow.Remote = f.Key.Dst
		}
		flow.List = listOf(int(f.Cause.List), phases)
		flow.Renumbered = f.Cause.List > 0 && flow.List == ""
		flow.Monitor = mode.monitor && flow.Reason != verdict.WouldBlock
		packets, bytes := estimate(f.Flow, sketch.Packets)
		n := drops.Count{Packets: uint64(packets), Bytes: uint64(bytes), Least: f.Packets, Dst: f.Dst}
		if i.Flows[flow] = n; flow.Reason == verdict.WouldBlock {
			trial.Packets += n.Packets
			trial.Bytes += n.Bytes
		}
	}
	i.Trial = drops.Total{Packets: min(trial.Packets, r.Packets), Bytes: min(trial.Bytes, r.Bytes)}
	switched := slices.ContainsFunc(phases, func(p phase) bool { return p.monitor != mode.monitor })
	if !mode.monitor && !switched && mode.policy != nil { // in monitor mode, all packets that would be dropped have one reason
		if t, ok := onTrial(r, reasons, counted.of(out), mode.policy); ok {
			i.Trial = t
		}
	}
	if r.Packets > 0 || mode.monitor || switched {
		*reasons = *counted.of(out)
	}
	if mode.monitor {
		i.Monitored = drops.Total{Packets: r.Packets - i.Trial.Packets, Bytes: r.Bytes - i.Trial.Bytes}
	}
	d.addLists(&i, counted.lists, mode)
	*last = i
	if i.Packets > 0 || len(i.Lists) > 0 {
		d.history.Add(i)
		d.unvalued.Add(i)
	}
}

// addLists adds what lists have matched since the last interval.
func (d *dropped) addLists(i *drops.Interval, counted map[string]loader.Counter, mode phase) {
	before := d.lists
	d.lists = counted
	for name, n := range counted {
		if n.Packets > before[name].Packets {
			name, grown := api.ListOf(name), n.Packets-before[name].Packets
			if i.Lists[name] += grown; mode.monitor && !mode.trial[name] {
				i.ListsMonitored[name] += grown
			}
		}
	}
}

// estimate returns the packets and bytes of a flow, with those before it entered the
// flow memory, of which only one is known.
func estimate(f sketch.Flow, unit sketch.Unit) (packets, bytes float64) {
	packets, bytes = float64(f.Packets), float64(f.Bytes)
	if exact := float64(f.Exact(unit)); exact > 0 {
		more := 1 + float64(f.Before)/exact
		return packets * more, bytes * more
	}
	if unit == sketch.Packets {
		packets = float64(f.Before)
	} else {
		bytes = float64(f.Before)
	}
	return packets, bytes
}

// recent returns what was dropped in the last interval, unless that is over for long: of
// incoming and of outgoing packets.
func (d *dropped) recent(now time.Time) (in, out drops.Interval) {
	d.mu.Lock()
	defer d.mu.Unlock()
	in, out = d.last, d.lastOut
	for _, i := range []*drops.Interval{&in, &out} {
		if now.Sub(i.End) > 5*time.Second {
			*i = drops.Interval{}
		}
	}
	return in, out
}

// errNotTracked says why it is unknown who was dropped.
var errNotTracked = errors.New("dropped packets are not tracked: set track_drops to true")

// Drops implements [server.Recorder].
func (d *dropped) Drops(ctx context.Context, asked api.DropsQuestion) (api.Drops, error) {
	now := time.Now()
	out := api.Drops{By: asked.By, Until: now}
	var names *geo.Database
	if err := d.loop.Do(ctx, func() (err error) {
		out.Monitor = d.active.attach.Metadata().Monitor
		names, err = d.namesBy(asked.By)
		return err
	}); err != nil {
		return out, err
	}
	all := d.history.Since(now.Add(-asked.Last), now)
	out.Since, out.Packets, out.Bytes = all.Begin, all.Packets, all.Bytes
	if names != nil {
		if err := names.Refresh(); err != nil {
			d.log.Error("a changed database cannot be read, the former one stays: " + err.Error())
		}
	}
	keys, err := d.dropKeys(ctx, asked.By, all, names)
	if err != nil {
		return out, err
	}
	rows := make(map[dropKey]*api.Drop)
	row := func(k dropKey) *api.Drop {
		if rows[k] == nil {
			rows[k] = &api.Drop{Key: k.key, Name: k.name, Direction: direction(k.out)}
		}
		return rows[k]
	}
	known := uint64(0)
	sources := make(map[dropKey]map[netip.Addr]bool)
	for f, n := range all.Flows {
		if f.Renumbered && asked.By == api.ByList {
			continue // the lists' counters have its packets
		}
		k := keys[f]
		r := row(k)
		r.Packets += n.Packets
		r.Least += n.Least
		r.Bytes += n.Bytes
		known += n.Packets
		if f.Monitor {
			r.MonitorPackets += n.Packets
		}
		if f.List != "" && !slices.Contains(r.Lists, f.List) {
			r.Lists = append(r.Lists, f.List)
		}
		if reason := f.Reason.String(); !slices.Contains(r.Reasons, reason) {
			r.Reasons = append(r.Reasons, reason)
		}
		if sources[k] == nil {
			sources[k] = make(map[netip.Addr]bool)
		}
		sources[k][f.Remote] = true
	}
	if asked.By == api.ByList { // the lists' counters are exact, also for small sources
		for name, n := range all.Lists {
			k := dropKey{key: name, out: d.isOut(ctx, name)}
			opposite := rows[dropKey{key: name, out: !k.out}]
			r := row(k)
			known -= r.Packets
			monitored := all.ListsMonitored[name]
			if opposite != nil { // the counter is of both directions
				n -= min(n, opposite.Packets)
				monitored -= min(monitored, opposite.MonitorPackets)
				r.Least = min(r.Least, n)
			} else {
				r.Least = n
			}
			r.Packets, r.MonitorPackets = n, min(n, monitored)
			known += n
			r.Lists = []string{name}
		}
	}
	if known > all.Packets { // lists and drops are not counted at quite the same times
		addUnknown(&all, known-all.Packets)
	}
	out.Packets, out.MonitorPackets, out.MonitorBytes = all.Packets, all.Monitored.Packets, all.Monitored.Bytes
	out.TrialPackets, out.TrialBytes = all.Trial.Packets, all.Trial.Bytes
	out.Other = all.Packets - min(known, all.Packets)
	seconds := max(out.Until.Sub(out.Since).Seconds(), 1)
	for k, r := range rows {
		r.Sources, r.Rate = len(sources[k]), float64(r.Packets)/seconds
		r.Share = min(1, float64(r.Packets)/max(1, float64(all.Packets)))
		slices.Sort(r.Lists)
		slices.Sort(r.Reasons)
		out.Drops = append(out.Drops, *r)
	}
	ordered.By(out.Drops, func(a, b api.Drop) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Key, b.Key))
	})
	out.More = max(0, len(out.Drops)-asked.Limit)
	out.Drops = out.Drops[:len(out.Drops)-out.More]
	return out, nil
}

// namesBy returns the database by whose names drops are added up, nil if that takes none. It is for
// Run's goroutine.
func (d *dropped) namesBy(by string) (names *geo.Database, err error) {
	switch by {
	case api.ByASN:
		names = d.active.prepared.asn
	case api.ByCountry:
		names = d.active.prepared.country
	}
	switch unopened := d.active.prepared.unopened; {
	case names != nil || by != api.ByASN && by != api.ByCountry:
	case unopened != nil:
		return nil, &api.BadRequest{Err: unopened}
	default:
		return nil, &api.BadRequest{Err: fmt.Errorf("there is no database for it: name one as geo.%s in weir.yaml", by)}
	}
	if !d.active.prepared.trackDrops {
		return nil, &api.BadRequest{Err: errNotTracked}
	}
	return names, nil
}

// addUnknown adds packets to a sum: to those that passed, where all others did.
func addUnknown(all *drops.Interval, packets uint64) {
	switch {
	case all.Monitored.Packets+all.Trial.Packets < all.Packets || all.Packets == 0:
	case all.Monitored.Packets > 0:
		all.Monitored.Packets += packets
	default:
		all.Trial.Packets += packets
	}
	all.Packets += packets
}

// dropKey is what dropped packets are added up by.
type dropKey struct {
	key, name string
	out       bool
}

// direction is in or out.
func direction(out bool) string { return loader.Target{Out: out}.Direction() }

// isOut reports whether a list is one of outgoing packets.
func (d *dropped) isOut(ctx context.Context, name string) (out bool) {
	_ = d.loop.Do(ctx, func() error {
		l := d.active.prepared.list(name)
		out = l != nil && l.Direction == engine.Out
		return nil
	})
	return out
}

// dropKeys returns what the flows belong to.
func (d *dropped) dropKeys(ctx context.Context, by string, all drops.Interval, names *geo.Database) (map[drops.Flow]dropKey, error) {
	keys := make(map[drops.Flow]dropKey, len(all.Flows))
	for f := range all.Flows {
		switch by {
		case api.BySource:
			keys[f] = dropKey{key: f.Remote.String(), out: f.Out}
		case api.ByList:
			keys[f] = dropKey{key: f.List, out: f.Out}
		case api.ByReason:
			keys[f] = dropKey{key: f.Reason.String(), out: f.Out}
		case api.ByASN, api.ByCountry:
			n, err := names.Find(f.Remote)
			if err != nil {
				return nil, err
			}
			keys[f] = dropKey{n.Key, n.Name, f.Out}
		}
	}
	if by != api.ByEntry {
		return keys, nil
	}
	// A few at a time: filtering goes on.
	for some := range slices.Chunk(slices.Collect(maps.Keys(all.Flows)), 256) {
		if err := d.loop.Do(ctx, func() error {
			for _, f := range some {
				if f.Reason == verdict.Blocked {
					keys[f] = dropKey{key: d.entryOf(f, all.Flows[f].Dst), out: f.Out}
				}
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// entryOf returns the entry that blocks a flow, "" if it is listed no more. It is for Run's
// goroutine.
func (d *dropped) entryOf(f drops.Flow, dst netip.Addr) string {
	lists, e, src := d.active.engine.Lists(), d.active.engine, f.Remote
	if f.Out {
		// Only its destination is known.
		if e, src = e.Out(), netip.IPv4Unspecified(); dst.Is6() {
			src = netip.IPv6Unspecified()
		}
	}
	if e == nil {
		return ""
	}
	for _, found := range e.Blocking(src, dst) {
		if f.List == "" || api.ListOf(lists[found.List-1].Name) == f.List {
			return found.Key.String()
		}
	}
	return ""
}

// droppedSources returns the largest flows of intervals.
func droppedSources(intervals ...drops.Interval) *[]api.DropRate {
	all := []api.DropRate{}
	for _, i := range intervals {
		seconds := max(i.End.Sub(i.Begin).Seconds(), 1e-3)
		for f, n := range i.Flows {
			all = append(all, api.DropRate{
				Source: f.Remote.String(), Direction: direction(f.Out), Reason: f.Reason.String(), List: f.List,
				Packets: float64(n.Packets) / seconds, Least: float64(n.Least) / seconds, Bytes: float64(n.Bytes) / seconds,
			})
		}
	}
	ordered.By(all, func(a, b api.DropRate) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Reason, b.Reason))
	})
	all = all[:min(len(all), api.MaxTop)]
	return &all
}

// judge adds to the flows of a tracker what is dropped of them: of a source, what
// was counted; of a flow of addresses and ports, all or nothing, if it is listed. It is for
// Run's goroutine.
func (d *dropped) judge(t *api.Tracker, r *heavy.Report, recent drops.Interval) {
	if r.Spec.Guard() {
		return // its flows are counted in ports or addresses
	}
	v4, _ := r.Spec.Key.Shapes()
	seconds := max(recent.End.Sub(recent.Begin).Seconds(), 1e-3)
	for n := range t.Flows {
		to, k := &t.Flows[n], r.Flows[n].Key
		switch {
		case v4.Tuple():
			if to.State != "" {
				continue // a part of it may pass
			}
			a := d.active.engine.Explain(engine.Question{Known: k}, nil)[0]
			to.Dropped = new(0.0)
			if a.Reason == verdict.Blocked || a.Reason == verdict.WouldBlock && d.active.engine.Monitor {
				to.Dropped, to.Reasons = new(to.Packets), []string{verdict.Blocked.String()}
				if a.List != "" {
					to.Lists = []string{api.ListOf(a.List)}
				}
			}
		case v4.SrcBits > 0:
			sum := 0.0
			prefix := netip.PrefixFrom(k.Src, int(k.SrcBits))
			for f, c := range recent.Flows {
				if !prefix.Contains(f.Remote) || f.Reason == verdict.WouldBlock { // by a list on trial
					continue
				}
				sum += float64(c.Packets) / seconds
				if reason := f.Reason.String(); !slices.Contains(to.Reasons, reason) {
					to.Reasons = append(to.Reasons, reason)
				}
				if f.List != "" && !slices.Contains(to.Lists, f.List) {
					to.Lists = append(to.Lists, f.List)
				}
			}
			slices.Sort(to.Reasons)
			slices.Sort(to.Lists)
			// The two were not counted in quite the same interval.
			to.Dropped = new(min(sum, to.Packets))
		}
	}
}
