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

	p.Add(element)
	if err := r.Apply(p.Publish(), now); err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.Lookup(element, now))

	p.Remove(element)
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

// B sends a summary of its tree; A finds what B lacks without looking at all it has.
func ExampleTree() {
	inner, err := bloom.Standard(8192, 5)
	if err != nil {
		log.Fatal(err)
	}
	var a, b [][]byte
	for i := range 1000 {
		e := fmt.Append(nil, i)
		if a = append(a, e); i != 500 {
			b = append(b, e)
		}
	}
	summary := reconcile.NewTree(0x5eed, slices.Values(b)).Summary(inner, inner)
	ours := reconcile.NewTree(0x5eed, slices.Values(a))
	visited := 0
	for e := range ours.Missing(summary, 2, &visited) {
		fmt.Printf("%s\n", e)
	}
	fmt.Println(visited < 100)
	// Output:
	// 500
	// true
}

// Who lives in a city where living is dear? One host knows the cities, another the
// people.
func ExampleSemijoin() {
	g, err := bloom.Standard(1024, 7)
	if err != nil {
		log.Fatal(err)
	}
	dear := []reconcile.Row{{Key: []byte("Zürich"), Value: []byte("61,000")}}
	people := []reconcile.Row{
		{Key: []byte("Zürich"), Value: []byte("Anna")},
		{Key: []byte("Chemnitz"), Value: []byte("Bruno")},
	}
	keys := bloom.New(g, 0x5eed) // goes to the second host
	for _, r := range dear {
		keys.Add(r.Key)
	}
	candidates := reconcile.Semijoin(slices.Values(people), keys) // go back
	for p := range reconcile.Join(slices.Values(dear), candidates) {
		fmt.Printf("%s lives in %s (%s)\n", p.Right, p.Key, p.Left)
	}
	// Output: Anna lives in Zürich (61,000)
}

// Records that have not changed are read from the main file alone.
func ExampleDifferential() {
	g, err := bloom.Standard(1024, 7)
	if err != nil {
		log.Fatal(err)
	}
	main := func(key []byte) ([]byte, bool) { return []byte("as of last night"), true }
	d := reconcile.NewDifferential(g, 0x5eed, main)
	d.Put([]byte("account 1"), []byte("as of today"))
	for _, key := range []string{"account 1", "account 2"} {
		record, _, searched := d.Get([]byte(key))
		fmt.Printf("%s: %s; searched the changes: %t\n", key, record, searched)
	}
	// Output:
	// account 1: as of today; searched the changes: true
	// account 2: as of last night; searched the changes: false
}
