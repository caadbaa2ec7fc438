package sfb_test

import (
	"fmt"
	"log"
	"math/rand/v2"
	"time"

	"weir/filter/sfb"
)

// A flow that keeps sending without being served fills its bins, and only its own
// packets are dropped.
func ExampleQueue() {
	now := time.Unix(0, 0)
	q, err := sfb.New[string](sfb.Linux(), rand.NewPCG(1, 2), now)
	if err != nil {
		log.Fatal(err)
	}
	var last sfb.Verdict
	for range 100 {
		last = q.Enqueue("flood", 0xf100d, false, now)
	}
	fmt.Println(last, q.Len())
	fmt.Println(q.Enqueue("web", 0x3eb, false, now))
	// Output:
	// bin drop 25
	// queued
}
