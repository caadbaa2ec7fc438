package counting_test

import (
	"fmt"
	"log"
	"math/rand/v2"

	"weir/filter/bloom"
	"weir/filter/counting"
)

// Elements can be removed from a counting filter.
func ExampleFilter() {
	g, err := bloom.For(5000, 0.01)
	if err != nil {
		log.Fatal(err)
	}
	f := counting.New(g, 0x5eed)
	addr := []byte("192.0.2.1")
	f.Add(addr)
	fmt.Println(f.Contains(addr))
	fmt.Println(f.Remove(addr), f.Contains(addr))
	fmt.Println(f.Remove(addr)) // again
	// Output:
	// true
	// true false
	// false
}

// A spectral filter estimates how often an element was added.
func ExampleMinimumSelection() {
	g, err := bloom.Standard(1<<16, 5)
	if err != nil {
		log.Fatal(err)
	}
	s := counting.NewMinimumSelection(g, 0x5eed)
	for range 3 {
		s.Add([]byte("192.0.2.1"))
	}
	fmt.Println(s.Count([]byte("192.0.2.1")), s.Count([]byte("192.0.2.2")))
	// Output: 3 0
}

// A space-code filter estimates how many packets each flow had.
func ExampleSpaceCode() {
	g, err := bloom.Standard(1<<16, 3)
	if err != nil {
		log.Fatal(err)
	}
	s := counting.NewSpaceCode(g, 0x5eed, 32, 8, rand.NewPCG(1, 2))
	for range 1000 {
		s.Add([]byte("192.0.2.1"))
	}
	n := s.Count([]byte("192.0.2.1"))
	fmt.Println(n > 700 && n < 1300, s.Count([]byte("192.0.2.2")))
	// Output: true 0
}
