package run

import (
	"weir/control/engine"
	"weir/control/metrics"
	"weir/filter/multicast"
	"weir/loader"
)

// forwarding is what is known of the forwarding of multicast.
type forwarding struct {
	there map[loader.Target]bool
	told  string          // what is wrong, as the log has it
	seen  []loader.Copies // the generation's, as they were last read

	copied, left loader.Counter
	ports        map[loader.Target]portCounts
}

type portCounts struct{ sent, dropped loader.Counter }

// connect brings the interfaces that there are now into a generation's ports.
func (f *Filter) connect(g *engine.Generation) {
	w := &f.forwarding
	there, err := g.Connect()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != w.told {
		f.o.Log.Error(text)
	}
	w.told = text
	before := w.there
	w.there = make(map[loader.Target]bool)
	for i, p := range g.Ports() {
		w.there[p] = there[i]
		if was, known := before[p]; known && was == there[i] {
			continue
		}
		log := f.o.Log.With("interface", p.String())
		if there[i] {
			log.Info("multicast is forwarded to the interface")
		} else {
			log.Warn("multicast cannot be forwarded to the interface, which is not there or not fit for it: waiting")
		}
	}
}

// count adds what a generation has forwarded since it was last asked.
func (w *forwarding) count(g *engine.Generation) {
	now := g.Copies()
	if len(now) == 0 {
		return
	}
	w.seen = append(w.seen, make([]loader.Copies, len(now)-len(w.seen))...)
	if w.ports == nil {
		w.ports = make(map[loader.Target]portCounts)
	}
	w.copied = sum(w.copied, since(now[0].Listed, &w.seen[0].Listed))
	w.left = sum(w.left, since(now[0].Unlisted, &w.seen[0].Unlisted))
	for i, p := range g.Ports() {
		c, seen := w.ports[p], &w.seen[i+1]
		c.sent = sum(c.sent, since(now[i+1].Listed, &seen.Listed))
		c.dropped = sum(c.dropped, since(now[i+1].Unlisted, &seen.Unlisted))
		w.ports[p] = c
	}
}

// replaced adds what a generation has forwarded that is no longer in force.
func (f *Filter) replaced(g *engine.Generation) {
	if g.Multicast() != nil {
		loader.Grace() // its programs may still be counting
		f.forwarding.count(g)
	}
	f.forwarding.seen = nil
}

// Forwarding is what is forwarded to groups, nil where nothing is.
func (f *Filter) Forwarding() *metrics.Multicast {
	w, t := &f.forwarding, f.generation.Multicast()
	if t == nil {
		return nil
	}
	w.count(f.generation)
	m := &metrics.Multicast{Groups: t.Len(), MaxGroups: t.MaxGroups, Planned: t.Rate(), Copied: w.copied, Left: w.left}
	for i, p := range f.generation.Ports() {
		m.Ports = append(m.Ports, metrics.Port{
			Target: p, There: w.there[p], Groups: t.Count(i + 1),
			FalsePositiveRate: t.FalsePositiveRate(i + 1), Sent: w.ports[p].sent, Dropped: w.ports[p].dropped,
		})
	}
	return m
}

// Groups is the table of the groups that the ports want, in which changes are in
// force at once. It is nil where nothing is forwarded.
func (f *Filter) Groups() *multicast.Table { return f.generation.Multicast() }
