package first

import (
	"fmt"
	"math"
	"sort"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"weir/control/plan"
	"weir/control/quantity"
	"weir/filter/recent"
)

// Plan returns the command that plans the memory of first-seen flows on one interface.
func Plan() plan.Command {
	return plan.Command{
		Use:   "first-seen --flows N",
		Short: "Memory of first-seen flows, and how many are missed",
		Long: `Plans the memory of first_seen in weir.yaml: the least with which no window ends
early, or what --memory does.

--flows are all flows with packets in a window, on an interface, new ones and
others. With more of them than the memory has room for, windows end early: a
flow that pauses for so long is taken for a new one.

With --filter stable, ibf-2c or ibf-mc, flows are forgotten as others come: the
plan has the share of those that count as new when they return after --flows
others, by importance, where all importances are equally frequent. Without
--memory, it is the least with which that is 8 % of the most important flows.`,
		Example: `  weir plan first-seen --flows 200k
  weir plan first-seen --flows 200k --filter ibf-mc
  weir plan first-seen --flows 1M --memory 256KiB --json`,
		Required: []string{"flows"},
		Planner:  new(planner),
	}
}

// planner plans the memory of a filter for flows in a window, new ones and others.
type planner struct {
	flows  *int
	memory quantity.Size
	filter recent.Kind
}

// Flags adds the flags.
func (p *planner) Flags(f *pflag.FlagSet) {
	p.flows = plan.CountFlag(f, "flows", "`number` of flows in a window")
	f.TextVar(&p.memory, "memory", p.memory, "`size` of the memory (default so much that no window ends early)")
	f.TextVar(&p.filter, "filter", p.filter, "`filter` that remembers flows: bloom, stable, ibf-2c or ibf-mc")
}

// Plan fails with an InvalidError for a request outside the limits of weir.yaml, and otherwise if
// no memory suffices.
func (p *planner) Plan() (plan.Result, error) { return planFor(p.filter, *p.flows, int(p.memory)) }

type planned struct {
	Filter recent.Kind `json:"filter"`
	Memory int         `json:"memory"`
	Flows  int         `json:"flows"`  // in a configured window
	Missed float64     `json:"missed"` // share of the new flows that are taken for known ones

	// Of a Bloom filter.
	Capacity int     `json:"capacity,omitempty"` // flows with which a window ends early
	Windows  float64 `json:"windows,omitempty"`  // in a configured one; 1: it does not end early

	// Of the others: the share of the flows that are taken for new ones when they return
	// after as many others as a window has, by importance from 1.
	Forgotten []float64 `json:"forgotten,omitempty"`
}

// Limits of the memory, as in weir.yaml, and the steps in which it is planned.
const (
	leastMemory  = 4 << 10
	mostMemory   = 1 << 30
	stepOfMemory = 1 << 10
)

// sufficient returns the least memory that suffices, more than mostMemory if none does.
func sufficient(suffices func(memory int) bool) int {
	return leastMemory + stepOfMemory*sort.Search((mostMemory-leastMemory)/stepOfMemory+1, func(i int) bool {
		return suffices(leastMemory + i*stepOfMemory)
	})
}

// mostForgotten is the share of the most important flows that may be forgotten if the memory
// is not given.
const mostForgotten = 0.08

// planFor plans the memory of a filter for a number of flows in a window. With memory, in bytes,
// it says what that does; with 0 it returns the least with which no window ends early, or with
// which 8 % of the most important flows are forgotten, where all importances are equally frequent.
func planFor(filter recent.Kind, flows, memory int) (planned, error) {
	switch {
	case flows < 1 || flows > math.MaxInt32:
		return planned{}, plan.Invalid("plan first-seen: flows: %d, want 1 to 2G", flows)
	case memory != 0 && (memory < leastMemory || memory > mostMemory):
		return planned{}, plan.Invalid("plan first-seen: memory: %d bytes, want 4KiB to 1GiB", memory)
	}
	if filter != recent.Bloom {
		return planCells(filter, flows, memory)
	}
	capacity := func(memory int) int { return recent.Full * int(linesOf(memory)) }
	if memory == 0 {
		memory = sufficient(func(memory int) bool { return capacity(memory) >= flows })
	}
	if memory > mostMemory {
		return planned{}, tooMany(flows)
	}
	most := capacity(memory)
	return planned{
		Filter: filter, Memory: memory, Flows: flows, Capacity: most, Windows: max(1, float64(flows)/float64(most)),
		Missed: recent.MeanFalsePositive(linesOf(memory), min(flows, most)),
	}, nil
}

func planCells(filter recent.Kind, flows, memory int) (planned, error) {
	chain := filter.NewChain(recent.Uniform())
	forgotten := func(level, memory int) float64 {
		return chain.Forgotten(level, float64(flows), banks*linesOf(memory))
	}
	if memory == 0 {
		memory = sufficient(func(memory int) bool { return forgotten(recent.MaxLevel, memory) <= mostForgotten })
	}
	if memory > mostMemory {
		return planned{}, tooMany(flows)
	}
	p := planned{Filter: filter, Memory: memory, Flows: flows, Missed: chain.Missed()}
	for level := 1; level <= recent.MaxLevel; level++ {
		p.Forgotten = append(p.Forgotten, forgotten(level, memory))
	}
	return p, nil
}

// linesOf returns the lines of a generation, which has half of the memory.
func linesOf(memory int) uint32 { return uint32(memory / banks / line) }

func tooMany(flows int) error {
	return fmt.Errorf("plan first-seen: %d flows in a window take more than 1 GiB: choose a shorter window", flows)
}

// Rows returns the plan for readers.
func (p planned) Rows() []plan.Row {
	rows := []plan.Row{plan.NewRow("memory", "%s of an interface", humanize.IBytes(uint64(p.Memory)))}
	if p.Capacity > 0 {
		rows = append(rows, plan.NewRow("flows", "%s a window, of %s that it has room for", humanize.Comma(int64(p.Flows)), humanize.Comma(int64(p.Capacity))))
	} else {
		rows = append(rows, plan.NewRow("flows", "%s a window", humanize.Comma(int64(p.Flows))))
	}
	if p.Windows > 1 {
		rows = append(rows, plan.NewRow("  windows", "%.1f in the time of one, as they end early", p.Windows))
	}
	rows = append(rows, plan.NewRow("missed", "%.3g of new flows", p.Missed))
	for i, share := range p.Forgotten {
		rows = append(rows, plan.NewRow("forgotten", "%.3g of the flows of importance %d that return a window later", share, i+1))
	}
	return rows
}
