package key_test

import (
	"fmt"
	"net/netip"

	"weir/filter/key"
)

// A packet is cut down to the shapes in use, and each result is looked up.
func ExampleShape_Of() {
	packet := key.Tuple{
		Src: netip.MustParseAddr("192.0.2.77"), Dst: netip.MustParseAddr("198.51.100.7"),
		Proto: 6, HasPorts: true, SrcPort: 40000, DstPort: 443,
	}
	for _, s := range []key.Shape{
		{SrcBits: 24},
		{Fields: key.FieldProto | key.FieldDstPort, SrcBits: 32, DstBits: 32},
		{Fields: key.FieldV6, SrcBits: 64},
	} {
		if k, ok := s.Of(packet); ok {
			fmt.Printf("%-28v %v\n", s, k)
		}
	}
	// Output:
	// src/24                       192.0.2.0/24
	// src/32+dst/32+dport+proto    tcp 192.0.2.77:* > 198.51.100.7:443
}
