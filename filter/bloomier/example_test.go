package bloomier_test

import (
	"fmt"
	"log"

	"weir/filter/bloomier"
	"weir/filter/hash"
)

// A fixed map of names to ports, in 22 bits a cell, without the names.
func Example() {
	const seed = 1
	of := func(name string) uint64 { return hash.Sum(seed, []byte(name)) }
	f, err := bloomier.New([]bloomier.Entry{{of("smtp"), 25}, {of("domain"), 53}}, 6, 16)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(f.Lookup(of("domain")))
	_, ok := f.Lookup(of("gopher"))
	fmt.Printf("%t, wrong once in %.0f\n", ok, 1/f.FalsePositiveRate())
	// Output:
	// 53 true
	// false, wrong once in 65536
}
