package quotient

import (
	"crypto/rand"
	"encoding/binary"
)

// Secret is the secret of one generation: the constants of a bijection. The
// multipliers are odd. Of each number, the lower KeyBits of the layout count.
type Secret struct {
	Xor uint64
	Mul [3]uint64
}

// NewSecret returns a random secret.
func NewSecret() Secret {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return secretFrom(b)
}

func secretFrom(b [32]byte) Secret {
	return Secret{
		Xor: binary.LittleEndian.Uint64(b[0:]),
		Mul: [3]uint64{
			binary.LittleEndian.Uint64(b[8:]) | 1,
			binary.LittleEndian.Uint64(b[16:]) | 1,
			binary.LittleEndian.Uint64(b[24:]) | 1,
		},
	}
}

func (s *Secret) valid() bool { return s.Mul[0]&s.Mul[1]&s.Mul[2]&1 == 1 }

// permute returns the image of a key.
func (s *Set) permute(k uint64) uint64 {
	m := &s.secret.Mul
	p := (k ^ s.secret.Xor) * m[0] & s.keyMask
	p = (p ^ p>>16) * m[1] & s.keyMask
	return (p ^ p>>15) * m[2] & s.keyMask
}

// inverter inverts the bijection.
type inverter struct {
	xor  uint64
	mul  [3]uint64
	mask uint64
}

func (s *Set) inverter() inverter {
	m := &s.secret.Mul
	return inverter{s.secret.Xor, [3]uint64{inverse(m[0]), inverse(m[1]), inverse(m[2])}, s.keyMask}
}

// key returns the key whose image is p.
func (v inverter) key(p uint64) uint64 {
	p = p * v.mul[2] & v.mask
	p = (p ^ p>>15 ^ p>>30 ^ p>>45) * v.mul[1] & v.mask
	return (p^p>>16^p>>32)*v.mul[0]&v.mask ^ v.xor
}

// inverse returns the inverse of the odd number m modulo 2^64, by Newton's
// iteration: m is its own inverse in the lowest three bits, and each step
// doubles the number of right bits.
func inverse(m uint64) uint64 {
	x := m
	for range 5 {
		x *= 2 - m*x
	}
	return x
}
