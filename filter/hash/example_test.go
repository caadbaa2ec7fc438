package hash_test

import (
	"fmt"

	"weir/filter/hash"
)

// Bytes are hashed once; positions are derived from the hash.
func ExampleReduce() {
	h := hash.Sum(1, []byte("192.0.2.1"))
	for i := range uint64(3) {
		fmt.Println(hash.Reduce(hash.Nth(h, i), 1000))
	}
	// Output:
	// 750
	// 248
	// 240
}
