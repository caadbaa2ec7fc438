package attach

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"weir/loader"
)

// leaving holds interfaces that left the targets but could not be detached from. Until they are,
// their last lists filter them, and later changes do not reach them.
type leaving struct {
	interfaces []*managedInterface
	retry      time.Time
	err        error           // why the last one could not be detached from
	tried      chan []detached // receives the outcomes of an attempt; nil: none is under way
}

// detached is the outcome of an attempt to detach from an interface.
type detached struct {
	*managedInterface
	err error
}

// hasLeft reports whether Detach's error means that an attachment is over: it was detached, or
// another one has replaced its program.
func hasLeft(err error) bool { return err == nil || errors.Is(err, loader.ErrReplaced) }

// add adds an interface. It copies what i has, since the manager may attach i anew.
func (l *leaving) add(i *managedInterface, log *slog.Logger, err error) {
	n := &managedInterface{Target: i.Target, Attachment: i.Attachment}
	l.interfaces = append(l.interfaces, n)
	n.logLeaving(log, err)
}

// failed notes that an interface could not be detached from.
func (l *leaving) failed(err error) { l.err, l.retry = err, time.Now().Add(retryInterval) }

// waits reports whether it is too early for another attempt.
func (l *leaving) waits() bool { return time.Now().Before(l.retry) }

func (i *managedInterface) logLeaving(log *slog.Logger, err error) {
	i.logOnce(log.With("interface", i.Target.String()),
		fmt.Errorf("the interface left the configuration, but cannot be detached from: its last lists still filter it, retrying: %w", err))
}

// followLeaving tries again to detach from the interfaces that are leaving, up to the first where
// that fails, but not from one that is named again and is to be adopted first. It does so in
// a goroutine: a stopped process may hold the lock of the pins for any time, and the
// manager must not wait for that in each round.
func (m *Manager) followLeaving() {
	l := &m.leaving
	select {
	case outcomes := <-l.tried:
		m.left(outcomes)
	default:
	}
	all := slices.DeleteFunc(slices.Clone(l.interfaces), m.awaits)
	if l.tried != nil || len(all) == 0 || l.waits() {
		return
	}
	tried := make(chan []detached, 1)
	l.tried = tried
	go func() {
		var outcomes []detached
		for _, i := range all {
			err := i.Detach()
			outcomes = append(outcomes, detached{i, err})
			if !hasLeft(err) {
				break
			}
		}
		tried <- outcomes
		m.hotplug.wake()
	}()
}

// awaits reports whether an interface that is leaving is a target again that has no attachment of
// its own yet.
func (m *Manager) awaits(i *managedInterface) bool {
	adopted := func(o *managedInterface) bool { return o.Target == i.Target && o.Attachment != nil }
	return m.covers(i.Target) && !slices.Contains(m.lost, i.Target) && !slices.ContainsFunc(m.interfaces, adopted)
}

// left handles the outcomes of an attempt. An interface where it failed moves to the end.
func (m *Manager) left(outcomes []detached) {
	l := &m.leaving
	l.tried = nil
	for _, o := range outcomes {
		l.interfaces = slices.DeleteFunc(l.interfaces, func(i *managedInterface) bool { return i == o.managedInterface })
		if !hasLeft(o.err) {
			l.interfaces = append(l.interfaces, o.managedInterface)
			l.failed(o.err)
			o.logLeaving(m.Log, o.err)
			continue
		}
		m.unshared = true
		if o.err == nil { // otherwise it is filtered again
			m.Log.Info("no longer filtered", "interface", o.Target.String())
			for _, i := range m.interfaces { // it may have been named again meanwhile
				if i.Target == o.Target {
					i.retry = time.Time{}
				}
			}
		}
		if err := o.Close(); err != nil {
			m.Log.Error(err.Error())
		}
	}
}

// leaveNow detaches from the interfaces that are leaving; where programs are to be kept, not from
// those that the targets cover again.
func (m *Manager) leaveNow(keep bool) error {
	l := &m.leaving
	if l.tried != nil {
		m.left(<-l.tried)
	}
	var errs []error
	for _, i := range l.interfaces {
		if !keep || !m.covers(i.Target) {
			if err := i.Detach(); !hasLeft(err) {
				errs = append(errs, err)
			}
		}
		errs = append(errs, i.Close())
	}
	l.interfaces = nil
	return errors.Join(errs...)
}
