package snapshot_test

import (
	"fmt"
	"log"

	"weir/filter/snapshot"
)

// A set of IPv4 networks of 24 bits, and how many bytes it takes to send it.
func Example() {
	var keys []byte
	for i := range 1000 {
		keys = append(keys, 10, byte(i>>8), byte(i))
	}
	b, err := snapshot.Append(nil, []snapshot.Group{{Tag: 4, Bits: 24, Keys: keys}})
	if err != nil {
		log.Fatal(err)
	}
	set, err := snapshot.Decode(b, 1000)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(keys), len(b) < 200, set[0].Len(), set[0].Key(999))
	// Output: 3000 true 1000 [10 3 231]
}
