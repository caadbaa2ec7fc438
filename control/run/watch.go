package run

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"weir/control/api"
	"weir/control/engine"
	"weir/control/metrics"
	"weir/control/observe/events"
	"weir/control/observe/heavy"
	"weir/control/observe/learn"
	"weir/control/quantity"
	"weir/control/ruleset"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// LearnByMode leaves it to the mode how many elements may have weights:
// learn.DefaultElements in approximate mode, where a false positive is a packet lost, and
// none in exact mode, where it costs a few nanoseconds.
const (
	LearnByMode = -1
	MaxLearn    = 1 << 20
)

// learnInterval is how often the weights follow the traffic.
const learnInterval = 5 * time.Second

// watch is what is seen of the traffic, and done about it: heavy flows, the
// weights that are learned of them, and how well the filter does.
type watch struct {
	specs    []heavy.Spec // those of the user, then that for learning
	watcher  *heavy.Watcher
	learner  *learn.Learner // nil: nothing is learned
	weights  learn.Weights
	measured measured

	judged     <-chan events.Event // listed packets; nil where they need no judgement
	endJudging func()

	lists   []uint64 // packets of each list, as they were last told
	top     atomic.Pointer[api.Top]
	answers atomic.Pointer[api.Weights]
}

// measured is the share of unlisted packets that the cascade takes for listed
// ones, as it is counted: by the table, which judges all of them, or from
// samples where there is none. Old counts fade.
type measured struct {
	wrong, unlisted float64
	refuted, clean  uint64 // counters, as they were last read
}

// measuredHalfLife is long against the time between two false positives.
const measuredHalfLife = 5 * time.Minute

func (m *measured) rate() *float64 {
	if m.unlisted < 1 {
		return nil
	}
	rate := m.wrong / m.unlisted
	return &rate
}

// configure sets what a generation has to count: the user's trackers and, if
// weights are to be learned, one for the keys in which lists are held against
// packets.
func (f *Filter) configure(c *engine.Config, l *ruleset.Loaded) ([]heavy.Spec, error) {
	specs := slices.Clone(f.o.Track)
	if f.o.Learn > 0 && l.BlockEntries() > 0 {
		if len(specs) == loader.MaxTrackers {
			return nil, fmt.Errorf("%d trackers leave none for learning: take one away, or --learn 0", len(specs))
		}
		specs = append(specs, learning(f.o.Learn, l.Lists()))
		c.Hot = f.o.Learn
	}
	for _, s := range specs {
		c.Trackers = append(c.Trackers, s.Tracker())
	}
	if f.trackerSeed == 0 {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		f.trackerSeed = binary.LittleEndian.Uint64(b[:]) | 1
	}
	c.TrackerSeed = f.trackerSeed
	f.recordDigests(c)
	return specs, nil
}

// learning is the tracker that weights are learned from. Its memory, of all
// CPUs together, has room for twice the elements.
func learning(elements int, lists []engine.List) heavy.Spec {
	const bytesPerFlow = 2 * 72 // with as much for the sketch
	src, dst := engine.BlockSides(lists)
	spec := heavy.DefaultSpec("flow")
	switch {
	case !dst:
		spec.Key = "src"
	case !src:
		spec.Key = "dst"
	}
	spec.Interval = quantity.Duration(learnInterval)
	spec.Memory = quantity.Size(max(heavy.DefaultMemory, 2*elements*bytesPerFlow/loader.CPUs()))
	return spec
}

// observe begins to watch by these specs; what was learned stays.
func (f *Filter) observe(specs []heavy.Spec) {
	w := &f.watch
	if slices.Equal(specs, w.specs) && w.watcher != nil {
		return
	}
	w.specs, w.watcher = specs, heavy.NewWatcher(specs, len(f.o.Track))
	w.learner = nil
	if len(specs) > len(f.o.Track) {
		t := specs[len(specs)-1].Tracker()
		w.learner = learn.New(learn.Config{HalfLife: f.o.HalfLife, Elements: f.o.Learn, Trackers: []key.Shape{t.V4, t.V6}})
	}
}

// stats are those of the interfaces that are there, or were: what they have counted
// is yet to be read, and penalties run out.
func (f *Filter) stats() []*loader.Stats {
	var all []*loader.Stats
	for _, h := range f.holds {
		if h.Attachment != nil && !h.Replaced() {
			all = append(all, h.Stats())
		}
	}
	return all
}

// tick watches.
func (f *Filter) tick() {
	w, stats := &f.watch, f.stats()
	f.judge(stats)
	reports, events := w.watcher.Tick(loader.Monotonic(), f.generation, stats)
	f.tell(events)
	f.record.watched(w.watcher.Last(), reports, events, len(f.o.Track))
	for _, r := range reports {
		if w.learner != nil && r == w.watcher.Last()[len(w.specs)-1] {
			f.learn(r)
		}
	}
}

// maxTold bounds the lines that one interval may put into the log.
const maxTold = 10

func (f *Filter) tell(events []heavy.Event) {
	told := 0
	for _, e := range events {
		if len(f.o.Track) == 0 || told == maxTold {
			break
		}
		told++
		what := "heavy flow"
		if e.Released {
			what = "flow is no longer heavy"
		}
		attrs := []any{"flow", heavy.Name(e.Flow.Key), "tracker", string(e.Spec.Key), "action", e.Spec.Action.String(),
			"packets", e.Flow.Packets, "bytes", e.Flow.Bytes, "interval", e.Spec.Interval.String()}
		if e.Unmet {
			f.o.Log.Error("heavy flow, but there is no room for another penalty", attrs...)
			continue
		}
		f.o.Log.Warn(what, attrs...)
	}
	if left := len(events) - told; told == maxTold && left > 0 {
		f.o.Log.Warn("more heavy flows, weir top shows them", "flows", left)
	}
}

// learn takes in what the tracker has seen, and brings the weights into force.
func (f *Filter) learn(r *heavy.Report) {
	i := learn.Interval{Length: r.Interval, Packets: r.Packets, Distinct: r.Distinct}
	for _, flow := range r.Flows {
		i.Flows = append(i.Flows, learn.Flow{Key: flow.Key, Packets: flow.Estimate(sketch.Packets)})
	}
	f.weigh(i, f.generation)
}

// weigh brings weights into a generation: what was learned before, and in this
// interval.
func (f *Filter) weigh(i learn.Interval, g *engine.Generation) {
	w := &f.watch
	if w.learner == nil {
		return
	}
	w.weights = w.learner.Learn(i, g.Block)
	if _, err := learn.Publish(g.Block, w.weights, loader.Grace); err != nil {
		f.o.Log.Error("weights are not in force: " + err.Error())
	}
}

// judge measures the false positives since it was last called.
func (f *Filter) judge(stats []*loader.Stats) {
	w := &f.watch
	wrong, passed := f.misjudged(), 0.
	if w.learner == nil {
		return
	}
	m := &w.measured
	var clean, refuted uint64
	for _, s := range stats {
		clean += s.Reasons(nil)[verdict.Clean].Packets
		refuted += s.Refuted()
	}
	if clean >= m.clean && refuted >= m.refuted { // else an interface has gone
		passed = float64(clean - m.clean)
		if f.generation.Block.Mode == membership.Exact {
			wrong = float64(refuted - m.refuted)
		} else {
			passed += wrong
		}
	}
	m.clean, m.refuted = clean, refuted
	fade := math.Exp2(-float64(heavy.Tick) / float64(measuredHalfLife))
	m.wrong, m.unlisted = m.wrong*fade+wrong, m.unlisted*fade+passed
}

// Top implements api.Source.
func (f *Filter) Top() *api.Top { return f.watch.top.Load() }

// Weights implements api.Source.
func (f *Filter) Weights() *api.Weights { return f.watch.answers.Load() }

// listenAgain is after how long it is tried again to listen.
const listenAgain = 2 * time.Second

// serve answers on the socket, and scrapes of metrics, until ctx is done.
// Filtering does not depend on it: where it fails, the log says so, and it is
// tried again. At boot the network, with the address to listen at, comes up
// behind the filter.
func (f *Filter) serve(ctx context.Context) {
	o := f.o // which a new configuration changes
	go f.events.Run(ctx)
	answer := func(what string, h http.Handler, listen func() (net.Listener, error)) {
		l, err := listen()
		if err != nil {
			o.Log.Error(what + ", it is tried again: " + err.Error())
		}
		go func() {
			late := err != nil
			for err != nil {
				select {
				case <-ctx.Done():
					return
				case <-time.After(listenAgain):
					l, err = listen()
				}
			}
			if late {
				o.Log.Info("listening", "address", l.Addr().String())
			}
			if err := api.Serve(ctx, l, h, o.Log); err != nil {
				o.Log.Error(err.Error())
			}
		}()
	}
	scrapes := metrics.Handler(f, o.Log)
	if o.Metrics != "" {
		answer("metrics are not served", scrapes, func() (net.Listener, error) { return net.Listen("tcp", o.Metrics) })
	}
	all := http.NewServeMux()
	all.Handle("/", api.HandlerFor(f, o.Control))
	all.Handle(metrics.Path, scrapes)
	if o.Socket != "" {
		answer("commands cannot ask this weir", all, func() (net.Listener, error) { return api.ListenGroup(o.Socket, o.Group) })
	}
	if t := o.TLS; t.Address != "" {
		answer("the API is not served at "+t.Address, all, func() (net.Listener, error) {
			return api.ListenTLS(t.Address, t.Cert, t.Key, t.ClientCA)
		})
	}
}

// mostFlows bounds the flows of a tracker that are told to those who ask.
const mostFlows = 100

// snapshot makes what is told to those who ask.
func (f *Filter) snapshot(now time.Time, r Rates) {
	w, d := &f.watch, &f.description
	top := &api.Top{
		Time: now, Version: d.Version, Interfaces: f.names(), Uptime: now.Sub(d.Since).Seconds(),
		Interval: r.Interval.Seconds(), Packets: r.Packets, Bytes: r.Bytes, Dropped: r.Dropped,
		Filter: api.Filter{
			Entries: d.Entries, Mode: d.Mode, Generation: f.generations, KernelBytes: d.KernelBytes,
			FalsePositiveRate: d.FalsePositiveRate, Measured: w.measured.rate(),
		},
	}
	seconds := max(r.Interval.Seconds(), 1e-3)
	for i, c := range r.grown {
		if r.all[i].Packets > 0 {
			reason := verdict.Reason(i)
			top.Reasons = append(top.Reasons, api.ReasonRate{
				Reason: reason.String(), Packets: float64(c.Packets) / seconds, Bytes: float64(c.Bytes) / seconds,
				Total: r.all[i].Packets, Drops: d.Drops(reason),
			})
		}
	}
	clock := loader.Monotonic()
	for _, report := range w.watcher.Last() {
		if report != nil {
			top.Trackers = append(top.Trackers, trackerOf(report, now, clock))
		}
	}
	top.Filter.Lists = f.listRates(seconds)
	if w.learner != nil {
		for _, e := range w.weights.Elements {
			if e.K > w.weights.Base {
				top.Filter.Hot++
			}
		}
		predicted := w.weights.Predicted
		top.Filter.WeightedPredicted = &predicted
		w.answers.Store(w.told())
	}
	w.top.Store(top)
}

func trackerOf(r *heavy.Report, now time.Time, clock time.Duration) api.Tracker {
	seconds := max(r.Interval.Seconds(), 1e-3)
	t := api.Tracker{
		Key: string(r.Spec.Key), Unit: r.Spec.Counts().String(), Interval: r.Interval.Seconds(),
		Threshold: r.Spec.Limits(), Action: r.Spec.Action.String(),
		Packets: float64(r.Packets) / seconds, Bytes: float64(r.Bytes) / seconds, Denied: r.Denied,
	}
	whole := r.Packets
	if r.Spec.Counts() == sketch.Bytes {
		whole = r.Bytes
	}
	for _, f := range r.Flows[:min(len(r.Flows), mostFlows)] {
		flow := api.Flow{
			Key: heavy.Name(f.Key), Packets: float64(f.Packets) / seconds, Bytes: float64(f.Bytes) / seconds,
			Share: min(1, float64(f.Estimate(r.Spec.Counts()))/max(1, float64(whole))), Heavy: f.Heavy,
		}
		if f.State != heavy.ReportOnly {
			flow.State = map[heavy.Action]string{heavy.Limit: api.Limited, heavy.Block: api.Blocked}[f.State]
			until := now.Add(f.Until - clock)
			flow.Until = &until
		}
		t.Flows = append(t.Flows, flow)
	}
	return t
}

// listRates is how many packets each block list has caught. Approximate mode
// cannot tell.
func (f *Filter) listRates(seconds float64) (rates []api.ListRate) {
	if f.description.Mode == membership.Approximate.String() {
		return nil
	}
	w, totals := &f.watch, f.Hits()
	for i, l := range f.description.Lists {
		if l.Allow {
			continue
		}
		rate := api.ListRate{Name: l.Name, Total: totals[i]}
		if i < len(w.lists) && totals[i] >= w.lists[i] {
			rate.Packets = float64(totals[i]-w.lists[i]) / seconds
		}
		rates = append(rates, rate)
	}
	w.lists = totals
	return rates
}

// told is what is told of the weights.
func (w *watch) told() *api.Weights {
	t := &api.Weights{
		Base: w.weights.Base, HalfLife: w.learner.HalfLife.Seconds(),
		Predicted: w.weights.Predicted, Uniform: w.weights.Uniform,
		Measured: w.measured.rate(), MeasuredPackets: uint64(w.measured.unlisted),
	}
	for _, e := range w.weights.Elements {
		t.Elements = append(t.Elements, api.Weight{
			Element: e.Key.String(), Rate: e.Rate, Share: e.Share, K: e.K, Listed: e.Listed, Contribution: e.Contribution,
		})
	}
	return t
}

// Hits are the packets that each list has caught on all interfaces, by its
// number less one, since it is in force.
func (f *Filter) Hits() []uint64 {
	hits := make([]uint64, len(f.description.Lists))
	for _, s := range f.stats() {
		counters := s.Lists(nil)
		for i := range hits {
			if i+1 < len(counters) {
				hits[i] += counters[i+1].Packets
			}
		}
	}
	for i, l := range f.description.Lists {
		hits[i] -= min(hits[i], l.Before.Packets)
	}
	return hits
}

// Find gives the entries that a packet matches.
func (f *Filter) Find(t key.Tuple) []engine.Found { return f.generation.Find(t) }

// Reason gives the reason with which a packet leaves as far as the lists go. What
// passes before any list is left out.
func (f *Filter) Reason(t key.Tuple) verdict.Reason {
	if _, blocked := f.generation.Block.Match(t); !blocked {
		return verdict.Clean
	}
	if _, allowed := f.generation.Allow.Match(t); allowed {
		return verdict.Allowed
	}
	if f.o.Rules.Monitor {
		return verdict.Monitored
	}
	return verdict.Blocked
}
