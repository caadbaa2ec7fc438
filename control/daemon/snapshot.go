package daemon

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/attach"
	"weir/control/clock"
	"weir/control/metrics"
	"weir/control/observe"
	"weir/control/observe/events"
	"weir/control/observe/traffic"
	"weir/control/quantity"
	"weir/control/serve"
	"weir/control/stages"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// readings are values that are read at any time, however busy Run's goroutine is. It publishes them.
type readings struct {
	lister
	clock   *clock.Clock
	loop    *loop
	meter   *traffic.Meter
	hub     *events.Hub
	unsaved *atomic.Pointer[string] // why a restart would forget changes; nil: it would not, as far as it is known
	logging Logging                 // may be nil

	listeners serve.Problems

	status    atomic.Pointer[noted]
	protected atomic.Pointer[[]api.Protected]
	top       atomic.Pointer[api.Top] // without what was sampled
	policy    atomic.Pointer[verdict.Policy]
	sampled   *observe.Sampled
	floods    *observe.Floods
	weights   atomic.Pointer[api.Weights]
	snapshot  atomic.Pointer[metrics.Snapshot]
}

// publish publishes what is going on, for those who ask. manual is nil where the configuration
// decides about monitor mode.
func (o *observers) publish(now time.Time, r traffic.Rates, manual *api.MonitorOverride) {
	m := o.active.attach.Metadata()
	top := &api.Top{
		Time: now, Version: m.Version, Interfaces: o.active.attach.Names(), Uptime: now.Sub(o.active.began).Seconds(),
		Interval: r.Interval.Seconds(), Packets: r.Packets, Bytes: r.Bytes, Dropped: r.Dropped,
		Monitor: m.Monitor, MonitorOverride: manual,
		Filter: api.Filter{
			Entries: m.Entries, Mode: m.Mode, Generation: o.active.number, KernelBytes: m.KernelBytes,
			Predicted: m.Predicted,
		},
	}
	seconds := max(r.Interval.Seconds(), 1e-3)
	top.Reasons = reasonRates(r.Grown, r.All, seconds, m)
	if o.active.engine.Out() != nil {
		top.Out = &api.Sent{Packets: r.Out.Packets, Bytes: r.Out.Bytes, Dropped: r.Out.Dropped, Reasons: reasonRates(r.Out.Grown, r.Out.All, seconds, m)}
	}
	top.Problems = append(o.active.problems(), o.readings.listeners.All()...)
	clock := loader.Monotonic()
	recent, recentOut := o.drops.Recent(now)
	tracked := o.active.prepared.Stages.Trackers.TrackDrops
	for _, report := range o.stages.Trackers.Hitters() {
		t := report.API(now, clock)
		if tracked && !report.Spec.CountsPairs() { // whose flows are counted in ports or addresses
			observe.JudgeFlows(o.active.engine, &t, report.Counted(), recent)
		}
		top.Trackers = append(top.Trackers, t)
	}
	if tracked {
		top.Sources = observe.LargestDrops(recent, recentOut)
	}
	hits := o.meter.Hits()
	top.Filter.Lists = o.listRates(seconds, hits)
	o.history.Second(now, r, m.Drops, hits, o.collateral.Last())
	lists := observe.ExportedLists{Hits: hits, Trial: o.active.prepared.OnTrial(), Out: o.active.prepared.Outgoing()}
	if o.exports.Second(now, r, tracked, m.Drops, lists) {
		o.exports.SendCounters(now, &o.meter, o.active.attach.Attached())
	}
	top.Filter.FalsePositives = o.counted()
	if l := o.learn; l == nil || !o.active.prepared.Learns() {
		o.readings.weights.Store(nil)
	} else {
		top.Filter.Hot = l.Hot()
		top.Filter.WeightedPredicted = new(l.Predicted())
		o.readings.weights.Store(o.weightsNow())
	}
	o.readings.policy.Store(m.Policy())
	o.readings.top.Store(top)
	o.sample(now, &r)
	o.notifier.Second(r, o.floods.Present().Now)
}

// reasonRates returns the rates of the reasons that have had packets.
func reasonRates(grown, all traffic.Counters, seconds float64, m attach.Metadata) (rates []api.ReasonRate) {
	for i, c := range grown {
		if all[i].Packets > 0 {
			reason := verdict.Reason(i)
			rates = append(rates, api.ReasonRate{
				Reason: reason.String(), Packets: float64(c.Packets) / seconds, Bytes: float64(c.Bytes) / seconds,
				Total: all[i].Packets, Drops: m.Drops(reason),
			})
		}
	}
	return rates
}

// listRates returns the rates of the block lists. In approximate mode the list of
// a packet is unknown.
func (o *observers) listRates(seconds float64, hits map[string]loader.Counter) (rates []api.ListRate) {
	if o.active.prepared.Config.Mode == membership.Approximate {
		return nil
	}
	for _, l := range o.active.attach.Metadata().Lists {
		if l.Allow {
			continue
		}
		total := hits[l.Name].Packets
		rate := api.ListRate{Name: l.Name, Total: total}
		if before, known := o.record.lists[l.Name]; known {
			rate.Packets = float64(total-before) / seconds
		}
		rates = append(rates, rate)
	}
	o.record.lists = make(map[string]uint64)
	for _, r := range rates {
		o.record.lists[r.Name] = r.Total
	}
	return rates
}

// weightsNow returns the weights that were learned.
func (o *observers) weightsNow() *api.Weights {
	l := o.learn
	weights := l.Weights()
	all := l.All()
	w := &api.Weights{
		Base: weights.Base, HalfLife: l.HalfLife().Seconds(),
		Predicted: l.Predicted(), Uniform: weights.Uniform, Equal: weights.Equal,
		FalsePositives: o.counted(), Reverted: o.reverted,
		Spared: uint64(all.Spared), Dropped: uint64(all.Dropped), Refused: weights.Refused,
	}
	if r, ok := l.Counted(); ok {
		w.Without = &r.Without
	}
	for _, c := range weights.Classes {
		if c.Classes == 0 {
			continue
		}
		w.Networks = append(w.Networks, api.NetworkBits{K: weights.Base + c.Extra, Classes: c.Classes, Listed: c.Listed, Elements: c.Elements})
	}
	boot := time.Now().Add(-loader.Monotonic())
	for _, e := range weights.Elements {
		w.Elements = append(w.Elements, api.Weight{
			Element: e.Key.String(), K: e.K, Dropped: e.Dropped, Found: boot.Add(e.Found).Truncate(time.Second),
		})
	}
	return w
}

// counted returns the share of unlisted packets that were dropped by mistake since the filter was built.
func (o *observers) counted() (all api.FalsePositives) {
	if o.learn == nil {
		return all
	}
	if r, ok := o.learn.Counted(); ok {
		all = api.FalsePositives{Rate: &r.Share, Low: &r.Low, High: &r.High, Packets: uint64(r.Packets)}
	}
	return all
}

// Status implements [server.Snapshots].
func (r *readings) Status() api.Status {
	noted := r.status.Load()
	s := noted.Status
	s.ConfirmUntil = shown(s.ConfirmUntil)
	if o := s.MonitorOverride; o != nil {
		o := *o
		o.Until = shown(o.Until)
		s.MonitorOverride = &o
	}
	s.Policed = slices.Clone(s.Policed)
	for n := range s.Policed {
		s.Policed[n].Until = shown(s.Policed[n].Until)
	}
	s.Trials = slices.Clone(s.Trials)
	for n := range s.Trials {
		s.Trials[n].Trial = *trialShown(&s.Trials[n].Trial)
	}
	by := r.clock.Status()
	s.Clock = &by
	s.Busy = r.loop.Busy()
	if problem := r.unsaved.Load(); problem != nil {
		s.Unsaved = *problem
	}
	s.Unavailable = r.listeners.All()
	for _, i := range noted.interfaces {
		i, there := i.Now() // Run's goroutine may be building an engine
		if !there {
			continue
		}
		s.Interfaces = append(s.Interfaces, api.InterfaceStatus{
			Interface: i.Iface, Netns: i.Netns, Direction: i.Direction(), State: string(i.Condition), XDP: i.XDP.String(), Problem: i.Problem,
		})
	}
	if p := r.protected.Load(); p != nil {
		s.Protected = *p
	}
	counted, _ := r.meter.Read()
	for n := range s.Interfaces {
		i := &s.Interfaces[n]
		for _, c := range counted {
			if c.Target != (netif.Target{Netns: i.Netns, Iface: i.Interface, Out: i.Direction == observe.Direction(true)}) {
				continue
			}
			if i.Penalties = c.Penalties; i.Penalties != nil {
				i.MaxPenalties = stages.MaxPenalties
			}
			for _, n := range c.Counts {
				i.Packets += n.Packets
				if n.Drops {
					i.Dropped += n.Packets
				}
			}
		}
	}
	return s
}

// noted is the status that Run's goroutine knows. The status of an interface is read when it
// is asked for.
type noted struct {
	api.Status
	interfaces []attach.State
}

// noteStatus updates the states of the interfaces.
func (d *Daemon) noteStatus() {
	m := d.active.attach.Metadata()
	s := &noted{interfaces: d.active.attach.Interfaces(), Status: api.Status{
		Version: d.o.Version, PID: os.Getpid(), Started: d.active.began, Pins: string(d.active.prepared.Config.Pins),
		Entries: m.Entries, Mode: m.Mode, Monitor: m.Monitor, MonitorOverride: d.monitor.manual, RolledBack: d.reloads.rolledBack,
	}}
	s.FalsePositives, s.Reverted = d.observers.counted(), d.observers.reverted
	d.active.prepared.Config.DescribeStages(&s.Status)
	s.Trials, s.Policed = d.active.prepared.TrialLists(), d.policing.shown()
	if d.reloads.unconfirmed != nil {
		s.ConfirmUntil = &d.reloads.unconfirmed.until
	}
	if damage := d.journal.Damage(); damage != "" {
		s.Damaged = fmt.Sprintf("%s was found %s; %[1]s.damaged has what is left, and weir audit what was changed", journalPath(d.active.prepared.Config), damage)
	}
	if s.Fleet, s.NotReady = d.fleet.Status(), d.active.prepared.NotReady(); s.Fleet != nil {
		s.Fleet.Twice = d.active.prepared.Twice()
	}
	d.observers.stages.Trackers.DescribeStatus(&s.Status)
	d.readings.status.Store(s)
	d.observers.notifier.Follow(s.interfaces, d.active.attach.Named())
}

// Top implements [server.Snapshots].
func (r *readings) Top() *api.Top {
	published := r.top.Load()
	if published == nil {
		return nil
	}
	top := *published
	top.Sampled = r.sampled.Top(top.Trackers, r.drops())
	top.Flood = r.floods.Present().Now
	return &top
}

// drops says for which reasons packets are dropped, or in monitor mode would be.
func (r *readings) drops() func(verdict.Reason) bool {
	policy := r.policy.Load()
	return func(reason verdict.Reason) bool {
		return policy.Action(reason) == verdict.Drop || policy.Monitor && reason == verdict.WouldBlock
	}
}

// Floods implements [server.Snapshots].
func (r *readings) Floods() api.Floods { return r.floods.Present() }

// Weights implements [server.Snapshots].
func (r *readings) Weights() *api.Weights { return r.weights.Load() }

// record is kept for metrics, beyond the kernel's counters.
type record struct {
	loads   metrics.Durations
	updates metrics.Durations
	reloads metrics.Reloads   // of the engine
	config  metrics.Reloads   // of the configuration
	lists   map[string]uint64 // hits, as last published
}

// loaded records that the lists were loaded: at the start, or again.
func (r *record) loaded(again bool, began time.Time, err error) {
	now := time.Now()
	r.reloads.Last, r.reloads.Failed = now, err != nil
	switch {
	case err != nil:
		r.reloads.Refused++
		return
	case again:
		r.reloads.Done++
	}
	r.reloads.LastDone = now
	r.loads.Observe(now.Sub(began))
}

// Counters returns what was counted since weir began, at any time.
func (r *readings) Counters() traffic.Counters {
	all, _ := r.meter.Counters()
	return all
}

// Metrics implements [metrics.Source].
func (r *readings) Metrics() metrics.Snapshot {
	var s metrics.Snapshot
	if last := r.snapshot.Load(); last != nil {
		s = *last
	}
	s.Interfaces, s.Hits = r.meter.Read()
	if noted := r.status.Load(); noted != nil {
		unpinned := make(map[netif.Target]bool)
		for _, i := range noted.interfaces {
			if i, _ := i.Now(); i.Condition == attach.Unpinned {
				unpinned[i.Target] = true
			}
		}
		for n := range s.Interfaces {
			s.Interfaces[n].Unpinned = unpinned[s.Interfaces[n].Target]
		}
	}
	s.LongestTurn = r.loop.Longest()
	s.Floods = r.floods.Present()
	if r.logging != nil {
		s.LogFailed = r.logging.Failed()
	}
	s.Origins = origins(&s)
	return s
}

// origins returns the origins of the entries behind the names in a snapshot.
func origins(s *metrics.Snapshot) map[string]metrics.Origin {
	all := make(map[string]metrics.Origin)
	for name := range s.Hits { // some may be gone
		all[name] = metrics.Origin{List: name, Entries: metrics.FromSources}
	}
	for _, l := range s.Lists {
		all[l.Name] = metrics.Origin{List: l.Name, Entries: metrics.Manual} // unless it has sources
	}
	for name := range all {
		if l, manual := strings.CutSuffix(name, api.ManualSuffix); manual {
			all[name] = metrics.Origin{List: l, Entries: metrics.Manual}
			all[l] = metrics.Origin{List: l, Entries: metrics.FromSources}
		} else if l, derived := strings.CutSuffix(name, api.DerivedSuffix); derived {
			all[name] = metrics.Origin{List: l, Entries: metrics.Derived}
		}
	}
	return all
}

// note updates the snapshot of metrics, but for what the kernel counts, which is
// read when it is asked for.
func (d *Daemon) note() {
	r, m, o := &d.observers.record, d.active.attach.Metadata(), &d.observers
	config := r.config
	s := metrics.Snapshot{
		Version: m.Version, Mode: m.Mode, Monitor: m.Monitor, MonitorOverride: d.monitor.manual != nil,
		Generation: d.active.number, MapBytes: m.KernelBytes, Predicted: m.Predicted,
		Unsaved: d.upkeep.unsaved.Load() != nil, Loads: r.loads, Updates: r.updates, Reloads: r.reloads, Config: &config,
	}
	for _, o := range ofInterfaces(d.policing.enforced) { // of sources there may be many
		var rate quantity.Rate
		_ = rate.UnmarshalText([]byte(o.Rate)) // as it was checked
		limit := metrics.Policed{Interface: o.Interface, Netns: o.Netns, Rate: rate.PerSecond(), Bytes: rate.Unit != quantity.Packets}
		if o.Until != nil {
			limit.Until = clock.Shown(*o.Until)
		}
		s.Policed = append(s.Policed, limit)
	}
	for _, l := range m.Lists {
		n := metrics.List{Name: l.Name, Allow: l.Allow, Entries: l.Entries, BadLines: l.BadLines}
		if l := d.active.prepared.List(l.Name); l != nil {
			n.Refused = l.Refused != nil || l.Rejected != nil
			n.Trial = l.Trial != nil && !l.Trial.Enforced
			n.LeftOut, n.Private = l.Left.Entries(), l.Left.Private
			if c := d.observers.collateral.Last().Of(l.Name); c != nil {
				n.Collateral = new(c.Addresses)
			}
			if l.FromFeed != nil {
				n.BadLines = 0 // which may change while the entries do not
				for _, s := range l.FromFeed.Status().Sources {
					_, bad := s.BadLines()
					n.BadLines += bad
				}
			}
		}
		s.Lists = append(s.Lists, n)
	}
	for _, l := range d.active.prepared.Lists {
		if l.From != nil {
			s.Feeds = append(s.Feeds, l.From)
		}
	}
	s.Stages = o.stages.Samples(d.active.engine)
	s.Counted = o.counted()
	if o.learn != nil && d.active.prepared.Learns() {
		s.Weighted = new(o.learn.Predicted())
		s.Hot = o.learn.Hot()
	}
	for _, c := range d.observers.notifier.Counts() {
		s.Notifications = append(s.Notifications, metrics.Notifications(c))
	}
	for _, c := range d.observers.exports.Counts() {
		s.Exports = append(s.Exports, metrics.Export(c))
	}
	s.History = metrics.History(d.observers.history.Counts())
	s.Fleet = d.fleet.Metrics()
	d.readings.snapshot.Store(&s)
	lists := d.readings.lister.describe()
	d.readings.lister.last.Store(&lists)
	d.noteStatus()
	d.observers.measure()
}
