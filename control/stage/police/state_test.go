package police

import (
	"slices"
	"testing"

	"weir/control/stage"
)

// What policing does is shown with the outcomes by name, and rates in the unit of the limit.
func TestRows(t *testing.T) {
	outcomes := map[string]stage.Count{"passed": {Packets: 9, Bytes: 900}, "marked": {Packets: 1}, "early": {Packets: 2}, "boxed": {Packets: 3}, "over": {Packets: 4}}
	for _, c := range []struct {
		about About
		state State
		want  []stage.Row
	}{
		{About{Limit: "1 Mbit/s by source", Controller: "fair"}, State{Outcomes: outcomes, FairRate: 250_000, BoxedShare: 0.125}, []stage.Row{
			{Name: "limit", Text: "1 Mbit/s by source, fair; a flow may have 2 Mbit/s"},
			{Name: "  marked", Text: "1 packet, 0 B"}, {Name: "  dropped early", Text: "2 packets, 0 B"},
			{Name: "  held down", Text: "3 packets, 0 B"}, {Name: "  above the limit", Text: "4 packets, 0 B"},
			{Name: "  penalised", Text: "12.5% of the counters, whose flows do not respond"},
		}},
		{About{Limit: "1 kpps", Controller: "fair", Packets: true}, State{FairRate: 250, BoxedShare: 0.75, Suspended: true}, []stage.Row{
			{Name: "limit", Text: "1 kpps, fair; a flow may have 250 pps"},
			{Name: "  SUSPENDED", Text: "75% of the counters have flows that do not respond: none is penalised"},
		}},
		{About{Limit: "1 kpps", Controller: "fair", Packets: true}, State{}, []stage.Row{
			{Name: "limit", Text: "1 kpps, fair; what a flow may have is known when packets come"},
		}},
	} {
		if got := c.about.Rows(&c.state); !slices.Equal(got, c.want) {
			t.Errorf("%+v: got %q, want %q", c.state, got, c.want)
		}
	}
}
