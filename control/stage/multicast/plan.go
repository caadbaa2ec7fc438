package multicast

import (
	"github.com/dustin/go-humanize"
	"github.com/spf13/pflag"

	"weir/control/plan"
	"weir/filter/multicast"
)

// Plan returns the command that plans filters of groups.
func Plan() plan.Command {
	return plan.Command{
		Use:   "multicast --ports N --groups N",
		Short: "Multicast forwarding: memory, and packets to unwanted groups",
		Long: `Plans the filters of multicast forwarding, as under multicast in weir.yaml: one
for each of --ports interfaces that want groups, and one more of the groups that
any of them wants. Each has room for all --groups, max_groups in weir.yaml, so
that any interface may want any group.

"memory" is the size of all filters in the kernel, and of the filter of one
interface in lines. "unwanted groups" is the share of the groups that an
interface gets although it does not want them, when its filter is full.`,
		Example: `  weir plan multicast --ports 8 --groups 1024
  weir plan multicast --ports 8 --groups 1024 --json`,
		Required: []string{"ports", "groups"},
		Planner:  new(planner),
	}
}

// planner plans the filters of ports for groups.
type planner struct{ ports, groups *int }

// Flags adds the flags.
func (p *planner) Flags(f *pflag.FlagSet) {
	p.ports = plan.CountFlag(f, "ports", "`number` of interfaces")
	p.groups = plan.CountFlag(f, "groups", "`number` of groups that all interfaces want together")
}

// Plan fails with an InvalidError for none.
func (p *planner) Plan() (plan.Result, error) { return planFor(*p.ports, *p.groups) }

func planFor(ports, groups int) (planned, error) {
	if ports < 1 || ports > 1<<12 || groups < 1 || groups > 1<<20 {
		return planned{}, plan.Invalid("plan multicast: %d ports and %d groups, want 1 to %d and %d", ports, groups, 1<<12, 1<<20)
	}
	l := multicast.Plan(ports, groups)
	return planned{Bytes: 8 * l.Words(), Lines: l.Lines, Rate: l.Rate()}, nil
}

type planned struct {
	Bytes int     `json:"bytes"` // of the kernel, for all ports
	Lines uint32  `json:"lines"` // of a port's filter, of 64 bytes
	Rate  float64 `json:"rate"`  // at which a port gets packets to groups that it does not want
}

// Rows returns the plan for readers.
func (p planned) Rows() []plan.Row {
	return []plan.Row{
		plan.NewRow("memory", "%s, %s lines of 64 bytes an interface", humanize.IBytes(uint64(p.Bytes)), humanize.Comma(int64(p.Lines))),
		plan.NewRow("unwanted groups", "%.3g of them pass an interface", p.Rate),
	}
}
