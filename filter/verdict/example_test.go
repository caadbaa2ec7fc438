package verdict_test

import (
	"fmt"
	"log"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
)

// Failsafe ports pass before the block list.
func ExampleProgram_Decide() {
	listed := key.Source(netip.MustParsePrefix("192.0.2.0/24"))
	layout, err := membership.PlanLayout(membership.Census{Keys: map[key.Shape]int{listed.Shape: 1}}, membership.Exact, 0, hash.NewSecret(hash.Seed{1}))
	if err != nil {
		log.Fatal(err)
	}
	block, err := membership.NewSet(layout, layout.Alloc())
	if err != nil {
		log.Fatal(err)
	}
	if err := block.Add(listed, 1); err != nil {
		log.Fatal(err)
	}
	p := verdict.Program{
		Policy: verdict.Policy{FailsafePorts: []verdict.FailsafePort{{Proto: 6, Port: 22}}},
		Block:  block,
	}
	for _, port := range []uint16{22, 80} {
		o := p.Decide(packet.Frame(key.Tuple{
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("198.51.100.7"),
			Proto: 6, HasPorts: true, SrcPort: 40000, DstPort: port,
		}))
		fmt.Println(port, o.Action, o.Reason, o.List)
	}
	// Output:
	// 22 pass failsafe 0
	// 80 drop blocked 1
}
