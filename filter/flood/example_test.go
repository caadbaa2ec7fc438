package flood_test

import (
	"fmt"
	"net/netip"
	"testing"

	"weir/filter/flood"
	"weir/filter/key"
	"weir/filter/packet"
)

var frame = packet.Frame(key.Tuple{
	Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.7"),
	Proto: 17, HasPorts: true, SrcPort: 53, DstPort: 4096,
})

// What the sampler keeps of a packet.
func ExampleOf() {
	r, ok := flood.Of(frame, len(frame))
	fmt.Println(ok, r.Source(), r.Protocol, r.SrcPort)
	// Output: true 192.0.2.1 17 53
}

func BenchmarkOf(b *testing.B) {
	for b.Loop() {
		flood.Of(frame, len(frame))
	}
}
