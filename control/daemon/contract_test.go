package daemon

import (
	"testing"

	"weir/control/api"
	"weir/control/explain"
	"weir/control/history"
	"weir/control/journal"
	"weir/filter/verdict"
)

// The contract imports nothing of weir: what it repeats agrees with what it is about.
func TestContractAgrees(t *testing.T) {
	for name, c := range map[string][2]any{
		"days in fine steps":   {api.DefaultHistory, history.KeepFine},
		"days":                 {api.MaxHistory, history.KeepCoarse},
		"step":                 {api.MinHistoryStep, history.Fine},
		"step of older points": {api.MinOldHistoryStep, history.Coarse},
		"length of a reason":   {api.MaxReason, journal.MaxReasonLen},
		"stage":                {api.StageFailsafe, verdict.StageFailsafe.String()},
		"reason":               {api.ReasonWouldBlock, verdict.WouldBlock.String()},
		"pass":                 {api.VerdictPass, explain.Pass.String()},
		"limited":              {api.VerdictLimited, explain.Limited.String()},
		"drop":                 {api.VerdictDrop, explain.Drop.String()},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: %v in the contract, and %v", name, c[0], c[1])
		}
	}
}
