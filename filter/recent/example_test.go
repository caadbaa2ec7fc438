package recent_test

import (
	"fmt"

	"weir/filter/hash"
	"weir/filter/recent"
)

// An item is remembered for one to two generations, which the caller turns.
func Example() {
	f := recent.New(16)
	flow := hash.Sum(1, []byte("192.0.2.1 to 203.0.113.7"))
	for range 3 {
		known, _ := f.Observe(flow, 1)
		fmt.Println(known)
		f.Turn()
	}
	f.Turn()
	known, _ := f.Observe(flow, 1)
	fmt.Println(known)
	// Output:
	// false
	// true
	// true
	// false
}
