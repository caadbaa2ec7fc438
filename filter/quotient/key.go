package quotient

import (
	"crypto/rand"
	"encoding/binary"
)

// Key is the secret of one generation: the constants of a bijection on 32 bits.
// The multipliers are odd.
type Key struct {
	Xor uint32
	Mul [3]uint32
}

// NewKey returns a random key.
func NewKey() Key {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return keyFrom(b)
}

func keyFrom(b [16]byte) Key {
	return Key{
		Xor: binary.LittleEndian.Uint32(b[0:]),
		Mul: [3]uint32{
			binary.LittleEndian.Uint32(b[4:]) | 1,
			binary.LittleEndian.Uint32(b[8:]) | 1,
			binary.LittleEndian.Uint32(b[12:]) | 1,
		},
	}
}

func (k *Key) valid() bool { return k.Mul[0]&k.Mul[1]&k.Mul[2]&1 == 1 }

// Permute returns the image of the address a.
func (k *Key) Permute(a uint32) uint32 {
	p := (a ^ k.Xor) * k.Mul[0]
	p = (p ^ p>>16) * k.Mul[1]
	return (p ^ p>>15) * k.Mul[2]
}

// Invert returns the address whose image is p.
func (k *Key) Invert(p uint32) uint32 {
	return inverter{k.Xor, [3]uint32{inverse(k.Mul[0]), inverse(k.Mul[1]), inverse(k.Mul[2])}}.address(p)
}

// inverter is a key prepared for many calls of Invert.
type inverter struct {
	xor uint32
	mul [3]uint32
}

func (v inverter) address(p uint32) uint32 {
	p *= v.mul[2]
	p = (p ^ p>>15 ^ p>>30) * v.mul[1]
	return (p^p>>16)*v.mul[0] ^ v.xor
}

// inverse returns the inverse of the odd number m modulo 2^32, by Newton's
// iteration: m is its own inverse in the lowest three bits, and each step
// doubles the number of right bits.
func inverse(m uint32) uint32 {
	x := m
	for range 4 {
		x *= 2 - m*x
	}
	return x
}
