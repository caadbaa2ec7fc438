package blocked_test

import (
	"fmt"

	"weir/filter/blocked"
	"weir/filter/hash"
)

// Find elements that occur again.
func Example() {
	f := blocked.New(blocked.Geometry{Lines: 16, Bits: 4})
	for _, flow := range []string{"a to b", "b to c", "a to b"} {
		if f.Observe(hash.Sum(0, []byte(flow))) {
			fmt.Println(flow)
		}
	}
	// Output: a to b
}
