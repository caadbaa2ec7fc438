package packet_test

import (
	"fmt"
	"net/netip"

	"weir/filter/key"
	"weir/filter/packet"
)

func ExampleParse() {
	frame := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.7"),
		Proto: 17, HasPorts: true, SrcPort: 53, DstPort: 4096,
	})
	p, result := packet.Parse(frame)
	fmt.Println(result == packet.OK, p.Src, p.SrcPort)

	p, result = packet.Parse(frame[:36]) // cut within the UDP header
	fmt.Println(result == packet.Truncated, p.Src, p.HasPorts)
	// Output:
	// true 192.0.2.1 53
	// true 192.0.2.1 false
}
