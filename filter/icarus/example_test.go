package icarus_test

import (
	"fmt"
	"log"

	"weir/filter/icarus"
)

// Find the smallest filter for paths of up to 16 nodes with at most one false alarm
// in a thousand packets, and detect a loop with it.
func Example() {
	g, rate, err := icarus.Choose(16, 1e-3)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bits, %d per node, confirm %d: false alarms %.1e\n", g.Size, g.K, g.Confirm, rate)

	var packet icarus.Trace
	for hop, node := range []uint64{1, 2, 3, 2, 3, 2} {
		mask, err := icarus.Mask(0x5eed, node, g.Size, g.K)
		if err != nil {
			log.Fatal(err)
		}
		if packet.Visit(mask, g.Confirm) {
			fmt.Printf("loop at hop %d, node %d\n", hop, node)
			break
		}
	}
	// Output:
	// 256 bits, 12 per node, confirm 1: false alarms 5.8e-04
	// loop at hop 3, node 2
}
