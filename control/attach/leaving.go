package attach

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"weir/loader"
)

// leaving are interfaces that are not to be filtered any more, but could not be detached from:
// until that is done, the lists that they had filter there, and no change reaches these.
type leaving struct {
	interfaces []*managedInterface
	retry      time.Time
	tried      chan []error // the outcomes for the first of them; nil: nothing is under way
}

// hasLeft reports whether nothing is left to detach, as the outcome of doing so has it. Where
// the program was replaced, that is another attachment's.
func hasLeft(err error) bool { return err == nil || errors.Is(err, loader.ErrReplaced) }

// add adds an interface. It copies what i has, since the manager may attach i anew.
func (l *leaving) add(i *managedInterface, log *slog.Logger, err error) {
	n := &managedInterface{Target: i.Target, Attachment: i.Attachment}
	l.interfaces = append(l.interfaces, n)
	l.retry = time.Now().Add(retryInterval)
	n.logLeaving(log, err)
}

func (i *managedInterface) logLeaving(log *slog.Logger, err error) {
	i.logOnce(log.With("interface", i.Target.String()),
		fmt.Errorf("it is not to be filtered any more, but the lists of before stay active there, retrying: %w", err))
}

// followLeaving tries again to detach from the interfaces that are leaving, up to the first where that
// fails. It does so in a goroutine: a process that was stopped may hold the lock of the pins for
// as long as it likes, and the manager must not wait for that each time.
func (m *Manager) followLeaving() {
	l := &m.leaving
	select {
	case errs := <-l.tried:
		m.left(errs)
	default:
	}
	if l.tried != nil || len(l.interfaces) == 0 || time.Now().Before(l.retry) {
		return
	}
	tried, all := make(chan []error, 1), slices.Clone(l.interfaces)
	l.tried = tried
	go func() {
		var errs []error
		for _, i := range all {
			errs = append(errs, i.Detach())
			if !hasLeft(errs[len(errs)-1]) {
				break
			}
		}
		tried <- errs
		m.hotplug.wake()
	}()
}

// left takes in what detaching from the first of the interfaces that are leaving has come to.
// One where it failed is the last to be tried again.
func (m *Manager) left(errs []error) {
	l := &m.leaving
	tried := l.interfaces[:len(errs)]
	l.interfaces = slices.Clone(l.interfaces[len(errs):])
	l.tried = nil
	for n, err := range errs {
		i := tried[n]
		if !hasLeft(err) {
			l.interfaces = append(l.interfaces, i)
			l.retry = time.Now().Add(retryInterval)
			i.logLeaving(m.Log, err)
			continue
		}
		if err == nil { // otherwise it is filtered again
			m.Log.Info("no longer filtered", "interface", i.Target.String())
		}
		if err := i.Close(); err != nil {
			m.Log.Error(err.Error())
		}
	}
}

// leaveNow detaches from the interfaces that are leaving; where programs are to be kept, not from
// those that the targets cover again.
func (m *Manager) leaveNow(keep bool) error {
	if m.leaving.tried != nil {
		m.left(<-m.leaving.tried)
	}
	var errs []error
	for _, i := range m.leaving.interfaces {
		covers := func(t Target) bool { return t.Covers(i.Target) }
		if !keep || !slices.ContainsFunc(m.targets, covers) {
			if err := i.Detach(); !hasLeft(err) {
				errs = append(errs, err)
			}
		}
		errs = append(errs, i.Close())
	}
	m.leaving.interfaces = nil
	return errors.Join(errs...)
}
