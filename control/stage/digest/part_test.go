package digest

import (
	"testing"
	"time"

	"weir/filter/blocked"
	"weir/filter/digest"
	"weir/loader"
	"weir/loader/netif"
)

// Programs of earlier versions are adopted with what they have recorded: what identifies their
// memory stays.
func TestIdentity(t *testing.T) {
	p := &Part{Config: digest.Config{Slice: time.Second}, Filter: blocked.Geometry{Lines: 2110, Bits: 5}}
	if got := p.Identity(netif.Target{}, loader.Seed{1}); got != 0x8a8b74362f2da675 {
		t.Errorf("%#x", got)
	}
}
