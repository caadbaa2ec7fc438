package prefix_test

import (
	"fmt"

	"weir/filter/prefix"
)

// Entries of four prefix lengths, in at most 2000 entries of as few lengths as possible.
func ExamplePlan() {
	var h prefix.Histogram
	h[16], h[20], h[22], h[24] = 1, 10, 30, 1000
	levels := prefix.Plan(&h, 2000, 8)
	fmt.Println(levels, levels.Expanded(&h))
	// Output: [24] 1536
}
