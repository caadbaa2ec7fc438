package replay

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"weir/control/capture"
	"weir/control/engine"
	"weir/control/stage"
	"weir/control/stage/tracker"
	"weir/filter/ordered"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
)

// EngineKind is the engine that decides on packets.
type EngineKind uint8

const (
	InKernel EngineKind = iota // the program, in the kernel's test run
	InGo                       // the reference
)

func (k EngineKind) String() string { return [...]string{"kernel", "go"}[k] }

// MarshalText returns the engine's name.
func (k EngineKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText sets the engine by its name.
func (k *EngineKind) UnmarshalText(text []byte) error {
	switch string(text) {
	case "kernel":
		*k = InKernel
	case "go":
		*k = InGo
	default:
		return fmt.Errorf("unknown engine %q: want kernel or go", text)
	}
	return nil
}

// Options control how captures are replayed.
type Options struct {
	Engine   *engine.Generation
	Lists    []engine.List // list number n is Lists[n-1]
	Kind     EngineKind    // the engine is in the kernel or on the heap
	Heavy    *tracker.Spec // the engine's only tracker, with a share of all captures as threshold; nil: none
	Verdicts string        // CSV file of verdicts, one per packet, which is replaced when all captures were read; "": none
	Stdin    io.Reader     // the capture that is called "-"
}

// decider returns the engine that decides on packets.
func (o *Options) decider() (Engine, func() error, error) {
	if o.Kind == InGo {
		return Reference{o.Engine}, func() error { return nil }, nil
	}
	k, err := NewKernel(o.Engine, len(o.Lists))
	if err != nil {
		return nil, nil, err
	}
	return k, k.Close, nil
}

// Files passes captures through the engine, one after the other. If a capture
// cannot be read to its end, it returns a summary of the packets read and an
// error; the summary is nil if nothing was read.
func Files(ctx context.Context, o Options, captures []string) (s *Summary, err error) {
	e, closeEngine, err := o.decider()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeEngine()) }()

	lists := o.Lists
	visit := func(capture.Packet, verdict.Outcome) error { return context.Cause(ctx) }
	if o.Verdicts != "" {
		// Not err, which would shadow the result that closing may set.
		w, createErr := o.createVerdicts(captures)
		if createErr != nil {
			return nil, createErr
		}
		defer func() {
			// A recorder that is killed leaves a capture that is cut short.
			keep := err == nil || w.n > 0 && errors.Is(err, capture.ErrTruncated)
			// Do not report an error of a write twice.
			if closeErr := w.close(keep); !errors.Is(err, closeErr) {
				err = errors.Join(err, closeErr)
			}
		}()
		visit = func(_ capture.Packet, out verdict.Outcome) error {
			return errors.Join(context.Cause(ctx), w.write(out))
		}
	}
	s = newSummary()
	if o.Heavy != nil {
		// All packets are counted in one bank, so that both engines agree.
		release, err := loader.StayOnCPU()
		if err != nil {
			return nil, err
		}
		defer release()
		e.Banks(0, func(banks []*sketch.Bank) {
			for _, b := range banks {
				b.Admit(shareOf(o.Heavy).Admission(0, 1))
			}
		})
		// Include packets read before an error.
		defer func() { e.Banks(0, func(banks []*sketch.Bank) { s.addHeavy(o.Heavy, banks) }) }()
	}
	for _, name := range captures {
		if err := o.replay(name, e, lists, s, visit); err != nil {
			return s, err
		}
	}
	return s, nil
}

// shareOf returns the threshold of heavy hitters in captures.
func shareOf(s *tracker.Spec) sketch.Threshold {
	return sketch.Threshold{Share: float64(s.Threshold.Share)}
}

// addHeavy adds the heavy hitters to the summary.
func (s *Summary) addHeavy(spec *tracker.Spec, banks []*sketch.Bank) {
	var total uint64
	for _, b := range banks {
		total += b.Total()
		s.HeavyDenied += b.Denied()
	}
	flows := slices.DeleteFunc(sketch.Merge(banks...), func(f sketch.Flow) bool {
		return f.Estimate(spec.Counts()) < shareOf(spec).Heavy(total, 0)
	})
	ordered.By(flows, func(a, b sketch.Flow) int {
		return cmp.Or(cmp.Compare(b.Estimate(spec.Counts()), a.Estimate(spec.Counts())), cmp.Compare(a.Key.String(), b.Key.String()))
	})
	s.Heavy = make([]HeavyHitter, 0, len(flows))
	for _, f := range flows {
		s.Heavy = append(s.Heavy, HeavyHitter{Key: stage.FlowName(f.Key), Packets: f.Packets, Bytes: f.Bytes, Before: f.Before})
	}
}

func (o *Options) replay(name string, e Engine, lists []engine.List, s *Summary, visit func(capture.Packet, verdict.Outcome) error) error {
	r, err := o.open(name)
	if err != nil {
		return err
	}
	defer r.Close()
	return Run(r, e, lists, s, visit)
}

func (o *Options) open(name string) (*capture.Reader, error) {
	if name == "-" && o.Stdin != nil {
		return capture.NewReader("standard input", o.Stdin)
	}
	return capture.Open(name)
}

// verdictWriter writes the verdict on each packet as CSV.
type verdictWriter struct {
	path  string // that the file replaces; "": none
	file  *os.File
	csv   *csv.Writer
	lists []engine.List
	n     int
	row   [4]string
}

// createVerdicts creates a new file beside the earlier one, so that a mistake costs no earlier
// result. A pipe, or another file that is not a regular one, is written to at once.
func (o *Options) createVerdicts(captures []string) (*verdictWriter, error) {
	v := &verdictWriter{lists: o.Lists}
	path, flags, mode := o.Verdicts, os.O_WRONLY, os.FileMode(0o666)
	info, err := os.Stat(path)
	switch {
	case err == nil && info.Mode().IsRegular():
		for _, name := range captures {
			if name == "-" {
				name = "/dev/stdin"
			}
			if c, err := os.Stat(name); err == nil && os.SameFile(info, c) {
				return nil, fmt.Errorf("verdicts: %s is a capture that is to be read", path)
			}
		}
		mode = info.Mode().Perm()
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return nil, fmt.Errorf("verdicts: %w", err)
		}
		fallthrough
	case errors.Is(err, fs.ErrNotExist):
		v.path = path
		path = fmt.Sprintf("%s.%08x.new", path, rand.Uint32())
		flags |= os.O_CREATE | os.O_EXCL
	}
	if v.file, err = os.OpenFile(path, flags, mode); err != nil {
		return nil, fmt.Errorf("verdicts: %w", err)
	}
	if info != nil && v.path != "" {
		_ = v.file.Chmod(mode) // in spite of the umask
	}
	v.csv = csv.NewWriter(v.file)
	_ = v.csv.Write([]string{"packet", "verdict", "reason", "list"}) // close reports its error
	return v, nil
}

func (v *verdictWriter) write(o verdict.Outcome) error {
	v.n++
	v.row = [...]string{strconv.Itoa(v.n), o.Action.String(), o.Reason.String(), ""}
	if o.List > 0 {
		v.row[3] = v.lists[o.List-1].Name
	}
	return v.csv.Write(v.row[:])
}

// close flushes the writer and returns the first error of all writes. A new file replaces the
// earlier one if it is worth keeping, and is removed otherwise.
func (v *verdictWriter) close(keep bool) error {
	v.csv.Flush()
	err := cmp.Or(v.csv.Error(), v.file.Close())
	if v.path == "" {
		return err
	}
	if !keep || err != nil {
		return errors.Join(err, os.Remove(v.file.Name()))
	}
	if err := os.Rename(v.file.Name(), v.path); err != nil { // as where a container has it mounted
		return fmt.Errorf("the verdicts are in %s: %w", v.file.Name(), err)
	}
	return nil
}

// TopLists returns the names of the lists in a summary that blocked packets,
// the one with the most first.
func (s *Summary) TopLists() []string { return top(s.Lists) }

// TopWouldBlock is TopLists of packets that passed.
func (s *Summary) TopWouldBlock() []string { return top(s.WouldBlock) }
