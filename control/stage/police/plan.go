package police

import (
	"github.com/spf13/pflag"

	"weir/control/plan"
	"weir/filter/sfb"
)

// Plan returns the command that says what flows cost others at a policer.
func Plan() plan.Command {
	return plan.Command{
		Use:   "police --flows N",
		Short: "Policing: flows that suffer for others",
		Long: `Predicts how many flows a policer punishes for others, as under police in
weir.yaml. A policer counts flows in bins, by a hash: where flows go on to send
more than their share despite losses, others in the same bins are punished with
them, until the hash changes.`,
		Example:  "  weir plan police --flows 30",
		Required: []string{"flows"},
		Planner:  new(planner),
	}
}

// planner plans for flows that do not respond at the same time.
type planner struct{ flows *int }

// Flags adds the flags.
func (p *planner) Flags(f *pflag.FlagSet) {
	p.flows = plan.CountFlag(f, "flows", "`number` of flows at a time that do not send less when packets are lost")
}

// Plan fails with an InvalidError for a negative number.
func (p *planner) Plan() (plan.Result, error) { return planFor(*p.flows) }

func planFor(flows int) (planned, error) {
	if flows < 0 {
		return planned{}, plan.Invalid("plan police: %d flows", flows)
	}
	return planned{
		Levels: sfb.PolicerLevels, Bins: sfb.PolicerBins, Punished: sfb.FalsePunish(sfb.PolicerLevels, sfb.PolicerBins, flows),
		// A flow is in one bin of each level, so that all levels have the same share.
		Suspended: sfb.FalsePunish(1, sfb.PolicerBins, flows) > 0.25,
	}, nil
}

type planned struct {
	Levels    int     `json:"levels"`
	Bins      int     `json:"bins"`      // of a level
	Punished  float64 `json:"punished"`  // probability that a flow is punished for others
	Suspended bool    `json:"suspended"` // so many bins would be in the penalty box that none is
}

// Rows returns the plan for readers.
func (p planned) Rows() []plan.Row {
	rows := []plan.Row{
		plan.NewRow("bins", "%d in each of %d levels", p.Bins, p.Levels),
		plan.NewRow("punished", "%.3g of the other flows, until the hash moves", p.Punished),
	}
	if p.Suspended {
		rows = append(rows, plan.NewRow("penalty box", "off: more than a quarter of the bins would be in it"))
	}
	return rows
}
