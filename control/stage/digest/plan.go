package digest

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"weir/control/plan"
	"weir/filter/blocked"
	"weir/filter/fpr"
)

// Plan returns the command that plans the filter of a slice of digests.
func Plan() plan.Command {
	return plan.Command{
		Use:   "digest --packets N --fpr RATE",
		Short: "Digests of packets: memory of a time slice",
		Long: `Prints the filter that a time slice of digests takes: --packets are the
configured rate times the length of the slice.`,
		Example:  "  weir plan digest --packets 100k --fpr 0.01",
		Required: []string{"packets"},
		Planner:  new(planner),
	}
}

// planner plans the filter of a slice for packets, at a false-positive rate.
type planner struct {
	packets *int
	rate    float64
}

// Flags adds the flags.
func (p *planner) Flags(f *pflag.FlagSet) {
	p.packets = plan.CountFlag(f, "packets", "`number` of packets in a slice")
	f.Float64Var(&p.rate, "fpr", 0.01, "false-positive `rate` of a full slice")
}

// Plan fails with an InvalidError for no packets, and for rates outside of 0…1.
func (p *planner) Plan() (plan.Result, error) { return planFor(*p.packets, p.rate) }

func planFor(packets int, rate float64) (planned, error) {
	if packets < 1 || packets > math.MaxInt32 || !(rate > 0 && rate < 1) {
		return planned{}, plan.Invalid("plan digest: no filter has n=%d and rate %v", packets, rate)
	}
	g, err := blocked.For(packets, rate)
	if err != nil {
		return planned{}, fmt.Errorf("plan digest: %w", err)
	}
	m, _ := fpr.Smallest(packets, rate)
	return planned{
		Bytes: g.Bytes(), Lines: g.Lines, Bits: g.Bits, Rate: g.FalsePositiveRate(packets),
		BitsPerPacket: 8 * float64(g.Bytes()) / float64(packets), Standard: float64(m) / float64(packets),
	}, nil
}

type planned struct {
	Bytes         int     `json:"bytes"` // of a slice in memory
	Lines         uint32  `json:"lines"` // of 64 bytes
	Bits          int     `json:"bits"`  // that a packet sets
	Rate          float64 `json:"rate"`  // exact false-positive rate when the slice is full
	BitsPerPacket float64 `json:"bits_per_packet"`
	Standard      float64 `json:"standard"` // the same of a filter whose bits may lie anywhere
}

// Rows returns the plan for readers.
func (p planned) Rows() []plan.Row {
	return []plan.Row{
		plan.NewRow("memory", "%s a slice, %.2f bits a packet", humanize.IBytes(uint64(p.Bytes)), p.BitsPerPacket),
		plan.NewRow("  standard filter", "%.2f bits a packet", p.Standard),
		plan.NewRow("bits", "%d of a packet, in one of %s lines of 64 bytes", p.Bits, humanize.Comma(int64(p.Lines))),
		plan.NewRow("false positives", "%.3g", p.Rate),
	}
}
