package packet_test

import (
	"net/netip"
	"testing"

	"weir/filter/key"
	"weir/filter/packet"
)

func BenchmarkParse(b *testing.B) {
	frame := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr("2001:db8::1"), Dst: netip.MustParseAddr("2001:db8::2"),
		Proto: 6, HasPorts: true, SrcPort: 40000, DstPort: 443,
	})
	for b.Loop() {
		packet.Parse(frame)
	}
}
