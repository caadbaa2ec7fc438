package first

import (
	"sync/atomic"
	"time"

	"weir/bpf"
	"weir/control/stage"
	"weir/filter/recent"
	"weir/loader"
	"weir/loader/netif"
)

// CPU has the counters of a CPU.
type CPU = bpf.WeirFirstCpu

// Levels is the number of counters by importance, FIRST_ROW, of which the first is not used.
const Levels = len(CPU{}.Flows)

const bank = loader.MaxTrackers + 2 // FIRST_BANK

func stateOf(k loader.Kept) *bpf.WeirFirstState {
	return &loader.Entries[bpf.WeirFirstState](k, bpf.WeirMapFirstNow)[0]
}

// Counts are the counters of an interface.
type Counts struct {
	Flows, Events, Suppressed [Levels]uint64 // by importance

	Full uint64 // windows that ended early, or times that cells were found full

	// Of the last window.
	Window  time.Duration // its length; 0: none has ended
	New     uint64        // flows
	Entered uint64        // into the generation: known ones, too; or cells

	// EnteredNow is the number of flows that have entered the present generation.
	EnteredNow uint64
}

func countsOf(k loader.Kept) (c Counts) {
	now := stateOf(k)
	entered, _ := c.sum(k)
	c.Full = atomic.LoadUint64(&now.Full)
	c.Window = time.Duration(atomic.LoadUint64(&now.LastLength))
	c.New, c.Entered = atomic.LoadUint64(&now.LastFlows), atomic.LoadUint64(&now.LastEntered)
	c.EnteredNow = entered - min(entered, atomic.LoadUint64(&now.Entered))
	return c
}

// sum adds up what all CPUs have counted.
func (c *Counts) sum(k loader.Kept) (entered, flows uint64) {
	cpus := loader.Entries[CPU](k, bpf.WeirMapFirstCpus)
	for i := range cpus {
		of := &cpus[i]
		entered += atomic.LoadUint64(&of.Entered)
		for level := range Levels {
			n := atomic.LoadUint64(&of.Flows[level])
			flows += n
			c.Flows[level] += n
			c.Events[level] += atomic.LoadUint64(&of.Events[level])
			c.Suppressed[level] += atomic.LoadUint64(&of.Suppressed[level])
		}
	}
	return entered, flows
}

// Memory is an interface's memory of flows, which the program reads and writes at the same time.
type Memory struct {
	kept  loader.Kept
	words int // of a generation
	cells bool
}

// Read calls fn with the memory of the programs that were loaded with the stats, unless
// these remember other flows, or none. It is valid until fn returns, or, for tests, until
// the stats are closed or take over other maps.
func (p *Part) Read(s *loader.Stats, fn func(*Memory)) {
	s.Read(func(k loader.Kept) {
		if now := stateOf(k); now.Identity == p.Identity(netif.Target{}, now.Seed) {
			fn(&Memory{k, int(p.Lines) * lineWords, p.cells()})
		}
	})
}

// Seed returns what the secret of the program derives from.
func (m *Memory) Seed() loader.Seed { return stateOf(m.kept).Seed }

// Counts returns what was counted.
func (m *Memory) Counts() Counts { return countsOf(m.kept) }

// CPUs returns what each CPU has counted, as it is written.
func (m *Memory) CPUs() []CPU { return loader.Entries[CPU](m.kept, bpf.WeirMapFirstCpus) }

// SetClock sets the clock of a program whose clock is stopped.
func (m *Memory) SetClock(now uint64) { stateOf(m.kept).Clock = now }

func wordsOf(k loader.Kept) []uint64 { return loader.Words(k, bpf.WeirMapFirstLines) }

// Generation returns the words of generation 0 or 1, and whether that is the present one.
func (m *Memory) Generation(i int) (words []uint64, present bool) {
	return wordsOf(m.kept)[i*m.words : (i+1)*m.words], loader.Bank(m.kept, bank) == i
}

// Cells returns the words of all cells, nil of generations.
func (m *Memory) Cells() []uint64 {
	if !m.cells {
		return nil
	}
	return wordsOf(m.kept)
}

// Turn ends a window: the former generation is forgotten, and flows enter it from now on.
// Cells go on. early: the window ends since the present generation is full. It must not run
// concurrently with [loader.Trackers.Exchange].
func (m *Memory) Turn(now time.Duration, early bool) {
	if !m.cells {
		for i := range banks {
			if words, present := m.Generation(i); !present {
				clear(words)
			}
		}
		loader.ExchangeBank(m.kept, bank)
	}
	entered, flows := new(Counts).sum(m.kept)
	s := stateOf(m.kept)
	atomic.StoreUint64(&s.LastEntered, entered-s.Entered)
	atomic.StoreUint64(&s.LastFlows, flows-s.Flows)
	atomic.StoreUint64(&s.LastLength, uint64(now)-s.Began)
	atomic.StoreUint64(&s.Entered, entered)
	s.Flows, s.Began = flows, uint64(now)
	if early {
		atomic.AddUint64(&s.Full, 1)
	}
}

// Tick ends the window of each interface whose time has come by the kernel's monotonic
// clock, or whose generation is full. Cells that are full sink: they do so by themselves only
// as flows find cells below half of their value.
func (p *Part) Tick(now time.Duration, _ *loader.Generation, incoming []stage.Interface) time.Duration {
	for _, i := range incoming {
		p.Read(i.Stats, func(m *Memory) { m.tick(now, p) })
	}
	return stage.Often
}

func (m *Memory) tick(now time.Duration, p *Part) {
	cells, s := m.Cells(), stateOf(m.kept)
	full := cells == nil && m.Counts().EnteredNow >= recent.Full*uint64(p.Lines)
	if cells != nil && recent.Missed(cells) > recent.FullCells {
		recent.Sink(cells)
		atomic.AddUint64(&s.Full, 1)
	}
	switch began := time.Duration(s.Began); {
	case began == 0 || began > now: // the memory is new
		s.Began = uint64(now)
	case full || now-began >= p.Window:
		m.Turn(now, full)
	}
}
