package plan

import (
	"fmt"
	"math"
	"sort"

	"weir/filter/recent"
)

// First is a planned memory of first-seen flows on one interface.
type First struct {
	Memory   int     `json:"memory"`   // of both generations
	Flows    int     `json:"flows"`    // in a configured window
	Capacity int     `json:"capacity"` // flows with which a window ends early
	Windows  float64 `json:"windows"`  // in a configured one; 1: it does not end early
	Missed   float64 `json:"missed"`   // share of the new flows that are taken for known ones
}

// Limits of the memory, as in weir.yaml.
const (
	leastFirst = 4 << 10
	mostFirst  = 1 << 30
)

// FirstFor plans the memory for a number of flows in a window, new ones and others. With
// memory, in bytes, it says what that does; with 0 it returns the least with which no window
// ends early. It fails with an InvalidError for a request outside the limits of weir.yaml,
// and otherwise if no memory suffices.
func FirstFor(flows, memory int) (First, error) {
	switch {
	case flows < 1 || flows > math.MaxInt32:
		return First{}, invalid("plan first-seen: flows: %d, want 1 to 2G", flows)
	case memory != 0 && (memory < leastFirst || memory > mostFirst):
		return First{}, invalid("plan first-seen: memory: %d bytes, want 4KiB to 1GiB", memory)
	}
	lines := func(memory int) uint32 { return uint32(memory / 2 / lineBytes) }
	capacity := func(memory int) int { return recent.Full * int(lines(memory)) }
	if memory == 0 {
		const step = 1 << 10
		memory = leastFirst + step*sort.Search((mostFirst-leastFirst)/step+1, func(i int) bool {
			return capacity(leastFirst+i*step) >= flows
		})
		if memory > mostFirst {
			return First{}, fmt.Errorf("plan first-seen: %d flows in a window take more than 1 GiB: choose a shorter window", flows)
		}
	}
	most := capacity(memory)
	return First{
		Memory: memory, Flows: flows, Capacity: most, Windows: max(1, float64(flows)/float64(most)),
		Missed: recent.MeanFalsePositive(lines(memory), min(flows, most)),
	}, nil
}
