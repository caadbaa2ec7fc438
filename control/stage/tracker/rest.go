package tracker

import (
	"time"

	"weir/control/engine"
	"weir/loader"
)

// A watcher that programs can wake looks at each Tick only while there is something to see.
// Otherwise it rests until the next interval ends: a flow has to enter the flow memory, and
// under a threshold that programs enforce it has to pass steps, before it can be heavy, and
// each of these wakes the watcher. Under a threshold that they do not, it rests only while
// nothing is counted and no flow is known from before. At the end of an interval, banks that
// have counted nothing stay.

const (
	// lively is how long a watcher that was woken looks at each Tick.
	lively = time.Second

	// longestRest bounds the time until Tick looks at what no program wakes it for.
	longestRest = time.Second
)

// rest is when a watcher looks.
type rest struct {
	allowed bool          // programs can wake it
	woken   bool          // since it looked last
	until   time.Duration // when it may rest again
	due     time.Duration // when it looks next, unless it is woken
}

// Rest allows the watcher to rest: programs wake this process by the wakes of the generation's
// configuration, and Wake is called then.
func (w *Watcher) Rest() { w.rest.allowed = true }

// Wake makes Tick due at once: a program has woken this process, or interfaces have changed.
func (w *Watcher) Wake() { w.rest.woken, w.rest.due = true, 0 }

// Due returns when Tick is to be called next, by the kernel's monotonic clock.
func (w *Watcher) Due() time.Duration { return w.rest.due }

// settle decides when to look next.
func (w *Watcher) settle(clock func() time.Duration, on interfaces) {
	now := clock()
	if w.rest.woken {
		w.rest.woken, w.rest.until = false, now+lively
	}
	w.rest.due = now + Tick
	if !w.mayRest(now, on) {
		w.ask(on, false)
		return
	}
	if w.ask(on, true) {
		w.grace() // a program that did not know yet may have had something to see
		if !w.mayRest(now, on) {
			w.ask(on, false)
			return
		}
	}
	w.rest.due = now + longestRest
	for _, t := range w.trackers {
		w.rest.due = min(w.rest.due, max(t.began+time.Duration(t.Interval), now+Tick))
	}
}

// ask asks the programs to wake this process, or no longer to. It reports whether some were not
// asked before.
func (w *Watcher) ask(on interfaces, wake bool) (changed bool) {
	for _, c := range on {
		if c.Wakes() != wake {
			c.SetWake(wake)
			changed = true
		}
	}
	return changed
}

func (w *Watcher) mayRest(now time.Duration, on interfaces) bool {
	if !w.rest.allowed || now < w.rest.until {
		return false
	}
	for i, t := range w.trackers {
		if (t.punishes() || t.CountsPairs()) && !t.enforceable() && !t.isStill(i, on) {
			return false
		}
	}
	return true
}

// isStill reports whether a tracker knows no flow, and has counted nothing in this interval.
func (t *tracker) isStill(i int, on interfaces) bool {
	return len(on) == 0 || t.empty.begunEmpty && total(on.active(i)) == 0
}

// contents says what is known of a tracker's banks.
type contents struct {
	begunEmpty  bool // those that count had no flows when they began to
	beforeEmpty bool // nor had the idle ones
	idleEmpty   bool // the idle ones have counted nothing either
}

// isEmpty reports whether the banks had nothing when the interval began, so that they have
// nothing now unless they have counted it.
func (t *tracker) isEmpty() bool { return t.empty == contents{true, true, true} }

// begin has banks that have counted nothing begin the next interval as they are. It reports
// whether they have, and are to be exchanged. What a scan detector has seen together is not counted
// always, so that its banks are exchanged in any case.
func (t *tracker) begin(i int, clock func() time.Duration, on interfaces) (counted bool) {
	if len(on) == 0 {
		return false
	}
	at := clock() // before they are looked at: what they have counted by then is later
	banks := on.active(i)
	if t.CountsPairs() || !t.isEmpty() || total(banks) > 0 {
		return true
	}
	for _, b := range banks {
		b.Begin(at)
	}
	return false
}

// PenaltiesOn returns the number of penalties of an interface, unless it has none of the
// generation's trackers.
func (w *Watcher) PenaltiesOn(g *engine.Generation, s *loader.Stats) (n int, ok bool) {
	if at := w.opened.of(s); at >= 0 && w.of == g {
		return penaltiesOn(w.opened[at]), true
	}
	t, err := Open(g, s) // before the first tick
	if err != nil {
		return 0, false
	}
	defer t.Close() // if it fails, the memory leaks
	return penaltiesOn(interfaceTrackers{counters: t, penalties: t.Penalties}), true
}

func penaltiesOn(c interfaceTrackers) int {
	if c.Penalized() == 0 {
		return 0 // the table need not be touched
	}
	return table(c).Len()
}
