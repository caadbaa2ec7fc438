// Package hash is the one hash of all of weir's filters: XXH64 under a secret
// seed, and what is derived from its 64 bits. bpf/hash.h is its twin in C.
package hash

import "github.com/cespare/xxhash/v2"

// Sum is XXH64 of b under the seed.
func Sum(seed uint64, b []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.Write(b) // never fails
	return d.Sum64()
}

// Nth derives the i-th of a sequence of independent 64-bit hashes from one
// hash h: the output function of SplitMix64 at state h + i·φ. Nth(h, 0) is a
// remix of h, not h itself.
func Nth(h uint64, i uint64) uint64 {
	z := h + i*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Reduce maps the upper 32 bits of h evenly onto 0…n−1 by a multiplication
// instead of a division (Lemire's fast range). The lower 32 bits stay free for
// other uses of the same hash.
func Reduce(h uint64, n uint32) uint32 {
	return uint32((h >> 32) * uint64(n) >> 32)
}
