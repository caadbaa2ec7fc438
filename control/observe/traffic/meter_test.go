package traffic

import (
	"testing"

	"weir/control/stage"
	"weir/loader"
	"weir/loader/netif"
)

// The sum of a counter never goes back, also where the counter does for a moment.
func TestSince(t *testing.T) {
	var seen, total loader.Counter
	for i, step := range []struct{ now, want uint64 }{{5, 5}, {3, 5}, {5, 5}, {9, 9}} {
		total = sum(total, since(loader.Counter{Packets: step.now, Bytes: 10 * step.now}, &seen))
		if total != (loader.Counter{Packets: step.want, Bytes: 10 * step.want}) {
			t.Errorf("step %d: %+v", i, total)
		}
	}
}

// counts are stages with a counter where there is memory.
type counts struct{ *stage.Family }

func (c counts) Counted(s *loader.Stats) []stage.Sample {
	if s == nil {
		return nil
	}
	return []stage.Sample{{Family: c.Family, Of: "label", Value: 7}}
}

func (counts) Gauges(*loader.Stats) []stage.Sample { return nil }

// A stage need not know its counters where there is no memory. Those of an interface that is gone
// stay.
func TestCountersOfStages(t *testing.T) {
	of := counts{new(stage.Family)}
	m := &Meter{}
	a := m.account(netif.Target{Iface: "eth0"})
	a.reader = newReader(new(loader.Stats), Program{Stages: of})
	for _, state := range []string{"attached", "gone"} {
		all, _ := m.Read()
		if len(all) != 1 || len(all[0].Stages) != 1 || all[0].Stages[0].Family != of.Family || all[0].Stages[0].Value != 7 {
			t.Errorf("%s: %+v", state, all)
		}
		a.reader = newReader(nil, a.program)
	}
}
