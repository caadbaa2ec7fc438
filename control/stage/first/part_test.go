package first

import (
	"testing"

	"weir/control/stage"
	"weir/filter/recent"
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
