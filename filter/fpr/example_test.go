package fpr_test

import (
	"fmt"

	"weir/filter/fpr"
)

// The classic formula is too low for small filters.
func Example() {
	fmt.Printf("classic %.4g, exact %.4g\n", fpr.Classic(32, 2, 11), fpr.Exact(32, 2, 11))
	k, rate := fpr.BestK(16_000, 1000)
	fmt.Printf("16 bits a key: k = %d, rate %.3g\n", k, rate)
	m, k := fpr.Smallest(1000, 0.01)
	fmt.Printf("rate 1 %%: %.2f bits a key, k = %d\n", float64(m)/1000, k)
	// Output:
	// classic 0.0005176, exact 0.0008278
	// 16 bits a key: k = 11, rate 0.000459
	// rate 1 %: 9.60 bits a key, k = 7
}
