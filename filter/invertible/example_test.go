package invertible_test

import (
	"fmt"

	"weir/filter/hash"
	"weir/filter/invertible"
)

// Two nodes with a million elements each find the one that differs, by tables of 72
// kilobytes.
func Example() {
	const seed = 1
	mine, _ := invertible.New(make([]uint64, invertible.Words(10)))
	theirs, _ := invertible.New(make([]uint64, invertible.Words(10)))
	for i := range 1_000_000 {
		h := hash.Sum(seed, fmt.Append(nil, i))
		mine.Add(h)
		theirs.Add(h)
	}
	mine.Add(hash.Sum(seed, []byte("new")))
	added, removed, ok := mine.Minus(theirs).List()
	fmt.Println(len(added), len(removed), ok, added[0] == hash.Sum(seed, []byte("new")))
	// Output: 1 0 true true
}
