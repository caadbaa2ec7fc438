package plan

import (
	"fmt"
	"math"
	"sort"

	"weir/filter/recent"
)

// FlowFilter is the kind of filter that remembers flows.
type FlowFilter = recent.Kind

// First is a planned memory of first-seen flows on one interface.
type First struct {
	Filter FlowFilter `json:"filter"`
	Memory int        `json:"memory"`
	Flows  int        `json:"flows"`  // in a configured window
	Missed float64    `json:"missed"` // share of the new flows that are taken for known ones

	// Of a Bloom filter.
	Capacity int     `json:"capacity,omitempty"` // flows with which a window ends early
	Windows  float64 `json:"windows,omitempty"`  // in a configured one; 1: it does not end early

	// Of the others: the share of the flows that are taken for new ones when they return
	// after as many others as a window has, by importance from 1.
	Forgotten []float64 `json:"forgotten,omitempty"`
}

// Limits of the memory, as in weir.yaml, and the steps in which it is planned.
const (
	leastFirst = 4 << 10
	mostFirst  = 1 << 30
	stepFirst  = 1 << 10
)

// leastMemory returns the least memory that suffices, more than mostFirst if none does.
func leastMemory(suffices func(memory int) bool) int {
	return leastFirst + stepFirst*sort.Search((mostFirst-leastFirst)/stepFirst+1, func(i int) bool {
		return suffices(leastFirst + i*stepFirst)
	})
}

// mostForgotten is the share of the most important flows that may be forgotten if the memory
// is not given.
const mostForgotten = 0.08

// FirstFor plans the memory of a filter for a number of flows in a window, new ones and
// others. With memory, in bytes, it says what that does; with 0 it returns the least with
// which no window ends early, or with which 8 % of the most important flows are forgotten,
// where all importances are equally frequent. It fails with an InvalidError for a request outside the limits of weir.yaml,
// and otherwise if no memory suffices.
func FirstFor(filter FlowFilter, flows, memory int) (First, error) {
	switch {
	case flows < 1 || flows > math.MaxInt32:
		return First{}, invalid("plan first-seen: flows: %d, want 1 to 2G", flows)
	case memory != 0 && (memory < leastFirst || memory > mostFirst):
		return First{}, invalid("plan first-seen: memory: %d bytes, want 4KiB to 1GiB", memory)
	}
	if filter != recent.Bloom {
		return firstOfCells(filter, flows, memory)
	}
	capacity := func(memory int) int { return recent.Full * int(generation(memory)) }
	if memory == 0 {
		memory = leastMemory(func(memory int) bool { return capacity(memory) >= flows })
	}
	if memory > mostFirst {
		return First{}, tooMany(flows)
	}
	most := capacity(memory)
	return First{
		Filter: filter, Memory: memory, Flows: flows, Capacity: most, Windows: max(1, float64(flows)/float64(most)),
		Missed: recent.MeanFalsePositive(generation(memory), min(flows, most)),
	}, nil
}

func firstOfCells(filter FlowFilter, flows, memory int) (First, error) {
	chain := filter.NewChain(recent.Uniform())
	forgotten := func(level, memory int) float64 {
		return chain.Forgotten(level, float64(flows), 2*generation(memory))
	}
	if memory == 0 {
		memory = leastMemory(func(memory int) bool { return forgotten(recent.MaxLevel, memory) <= mostForgotten })
	}
	if memory > mostFirst {
		return First{}, tooMany(flows)
	}
	p := First{Filter: filter, Memory: memory, Flows: flows, Missed: chain.Missed()}
	for level := 1; level <= recent.MaxLevel; level++ {
		p.Forgotten = append(p.Forgotten, forgotten(level, memory))
	}
	return p, nil
}

// generation returns the lines of half of the memory.
func generation(memory int) uint32 { return uint32(memory / 2 / lineBytes) }

func tooMany(flows int) error {
	return fmt.Errorf("plan first-seen: %d flows in a window take more than 1 GiB: choose a shorter window", flows)
}
