package daemon

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"weir/control/attach"
	"weir/control/observe/traffic"
	"weir/control/stages"
	"weir/loader"
)

// loop has the channels and timers of Run's goroutine, and the state of the work beside its turns.
// That goroutine owns it. Others may call [loop.Do] and its like, and read the turns.
type loop struct {
	turnLog               // safe for concurrent use
	turns   atomic.Uint64 // that have ended; safe for concurrent use

	do      chan func()     // commands
	alone   chan func()     // commands that may need another engine, or change the configuration
	taken   chan func()     // what was read: commands do not queue behind thousands of lists
	seconds chan struct{}   // a second has passed
	woken   chan struct{}   // a program has seen what the trackers are read for
	ended   chan struct{}   // closed when Run has ended
	ctx     context.Context // of Run, for what it starts

	// next carries out what comes next, until ctx is done or ended is closed.
	next func(ctx context.Context, ended <-chan struct{}) (more bool, err error)

	followed *time.Ticker
	ticked   *time.Timer
	second   *time.Timer
	shown    *time.Ticker
	tended   *time.Timer // stages

	snapshots, showing *traffic.Intervals
	rates              chan<- traffic.Rates

	tickDue    time.Duration // when ticked fires, by the kernel's clock
	secondDue  time.Time     // when second does
	postponed  bool          // it was to be earlier
	unreported bool          // the kernel does not report all changes of interfaces
	stages     *stages.Table // that tended is set for

	running bool
	still   bool          // nothing runs beside the turns
	held    chan struct{} // loading ends once it is closed, for tests; nil: when it has ended
	stage   longWork      // of the long work beside the turns
	lost    error         // why Run ends: nothing is left to filter, as was found beside such work
}

// longWork is how far the work is that runs beside the turns of the loop.
type longWork int

const (
	idle     longWork = iota // there is none
	building                 // the engine and its programs are as they were
	loading                  // programs are loaded for the interfaces that there are: none is to come or go
)

func newLoop(next func(context.Context, <-chan struct{}) (bool, error)) *loop {
	return &loop{
		do: make(chan func()), alone: make(chan func()), taken: make(chan func()),
		seconds: make(chan struct{}, 1), woken: make(chan struct{}, 1), ended: make(chan struct{}), next: next,
	}
}

// start makes the tickers, until stop.
func (l *loop) start(interval time.Duration, rates chan<- traffic.Rates) {
	l.followed, l.ticked = time.NewTicker(attach.FollowInterval), time.NewTimer(0)
	l.second, l.shown = time.NewTimer(time.Second), time.NewTicker(interval)
	l.secondDue = time.Now().Add(time.Second)
	l.tended = time.NewTimer(0)
	l.rates, l.running = rates, true
}

func (l *loop) stop() {
	for _, t := range []interface{ Stop() bool }{l.ticked, l.second, l.tended} {
		t.Stop()
	}
	l.followed.Stop()
	l.shown.Stop()
	l.running = false
}

// turnOf carries out what comes next, and reports whether more may come: until ctx is done, or
// the work that runs beside the turns has ended. Beside such work there are only turns that
// leave the engine and the configuration as they are: entries change in place.
func (d *Daemon) turnOf(ctx context.Context, ended <-chan struct{}) (more bool, err error) {
	l := d.loop
	alone, taken, changed, followed := l.alone, l.taken, d.active.attach.Changed(), l.followed.C
	if l.stage != idle {
		alone, taken = nil, nil
	}
	if l.stage == loading {
		changed, followed = nil, nil
	}
	select {
	case <-ctx.Done():
		return false, nil
	case <-ended:
		return false, nil
	case fn := <-l.do:
		l.Begin("a command is carried out")
		fn()
	case fn := <-alone:
		l.Begin("a command is carried out")
		fn()
	case fn := <-taken:
		l.Begin("what was read is taken in")
		fn()
	case <-changed:
		l.Begin("interfaces are followed")
		if err := d.followInterfaces(); err != nil {
			return false, err
		}
		d.active.attach.FollowDevices()
		d.observers.stages.Trackers.Wake() // what is new has yet to be watched
	case <-followed:
		l.Begin("interfaces are followed")
		if err := d.followInterfaces(); err != nil {
			return false, err
		}
	case <-l.woken:
		l.Begin("trackers are read")
		d.observers.stages.Trackers.Wake()
		d.observers.tick()
	case <-d.observers.mistaken:
		l.Begin("dropped packets are looked up")
		d.observers.lookAtDropped()
	case <-l.ticked.C:
		l.Begin("trackers are read")
		l.tickDue = -1
		d.observers.tick()
	case <-l.tended.C:
		l.Begin("stages are tended")
		l.tended.Reset(d.observers.stages.Tick(loader.Monotonic(), d.active.engine, d.active.attach.Attached(), d.active.attach.Named()))
	case now := <-l.second.C:
		l.nextSecond(now)
		select {
		case l.seconds <- struct{}{}:
		default: // changes that wait are being made
		}
		if l.stage != loading {
			l.Begin("interfaces are followed")
			if err := d.followInterfaces(); err != nil {
				return false, err
			}
		}
		l.Begin("entries and lists are tended")
		d.tend(now)
		l.Doing("the state is published", "")
		state := d.active.prepared.Summary()
		d.service.state.Store(&state)
		d.active.describe()
		if l.stage != loading {
			d.active.attach.FollowDevices()
		}
		m := d.active.attach.Metadata()
		d.observers.publish(now, l.snapshots.Next(now, m.Policy()), d.monitor.manual)
		d.note()
	case now := <-l.shown.C:
		m := d.active.attach.Metadata()
		select {
		case l.rates <- l.showing.Next(now, m.Policy()):
		default:
		}
	}
	d.schedule()
	l.turns.Add(1)
	l.End(d.o.Log)
	return true, nil
}

// follow sets how often interfaces are followed besides each second and what the kernel reports.
func (l *loop) follow(reported bool) {
	switch {
	case l.followed == nil:
	case reported:
		l.followed.Stop()
	case l.unreported != !reported:
		l.followed.Reset(attach.FollowInterval)
	}
	l.unreported = !reported
}

// nextSecond sets the next second. What was missed is not made up for.
func (l *loop) nextSecond(now time.Time) {
	if l.secondDue = l.secondDue.Add(time.Second); l.secondDue.Before(now) {
		l.secondDue = now.Add(time.Second)
	}
	l.postponed = false
	l.second.Reset(time.Until(l.secondDue))
}

// postpone has the next second wait, once, for what comes each second.
func (l *loop) postpone(wait time.Duration) {
	const each = 9 * time.Second / 10
	if second := time.Until(l.secondDue); !l.postponed && wait > each && second < wait && wait < second+time.Second {
		l.postponed, l.secondDue = true, time.Now().Add(wait)
		l.second.Reset(wait)
	}
}

// schedule sets the timers whose tasks are due at other times than before this turn. A second waits
// for the end of an interval that nothing else ends, so that an idle daemon wakes once for both.
func (d *Daemon) schedule() {
	l := d.loop
	if due, rests := d.observers.due(); due != l.tickDue {
		l.tickDue = due
		wait := min(due-loader.Monotonic(), time.Hour)
		l.ticked.Reset(wait)
		if rests {
			l.postpone(wait)
		}
	}
	if d.active.prepared.Stages != l.stages {
		l.stages = d.active.prepared.Stages
		l.tended.Reset(0)
	}
}

// aside runs fn, which takes long, in a goroutine of its own, and has turns go on meanwhile. fn
// must read nothing that such turns change: rules of the configuration are copied before. Work
// within such a turn, or before Run, is not worth a goroutine, and runs at once.
func (l *loop) aside(fn func()) { l.asideAt(building, fn) }

// asideAt is aside for work at a stage.
func (l *loop) asideAt(s longWork, fn func()) {
	if !l.running || l.still || l.stage != idle {
		fn()
		return
	}
	ended := make(chan struct{})
	var held chan struct{}
	if s == loading {
		held = l.held
	}
	go func() {
		defer close(ended)
		fn()
		if held != nil {
			<-held
		}
	}()
	outer := l.Leave()
	l.stage = s
	for more := true; more; {
		var err error
		if more, err = l.next(context.Background(), ended); err != nil {
			l.lost = err
			<-ended
			break
		}
	}
	l.stage = idle
	l.Enter(outer)
}

var errStopped = errors.New("the daemon has stopped")

// Do calls fn in Run's goroutine, and returns its error. It fails when ctx is
// done, or Run has ended, before fn is called. fn leaves the engine as it is, but for entries
// that change in place: see [loop.doAlone].
func (l *loop) Do(ctx context.Context, fn func() error) error { return l.doBy(ctx, l.do, fn) }

// doBy is Do by one of the channels that Run's goroutine receives from.
func (l *loop) doBy(ctx context.Context, to chan<- func(), fn func() error) error {
	done := make(chan error, 1)
	select {
	case to <- func() { done <- fn() }:
		return <-done
	case <-l.ended:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errBuilding is why entries cannot change now: there is no room for them in place, and the next
// engine is being built.
var errBuilding = errors.New("the next engine is being built")

// doAlone is Do for what needs another engine, or changes the configuration: it waits while
// such work goes on.
func (l *loop) doAlone(ctx context.Context, fn func() error) error {
	return l.doBy(ctx, l.alone, fn)
}

// doEntries is Do for a change of entries, which are changed in place if they fit, even while the
// next engine is built.
func (l *loop) doEntries(ctx context.Context, fn func() error) error {
	err := l.Do(ctx, fn)
	if errors.Is(err, errBuilding) {
		return l.doAlone(ctx, fn)
	}
	return err
}
