package sketch_test

import (
	"fmt"
	"log"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/sketch"
)

// Find the sources with at least 1 % of the packets, in 64 KB.
func ExampleMultistage() {
	m, err := sketch.NewMultistage(sketch.Tracker{
		V4:       key.Shape{SrcBits: 32},
		V6:       key.Shape{Fields: key.FieldV6, SrcBits: 64},
		Unit:     sketch.Packets,
		Secret:   hash.NewSecret(hash.Seed{1}),
		Geometry: sketch.PlanGeometry(64 << 10),
	}, sketch.Threshold{Units: 100, Share: 0.01})
	if err != nil {
		log.Fatal(err)
	}
	for i := range uint32(100_000) {
		src := netip.AddrFrom4([4]byte{10, 0, byte(i % 4000 >> 8), byte(i % 4000)})
		if i%50 == 0 {
			src = netip.MustParseAddr("192.0.2.1")
		}
		m.Count(key.Tuple{Src: src, Dst: netip.MustParseAddr("198.51.100.7"), Proto: 17}, 64)
	}
	for f := range m.Heavy() {
		fmt.Printf("%v: %d to %d packets\n", f.Key, f.Exact(sketch.Packets), f.Estimate(sketch.Packets))
	}
	fmt.Printf("about %.0f sources\n", sketch.Distinct(m.Bank))
	// Output:
	// 192.0.2.1: 1951 to 2000 packets
	// about 3895 sources
}

// A count-min sketch, dimensioned for an error of at most 0.1 % of the total with
// probability 99 %.
func ExampleSketch() {
	rows, width := sketch.Dimensions(0.001, 0.01)
	s, err := sketch.New[uint64](sketch.Rows, rows, width)
	if err != nil {
		log.Fatal(err)
	}
	for h := range uint64(10) {
		s.Add(h, 1500*h)
	}
	fmt.Println(rows, width, s.Estimate(7), s.Estimate(99))
	// Output: 5 2719 10500 0
}
