package verdict_test

import (
	"net/netip"
	"testing"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
)

func BenchmarkDecide(b *testing.B) {
	listed := key.Source(netip.MustParsePrefix("192.0.2.0/24"))
	layout, err := membership.PlanLayout(membership.Census{Keys: map[key.Shape]int{listed.Shape: 1}}, membership.Exact, 0, hash.NewSecret(hash.Seed{1}))
	if err != nil {
		b.Fatal(err)
	}
	block, err := membership.NewSet(layout, layout.Alloc())
	if err != nil {
		b.Fatal(err)
	}
	if err := block.Add(listed, 1); err != nil {
		b.Fatal(err)
	}
	p := verdict.Program{Block: block}
	frame := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("203.0.113.7"),
		Proto: 6, HasPorts: true, SrcPort: 40000, DstPort: 443,
	})
	for b.Loop() {
		if o := p.Decide(frame); o.Reason == verdict.Blocked {
			b.Fatal("an address that is not listed is dropped")
		}
	}
}
