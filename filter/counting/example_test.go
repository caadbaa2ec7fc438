package counting_test

import (
	"errors"
	"fmt"
	"log"
	"math/rand/v2"

	"weir/filter/bloom"
	"weir/filter/counting"
)

// Elements can be deleted from a counting filter.
func ExampleFilter() {
	g, err := bloom.Standard(1<<16, 7)
	if err != nil {
		log.Fatal(err)
	}
	f := counting.New(g, 0x5eed)
	addr := []byte("192.0.2.1")
	f.Insert(addr)
	fmt.Println(f.Contains(addr))
	fmt.Println(f.Delete(addr), f.Contains(addr))
	fmt.Println(errors.Is(f.Delete(addr), counting.ErrAbsent))
	// Output:
	// true
	// <nil> false
	// true
}

// A spectral filter estimates how often an element was inserted.
func ExampleMinimumSelection() {
	g, err := bloom.Standard(1<<16, 5)
	if err != nil {
		log.Fatal(err)
	}
	s := counting.NewMinimumSelection(g, 0x5eed)
	for range 3 {
		s.Insert([]byte("192.0.2.1"))
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
		s.Insert([]byte("192.0.2.1"))
	}
	n := s.Count([]byte("192.0.2.1"))
	fmt.Println(n > 700 && n < 1300, s.Count([]byte("192.0.2.2")))
	// Output: true 0
}
