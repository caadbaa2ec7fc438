package bloom_test

import (
	"fmt"
	"log"
	"math"

	"weir/filter/bloom"
)

// Size a filter for a number of elements and a false-positive rate.
func Example() {
	const n, eps = 1_000_000, 1e-3
	m := uint32(math.Ceil(bloom.Bits(n, eps)))
	g, err := bloom.Standard(m, bloom.OptimalK(m, n))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d bits, %d hash functions, rate %.2e\n", g.M(), g.K(), g.FalsePositiveRate(n))

	f := bloom.New(g, 0x5eed)
	f.Add([]byte("192.0.2.1"))
	fmt.Println(f.Contains([]byte("192.0.2.1")), f.Contains([]byte("198.51.100.7")))
	// Output:
	// 14377588 bits, 10 hash functions, rate 1.00e-03
	// true false
}
