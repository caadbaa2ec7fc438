package measure

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// load measures the time from a text file to an active filter on a wire, and the
// memory of the process and the kernel.
func (s *session) load() error {
	return s.eachList([]string{setRandom, setMixed}, unbounded, func(b *blocklist) error {
		if b.set == setMixed && b.n() > mostAsked {
			return nil // one set of that size is enough
		}
		if b.n() > mostAsked {
			b.entries, s.lists.last = nil, nil // a process does not need them
		}
		kinds := s.kinds()
		if b.set == setRandom && b.n() == million {
			kinds = append(kinds, kind{name: weirLists60, make: newWeir(configuration{n: 60}), most: million})
		}
		for _, k := range kinds {
			if !k.takes(b) || k.blind || k.wireOnly {
				continue
			}
			if b.set == setMixed && len(k.tools) > 0 {
				continue // they refuse addresses within prefixes, or merge them for minutes
			}
			r := Result{Benchmark: "load", Contender: k.name, Set: b.set, Entries: b.n()}
			var took []float64
			for range s.loads(b, k) {
				if err := s.ctx.Err(); err != nil {
					return err
				}
				if err := s.loadOnce(b, k, &r); err != nil {
					return fmt.Errorf("%s: %w", k.name, err)
				}
				took = append(took, r.Seconds)
			}
			r.Seconds, r.Rounds = median(took), len(took)
			s.add(r)
		}
		return nil
	})
}

// loads returns how often to load a list: once if it is large or the tool slow.
func (s *session) loads(b *blocklist, k kind) int {
	if b.n() >= tenMillion || len(k.tools) > 0 && b.n() >= million || k.name == xdpFilter {
		return 1
	}
	return 3
}

func (s *session) loadOnce(b *blocklist, k kind, r *Result) (err error) {
	c := newContenders()
	defer func() { err = errors.Join(err, c.Close()) }()
	one, err := c.enter(k, place{ctx: s.ctx, keys: s.keys}, true)
	if err != nil {
		return err
	}
	before, err := resident()
	if err != nil {
		return err
	}
	if err := resetPeak(); err != nil {
		return err
	}
	began := time.Now()
	if err := one.prepare(b); err != nil {
		return err
	}
	if err := one.enforce(); err != nil {
		return err
	}
	r.Seconds = time.Since(began).Seconds()
	peak, err := statusOf("VmHWM:")
	if err != nil {
		return err
	}
	after, err := resident()
	if err != nil {
		return err
	}
	const enough = 100_000 // entries, beside which other memory of the process is small
	if w, ok := one.(*weir); ok && b.n() >= enough {
		r.BytesEntry = float64(after-before) / float64(b.n())
		r.Peak = peak - before
		runtime.KeepAlive(w)
	}
	if m, ok := one.(interface{ kernelBytes() int }); ok {
		r.KernelEntry = float64(m.kernelBytes()) / float64(b.n())
	}
	return nil
}

// resident returns the resident memory of the process in bytes, after returning
// what is unused to the system.
func resident() (int, error) {
	debug.FreeOSMemory()
	return statusOf("VmRSS:")
}

// resetPeak makes VmHWM the resident memory of now.
func resetPeak() error { return os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) }

// statusOf returns a field of the process's status, in bytes.
func statusOf(field string) (int, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc/self/status", field)
}
