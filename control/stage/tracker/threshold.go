package tracker

import (
	"slices"
	"time"

	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/loader"
)

// Programs enforce thresholds that are a number of units in an interval: the packet that
// lifts a flow over it imposes the penalty. A share of all traffic is known at the end of an
// interval only. The watcher reports the penalties that programs have imposed, renews and
// releases them, and has the programs of the other interfaces look for them.

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
	if len(on) == 0 {
		return
	}
	c := on[0]
	armed := w.sparing
	for i, t := range w.trackers {
		armed = armed && (t.Role == Drops || c.Threshold(i) == t.enforced(c.cpus))
	}
	if armed {
		return
	}
	w.sparing = windows(c).Spare(w.spared(c))
	for i, t := range w.trackers {
		if t.Role == Drops {
			continue
		}
		wanted := t.enforced(c.cpus)
		if !w.sparing {
			wanted = loader.Threshold{}
		}
		if c.Threshold(i) != wanted {
			c.SetThreshold(i, wanted)
		}
	}
}

// spared returns the hashes of flows on which programs must not impose penalties.
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

// Penalties that no flow was found for are looked at again after this time for each, at least
// after a second: a full table of them takes less than a thousandth of a CPU.
const lookEach = time.Millisecond

// adopt takes over the penalties that programs or an earlier watcher have imposed. A flow that
// is silent is in no memory: its penalty stays unknown until the flow sends, or it expires.
func (w *Watcher) adopt(now time.Duration, on interfaces) (events []Event) {
	if w.punishing() == 0 || len(on) == 0 {
		return nil
	}
	if !w.met {
		w.bound(now, on)
	}
	adopted := w.look(now, on)
	for _, t := range w.trackers {
		set := adopted[t]
		if len(set) == 0 {
			continue
		}
		w.judge(t, set)
		w.impose(t, now, set, on)
		for _, p := range set {
			events = append(events, Event{Spec: t.Spec, Flow: p.Flow, Over: p.over, CutsOff: p.cutsOff})
		}
	}
	if !w.met {
		w.extend(now, on)
	}
	return events
}

// look returns the flows whose penalties are new to the watcher, if there may be any.
func (w *Watcher) look(now time.Duration, on interfaces) (adopted map[*tracker][]*punished) {
	unknown, all := w.unknown, len(w.unknown) > 0 && now >= w.again
	if all {
		unknown = make(map[uint64]time.Duration, len(w.unknown)) // without those that have expired
	}
	penalized, same, some := make(map[*loader.Stats]int), !all, on.penalized()
	for _, c := range on {
		n := c.Penalized()
		known, ok := w.penalized[c.stats]
		same = same && (ok && n == known || !some)
		penalized[c.stats] = n
	}
	if w.penalized = penalized; same {
		return nil // programs have imposed none since
	}
	adopted = make(map[*tracker][]*punished)
	var in memories
	table := table(on[0])
	for h, until := range table.All() {
		if until <= now {
			continue
		}
		if of, p := w.owner(h); p != nil {
			p.until = max(p.until, of.latest(until, now))
			if _, ok := of.sentence(p, now); ok {
				p.active = true
			}
			continue
		}
		if until <= unknown[h] {
			continue // it was not found before
		}
		if in == nil {
			in = w.memories(on)
		}
		t, f, began := in.find(h)
		if t == nil {
			unknown[h] = until
			continue
		}
		p := &punished{Flow: f, over: max(now-began, 1), until: t.latest(until, now), excess: 1}
		t.penal[h] = p
		adopted[t] = append(adopted[t], p)
	}
	if all {
		w.again = now + max(time.Second, time.Duration(len(unknown))*lookEach)
	}
	w.unknown = unknown
	if n := table.Len(); slices.ContainsFunc(on, func(c interfaceTrackers) bool { return penalized[c.stats] != n }) {
		w.setPenalized(on, table) // an interface is new, or its programs have imposed some
	}
	return adopted
}

// latest returns until, but at most the end of a penalty that the tracker would impose now: an
// earlier configuration may have had a longer duration.
func (t *tracker) latest(until, now time.Duration) time.Duration {
	return min(until, now+time.Duration(t.Duration))
}

// bound caps the penalties in memory that is new to the watcher at the longest duration of all
// trackers. Nothing else shortens the penalty of a flow that is silent, or has too few packets to
// be found.
func (w *Watcher) bound(now time.Duration, on interfaces) {
	var longest time.Duration
	for _, t := range w.trackers {
		if t.punishes() {
			longest = max(longest, time.Duration(t.Duration))
		}
	}
	if on.penalized() {
		table(on[0]).Cap(now + longest)
	}
}

// extend imposes known penalties in memory that is new to the watcher.
func (w *Watcher) extend(now time.Duration, on interfaces) {
	for _, t := range w.trackers {
		var set []*punished
		for _, p := range t.penal {
			if p.active && p.until > now {
				set = append(set, p)
			}
		}
		if t.punishes() && len(set) > 0 {
			w.impose(t, now, set, on)
		}
	}
}

// memories are the memories of the trackers that limit or block.
type memories []memoryOf

type memoryOf struct {
	*tracker
	began time.Duration
	banks [2][]*sketch.Bank // the active ones and the idle ones, without empty ones
}

func (w *Watcher) memories(on interfaces) (all memories) {
	all = memories{} // not nil: it has been read
	for i, t := range w.trackers {
		if !t.punishes() {
			continue
		}
		m := memoryOf{tracker: t, began: on.began(i), banks: [2][]*sketch.Bank{on.active(i), on.idle(i)}}
		for k := range m.banks {
			m.banks[k] = slices.DeleteFunc(slices.Clone(m.banks[k]), func(b *sketch.Bank) bool { return b.Total() == 0 })
		}
		all = append(all, m)
	}
	return all
}

// find returns the tracker of the flow with hash h, nil if there is none, the flow as it was
// counted lately, and since when. Trackers have secrets of their own, so that only one has it.
func (all memories) find(h uint64) (of *tracker, flow sketch.Flow, began time.Duration) {
	for _, m := range all {
		for _, banks := range m.banks {
			var f sketch.Flow
			for _, b := range banks {
				if part, ok := b.Lookup(h); ok {
					f.Key, f.Hash = part.Key, part.Hash
					f.Before += part.Before
					f.Packets += part.Packets
					f.Bytes += part.Bytes
				}
			}
			if f.Hash != 0 && f.Packets > 0 {
				return m.tracker, f, m.began
			}
		}
	}
	return nil, sketch.Flow{}, 0
}

func windows(c interfaceTrackers) *penalty.Windows {
	all, err := penalty.NewWindows(c.windows)
	if err != nil {
		panic(err) // the map has whole buckets
	}
	return all
}
