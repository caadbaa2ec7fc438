package fpr

import (
	"math"
	"math/big"
)

// Blocked returns the exact false-positive rate of a blocked Bloom filter
// (Putze, Sanders and Singler, "Cache-, hash- and space-efficient Bloom
// filters", 2007): an array of blocks of width bits each, in which a key
// chooses one block and then k bits of it, all uniformly and independently. It
// panics unless blocks and width are positive.
//
// The paper sums the rate of one block over its load, which it takes to be
// Poisson with mean n/blocks. The load is really binomial, and the sum has the
// closed form of [Exact], with the probability that one key misses i given bits
// of a block,
//
//	1 − (1 − (1 − i/width)^k)/blocks,
//
// instead of (1 − i/m)^k.
func Blocked(blocks, width, n, k int) float64 {
	check(blocks, n, k)
	check(width, n, k)
	prec := precision(k, float64(n), leastBlocked(blocks, width, n, k))
	return query(width, k, func(i int) *big.Float {
		return missAll(power(ratio(width-i, width, prec), k), blocks, n)
	})
}

// Split returns the exact false-positive rate of a split block Bloom filter (8
// lanes of 32 bits is the filter of Apache Parquet): an array of blocks of
// lanes·width bits each, in which a key chooses one block and then one bit in
// each lane, uniformly and independently. It panics unless blocks and width are
// positive and lanes is not negative.
func Split(blocks, lanes, width, n int) float64 {
	check(blocks, n, lanes)
	check(width, n, lanes)
	prec := precision(lanes, float64(n), leastBlocked(blocks, width, n, lanes))
	// The lanes keep a query's bits distinct: all of them are tested.
	return allSet(lanes, func(i int) *big.Float {
		return missAll(power(ratio(width-1, width, prec), i), blocks, n)
	})[lanes]
}

// leastBlocked returns a lower bound of the rate of both layouts: some member
// is in the query's block and, bit by bit, sets the very bits that the query
// tests.
func leastBlocked(blocks, width, n, k int) float64 {
	return hit(1/float64(blocks), float64(n)) * math.Pow(float64(width), -float64(k))
}

// missAll overwrites miss, the probability that a key in the query's block
// misses given bits of it, with the probability that n keys in any block do,
// and returns it.
func missAll(miss *big.Float, blocks, n int) *big.Float {
	one := big.NewFloat(1)
	miss.Sub(one, miss)
	miss.Quo(miss, new(big.Float).SetInt64(int64(blocks)))
	return power(miss.Sub(one, miss), n)
}
