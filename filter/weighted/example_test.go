package weighted_test

import (
	"bytes"
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

// Names that end in .example are rarely members and often asked for.
func ExampleNew() {
	universe := weighted.Universe{
		{Count: 1e4, Frequency: 100, Likelihood: 0.001},
		{Count: 1e6, Frequency: 1, Likelihood: 0.01},
	}
	classify := func(name []byte) int {
		if bytes.HasSuffix(name, []byte(".example")) {
			return 0
		}
		return 1
	}
	m, err := universe.Bits(0.001)
	if err != nil {
		log.Fatal(err)
	}
	f, err := weighted.New(universe, classify, m)
	if err != nil {
		log.Fatal(err)
	}
	f.Add([]byte("a.example"))
	f.Add([]byte("b.test"))
	fmt.Println(f.Contains([]byte("a.example")), f.Contains([]byte("c.example")))
	fmt.Printf("%.1f bits a member, k %.1f and %.1f, rate %.4f\n", float64(m)/universe.Members(), f.K()[0], f.K()[1], f.FalsePositiveRate(universe))
	// Output:
	// true false
	// 12.9 bits a member, k 18.9 and 9.0, rate 0.0010
}
