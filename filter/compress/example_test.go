package compress_test

import (
	"fmt"
	"log"

	"weir/filter/bloom"
	"weir/filter/compress"
)

// Table 1 of the survey: with 16 transmitted bits per element, a sparse filter of
// 140 bits per element in memory beats the standard filter's 0.000459.
func Example() {
	const n = 10_000
	plan, err := compress.Optimal(n, 16*n, 140*n)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("k = %d, rate %.6f\n", plan.Geometry.K(), plan.Rate)

	f := bloom.New(plan.Geometry, 0x5eed)
	for i := range n {
		f.Add(fmt.Append(nil, i))
	}
	sent := compress.Encode(f)
	fmt.Printf("%d KB in memory, %d KB sent\n", 8*len(f.Words())/1000, len(sent)/1000)

	g, err := compress.Decode(sent, plan.Geometry.M())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(g.Equal(f))
	// Output:
	// k = 3, rate 0.000200
	// 62 KB in memory, 20 KB sent
	// true
}
