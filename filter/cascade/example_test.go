package cascade_test

import (
	"fmt"

	"weir/filter/cascade"
	"weir/filter/fpr"
	"weir/filter/hash"
)

// The best cascade for 1000 keys in 20 lines. What was added can be removed.
func Example() {
	l := fpr.BestCascade(1000, 20, fpr.MaxFurther)
	c := cascade.New(make([]uint64, l.Lines*cascade.LineWords), l.First, l.Rest)
	for i := range uint64(1000) {
		c.Add(hash.Nth(1, i))
	}
	fmt.Println(c.Contains(hash.Nth(1, 7)))
	c.Remove(hash.Nth(1, 7))
	fmt.Println(c.Contains(hash.Nth(1, 7)))
	fmt.Printf("%d and %d bits a key, rate %.4f\n", l.First, l.Rest, l.Rate(1000))
	// Output:
	// true
	// false
	// 5 and 2 bits a key, rate 0.0078
}
