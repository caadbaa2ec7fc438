package icarus

import (
	"encoding/binary"
	"math/bits"
)

// Key is the secret that the nodes of a domain share.
type Key [16]byte

// sum returns SipHash-2-4 of b with the key (Aumasson and Bernstein, "SipHash:
// a fast short-input PRF", 2012). Its twin is in bpf/siphash.h.
func (k Key) sum(b []byte) uint64 {
	k0, k1 := binary.LittleEndian.Uint64(k[:]), binary.LittleEndian.Uint64(k[8:])
	// The constants spell "somepseudorandomlygeneratedbytes".
	v := [4]uint64{k0 ^ 0x736f6d6570736575, k1 ^ 0x646f72616e646f6d, k0 ^ 0x6c7967656e657261, k1 ^ 0x7465646279746573}
	absorb := func(word uint64) {
		v[3] ^= word
		sipRound(&v)
		sipRound(&v)
		v[0] ^= word
	}
	last := uint64(len(b)) << 56
	for ; len(b) >= 8; b = b[8:] {
		absorb(binary.LittleEndian.Uint64(b))
	}
	for i, x := range b {
		last |= uint64(x) << (8 * i)
	}
	absorb(last)
	v[2] ^= 0xff
	for range 4 {
		sipRound(&v)
	}
	return v[0] ^ v[1] ^ v[2] ^ v[3]
}

func sipRound(v *[4]uint64) {
	v[0] += v[1]
	v[1] = bits.RotateLeft64(v[1], 13) ^ v[0]
	v[0] = bits.RotateLeft64(v[0], 32)
	v[2] += v[3]
	v[3] = bits.RotateLeft64(v[3], 16) ^ v[2]
	v[0] += v[3]
	v[3] = bits.RotateLeft64(v[3], 21) ^ v[0]
	v[2] += v[1]
	v[1] = bits.RotateLeft64(v[1], 17) ^ v[2]
	v[2] = bits.RotateLeft64(v[2], 32)
}
