package loop

import (
	"github.com/spf13/pflag"

	"weir/control/plan"
	"weir/filter/icarus"
)

// Plan returns the command that plans loop filters.
func Plan() plan.Command {
	return plan.Command{
		Use:   "loop --bits BITS --hops HOPS",
		Short: "Loop filter in a packet: bits of a node's mask, and false alarms",
		Long: `Plans the filter that packets carry through a domain of routers, as under loop
in weir.yaml. Each router, a node, adds its mask to the filter: k bits, which
depend on its number. Where that changes nothing, the packet has probably been
there before, and is in a loop.

"k" is the size of a mask with which false alarms are rarest. "false alarms" is
the share of paths of --hops nodes, without a loop, on which weir reports one,
since other nodes have set all bits of a mask. All packets on such a path are
reported. To have fewer, take more --bits or --confirm 2: two nodes in a row
must then find the filter unchanged, and a loop is found one hop later.`,
		Example: `  weir plan loop --bits 128 --hops 16
  weir plan loop --bits 128 --hops 16 --confirm 2 --json`,
		Planner: new(planner),
	}
}

// planner plans a loop filter, carried in packets, of 64, 128 or 256 bits, for loop-free paths
// of hops nodes. A loop is reported after confirm nodes in a row find the filter unchanged.
type planner struct{ bits, hops, confirm int }

// Flags adds the flags.
func (p *planner) Flags(f *pflag.FlagSet) {
	f.IntVar(&p.bits, "bits", 128, "size of the filter: 64, 128 or 256 `bits`")
	f.IntVar(&p.hops, "hops", 16, "`number` of nodes on a path without a loop")
	f.IntVar(&p.confirm, "confirm", 1, "`nodes` in a row that must find a filter unchanged")
}

// Plan fails with an InvalidError for other sizes, and unless hops and confirm are positive.
func (p *planner) Plan() (plan.Result, error) {
	k, falseAlarm, err := icarus.Best(p.bits, p.hops, p.confirm)
	if err != nil {
		return nil, plan.Invalid("plan loop: %w", err)
	}
	return planned{*p, k, falseAlarm}, nil
}

type planned struct {
	planner
	K          int     `json:"k"`           // bits of a node's mask
	FalseAlarm float64 `json:"false_alarm"` // probability that a loop-free path is reported
}

// Rows returns the plan for readers.
func (p planned) Rows() []plan.Row {
	return []plan.Row{
		plan.NewRow("size", "%d bits", p.bits),
		plan.NewRow("k", "%d bits of a mask", p.K),
		plan.NewRow("confirm", "%d", p.confirm),
		plan.NewRow("false alarms", "%.6g of paths without a loop", p.FalseAlarm),
	}
}
