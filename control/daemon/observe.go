package daemon

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"weir/control/api"
	"weir/control/api/server"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/engine"
	"weir/control/notify"
	"weir/control/observe"
	"weir/control/observe/events"
	"weir/control/observe/learn"
	"weir/control/observe/traffic"
	"weir/control/ruleset"
	"weir/control/stage"
	"weir/control/stage/sampler"
	"weir/control/stage/tracker"
	"weir/control/stages"
	"weir/filter/flood"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/loader"
)

// observers watch the traffic and act on it: heavy
// hitters, weights that are learned, and what stages do. Run's goroutine owns them, but for what
// says otherwise.
type observers struct {
	active   *active
	readings *readings
	notifier *notices
	log      *slog.Logger

	meter      traffic.Meter         // safe for concurrent use
	hub        *events.Hub           // safe for concurrent use
	drops      *observe.DropRecorder // safe for concurrent use
	history    observe.TrafficHistory
	exports    *observe.Exports
	record     record
	collateral *observe.Conversations // safe for concurrent use
	sampled    observe.Sampled        // safe for concurrent use, but for turns
	floods     observe.Floods         // safe for concurrent use
	policing   *policing
	applied    map[string]time.Time // until when patterns of floods are not applied again

	seed hash.Seed // of secrets whose memory outlives an engine

	learn    *learn.Observer // nil: no packet is dropped by mistake
	mistaken chan struct{}   // packets have been dropped that learn has not looked at
	reverted *api.Reverted   // why networks do not differ in their bits, though they did
	stages   *stages.Running

	ticked time.Duration   // when the trackers were read last, by the kernel's clock
	lines  notify.Throttle // of heavy hitters in the log
}

// configure sets what an engine records, under seeds that stay as long as what is
// recorded.
func (o *observers) configure(p *ruleset.Ruleset, c *engine.Config) {
	if o.seed == (hash.Seed{}) {
		o.seed = hash.NewSeed()
	}
	c.Seed = o.seed
	if o.learn != nil && p.Learns() {
		c.Demand = o.learn.Demand(loader.Monotonic())
	}
}

// observe begins to observe by a configuration; what was learned stays.
func (o *observers) observe(p *ruleset.Ruleset) {
	o.observeMistakes(p)
	o.protect(p)
}

// observeMistakes begins or ends to count what is dropped by mistake, and to learn from that.
func (o *observers) observeMistakes(p *ruleset.Ruleset) {
	switch {
	case o.learn != nil && p.Mistakes():
		o.learn.Configure(p.LearnConfig())
	case o.learn != nil:
		o.learn.Close()
		o.learn = nil
	case p.Mistakes():
		o.learn = learn.NewObserver(p.LearnConfig(), o.hub, o.mistaken, o.log)
	}
}

// due returns when the next tick is due, by the kernel's clock, and whether that is because an
// interval ends of trackers that have nothing else to see.
func (o *observers) due() (at time.Duration, rests bool) {
	at = o.stages.Trackers.Due(o.active.engine.Out() != nil)
	often := o.ticked + stage.Often
	if often < at && o.learn != nil {
		return often, false
	}
	return at, at > often
}

// protect keeps penalties from what must not be blocked, as it is known now.
func (o *observers) protect(p *ruleset.Ruleset) {
	var of []key.Key
	for _, peer := range p.Peers {
		of = append(of, peer.Key)
	}
	o.stages.Trackers.Protect(func(flows []key.Key) map[key.Key]string {
		return ruleset.Penalties(p.Rules, ruleset.PolicyOf(p.Config), p.Peers, flows)
	}, of)
}

// weigh brings what was learned before to an engine.
func (o *observers) weigh(e *engine.Generation) {
	if o.learn != nil {
		o.learn.Follow(e, loader.Monotonic())
	}
}

// lookAtDropped gives weights to the elements that have just been dropped by mistake.
func (o *observers) lookAtDropped() {
	if o.learn != nil {
		o.learn.Learn(o.active.engine, loader.Monotonic(), o.active.attach.Metadata().Loaded)
	}
}

// tick runs the trackers once.
func (o *observers) tick() {
	now := loader.Monotonic()
	o.ticked = now
	for _, r := range o.stages.Trackers.TickOut(o.active.engine.Out(), o.active.attach.Stats(true)) {
		o.drops.Report(time.Now(), dropped(r), true, observe.TallyOf(&o.meter))
	}
	if o.learn != nil {
		reasons, refuted := o.meter.Counters()
		c := learn.Counted{
			Clean: reasons[verdict.Clean].Packets, Spared: refuted,
			Matched: reasons[verdict.Blocked].Packets + reasons[verdict.WouldBlock].Packets,
		}
		o.learn.Judge(o.active.engine, c, now, o.active.attach.Metadata().Loaded)
	}
	reports, happened := o.stages.Trackers.Tick(o.active.engine, o.active.attach.Stats(false))
	o.logHeavy(happened, time.Now(), o.log)
	o.notifier.HeavyHitters(o.stages.Trackers.Watcher(), happened, time.Now())
	if len(reports) == 0 {
		return
	}
	monitor := o.active.attach.Metadata().Monitor
	for _, r := range reports {
		now := time.Now()
		o.exports.Report(now, r, o.drops.ListNames(now.Add(-r.Interval)), monitor)
		if r.Role == tracker.Drops {
			o.drops.Report(now, dropped(r), false, observe.TallyOf(&o.meter))
		}
	}
}

// floodsFile names the file of the baseline, and with .json that of the floods.
const floodsFile = "floods"

// sample ends a second of samples. They are read a little later, in a turn, when no program writes
// to them any more, and then looked at, which takes its time.
func (o *observers) sample(now time.Time, r *traffic.Rates) {
	var n loader.Counter
	for _, c := range r.Grown {
		n.Packets, n.Bytes = n.Packets+c.Packets, n.Bytes+c.Bytes
	}
	of := sampler.Of(o.active.engine)
	if of == nil {
		o.floods.Blind()
	}
	second, records := o.sampled.Exchange(now, of, o.active.attach.Stats(false), n.Packets, n.Bytes)
	if second == nil {
		return
	}
	go func() {
		if records {
			loader.Grace()
		}
		err := o.readings.loop.Do(context.Background(), func() error {
			if records && sampler.Of(o.active.engine) == of {
				o.sampled.Read()
			}
			return nil
		})
		if err == nil { // the daemon has not ended
			o.lookAt(second)
		}
	}()
}

// lookAt looks for a flood in a second.
func (o *observers) lookAt(second *observe.Second) {
	begun, ended, err := o.floods.Second(second, o.readings.drops())
	if err != nil {
		o.log.Error("floods are not saved: " + err.Error())
	}
	if begun != nil {
		level, text := slog.LevelWarn, "a flood has begun"
		if begun.Kind != api.FloodRuled { // users, or like users
			level, text = slog.LevelInfo, "more arrives than usual"
		}
		o.log.Log(context.Background(), level, text, "packets", math.Round(begun.Rate), "usual", math.Round(begun.Usual), "is", strings.Join(begun.Is(), "; "), "do", begun.Do())
	}
	if now := o.floods.Present().Now; now != nil {
		o.applyRules(now)
	}
	if ended != nil {
		o.log.Info("as much arrives as usual again", "began", ended.Begin.Format(time.RFC3339), "is", strings.Join(ended.Is(), "; "))
	}
}

// appliedBy is the reason of patterns that the configuration has dropped.
const appliedBy = "flood.apply: auto"

// retryRule is the time after which a rule that could not be applied is tried again.
const retryRule = 10 * time.Second

// applyRules drops what the rules of a flood match that are sure, where the configuration says so:
// flood.MaxRules at a time, none that a command has limited, and none again before its time is over.
func (o *observers) applyRules(now *api.Flood) {
	var all []api.PoliceChange
	var ttl time.Duration
	of := o.readings.loop
	err := of.Do(context.Background(), func() error {
		how := o.active.prepared.Config.Flood
		if how.Apply != config.FloodAuto {
			return nil
		}
		ttl = time.Duration(how.TTL)
		maps.DeleteFunc(o.applied, func(_ string, until time.Time) bool { return time.Now().After(until) })
		free := flood.MaxRules
		for _, l := range o.policing.set {
			if l.Reason == appliedBy {
				free--
			}
		}
		for _, r := range now.Sure() {
			set := slices.ContainsFunc(o.policing.set, func(l api.PoliceOverride) bool { return l.Pattern == r.Pattern })
			if _, done := o.applied[r.Pattern]; done || set || len(r.Addresses) > 0 || len(all) >= free {
				continue
			}
			o.applied[r.Pattern] = time.Now().Add(ttl)
			all = append(all, api.PoliceChange{
				Pattern: r.Pattern, Rate: "0pps", For: ttl.Seconds(), Trial: time.Duration(how.Trial).Seconds(),
				Reason: appliedBy, UID: api.NoUID, Client: "flood",
			})
		}
		return nil
	})
	if err != nil { // the daemon ends
		return
	}
	for _, c := range all {
		_, err := o.policing.SetPolice(context.Background(), c)
		if err == nil {
			continue
		}
		o.log.Error("a flood is not dropped: "+err.Error(), "pattern", c.Pattern)
		_ = of.Do(context.Background(), func() error { // the daemon may end
			o.applied[c.Pattern] = time.Now().Add(retryRule)
			return nil
		})
	}
}

// dropped returns the report of the tracker of dropped packets.
func dropped(r *tracker.Report) *observe.DropReport {
	return &observe.DropReport{Interval: r.Interval, Packets: r.Packets, Bytes: r.Bytes, Flows: r.Counted()}
}

// heavyLines bounds the lines of heavy hitters in the log.
var heavyLines = notify.Throttle{Most: 10, Refill: time.Second}

// logHeavy logs which flows have become heavy, and which no longer are.
func (o *observers) logHeavy(happened []tracker.Event, now time.Time, log *slog.Logger) {
	o.lines.Most, o.lines.Refill = heavyLines.Most, heavyLines.Refill
	for _, e := range happened {
		more, ok := o.lines.Pass(now)
		if !ok {
			continue
		}
		if more > 0 {
			log.Warn("more heavy hitters, weir top shows them", "lines", more)
		}
		e.Log(log)
	}
}

// measure makes the meter and the events follow the interfaces that are filtered
// now.
func (o *observers) measure() {
	var all []traffic.Attachment
	for _, a := range o.active.attach.Attached() {
		n := traffic.Attachment{Attachment: a}
		if !a.Severed() && !a.Target().Out {
			n.Penalties = o.stages.Trackers.PenaltiesOn(o.active.engine, a.Stats())
		}
		all = append(all, n)
	}
	shown := o.active.attach.Named()
	for _, i := range o.active.attach.Interfaces() {
		if i.Condition == attach.Unfiltered && !slices.Contains(shown, i.Target) {
			shown = append(shown, i.Target)
		}
	}
	o.meter.Follow(all, shown, programs{})
	m := o.active.attach.Metadata()
	phase := observe.Phase{Begin: time.Now(), Lists: listNames(m), Policy: m.Policy(), Monitor: m.Monitor, Trial: o.active.prepared.OnTrial()}
	o.drops.Follow(phase, o.active.prepared.Stages.Trackers.TrackDrops, func() observe.Tally { return observe.TallyOf(&o.meter) })
	o.listen()
}

// listNames returns the names of the programs' lists, from number 1 on.
func listNames(m attach.Metadata) (all []string) {
	for _, l := range m.Lists {
		all = append(all, api.ListOf(l.Name))
	}
	return all
}

// listen follows the events of the interfaces that are filtered now.
func (o *observers) listen() {
	m := o.active.attach.Metadata()
	var lists []string
	for _, l := range m.Lists {
		lists = append(lists, l.Name)
	}
	patterns := o.active.prepared.Stages.Patterns.Names(o.active.engine.Kernel())
	var all []events.Interface
	for _, a := range o.active.attach.Filtered() {
		all = append(all, events.Interface{Target: a.Target(), Stats: a.Stats(), Lists: lists, Patterns: patterns, Policy: m.Policy()})
	}
	o.hub.Follow(all)
}

// Subscribe implements [server.Streamer].
func (r *readings) Subscribe(asked api.Events) (server.Subscription, error) {
	if err := asked.Missing(r.status.Load().Status); err != nil {
		return nil, err
	}
	return r.hub.Subscription(asked)
}

// Events implements [console.Daemon].
func (r *readings) Events(w events.Want) (<-chan events.Event, func()) { return r.hub.Subscribe(w) }
