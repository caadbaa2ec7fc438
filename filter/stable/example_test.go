package stable_test

import (
	"fmt"
	"log"
	"math/rand/v2"

	"weir/filter/stable"
)

// A stable Bloom filter in 64 KB detects duplicates in an endless stream with a
// constant false-positive rate.
func ExampleFilter() {
	p := stable.Within(stable.SBF, 64<<10, 3, 4, 100)
	f, err := stable.New(p, rand.NewPCG(1, 2))
	if err != nil {
		log.Fatal(err)
	}
	rate, err := p.FalsePositive(p.Uniform())
	if err != nil {
		log.Fatal(err)
	}
	items := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		f.Observe(items.Uint64(), 1)
	}
	fmt.Println(f.Observe(42, 1), f.Observe(42, 1))
	fmt.Printf("false positives %.3f\n", rate)
	// Output:
	// false true
	// false positives 0.003
}
