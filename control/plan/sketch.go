package plan

import (
	"fmt"
	"math"

	"weir/filter/sketch"
)

// Sketch is a planned tracker's sketch and flow memory.
type Sketch struct {
	Memory    int     `json:"memory"`   // of a bank; each CPU has two
	Counters  int     `json:"counters"` // of the sketch, of which each flow has two
	Room      int     `json:"room"`     // flows that the flow memory has room for
	Flows     int     `json:"flows"`
	Total     float64 `json:"total"`     // units of all flows in an interval
	Threshold float64 `json:"threshold"` // from which a flow is heavy
	Heavy     int     `json:"heavy"`     // flows that can be, at most
	Passing   float64 `json:"passing"`   // flows that reach the threshold in the sketch: expected, at most
	Excess    float64 `json:"excess"`    // that an estimate has with a probability of at most 1 %
}

// Limits of the memory, as in weir.yaml.
const (
	leastSketch = 4 << 10
	mostSketch  = 1 << 30
)

// SketchFor plans a tracker for flows with a total of units in an interval, of which a flow
// with threshold units is heavy. With memory, in bytes, it says what that does; with 0 it
// returns the least power of two with which the flows that pass the sketch fill at most half
// of the flow memory. It fails with an InvalidError for a request that makes no sense or is
// outside the limits of weir.yaml, and otherwise if no memory suffices.
func SketchFor(flows int, total, threshold float64, memory int) (Sketch, error) {
	switch {
	case flows < 1 || flows > math.MaxInt32:
		return Sketch{}, Invalid("plan sketch: flows: %d, want 1 to 2G", flows)
	case !(total >= 1 && total <= 1e18):
		return Sketch{}, Invalid("plan sketch: total: %v, want 1 to 1e18", total)
	case !(threshold >= 1 && threshold <= total):
		return Sketch{}, Invalid("plan sketch: threshold: %v, want 1 to the total of %v", threshold, total)
	case memory != 0 && (memory < leastSketch || memory > mostSketch):
		return Sketch{}, Invalid("plan sketch: memory: %d bytes, want 4KiB to 1GiB", memory)
	case memory != 0:
		return sketchOf(flows, total, threshold, memory), nil
	}
	for memory := leastSketch; memory <= mostSketch; memory *= 2 {
		if s := sketchOf(flows, total, threshold, memory); s.Passing <= float64(s.Room)/2 {
			return s, nil
		}
	}
	return Sketch{}, fmt.Errorf("plan sketch: %d flows take more than 1 GiB: choose a higher threshold", flows)
}

func sketchOf(flows int, total, threshold float64, memory int) Sketch {
	g := sketch.PlanGeometry(memory)
	s := Sketch{
		Memory: memory, Counters: g.Counters(), Room: g.Room(), Flows: flows, Total: total, Threshold: threshold,
		Heavy: int(min(float64(flows), total/threshold)),
	}
	// The bounds hold for two rows, one in each line.
	const rows, chance = 2, 0.01
	width := s.Counters / rows
	s.Excess = total / float64(width) / math.Sqrt(chance)
	// Flows beyond so many are not larger than the last of these.
	const each = 1 << 16
	s.Passing = sketch.PassingFlows(rows, width, min(flows, each), threshold, total)
	if rest := flows - each; rest > 0 {
		p := 1.
		if size := total / each; size < threshold {
			p = sketch.ErrorBound(rows, width, threshold-size, total)
		}
		s.Passing += float64(rest) * p
	}
	return s
}
