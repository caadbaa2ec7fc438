package cuckoo_test

import (
	"fmt"
	"log"

	"weir/filter/cuckoo"
	"weir/filter/hash"
)

// A table remembers a number for each key, and its keys can be removed.
func Example() {
	const seed = 1
	of := func(name string) uint64 { return hash.Sum(seed, []byte(name)) }
	table := cuckoo.New(1000)
	for list, name := range []string{"a.example", "b.example"} {
		if err := table.Add(of(name), uint16(list+1)); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(table.Lookup(of("b.example")))
	fmt.Println(table.Remove(of("b.example")), table.Contains(of("b.example")))
	// Output:
	// 2 true
	// true false
}
