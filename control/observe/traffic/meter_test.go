package traffic

import (
	"fmt"
	"reflect"
	"testing"

	"weir/control/stage"
	"weir/filter/verdict"
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

// What has left with the other verdict than a reason has now, as in monitor mode, is counted beside it,
// and EtherTypes beyond the most are counted together.
func TestCountsOfVerdicts(t *testing.T) {
	m := &Meter{}
	a := m.account(netif.Target{Iface: "eth0"})
	a.reader = newReader(nil, Program{})
	one, two := loader.Counter{Packets: 1, Bytes: 60}, loader.Counter{Packets: 2, Bytes: 120}
	a.total[verdict.Blocked].dropped, a.total[verdict.Blocked].passed = one, two
	a.total[verdict.Clean].passed, a.total[verdict.Clean].dropped = two, one
	a.total[verdict.Heavy].dropped = two
	types := make(map[uint16]loader.Counter)
	for i := range uint16(mostEtherTypes + 2) {
		types[0x9000+i] = one
	}
	a.addNotIP(loader.EtherTypes{ByType: types, Others: two}, new(loader.EtherTypes))
	all, _ := m.Read()
	got := make(map[string][]loader.Counter)
	for _, c := range all[0].Counts {
		if c.Counter.Packets > 0 {
			got[fmt.Sprint(c.Reason, " ", c.Drops)] = append(got[fmt.Sprint(c.Reason, " ", c.Drops)], c.Counter)
		}
	}
	want := map[string][]loader.Counter{"blocked true": {one}, "blocked false": {two}, "clean false": {two}, "clean true": {one}, "heavy true": {two}}
	if !reflect.DeepEqual(got, want) || len(all[0].Counts) < int(verdict.NumReasons) {
		t.Errorf("%v, want %v", got, want)
	}
	if n := all[0].NotIP; len(n.ByType) != mostEtherTypes || n.Others.Packets != 4 || n.Others.Bytes != 240 {
		t.Errorf("%d EtherTypes, others %+v", len(n.ByType), n.Others)
	}
}
