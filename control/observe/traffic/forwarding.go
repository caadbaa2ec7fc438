package traffic

import (
	"log/slog"

	"weir/control/engine"
	"weir/control/metrics"
	"weir/loader"
)

// Forwarding adds up what is forwarded to multicast groups. The zero Forwarding
// is ready.
type Forwarding struct {
	present map[loader.Target]bool
	problem string          // as last logged
	seen    []loader.Copies // the engine's counters as last read

	copied, left loader.Counter
	ports        map[loader.Target]portCounts
}

type portCounts struct{ sent, dropped loader.Counter }

// Connect connects the interfaces that exist now to an engine's ports.
func (f *Forwarding) Connect(e *engine.Generation, log *slog.Logger) {
	present, err := e.Connect()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != f.problem {
		log.Error(text)
	}
	f.problem = text
	before := f.present
	f.present = make(map[loader.Target]bool)
	for i, p := range e.Ports() {
		f.present[p] = present[i]
		if was, known := before[p]; known && was == present[i] {
			continue
		}
		log := log.With("interface", p.String())
		if present[i] {
			log.Info("multicast is forwarded to the interface")
		} else {
			log.Warn("multicast cannot be forwarded to the interface, which does not exist or does not fit: waiting")
		}
	}
}

// count adds what an engine has forwarded since it was last read.
func (f *Forwarding) count(e *engine.Generation) {
	now := e.Copies()
	if len(now) == 0 {
		return
	}
	f.seen = append(f.seen, make([]loader.Copies, len(now)-len(f.seen))...)
	if f.ports == nil {
		f.ports = make(map[loader.Target]portCounts)
	}
	f.copied = sum(f.copied, since(now[0].Listed, &f.seen[0].Listed))
	f.left = sum(f.left, since(now[0].Unlisted, &f.seen[0].Unlisted))
	for i, p := range e.Ports() {
		c, seen := f.ports[p], &f.seen[i+1]
		c.sent = sum(c.sent, since(now[i+1].Listed, &seen.Listed))
		c.dropped = sum(c.dropped, since(now[i+1].Unlisted, &seen.Unlisted))
		f.ports[p] = c
	}
}

// Retire adds what an engine that was replaced has forwarded.
func (f *Forwarding) Retire(e *engine.Generation) {
	if e.Multicast() != nil {
		loader.Grace() // its programs may still be counting
		f.count(e)
	}
	f.seen = nil
}

// Read returns what is forwarded, nil if nothing is.
func (f *Forwarding) Read(e *engine.Generation) *metrics.Multicast {
	t := e.Multicast()
	if t == nil {
		return nil
	}
	f.count(e)
	m := &metrics.Multicast{Groups: t.Len(), MaxGroups: t.MaxGroups, Planned: t.Rate(), Copied: f.copied, Left: f.left}
	for i, p := range e.Ports() {
		m.Ports = append(m.Ports, metrics.Port{
			Target: p, There: f.present[p], Groups: t.Count(i + 1),
			FalsePositiveRate: t.FalsePositiveRate(i + 1), Sent: f.ports[p].sent, Dropped: f.ports[p].dropped,
		})
	}
	return m
}
