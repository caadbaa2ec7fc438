// Package hash has the hash functions of weir's filters: Secret, whose collisions
// are bounded for keys chosen without it, XXH64 with a seed, and the values derived
// from their 64 bits. bpf/universal.h and bpf/hash.h are its twins in C.
package hash

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// From the specification of XXH64.
const (
	stripe = 32 // bytes read at a time

	prime1 uint64 = 0x9e3779b185ebca87
	prime2 uint64 = 0xc2b2ae3d27d4eb4f
	prime3 uint64 = 0x165667b19e3779f9
	prime4 uint64 = 0x85ebca77c2b2ae63
	prime5 uint64 = 0x27d4eb2f165667c5
)

// Sum returns XXH64 of b with the seed. Inputs shorter than a stripe, as most
// keys are, are hashed inline: the library takes a seed only through a Digest,
// which is twice as slow for so few bytes.
func Sum(seed uint64, b []byte) uint64 {
	if len(b) >= stripe {
		return sumLong(seed, b)
	}
	h := seed + prime5 + uint64(len(b))
	for ; len(b) >= 8; b = b[8:] {
		lane := bits.RotateLeft64(binary.LittleEndian.Uint64(b)*prime2, 31) * prime1
		h = bits.RotateLeft64(h^lane, 27)*prime1 + prime4
	}
	if len(b) >= 4 {
		h = bits.RotateLeft64(h^uint64(binary.LittleEndian.Uint32(b))*prime1, 23)*prime2 + prime3
		b = b[4:]
	}
	for _, x := range b {
		h = bits.RotateLeft64(h^uint64(x)*prime5, 11) * prime1
	}
	return avalanche(h)
}

// avalanche is a bijection: each step is one.
func avalanche(h uint64) uint64 {
	h = (h ^ h>>33) * prime2
	h = (h ^ h>>29) * prime3
	return h ^ h>>32
}

func sumLong(seed uint64, b []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	_, _ = d.Write(b) // never fails
	return d.Sum64()
}

// Nth returns the i-th of a sequence of independent 64-bit hashes derived from
// one hash h: the output function of SplitMix64 at state h + i·φ. Nth(h, 0) is
// a remix of h, not h itself.
func Nth(h uint64, i uint64) uint64 {
	z := h + i*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Reduce maps the upper 32 bits of h uniformly onto 0…n−1 by a multiplication
// instead of a division (Lemire's fast range). The lower 32 bits remain free
// for other uses of the same hash.
func Reduce(h uint64, n uint32) uint32 {
	return uint32((h >> 32) * uint64(n) >> 32)
}
