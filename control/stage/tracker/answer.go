package tracker

import (
	"time"

	"weir/filter/key"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// maxNamed bounds the flows of one kind that an answer to a question about packets names.
const maxNamed = 10

// Meeting returns the penalties that all incoming packets meet of which something is known, and the
// first of those that some of these packets may meet, and the number of the others. known is nil for all
// penalties.
func (r *Runner) Meeting(known *key.Key) (kept []verdict.Penalty, more int) {
	now := loader.Monotonic()
	all := r.in.Penalties(now)
	if known == nil {
		return all, 0
	}
	return meeting(append(all, r.in.silent(*known, now)...), *known)
}

// silent returns the penalties that all packets of which something is known meet, and that the watcher
// has not met: programs or an earlier watcher have imposed them, and the flows have sent nothing since.
func (w *Watcher) silent(known key.Key, now time.Duration) (all []verdict.Penalty) {
	if len(w.opened) == 0 {
		return nil
	}
	on := w.opened[0] // the memory is of all interfaces
	set := table(on)
	for i, t := range w.trackers {
		if !t.punishes() {
			continue
		}
		for _, k := range t.covering([]key.Key{known}) {
			h := on.Hash(i, k)
			if p := t.penal[h]; p != nil && p.active {
				continue
			}
			if until, ok := set.Until(h); ok && until > now {
				x := t.penalty(now)
				x.Until = until
				all = append(all, verdict.Penalty{Flow: k, Penalty: x})
			}
		}
	}
	return all
}

func meeting(all []verdict.Penalty, known key.Key) (kept []verdict.Penalty, more int) {
	some := 0
	for _, p := range all {
		switch {
		case !p.Meets(known):
			continue
		case !p.Flow.Shape.Within(known.Shape):
			if some++; some > maxNamed {
				continue
			}
		}
		kept = append(kept, p)
	}
	return kept, max(0, some-maxNamed)
}

// Limited returns the key of the tracker that has a flow rate-limited, the unit of the rate, and how
// many of it the flow had in a second of its last interval; nil: that is not known.
func (r *Runner) Limited(flow key.Key, rate float64) (by, unit string, offered *float64) {
	unit = sketch.Packets.String()
	for _, t := range r.in.trackers {
		if t.Action != Limit {
			continue
		}
		for _, p := range t.penal {
			x, ok := t.sentence(p, 0)
			if p.Key != flow || !p.active || !ok || x.Rate != rate {
				continue
			}
			by = string(t.Key)
			if t.CountsPairs() { // which counts no packets
				return by, unit, nil
			}
			unit = t.Counts().String()
			if t.last == nil {
				return by, unit, nil
			}
			n := 0.0
			for _, f := range t.last.Flows {
				if f.Hash == p.Hash {
					n = float64(f.Estimate(t.Counts()))
				}
			}
			n /= t.last.Interval.Seconds()
			return by, unit, &n
		}
	}
	return "", unit, nil
}

// SparedOf names the first flows that are spared, and have packets of which something is known.
func (r *Runner) SparedOf(known key.Key) (all []string) {
	for _, x := range r.in.Spared(loader.Monotonic()) {
		if len(all) < maxNamed && x.Flow.Overlaps(known) {
			all = append(all, x.API().String())
		}
	}
	return all
}
