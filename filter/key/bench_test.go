package key_test

import (
	"net/netip"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
)

func BenchmarkKey(b *testing.B) {
	s := hash.NewSecret(hash.Seed{1})
	packet := key.Tuple{
		Src: netip.MustParseAddr("192.0.2.77"), Dst: netip.MustParseAddr("198.51.100.7"),
		Proto: 6, HasPorts: true, SrcPort: 40000, DstPort: 443,
	}
	shape := key.Shape{Fields: key.FieldProto | key.FieldDstPort, SrcBits: 32, DstBits: 24}
	for b.Loop() {
		k, _ := shape.Of(packet)
		k.Hash(s)
	}
}
