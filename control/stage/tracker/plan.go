package tracker

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"weir/control/plan"
	"weir/control/quantity"
	"weir/filter/sketch"
)

// Plans returns the commands that plan trackers and scan detectors.
func Plans() []plan.Command {
	return []plan.Command{{
		Use:   "sketch --flows N --total N --threshold N",
		Short: "Trackers of heavy hitters: memory, and flows that pass by mistake",
		Long: `Plans a tracker, as under trackers in weir.yaml: the memory with which what
passes its sketch fills half of its flow memory, or what --memory does.

--total is the number of packets or bytes of all flows in an interval, and
--threshold what makes a flow heavy. The figures are bounds for any traffic;
with real traffic, far fewer flows pass.`,
		Example: `  weir plan sketch --flows 1M --total 10M --threshold 50k
  weir plan sketch --flows 1M --total 10M --threshold 50k --memory 256KiB --json`,
		Required: []string{"flows", "total", "threshold"},
		Planner:  new(sketchPlanner),
	}, scanCommand()}
}

// sketchPlanner plans the sketch and the flow memory of a tracker.
type sketchPlanner struct {
	flows, total, threshold *int
	memory                  quantity.Size
}

// Flags adds the flags.
func (p *sketchPlanner) Flags(f *pflag.FlagSet) {
	p.flows = plan.CountFlag(f, "flows", "`number` of flows in an interval")
	p.total = plan.CountFlag(f, "total", "`number` of packets or bytes in an interval")
	p.threshold = plan.CountFlag(f, "threshold", "`number` of packets or bytes in an interval that make a flow heavy")
	f.TextVar(&p.memory, "memory", p.memory, "`size` of the memory, as in weir.yaml (default as much as it takes)")
}

// Plan fails as sketchFor does.
func (p *sketchPlanner) Plan() (plan.Result, error) {
	return sketchFor(*p.flows, float64(*p.total), float64(*p.threshold), int(p.memory))
}

// Rows returns the plan for readers.
func (s sketchPlan) Rows() []plan.Row {
	return []plan.Row{
		plan.NewRow("memory", "%s, of which each CPU has two", humanize.IBytes(uint64(s.Memory))),
		plan.NewRow("sketch", "%s counters, two of a flow", humanize.Comma(int64(s.Counters))),
		plan.NewRow("  excess", "%s, with a probability of at most 1 %%", humanize.CommafWithDigits(s.Excess, 1)),
		plan.NewRow("flow memory", "room for %s flows", humanize.Comma(int64(s.Room))),
		plan.NewRow("heavy", "%s flows, at most", humanize.Comma(int64(s.Heavy))),
		plan.NewRow("passing", "%s flows are expected, at most", humanize.CommafWithDigits(s.Passing, 1)),
	}
}

// sketchPlan is a planned tracker's sketch and flow memory.
type sketchPlan struct {
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

// sketchFor plans a tracker for flows with a total of units in an interval, of which a flow
// with threshold units is heavy. With memory, in bytes, it says what that does; with 0 it
// returns the least power of two with which the flows that pass the sketch fill at most half
// of the flow memory. It fails with an InvalidError for a request that makes no sense or is
// outside the limits of weir.yaml, and otherwise if no memory suffices.
func sketchFor(flows int, total, threshold float64, memory int) (sketchPlan, error) {
	switch {
	case flows < 1 || flows > math.MaxInt32:
		return sketchPlan{}, plan.Invalid("plan sketch: flows: %d, want 1 to 2G", flows)
	case !(total >= 1 && total <= 1e18):
		return sketchPlan{}, plan.Invalid("plan sketch: total: %v, want 1 to 1e18", total)
	case !(threshold >= 1 && threshold <= total):
		return sketchPlan{}, plan.Invalid("plan sketch: threshold: %v, want 1 to the total of %v", threshold, total)
	case memory != 0 && (memory < leastSketch || memory > mostSketch):
		return sketchPlan{}, plan.Invalid("plan sketch: memory: %d bytes, want 4KiB to 1GiB", memory)
	case memory != 0:
		return sketchOf(flows, total, threshold, memory), nil
	}
	for memory := leastSketch; memory <= mostSketch; memory *= 2 {
		if s := sketchOf(flows, total, threshold, memory); s.Passing <= float64(s.Room)/2 {
			return s, nil
		}
	}
	return sketchPlan{}, fmt.Errorf("plan sketch: %d flows take more than 1 GiB: choose a higher threshold", flows)
}

func sketchOf(flows int, total, threshold float64, memory int) sketchPlan {
	g := sketch.PlanGeometry(memory).WithCold()
	s := sketchPlan{
		Memory: memory, Counters: g.Counters(), Room: g.Room(), Flows: flows, Total: total, Threshold: threshold,
		Heavy: int(min(float64(flows), total/threshold)),
	}
	// The bounds hold for two rows, one in each line.
	const rows, chance = 2, 0.01
	width := s.Counters / rows
	cold := 0.
	if g.Cold > 0 {
		cold = threshold / 8 // at most, a quarter of the limit
	}
	s.Excess = total/float64(width)/math.Sqrt(chance) + cold
	// Flows beyond so many are not larger than the last of these.
	const each = 1 << 16
	s.Passing = sketch.PassingFlows(rows, width, min(flows, each), threshold-cold, total)
	if rest := flows - each; rest > 0 {
		p := 1.
		if size := total / each; size < threshold-cold {
			p = sketch.ErrorBound(rows, width, threshold-cold-size, total)
		}
		s.Passing += float64(rest) * p
	}
	return s
}
