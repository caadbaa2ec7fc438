package loader

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"weir/bpf"
)

// FirstSeen has the constants of first-seen flows. Without lines, nothing is remembered.
type FirstSeen = bpf.WeirFirstConfig

// FirstCPU is what a CPU has counted of first-seen flows.
type FirstCPU = bpf.WeirFirstCpu

// FirstLevels is the number of counters by importance, FIRST_ROW, of which the first is
// not used.
const FirstLevels = len(FirstCPU{}.Flows)

const firstBank = MaxTrackers + 2 // FIRST_BANK

func (c *Config) validateFirst() error {
	if c.First.Lines > maxEntries/banks {
		return fmt.Errorf("first-seen flows: %d lines: not in 0 … %d", c.First.Lines, maxEntries/banks)
	}
	if c.First.N_ports > uint32(len(c.First.Ports)) {
		return errors.New("first-seen flows: more ports than the program has room for")
	}
	return nil
}

// firstIdentity identifies what may be remembered in the same memory.
func (c *Config) firstIdentity() uint64 {
	h := fnv.New64a()
	f := &c.First
	if f.Sinks == 0 {
		fmt.Fprint(h, "two generations, multilinear hash, four bits of one line", c.FirstSeed, f.V4, f.V6, f.Lines, f.Tuple)
	} else {
		fmt.Fprint(h, "cells of three bits, multilinear hash, four of one line", c.FirstSeed, f.V4, f.V6, f.Lines, f.Tuple, f.Sinks, f.Values)
	}
	return h.Sum64() | 1 // 0 means none
}

// firstNow returns the record of what uses the memory of first-seen flows.
func (k pinnedMaps) firstNow() *bpf.WeirFirstState {
	return &entriesOf[bpf.WeirFirstState](k[bpf.WeirMapFirstNow])[0]
}

// newFirst returns memory in which no flow is remembered.
func newFirst(cfg *Config, cpus int) (pinnedMaps, error) {
	k, err := newPinnedMaps(map[string]int{
		bpf.WeirMapFirstNow:   1,
		bpf.WeirMapFirstCpus:  cpus,
		bpf.WeirMapFirstLines: banks * int(cfg.First.Lines),
	})
	if err != nil {
		return nil, fmt.Errorf("first-seen flows: %w", err)
	}
	now := k.firstNow()
	now.Seed, now.Identity = cfg.FirstSeed, cfg.firstIdentity()
	return k, nil
}

// FirstSeed returns the seed of the secret of first-seen flows in these stats, zero if
// there are none. A generation with this seed and the same flows continues them.
func (s *Stats) FirstSeed() (seed Seed) {
	s.read(func(k pinnedMaps) { seed = k.firstNow().Seed })
	return seed
}

// makeLevels creates the map of the lists' importance.
func (g *Generation) makeLevels() (err error) {
	spec := g.spec.Maps[bpf.WeirMapFirstLevels]
	if len(g.config.FirstLevels) == 0 {
		a, err := g.unused(spec, nil)
		if err == nil {
			g.maps[spec.Name] = a
		}
		return err
	}
	spec.MaxEntries = uint32(len(g.config.FirstLevels))
	a, err := newArray(spec)
	if err != nil {
		return err
	}
	g.maps[spec.Name] = a
	copy(a.words, g.config.FirstLevels)
	return nil
}

// FirstCounts are counts of first-seen flows.
type FirstCounts struct {
	Flows, Events, Suppressed [FirstLevels]uint64 // by importance

	Full uint64 // windows that ended early, or times that cells were found full

	// Of the last window.
	Window  time.Duration // its length; 0: none has ended
	New     uint64        // flows
	Entered uint64        // into the generation: known ones, too; or cells

	// EnteredNow is the number of flows that have entered the present generation.
	EnteredNow uint64
}

// FirstCounts returns what was counted of first-seen flows, and false where they are not
// looked for, and never were. It makes no system call.
func (s *Stats) FirstCounts() (c FirstCounts, ok bool) {
	s.read(func(k pinnedMaps) {
		if ok = k.firstNow().Identity != 0; ok {
			c = countsOf(k)
		}
	})
	return c, ok
}

// FirstWords calls fn with the words of the filter of first-seen flows: of both generations,
// or of all cells. fn must not keep them. It makes no system call.
func (s *Stats) FirstWords(fn func(words []uint64)) {
	s.read(func(k pinnedMaps) { fn(k[bpf.WeirMapFirstLines].words) })
}

func countsOf(k pinnedMaps) (c FirstCounts) {
	now := k.firstNow()
	entered, _ := sumFirst(k, &c)
	c.Full = atomic.LoadUint64(&now.Full)
	c.Window = time.Duration(atomic.LoadUint64(&now.LastLength))
	c.New, c.Entered = atomic.LoadUint64(&now.LastFlows), atomic.LoadUint64(&now.LastEntered)
	c.EnteredNow = entered - min(entered, atomic.LoadUint64(&now.Entered))
	return c
}

// sumFirst adds up what all CPUs have counted.
func sumFirst(k pinnedMaps, c *FirstCounts) (entered, flows uint64) {
	cpus := entriesOf[FirstCPU](k[bpf.WeirMapFirstCpus])
	for i := range cpus {
		of := &cpus[i]
		entered += atomic.LoadUint64(&of.Entered)
		for level := range FirstLevels {
			n := atomic.LoadUint64(&of.Flows[level])
			flows += n
			c.Flows[level] += n
			c.Events[level] += atomic.LoadUint64(&of.Events[level])
			c.Suppressed[level] += atomic.LoadUint64(&of.Suppressed[level])
		}
	}
	return entered, flows
}

// FirstMemory is the memory of an interface's first-seen flows, which the program reads
// and writes at the same time.
type FirstMemory struct {
	rows   []uint64
	words  int // of a generation
	cells  bool
	shared pinnedMaps
}

// OpenFirst opens the memory of first-seen flows of the programs that were loaded with
// the stats. It fails with [ErrNotRecorded] where these look for none, or those of
// another generation. The memory remains valid until Close.
func (g *Generation) OpenFirst(s *Stats) (*FirstMemory, error) {
	if g.config.First.Lines == 0 {
		return nil, ErrNotRecorded
	}
	shared := s.share(bpf.WeirMapReasonStats, bpf.WeirMapFirstNow, bpf.WeirMapFirstCpus, bpf.WeirMapFirstLines)
	if shared == nil || shared.firstNow().Identity != g.config.firstIdentity() {
		return nil, errors.Join(ErrNotRecorded, shared.Close())
	}
	return &FirstMemory{
		rows: shared[bpf.WeirMapReasonStats].words, words: int(g.config.First.Lines) * lineWords, cells: g.config.First.Sinks > 0, shared: shared,
	}, nil
}

// Close releases the memory.
func (m *FirstMemory) Close() error { return m.shared.Close() }

// Counts returns what was counted.
func (m *FirstMemory) Counts() FirstCounts { return countsOf(m.shared) }

// CPUs returns what each CPU has counted, as it is written.
func (m *FirstMemory) CPUs() []FirstCPU {
	return entriesOf[FirstCPU](m.shared[bpf.WeirMapFirstCpus])
}

// SetClock sets the clock of a program whose clock is stopped.
func (m *FirstMemory) SetClock(now uint64) { m.shared.firstNow().Clock = now }

// Generation returns the words of generation 0 or 1, and whether that is the present one.
func (m *FirstMemory) Generation(i int) (words []uint64, present bool) {
	all := m.shared[bpf.WeirMapFirstLines].words
	return all[i*m.words : (i+1)*m.words], int(atomic.LoadUint64(&m.rows[banksWord])>>firstBank&1) == i
}

// Began returns when the present window began, 0 if none has.
func (m *FirstMemory) Began() time.Duration { return time.Duration(m.shared.firstNow().Began) }

// Begin begins the first window.
func (m *FirstMemory) Begin(now time.Duration) { m.shared.firstNow().Began = uint64(now) }

// Cells returns the words of all cells, nil of generations.
func (m *FirstMemory) Cells() []uint64 {
	if !m.cells {
		return nil
	}
	return m.shared[bpf.WeirMapFirstLines].words
}

// CountFull counts that the memory was full.
func (m *FirstMemory) CountFull() { atomic.AddUint64(&m.shared.firstNow().Full, 1) }

// Turn ends a window: the former generation is forgotten, and flows enter it from now on.
// Cells go on. early: the window ends since the present generation is full. It must not run
// concurrently with [Trackers.Exchange].
func (m *FirstMemory) Turn(now time.Duration, early bool) {
	if !m.cells {
		for i := range banks {
			if words, present := m.Generation(i); !present {
				clear(words)
			}
		}
		(&Trackers{rows: m.rows}).exchange(firstBank)
	}
	var c FirstCounts
	entered, flows := sumFirst(m.shared, &c)
	s := m.shared.firstNow()
	atomic.StoreUint64(&s.LastEntered, entered-s.Entered)
	atomic.StoreUint64(&s.LastFlows, flows-s.Flows)
	atomic.StoreUint64(&s.LastLength, uint64(now)-s.Began)
	atomic.StoreUint64(&s.Entered, entered)
	s.Flows, s.Began = flows, uint64(now)
	if early {
		m.CountFull()
	}
}
