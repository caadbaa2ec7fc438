package reconcile_test

import (
	"fmt"
	"log"
	"slices"
	"time"

	"weir/filter/bloom"
	"weir/filter/reconcile"
)

// B sends a filter of its set; A answers with what B lacks.
func ExampleDifference() {
	g, err := bloom.Standard(1024, 7)
	if err != nil {
		log.Fatal(err)
	}
	a := [][]byte{[]byte("192.0.2.1"), []byte("192.0.2.2"), []byte("192.0.2.3")}
	b := bloom.New(g, 0x5eed)
	b.Add([]byte("192.0.2.2"))

	for e := range reconcile.Difference(slices.Values(a), b) {
		fmt.Printf("%s\n", e)
	}
	// Output:
	// 192.0.2.1
	// 192.0.2.3
}

// A replica follows a changing set by small deltas.
func ExampleReplica() {
	g, err := bloom.Standard(1<<16, 7)
	if err != nil {
		log.Fatal(err)
	}
	now := time.Unix(1_700_000_000, 0)
	p := reconcile.NewPublisher(g, 0x5eed, uint64(now.Unix()))
	r := reconcile.NewReplica(g.M(), time.Hour)
	element := []byte("192.0.2.1")
	fmt.Println(r.Lookup(element, now))

	p.Insert(element)
	if err := r.Apply(p.Publish(), now); err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Lookup(element, now))

	if err := p.Delete(element); err != nil {
		log.Fatal(err)
	}
	delta := p.Publish()
	if err := r.Apply(delta, now); err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Lookup(element, now), len(delta), "bytes")
	fmt.Println(r.Lookup(element, now.Add(2*time.Hour)))
	// Output:
	// unknown
	// present
	// absent 60 bytes
	// unknown
}
