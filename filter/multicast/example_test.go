package multicast_test

import (
	"fmt"
	"log"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/multicast"
)

// Port 2 wants a group; packets to it are copied there and nowhere else.
func ExampleTable() {
	layout := multicast.Plan(4, 100)
	table, err := multicast.NewTable(layout, hash.NewSecret(hash.Seed{1}), make([]uint64, layout.Words()))
	if err != nil {
		log.Fatal(err)
	}
	group := netip.MustParseAddr("239.1.2.3")
	if _, err := table.Add(2, group); err != nil {
		log.Fatal(err)
	}
	if table.Copies(group) {
		for port := 1; port <= layout.Ports; port++ {
			fmt.Println(port, table.Passes(port, group))
		}
	}
	// Output:
	// 1 false
	// 2 true
	// 3 false
	// 4 false
}
