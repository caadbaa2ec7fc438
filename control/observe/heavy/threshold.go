package heavy

import (
	"maps"
	"slices"
	"time"

	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/loader"
)

// Programs enforce thresholds that are a number of units in an interval: the packet that
// lifts a flow over it imposes the penalty. A share of all traffic is known at the end of an
// interval only. The watcher reports the penalties that programs have imposed, renews and
// releases them, and imposes them on the other interfaces.

// punishes reports whether the tracker limits or blocks.
func (w Watched) punishes() bool { return w.Role == Hitters && w.Action != ReportOnly }

// enforceable reports whether programs can enforce the tracker's threshold.
func (w Watched) enforceable() bool {
	return w.punishes() && w.Threshold.Share == 0
}

// step returns the units of a flow after which a program adds them to its window, so few that
// what all CPUs keep back is at most a 64th of the threshold; 0 if programs do not
// enforce that.
func (w Watched) step(cpus int) uint64 {
	if !w.enforceable() {
		return 0
	}
	return max(1, w.nominal().Units/uint64(64*cpus))
}

// enforced returns the threshold that programs enforce. What a CPU adds to a window may be
// older than that by less than a step, so that as much is allowed for each.
func (w Watched) enforced(cpus int) (t loader.Threshold) {
	if !w.enforceable() {
		return t
	}
	p, step := w.penalty(0), w.step(cpus)
	t = loader.Threshold{
		Units: w.nominal().Units + uint64(cpus)*(step-1), Window: uint64(w.Interval), Lasts: uint64(w.Duration),
	}
	t.Cost, t.Burst = p.Words()
	return t
}

// arm makes the programs enforce the thresholds, but not against what a penalty would cut off.
// That is spared first; without room for it, the watcher alone imposes penalties.
func (w *Watcher) arm(on interfaces) {
	sparing := make(map[*loader.Stats]bool)
	for _, c := range on {
		armed := w.sparing[c.stats]
		for i, t := range w.trackers {
			armed = armed && (t.Role == Drops || c.Threshold(i) == t.enforced(c.cpus))
		}
		if armed {
			sparing[c.stats] = true
			continue
		}
		roomy := windows(c).Spare(w.spared(c))
		sparing[c.stats] = roomy
		for i, t := range w.trackers {
			if t.Role == Drops {
				continue
			}
			wanted := t.enforced(c.cpus)
			if !roomy {
				wanted = loader.Threshold{}
			}
			if c.Threshold(i) != wanted {
				c.SetThreshold(i, wanted)
			}
		}
	}
	w.sparing = sparing
}

// spared returns the hashes of what programs must not impose penalties on.
func (w *Watcher) spared(c interfaceTrackers) (all []uint64) {
	if w.cutsOff == nil {
		return nil
	}
	for i, t := range w.trackers {
		if !t.enforceable() || !t.protects() {
			continue
		}
		keys := t.covering(w.peers)
		cut := w.cutsOff(keys)
		for _, k := range keys {
			if cut[k] != "" {
				all = append(all, c.Hash(i, k))
			}
		}
		for _, k := range w.peers {
			if src := k.Src; src.IsValid() && int(k.Shape.SrcBits) == src.BitLen() {
				all = append(all, c.SourceHash(i, src))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// adopt takes over the penalties that programs have imposed.
func (w *Watcher) adopt(now time.Duration, on interfaces) (events []Event) {
	if !slices.ContainsFunc(w.trackers, func(t *tracker) bool { return t.enforceable() }) {
		return nil
	}
	adopted, penalized := make(map[*tracker][]*punished), make(map[*loader.Stats]int)
	unknown := maps.Clone(w.unknown)
	maps.DeleteFunc(unknown, func(_ uint64, until time.Duration) bool { return until <= now })
	for _, c := range on {
		n := c.Penalized()
		penalized[c.stats] = n
		if known, ok := w.penalized[c.stats]; ok && n == known {
			continue // programs have imposed none since
		}
		for h, until := range table(c).All() {
			if until <= now {
				continue
			}
			if of, p := w.owner(h); p != nil {
				p.until = max(p.until, until)
				if _, ok := of.sentence(p, now); ok {
					p.active = true
				}
				continue
			}
			if unknown[h] == until {
				continue // it was not found before
			}
			t, f, ok := w.find(h, on)
			if !ok {
				unknown[h] = until
				continue
			}
			p := &punished{Flow: f, over: max(now-t.began, 1), until: until, excess: 1}
			t.penal[h] = p
			adopted[t] = append(adopted[t], p)
		}
	}
	w.unknown, w.penalized = unknown, penalized
	for _, t := range w.trackers {
		set := adopted[t]
		if len(set) == 0 {
			continue
		}
		w.judge(t, set)
		w.impose(t, now, set, on) // on the other interfaces, too
		for _, p := range set {
			events = append(events, Event{Spec: t.Spec, Flow: p.Flow, Over: p.over, CutsOff: p.cutsOff})
		}
	}
	return events
}

// find returns the tracker of the flow with hash h, and the flow as it was counted lately.
func (w *Watcher) find(h uint64, on interfaces) (*tracker, sketch.Flow, bool) {
	for i, t := range w.trackers {
		if !t.enforceable() {
			continue
		}
		for _, banks := range [][]*sketch.Bank{on.active(i), on.idle(i)} {
			var all sketch.Flow
			for _, b := range banks {
				if f, ok := b.Find(h); ok {
					all.Key, all.Hash = f.Key, f.Hash
					all.Before += f.Before
					all.Packets += f.Packets
					all.Bytes += f.Bytes
				}
			}
			if all.Hash != 0 && all.Packets > 0 {
				return t, all, true
			}
		}
	}
	return nil, sketch.Flow{}, false
}

func windows(c interfaceTrackers) *penalty.Windows {
	all, err := penalty.NewWindows(c.windows)
	if err != nil {
		panic(err) // the map has whole buckets
	}
	return all
}
