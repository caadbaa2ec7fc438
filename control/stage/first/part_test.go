package first

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage"
	"weir/filter/newflow"
	"weir/filter/recent"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
)

// Programs of earlier versions are adopted with the flows that they know: what identifies
// their memory stays.
func TestIdentity(t *testing.T) {
	for filter, want := range map[recent.Kind]uint64{recent.Bloom: 0xf7ec79c3baa5d7d7, recent.IBFMC: 0x66b8a81204180bd9} {
		s := Spec{Key: stage.Key("flow"), Filter: filter}
		s.SetDefaults()
		p, err := s.Part()
		if err != nil {
			t.Fatal(err)
		}
		if got := p.(*Part).Identity(netif.Target{}, loader.Seed{1}); got != want {
			t.Errorf("%v: %#x, want %#x", filter, got, want)
		}
	}
}

// What is configured reaches the program.
func TestPart(t *testing.T) {
	ports := []verdict.FailsafePort{{Proto: 6, Port: 443}}
	s := Spec{Key: stage.Key("flow"), Filter: recent.IBFMC, Ports: ports, Importance: []Importance{ByList}}
	s.SetDefaults()
	s.Memory, s.Events, s.Window = 1<<20, 70, quantity.Duration(3*time.Second)
	got, err := s.Part()
	if err != nil {
		t.Fatal(err)
	}
	p := *got.(*Part)
	p.BasePart = engine.BasePart{}
	want := Part{Filter: recent.IBFMC, Lines: 1 << 20 / 128, Events: 70, Ports: ports, ByList: true, Window: 3 * time.Second}
	want.V4, want.V6 = s.Key.Shapes()
	if !reflect.DeepEqual(p, want) {
		t.Errorf("%+v, want %+v", p, want)
	}
}

// The least important lists have importance 2, the most important the highest; those that allow have none.
func TestImportances(t *testing.T) {
	block := func(priorities ...int) (all []engine.List) {
		for _, p := range priorities {
			all = append(all, engine.List{Priority: p})
		}
		return all
	}
	const most = newflow.MaxImportance
	for _, c := range []struct {
		lists []engine.List
		want  []newflow.Importance
	}{
		{block(5), []newflow.Importance{0, most}},
		{block(5, 5), []newflow.Importance{0, most, most}},
		{block(10, 20, 10), []newflow.Importance{0, 2, most, 2}},
		{append(block(1, 2, 3), engine.List{Allow: true, Priority: 4}), []newflow.Importance{0, 2, 2 + (most-2)/2, most, 0}},
	} {
		if got := importances(c.lists); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v, want %v", c.lists, got, c.want)
		}
	}
}
