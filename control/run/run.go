// Package run keeps weir filtering on interfaces: it builds a generation from
// lists, puts it in force, replaces it when the lists are to be read again,
// and follows interfaces that come and go.
package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"weir/control/generation"
	"weir/control/ruleset"
	"weir/control/status"
	"weir/loader"
)

// What names the places where weir is attached, for those who call this package.
type (
	Target = loader.Target
	Pins   = loader.Pins
)

// DefaultPins is where weir pins unless it is told otherwise.
const DefaultPins = loader.DefaultPins

// Options say what is to be filtered where.
type Options struct {
	Rules   ruleset.Rules
	Targets []Target
	XDP     loader.Mode
	Pins    Pins
	Keep    bool   // leave the program in force when the filter stops
	Version string // weir's
	Log     *slog.Logger
	// Progress, unless nil, follows the reading of lists.
	Progress ruleset.Progress
}

// Filter filters on some interfaces. It is not safe for concurrent use, but
// for Counters beside Reload.
type Filter struct {
	o           Options
	description status.Description
	generation  *generation.Generation
	holds       []*hold
}

// hold is an interface that is to be filtered.
type hold struct {
	loader.Target
	*loader.Attachment        // nil while there is no such interface
	program            uint32 // the kernel's number of the program put there last
}

// Start reads the lists and puts them in force on all interfaces, or, when it
// fails, on none. Where weir's pins hold an interface already, it replaces the
// program there without a gap, and the counters go on.
func Start(o Options) (*Filter, error) {
	if len(o.Targets) == 0 {
		return nil, errors.New("no interface to filter on")
	}
	f := &Filter{o: o}
	began := time.Now()
	g, d, err := f.build()
	if err != nil {
		return nil, err
	}
	f.generation, f.description = g, d
	for _, t := range o.Targets {
		h := &hold{Target: t}
		adopted, err := f.attach(h)
		if err != nil {
			f.undo()
			return nil, err
		}
		f.holds = append(f.holds, h)
		if adopted {
			o.Log.Info("adopted a program that was filtering already, counters go on", "interface", t.String())
		}
	}
	f.announce("filtering", time.Since(began))
	return f, nil
}

// build reads the lists and builds the generation for them.
func (f *Filter) build() (*generation.Generation, status.Description, error) {
	loaded, err := f.o.Rules.Load(f.o.Progress)
	if err != nil {
		return nil, status.Description{}, err
	}
	if err := f.notEmptied(loaded); err != nil {
		return nil, status.Description{}, err
	}
	for _, w := range loaded.Warnings() {
		f.o.Log.Warn(w)
	}
	g, err := generation.Build(loaded.Store, f.o.Rules.Config)
	if err != nil {
		return nil, status.Description{}, err
	}
	d := status.Describe(loaded, g)
	d.Version, d.PID, d.Loaded = f.o.Version, os.Getpid(), time.Now()
	d.Since = d.Loaded
	// What reading and building took is given back now, not some minutes later:
	// it is several times what stays.
	debug.FreeOSMemory()
	return g, d, nil
}

// notEmptied refuses a list that has lost all its entries since it was read
// last: that is a download that failed, not a world without villains.
func (f *Filter) notEmptied(l *ruleset.Loaded) error {
	for i, s := range l.Sources {
		if f.generation != nil && s.Entries == 0 && f.description.Lists[i].Entries > 0 {
			return fmt.Errorf("%s: the list has no entries any more, where it had %d", s.File, f.description.Lists[i].Entries)
		}
	}
	return nil
}

// attach puts the generation in force on an interface, and tells whether it
// took over a program that was filtering there.
func (f *Filter) attach(h *hold) (adopted bool, err error) {
	d := f.description
	before, err := f.o.Pins.Open(h.Target)
	switch {
	case err == nil:
		adopted = !before.Severed()
		if old, err := status.DescriptionOf(before); err == nil && adopted {
			d.Succeed(old, before.Stats().Lists(nil))
		}
		before.Close()
	case !errors.Is(err, loader.ErrNotAttached):
		return false, err
	}
	about, err := d.Encode()
	if err != nil {
		return false, err
	}
	a, err := f.o.Pins.Attach(h.Target, f.o.XDP, about, f.generation.Load)
	if err != nil {
		return false, err
	}
	h.Attachment, h.program = a, a.ProgramID()
	return adopted, nil
}

// undo takes the generation off again. What it has replaced cannot be brought
// back, and no listed packet shall pass meanwhile: that stays in force.
func (f *Filter) undo() {
	for _, h := range f.holds {
		d, err := status.DescriptionOf(h.Attachment)
		if err == nil && d.Since.Equal(f.description.Since) {
			if err := h.Detach(); err != nil {
				f.o.Log.Error(err.Error())
			}
		} else {
			f.o.Log.Warn("the new lists stay in force where weir was filtering already", "interface", h.Target.String())
		}
		h.Close()
	}
	f.generation.Close()
}

// announce says what is in force.
func (f *Filter) announce(what string, took time.Duration) {
	d := f.description
	f.o.Log.Info(what,
		"interfaces", f.names(),
		"entries", d.Entries,
		"shapes", len(d.Shapes),
		"mode", d.Mode,
		"monitor", d.Monitor,
		"kernel_bytes", d.KernelBytes,
		"false_positive_rate", fmt.Sprintf("%.2g", d.FalsePositiveRate),
		"load_time", took.Round(time.Millisecond).String())
}

func (f *Filter) names() []string {
	var names []string
	for _, h := range f.holds {
		names = append(names, h.Target.String())
	}
	return names
}

// Reload reads the lists again and puts them in force with one step for each
// interface. When it fails, what was in force stays so everywhere.
func (f *Filter) Reload() error {
	began := time.Now()
	g, d, err := f.build()
	if err != nil {
		return fmt.Errorf("reload, the old lists stay in force: %w", err)
	}
	// All that is likely to fail comes before the first interface is changed.
	programs := make([]*loader.Program, len(f.holds))
	for i, h := range f.holds {
		if !h.present() {
			continue
		}
		if programs[i], err = g.Load(h.Stats()); err != nil {
			for _, p := range programs[:i] {
				if p != nil {
					p.Close()
				}
			}
			g.Close()
			return fmt.Errorf("reload, the old lists stay in force: %w", err)
		}
	}
	for i, h := range f.holds {
		if programs[i] == nil {
			continue
		}
		err := h.Replace(programs[i])
		if errors.Is(err, loader.ErrSevered) {
			continue // it gets the new lists when it is back
		}
		if err != nil {
			for _, p := range programs[i+1:] {
				if p != nil {
					p.Close()
				}
			}
			err = errors.Join(err, f.restore(f.holds[:i]), g.Close())
			return fmt.Errorf("reload, the old lists stay in force: %w", err)
		}
		h.program = h.ProgramID()
	}
	old := f.generation
	f.generation, f.description = g, d
	for _, h := range f.holds {
		if err := f.describe(h); err != nil {
			f.o.Log.Warn(err.Error())
		}
	}
	f.announce("reloaded", time.Since(began))
	return old.Close()
}

// present tells whether the interface is there with this filter's program.
func (h *hold) present() bool {
	return h.Attachment != nil && !h.Severed() && h.ProgramID() == h.program
}

// restore puts the present generation in force again.
func (f *Filter) restore(holds []*hold) error {
	var errs []error
	for _, h := range holds {
		if !h.present() {
			continue
		}
		p, err := f.generation.Load(h.Stats())
		if err == nil {
			err = h.Replace(p)
		}
		if err == nil {
			h.program = h.ProgramID()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// describe brings an attachment's description up to date.
func (f *Filter) describe(h *hold) error {
	if !h.present() {
		return nil
	}
	d := f.description
	old, err := status.DescriptionOf(h.Attachment)
	if err != nil {
		return err
	}
	d.Succeed(old, h.Stats().Lists(nil))
	about, err := d.Encode()
	if err != nil {
		return err
	}
	return h.SetAbout(about)
}

// errLost says that weir filters nowhere any more, by somebody else's doing.
var errLost = errors.New("nothing is left to filter: every interface was detached or taken over by another weir")

// followInterval is how soon it is noticed that an interface is gone or back.
const followInterval = 250 * time.Millisecond

// follow looks what has become of the interfaces. One that has vanished is
// attached to again when it is back. One that somebody has detached, or where
// another weir has taken over, is none of this filter's any more.
func (f *Filter) follow() error {
	kept := f.holds[:0]
	for _, h := range f.holds {
		if f.keeps(h) {
			kept = append(kept, h)
		} else if h.Attachment != nil {
			h.Close()
		}
	}
	f.holds = kept
	if len(f.holds) == 0 {
		return errLost
	}
	return nil
}

func (f *Filter) keeps(h *hold) bool {
	if h.present() {
		return true
	}
	log := f.o.Log.With("interface", h.Target.String())
	now, err := f.o.Pins.Open(h.Target)
	if err == nil {
		defer now.Close()
	}
	switch {
	case err == nil && !now.Severed():
		log.Warn("another weir has taken over")
		return false
	case err == nil || h.Attachment == nil || errors.Is(err, loader.ErrNoNetns):
		// The pins are there, or were given up below: the interface is gone.
	case errors.Is(err, loader.ErrNotAttached):
		log.Warn("detached by somebody else")
		return false
	default:
		log.Error(err.Error())
		return true
	}
	if h.Attachment != nil {
		log.Error("the interface is gone, waiting for it to come back")
		h.Close()
		h.Attachment = nil
	}
	switch _, err := f.attach(h); {
	case err == nil:
		log.Info("the interface is back, filtering again")
	case !errors.Is(err, loader.ErrNoInterface) && !errors.Is(err, loader.ErrNoNetns):
		log.Error(err.Error())
	}
	return true
}

// Serve keeps the filter going until ctx is done. Each value from reload makes
// it read the lists again. show is called with the rates of each interval.
func (f *Filter) Serve(ctx context.Context, reload <-chan os.Signal, interval time.Duration, show func(Rates)) error {
	shown, followed := time.NewTicker(interval), time.NewTicker(followInterval)
	defer shown.Stop()
	defer followed.Stop()
	meter := newMeter(f)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-reload:
			f.o.Log.Info("reloading")
			if err := f.Reload(); err != nil {
				f.o.Log.Error(err.Error())
			}
		case <-followed.C:
			if err := f.follow(); err != nil {
				return err
			}
		case now := <-shown.C:
			show(meter.measure(f, now))
		}
	}
}

// Stop takes the filter off its interfaces, unless it is to be kept in force.
// What another weir has taken over is left alone.
func (f *Filter) Stop() error {
	var errs []error
	for _, h := range f.holds {
		if h.Attachment == nil {
			continue
		}
		if !f.o.Keep && (h.present() || h.Severed()) {
			errs = append(errs, h.Detach())
		}
		errs = append(errs, h.Close())
	}
	f.holds = nil
	return errors.Join(append(errs, f.generation.Close())...)
}
