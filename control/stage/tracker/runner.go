package tracker

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"time"

	"weir/control/engine"
	"weir/filter/key"
	"weir/loader"
)

// Runner reads the trackers of programs for the life of a daemon: it has a watcher for each
// direction. It is not safe for concurrent use, except FollowWakes.
type Runner struct {
	in, out side
	wakes   *loader.Wakes // what programs wake the daemon by; nil: they cannot
	totals  totals
	log     *slog.Logger

	discardsDue time.Time // discarded intervals are logged from then on
}

// side has the trackers of a direction.
type side struct {
	watched []Watched
	*Watcher
}

// NewRunner returns a runner without trackers.
func NewRunner(log *slog.Logger) *Runner { return &Runner{log: log} }

// Open makes what programs wake the daemon by.
func (r *Runner) Open() (err error) {
	r.wakes, err = loader.NewWakes()
	return err
}

// Wakes returns what programs wake the daemon by, nil if they cannot.
func (r *Runner) Wakes() *loader.Wakes { return r.wakes }

// FollowWakes passes on that programs wake the daemon, until ctx is done.
func (r *Runner) FollowWakes(ctx context.Context, woken chan<- struct{}) {
	w := r.wakes
	defer context.AfterFunc(ctx, func() { _ = w.End() })()
	for w.Wait() == nil {
		select {
		case woken <- struct{}{}:
		default: // it has yet to look
		}
	}
}

// Follow goes on with the trackers of a configuration. What they have found stays, unless
// they are others.
func (r *Runner) Follow(s *Sections) {
	r.out.follow(s.Out(), r.wakes != nil)
	r.in.follow(s.In(), r.wakes != nil)
}

func (s *side) follow(watched []Watched, rests bool) {
	if s.Watcher != nil && slices.Equal(watched, s.watched) {
		return
	}
	last := s.Watcher
	_ = last.Close() // if it fails, the memory leaks
	s.watched, s.Watcher = watched, NewWatcher(watched)
	s.Inherit(last)
	if rests {
		s.Rest()
	}
}

// Protect is [Watcher.Protect] for penalties of incoming packets.
func (r *Runner) Protect(cutsOff CutsOff, peers []key.Key) {
	if r.in.Watcher != nil { // otherwise nothing is watched yet
		r.in.Protect(cutsOff, peers)
	}
}

// Close releases the memory of the trackers, once no program can wake the daemon any more.
func (r *Runner) Close() error {
	return errors.Join(r.in.Close(), r.out.Close(), r.wakes.Close())
}

// Wake makes the next tick due: a program has woken the daemon, or interfaces have changed.
func (r *Runner) Wake() {
	r.in.Wake()
	r.out.Wake()
}

// Due returns when the next tick is due, by the kernel's clock. outgoing: such packets are
// filtered, too.
func (r *Runner) Due(outgoing bool) (at time.Duration) {
	at = math.MaxInt64
	if len(r.in.watched) > 0 {
		at = r.in.Due()
	}
	if outgoing && len(r.out.watched) > 0 {
		at = min(at, r.out.Due())
	}
	return at
}

// Watcher returns the watcher of incoming packets.
func (r *Runner) Watcher() *Watcher { return r.in.Watcher }

// Tick does what is due for the programs of a generation. It returns the reports of the
// trackers whose interval has ended, and the events of flows.
func (r *Runner) Tick(g *engine.Generation, stats []*loader.Stats) (reports []*Report, events []Event) {
	if len(r.in.watched) == 0 {
		return nil, nil
	}
	reports, events = r.in.Tick(loader.Monotonic, g, stats)
	r.logDiscarded(r.in.Discarded, time.Now())
	r.totals.add(r.in.Last(), reports, events)
	r.totals.displaced(r.in.Watcher)
	return reports, events
}

// TickOut is Tick for the outgoing packets of a generation, of which there are no events. g is
// nil where they are not filtered.
func (r *Runner) TickOut(g *engine.Generation, stats []*loader.Stats) []*Report {
	if g == nil || len(r.out.watched) == 0 {
		return nil
	}
	reports, _ := r.out.Tick(loader.Monotonic, g, stats)
	return reports
}

// PenaltiesOn returns the number of penalties of an interface, nil where no flow may have one.
func (r *Runner) PenaltiesOn(g *engine.Generation, s *loader.Stats) *int {
	if r.in.punishing() == 0 {
		return nil
	}
	n, ok := r.in.PenaltiesOn(g, s)
	if !ok {
		return nil
	}
	return &n
}

// logDiscarded logs intervals that were discarded, at most once a minute.
func (r *Runner) logDiscarded(discarded func() []Discarded, now time.Time) {
	if now.Before(r.discardsDue) {
		return
	}
	for _, x := range discarded() {
		r.log.Warn("the daemon was held up for too long to judge what a tracker has counted: there may be heavy hitters",
			"tracker", string(x.Spec.Key), "intervals", x.Intervals, "longest", x.Longest.Round(time.Millisecond).String())
		r.discardsDue = now.Add(time.Minute)
	}
}
