package penalty_test

import (
	"fmt"
	"log"
	"time"

	"weir/filter/penalty"
)

// Limit a flow to two packets per second for a minute.
func ExampleTable() {
	table, err := penalty.NewTable(make([]uint64, 16*penalty.BucketWords))
	if err != nil {
		log.Fatal(err)
	}
	const flow = 0xf10e // the hash of its key
	table.Set(flow, penalty.Penalty{Until: time.Minute, Rate: 2, Burst: 1})
	for ms := range 10 {
		at := time.Duration(ms) * 100 * time.Millisecond
		if table.Check(flow, 1, at) == penalty.None {
			fmt.Println(at, "passes")
		}
	}
	fmt.Println(table.Check(flow, 1, time.Minute) == penalty.None)
	// Output:
	// 0s passes
	// 500ms passes
	// true
}
