package membership_test

import (
	"fmt"
	"log"
	"net/netip"

	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/membership"
)

// List a prefix, and match packets against it.
func ExampleSet() {
	listed := key.Source(netip.MustParsePrefix("192.0.2.0/24"))
	census := membership.Census{Keys: map[key.Shape]int{listed.Shape: 1}, Highest: 7}
	layout, err := membership.PlanLayout(census, membership.Exact, 0, hash.NewSecret(hash.NewSeed()))
	if err != nil {
		log.Fatal(err)
	}
	set, err := membership.NewSet(layout, layout.Alloc())
	if err != nil {
		log.Fatal(err)
	}
	if err := set.Add(listed, 7); err != nil {
		log.Fatal(err)
	}
	for _, src := range []string{"192.0.2.1", "198.51.100.1"} {
		fmt.Println(set.Match(key.Tuple{Src: netip.MustParseAddr(src), Dst: netip.IPv4Unspecified()}))
	}
	// Output:
	// 7 true
	// 0 false
}
