package multicast_test

import (
	"net/netip"
	"testing"

	"weir/filter/hash"
	"weir/filter/multicast"
)

func BenchmarkTable(b *testing.B) {
	layout := multicast.Plan(8, 1000)
	table, err := multicast.NewTable(layout, hash.NewSecret(hash.Seed{1}), make([]uint64, layout.Words()))
	if err != nil {
		b.Fatal(err)
	}
	group := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{239, 1, byte(i >> 8), byte(i)}) }
	for i := range 1000 {
		if _, err := table.Add(1+i%8, group(i)); err != nil {
			b.Fatal(err)
		}
	}
	for i := 0; b.Loop(); i++ {
		if g := group(i % 2000); table.Copies(g) {
			for port := 1; port <= layout.Ports; port++ {
				table.Passes(port, g)
			}
		}
	}
}
