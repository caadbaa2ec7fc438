package weighted_test

import (
	"fmt"
	"log"

	"weir/filter/weighted"
)

// A tenth of the elements receives nearly all queries. With more bits for them and
// fewer for the others, the same memory has far fewer false positives.
func ExampleUniverse_Optimal() {
	const members, m = 1e6, 14e6
	u := weighted.Step(1e9, members, 0.1, 1e4)
	k := u.Optimal(m)
	fmt.Printf("k: hot %.1f, cold %.1f\n", k[0], k[1])
	fmt.Printf("rate %.2g, standard filter %.2g\n", u.Rate(m, k), weighted.StandardRate(m, members))
	// Output:
	// k: hot 21.7, cold 8.4
	// rate 3e-06, standard filter 0.0012
}

// Weights assigns the number of hash functions to each element.
func ExampleFilter() {
	hot := weighted.Hot{Cold: 4, K: map[uint64]int{0xbeef: 20}}
	f, err := weighted.New(1<<20, 0x5eed, hot.Weight)
	if err != nil {
		log.Fatal(err)
	}
	f.Add([]byte("192.0.2.1"))
	fmt.Println(f.Contains([]byte("192.0.2.1")), f.ContainsHash(0xbeef))
	// Output: true false
}
