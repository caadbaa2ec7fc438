package observe

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
	"weir/control/engine"
	"weir/control/explain"
	"weir/control/geo"
	"weir/control/observe/traffic"
	"weir/control/ruleset"
	"weir/filter/ordered"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// DropRecorder records who was dropped: the last interval of the tracker of dropped packets, and the
// last hour. Its methods are safe for concurrent use.
type DropRecorder struct {
	Hour     DropHistory
	Unvalued DropSum // the history of traffic does not have their worth yet

	Inherits bool // the trackers count for programs of an earlier process first

	host ruleset.Host
	log  *slog.Logger

	mu      sync.Mutex // guards the following
	tracked bool       // dropped packets are tracked
	phases  []Phase    // in order; the last one goes on
	last    DropInterval
	lastOut DropInterval              // of outgoing packets
	lists   map[string]loader.Counter // what each list had matched at the last report
	counted [2]traffic.Counters       // of incoming and of outgoing packets, at the last report of any
}

// NewDropRecorder returns a recorder of the packets that a host drops.
func NewDropRecorder(h ruleset.Host, log *slog.Logger) *DropRecorder {
	return &DropRecorder{host: h, log: log}
}

// Tally has the counters of programs at a time.
type Tally struct {
	Lists   map[string]loader.Counter // that each list has matched
	In, Out traffic.Counters
}

// TallyOf returns the counters of now.
func TallyOf(m *traffic.Meter) Tally {
	c := Tally{Lists: m.Hits(), Out: m.Outgoing()}
	c.In, _ = m.Counters()
	return c
}

func (c *Tally) of(out bool) *traffic.Counters {
	if out {
		return &c.Out
	}
	return &c.In
}

// Phase is a time in which the numbers of lists and the mode stayed.
type Phase struct {
	Begin   time.Time
	Lists   []string // their names, from number 1 on
	Policy  *verdict.Policy
	Monitor bool
	Trial   map[string]bool // the lists that are on trial
}

func (p *Phase) equal(o Phase) bool {
	return slices.Equal(p.Lists, o.Lists) && p.Monitor == o.Monitor && maps.Equal(p.Trial, o.Trial)
}

// maxPhases bounds the phases that are known: an interval that began before is taken to have begun
// in the first of them.
const maxPhases = 64

// Follow notes whether dropped packets are tracked, and the phase from now on. If tracking begins
// now, the first interval has none of the packets that lists matched before.
func (r *DropRecorder) Follow(next Phase, tracked bool, counted func() Tally) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.phases) == 0 && r.Inherits {
		r.phases = append(r.phases, Phase{Policy: next.Policy, Monitor: next.Monitor})
	}
	if last := len(r.phases) - 1; last < 0 || !r.phases[last].equal(next) {
		r.phases = append(r.phases, next)
	}
	r.phases = slices.Delete(r.phases, 0, max(0, len(r.phases)-maxPhases))
	if tracked && !r.tracked {
		now := counted()
		r.lists, r.counted = now.Lists, [2]traffic.Counters{now.In, now.Out}
		r.last, r.lastOut = DropInterval{}, DropInterval{}
	}
	r.tracked = tracked
}

// mode reports whether the current phase is one of monitor mode, and whether dropped packets are tracked.
func (r *DropRecorder) mode() (monitor, tracked bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.phases) - 1
	return last >= 0 && r.phases[last].Monitor, r.tracked
}

// during returns the phases of an interval, from its begin on, or from the end of the last one: an interval
// is added a little after its end.
func (r *DropRecorder) during(begin, last time.Time) []Phase {
	if !last.IsZero() && last.Before(begin) {
		begin = last
	}
	first := len(r.phases) - 1
	for first > 0 && r.phases[first].Begin.After(begin) {
		first--
	}
	return r.phases[max(first, 0):]
}

// listOf returns the name of the list that had a number in all phases, "" if there is none.
func listOf(number int, all []Phase) (name string) {
	for i, p := range all {
		if number < 1 || number > len(p.Lists) || i > 0 && p.Lists[number-1] != name {
			return ""
		}
		name = p.Lists[number-1]
	}
	return name
}

// ListNames returns the names of the programs' lists in the order of their numbers, for the interval of
// incoming packets that is to be added: "" where a number was another list's in it.
func (r *DropRecorder) ListNames(begin time.Time) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	phases := r.during(begin, r.last.End)
	if len(phases) == 0 {
		return nil
	}
	for n := range phases[len(phases)-1].Lists {
		names = append(names, listOf(n+1, phases))
	}
	return names
}

// onTrial returns how many packets of a report passed, since lists are on trial. The counters before and
// now are exact, but not read at quite the same times as trackers. It reports false where they have not
// grown.
func onTrial(r *DropReport, before, now *traffic.Counters, p *verdict.Policy) (t Total, ok bool) {
	var passed, dropped, perhaps Total // by the counters
	for reason := range verdict.NumReasons {
		grown := Total{Packets: now[reason].Packets - before[reason].Packets, Bytes: now[reason].Bytes - before[reason].Bytes}
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
	return Total{
		Packets: part(r.Packets, passed.Packets, dropped.Packets, perhaps.Packets),
		Bytes:   part(r.Bytes, passed.Bytes, dropped.Bytes, perhaps.Bytes),
	}, passed.Packets+dropped.Packets+perhaps.Packets > 0
}

// DropReport is an interval of the tracker of dropped packets.
type DropReport struct {
	Interval       time.Duration
	Packets, Bytes uint64        // of all flows
	Flows          []sketch.Flow // those that are known
}

// Report adds an interval, with the counters of now.
func (r *DropRecorder) Report(now time.Time, report *DropReport, out bool, counted Tally) {
	i := DropInterval{
		Begin: now.Add(-report.Interval), End: now, Packets: report.Packets, Bytes: report.Bytes,
		Flows: make(map[DroppedFlow]DropCount), Lists: make(map[string]uint64), ListsMonitored: make(map[string]uint64),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last, reasons := &r.last, &r.counted[0]
	if out {
		last, reasons = &r.lastOut, &r.counted[1]
	}
	phases, mode := r.during(i.Begin, last.End), Phase{}
	for n, p := range phases {
		if n == 0 || !p.Begin.After(i.Begin.Add(report.Interval/2)) {
			mode = p // for most of the interval
		}
	}
	var trial Total // as far as its flows are known
	for _, f := range report.Flows {
		flow := DroppedFlow{Remote: f.Key.Src, Reason: verdict.Reason(f.Cause.Reason), Out: out}
		if out {
			flow.Remote = f.Key.Dst
		}
		flow.List = listOf(int(f.Cause.List), phases)
		flow.Renumbered = f.Cause.List > 0 && flow.List == ""
		flow.Monitor = mode.Monitor && flow.Reason != verdict.WouldBlock
		packets, bytes := f.Whole(sketch.Packets)
		n := DropCount{Packets: uint64(packets), Bytes: uint64(bytes), Least: f.Packets, Dst: f.Dst}
		if i.Flows[flow] = n; flow.Reason == verdict.WouldBlock {
			trial.Packets += n.Packets
			trial.Bytes += n.Bytes
		}
	}
	i.Trial = Total{Packets: min(trial.Packets, report.Packets), Bytes: min(trial.Bytes, report.Bytes)}
	switched := slices.ContainsFunc(phases, func(p Phase) bool { return p.Monitor != mode.Monitor })
	if !mode.Monitor && !switched && mode.Policy != nil { // in monitor mode, all packets that would be dropped have one reason
		if t, ok := onTrial(report, reasons, counted.of(out), mode.Policy); ok {
			i.Trial = t
		}
	}
	if report.Packets > 0 || mode.Monitor || switched {
		*reasons = *counted.of(out)
	}
	if mode.Monitor {
		i.Monitored = Total{Packets: report.Packets - i.Trial.Packets, Bytes: report.Bytes - i.Trial.Bytes}
	}
	r.addLists(&i, counted.Lists, mode)
	*last = i
	if i.Packets > 0 || len(i.Lists) > 0 {
		r.Hour.Add(i)
		r.Unvalued.Add(i)
	}
}

// addLists adds what lists have matched since the last interval.
func (r *DropRecorder) addLists(i *DropInterval, counted map[string]loader.Counter, mode Phase) {
	before := r.lists
	r.lists = counted
	for name, n := range counted {
		if n.Packets > before[name].Packets {
			name, grown := api.ListOf(name), n.Packets-before[name].Packets
			if i.Lists[name] += grown; mode.Monitor && !mode.Trial[name] {
				i.ListsMonitored[name] += grown
			}
		}
	}
}

// Recent returns what was dropped in the last interval, unless that is over for long: of
// incoming and of outgoing packets.
func (r *DropRecorder) Recent(now time.Time) (in, out DropInterval) {
	r.mu.Lock()
	defer r.mu.Unlock()
	in, out = r.last, r.lastOut
	for _, i := range []*DropInterval{&in, &out} {
		if now.Sub(i.End) > 5*time.Second {
			*i = DropInterval{}
		}
	}
	return in, out
}

// errNotTracked says why it is unknown who was dropped.
var errNotTracked = errors.New("dropped packets are not tracked: set track_drops to true")

// Drops implements [server.DropRecorder].
func (r *DropRecorder) Drops(ctx context.Context, asked api.DropsQuestion) (api.Drops, error) {
	now := time.Now()
	out := api.Drops{By: asked.By, Until: now}
	var names *geo.Database
	outgoing := make(map[string]bool) // lists
	if err := r.host.Lend(ctx, func(a ruleset.Active) (err error) {
		var tracked bool
		out.Monitor, tracked = r.mode()
		if asked.By == api.ByList {
			for _, l := range a.Engine.Lists() {
				if l.Direction == engine.Out {
					outgoing[api.ListOf(l.Name)] = true
				}
			}
		}
		names, err = namesBy(a, asked.By, tracked)
		return err
	}); err != nil {
		return out, err
	}
	all := r.Hour.Since(now.Add(-asked.Last), now)
	out.Since = now.Add(-now.Sub(all.Begin)) // by the clock of now, which may have been set since
	out.Packets, out.Bytes = all.Packets, all.Bytes
	if names != nil {
		if err := names.Refresh(); err != nil {
			r.log.Error("a changed database cannot be read, the former one stays: " + err.Error())
		}
	}
	keys, err := r.keys(ctx, asked.By, all, names)
	if err != nil {
		return out, err
	}
	rows := make(map[dropKey]*api.Drop)
	row := func(k dropKey) *api.Drop {
		if rows[k] == nil {
			rows[k] = &api.Drop{Key: k.key, Name: k.name, Direction: Direction(k.out)}
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
		to := row(k)
		to.Packets += n.Packets
		to.Least += n.Least
		to.Bytes += n.Bytes
		known += n.Packets
		if f.Monitor {
			to.MonitorPackets += n.Packets
		}
		if f.List != "" && !slices.Contains(to.Lists, f.List) {
			to.Lists = append(to.Lists, f.List)
		}
		if reason := f.Reason.String(); !slices.Contains(to.Reasons, reason) {
			to.Reasons = append(to.Reasons, reason)
		}
		if sources[k] == nil {
			sources[k] = make(map[netip.Addr]bool)
		}
		sources[k][f.Remote] = true
	}
	if asked.By == api.ByList { // the lists' counters are exact, also for small sources
		for name, n := range all.Lists {
			k := dropKey{key: name, out: outgoing[name]}
			opposite := rows[dropKey{key: name, out: !k.out}]
			to := row(k)
			known -= to.Packets
			monitored := all.ListsMonitored[name]
			if opposite != nil { // the counter is of both directions
				n -= min(n, opposite.Packets)
				monitored -= min(monitored, opposite.MonitorPackets)
				to.Least = min(to.Least, n)
			} else {
				to.Least = n
			}
			to.Packets, to.MonitorPackets = n, min(n, monitored)
			known += n
			to.Lists = []string{name}
		}
	}
	if known > all.Packets { // lists and drops are not counted at quite the same times
		addUnknown(&all, known-all.Packets)
	}
	out.Packets, out.MonitorPackets, out.MonitorBytes = all.Packets, all.Monitored.Packets, all.Monitored.Bytes
	out.TrialPackets, out.TrialBytes = all.Trial.Packets, all.Trial.Bytes
	out.Other = all.Packets - min(known, all.Packets)
	seconds := max(out.Until.Sub(out.Since).Seconds(), 1)
	for k, to := range rows {
		to.Sources, to.Rate = len(sources[k]), float64(to.Packets)/seconds
		to.Share = min(1, float64(to.Packets)/max(1, float64(all.Packets)))
		slices.Sort(to.Lists)
		slices.Sort(to.Reasons)
		out.Drops = append(out.Drops, *to)
	}
	ordered.By(out.Drops, func(a, b api.Drop) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Key, b.Key))
	})
	out.More = max(0, len(out.Drops)-asked.Limit)
	out.Drops = out.Drops[:len(out.Drops)-out.More]
	return out, nil
}

// namesBy returns the database by whose names drops are added up, nil if that takes none.
func namesBy(a ruleset.Active, by string, tracked bool) (names *geo.Database, err error) {
	switch by {
	case api.ByASN:
		names = a.ASN
	case api.ByCountry:
		names = a.Country
	}
	switch {
	case names != nil || by != api.ByASN && by != api.ByCountry:
	case a.Unopened != nil:
		return nil, &api.BadRequest{Err: a.Unopened}
	default:
		return nil, &api.BadRequest{Err: fmt.Errorf("there is no database for it: name one as geo.%s in weir.yaml", by)}
	}
	if !tracked {
		return nil, &api.BadRequest{Err: errNotTracked}
	}
	return names, nil
}

// Describe adds to an answer when such packets were last dropped, where it is about those of a
// remote address or network.
func (r *DropRecorder) Describe(a *explain.Answer) {
	out := a.Direction == Direction(true)
	addr, bits := a.Known.Src, a.Known.SrcBits
	if out {
		addr, bits = a.Known.Dst, a.Known.DstBits
	}
	if !addr.IsValid() || bits == 0 {
		return
	}
	of := netip.PrefixFrom(addr, int(bits))
	last, ok := r.Hour.Last(func(f DroppedFlow) bool {
		// What a list on trial would drop has passed.
		return f.Out == out && f.Reason != verdict.WouldBlock && of.Contains(f.Remote)
	})
	if ok {
		a.LastDrop = &explain.LastDrop{
			Time: last.Time, Reason: last.Flow.Reason, List: last.Flow.List, Packets: last.All.Packets,
			Monitor: last.Flow.Monitor, MonitorPackets: last.Monitored,
		}
	}
}

// addUnknown adds packets to a sum: to those that passed, where all others did.
func addUnknown(all *DropInterval, packets uint64) {
	switch {
	case all.Monitored.Packets+all.Trial.Packets < all.Packets || all.Packets == 0:
	case all.Monitored.Packets > 0:
		all.Monitored.Packets += packets
	default:
		all.Trial.Packets += packets
	}
	all.Packets += packets
}

// dropKey identifies dropped packets that are added up.
type dropKey struct {
	key, name string
	out       bool
}

// Direction returns in or out.
func Direction(out bool) string { return netif.Target{Out: out}.Direction() }

// keys returns what the flows belong to.
func (r *DropRecorder) keys(ctx context.Context, by string, all DropInterval, names *geo.Database) (map[DroppedFlow]dropKey, error) {
	keys := make(map[DroppedFlow]dropKey, len(all.Flows))
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
		if err := r.host.Lend(ctx, func(a ruleset.Active) error {
			for _, f := range some {
				if f.Reason == verdict.Blocked {
					keys[f] = dropKey{key: entryOf(a.Engine, f, all.Flows[f].Dst), out: f.Out}
				}
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

// entryOf returns the entry that blocks a flow, "" if it is listed no more.
func entryOf(e *engine.Generation, f DroppedFlow, dst netip.Addr) string {
	lists, src := e.Lists(), f.Remote
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

// LargestDrops returns the largest flows of intervals.
func LargestDrops(intervals ...DropInterval) *[]api.DropRate {
	all := []api.DropRate{}
	for _, i := range intervals {
		seconds := max(i.End.Sub(i.Begin).Seconds(), 1e-3)
		for f, n := range i.Flows {
			all = append(all, api.DropRate{
				Source: f.Remote.String(), Direction: Direction(f.Out), Reason: f.Reason.String(), List: f.List,
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

// JudgeFlows adds to the flows of a tracker, which were counted like this, what an engine drops of them: of a
// source, what was counted; of a flow of addresses and ports, all or nothing, if it is listed.
func JudgeFlows(e *engine.Generation, t *api.Tracker, flows []sketch.Flow, recent DropInterval) {
	seconds := max(recent.End.Sub(recent.Begin).Seconds(), 1e-3)
	for n := range t.Flows {
		to, k := &t.Flows[n], flows[n].Key
		switch {
		case k.Shape.Tuple():
			if to.State != "" {
				continue // a part of it may pass
			}
			a := explain.Answers(e, explain.Question{Known: k}, nil)[0]
			to.Dropped = new(0.0)
			if a.Reason == verdict.Blocked || a.Reason == verdict.WouldBlock && e.Monitor {
				to.Dropped, to.Reasons = new(to.Packets), []string{verdict.Blocked.String()}
				if a.List != "" {
					to.Lists = []string{api.ListOf(a.List)}
				}
			}
		case k.SrcBits > 0:
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
