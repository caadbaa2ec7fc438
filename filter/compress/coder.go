package compress

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// interval is the state of a binary arithmetic coder: the numbers low…high,
// read as fractions of 2⁶⁴, that encode the bits so far. Each bit narrows it in
// proportion to the bit's probability. Leading bytes in which low and high
// agree are final and shifted out.
//
// Rarely, low and high differ in their first byte although they are close, and
// probabilities are rounded coarsely. That costs less than 10⁻⁶ of the length,
// and never correctness, because no part of an interval is ever empty.
type interval struct{ low, high uint64 }

var unit = interval{0, math.MaxUint64}

// one returns the last number of the part for a 1-bit of probability p/2⁶⁴. The
// part for a 0-bit begins after it.
func (v interval) one(p uint64) uint64 {
	part, _ := bits.Mul64(v.high-v.low, p)
	return v.low + part
}

// settled reports whether all numbers of the interval have the same leading
// byte.
func (v interval) settled() bool { return (v.low^v.high)>>56 == 0 }

// shift removes the leading byte.
func (v interval) shift() interval { return interval{v.low << 8, v.high<<8 | 0xff} }

// appendShortest appends the shortest byte string which, followed by zeros,
// lies in the interval.
func (v interval) appendShortest(b []byte) []byte {
	for n := 0; ; n++ {
		rest := uint64(math.MaxUint64) >> (8 * n)
		if x := (v.low + rest) &^ rest; v.low <= x && x <= v.high {
			return append(b, binary.BigEndian.AppendUint64(nil, x)[:n]...)
		}
	}
}

// probability returns ones/n in units of 2⁻⁶⁴, for 0 < ones < n.
func probability(ones, n uint32) uint64 {
	p, _ := bits.Div64(uint64(ones), 0, uint64(n))
	return p
}

// onesLen is the size in bytes of the number of ones, which precedes the code.
const onesLen = 4

// AppendBits appends n entropy-coded bits to b: bit i is bit i%64 of
// words[i/64], and bits from n on must be zero. The encoding is the number of
// ones, 4 bytes in little-endian order, followed by an arithmetic code in which
// each bit is a one with probability ones/n: together 32 + n·H(ones/n) bits,
// rounded up to the next byte or the one after, where H is the entropy of
// section 2.6.
func AppendBits(b []byte, words []uint64, n uint32) []byte {
	ones := count(words)
	b = binary.LittleEndian.AppendUint32(b, ones)
	if ones == 0 || ones == n {
		return b // all bits are equal: the number of ones suffices
	}
	p, v := probability(ones, n), unit
	for i := range n {
		mid := v.one(p)
		if words[i/64]>>(i%64)&1 == 1 {
			v.high = mid
		} else {
			v.low = mid + 1
		}
		for v.settled() {
			b = append(b, byte(v.low>>56))
			v = v.shift()
		}
	}
	return v.appendShortest(b)
}

// DecodeBits decodes n bits, the inverse of [AppendBits]. It fails on anything
// that AppendBits does not produce for n bits. It allocates n bits whatever b
// contains, so the caller must know or limit n.
func DecodeBits(b []byte, n uint32) ([]uint64, error) {
	if len(b) < onesLen {
		return nil, fmt.Errorf("compress: decode bits: %d bytes, need at least %d", len(b), onesLen)
	}
	ones, code := binary.LittleEndian.Uint32(b), b[onesLen:]
	words := make([]uint64, (int(n)+63)/64)
	switch {
	case ones > n:
		return nil, fmt.Errorf("compress: decode bits: %d ones in %d bits", ones, n)
	case ones == 0 || ones == n:
		if len(code) > 0 {
			return nil, fmt.Errorf("compress: decode bits: %d extra bytes", len(code))
		}
		if ones > 0 {
			fill(words, n)
		}
		return words, nil
	}
	p, v := probability(ones, n), unit
	var x uint64 // the eight bytes of the code that follow those shifted out
	for i := range 8 {
		x = x<<8 | at(code, i)
	}
	shifted := 0
	for i := range n {
		if mid := v.one(p); x <= mid {
			v.high = mid
			words[i/64] |= 1 << (i % 64)
		} else {
			v.low = mid + 1
		}
		for v.settled() {
			v, x = v.shift(), x<<8|at(code, shifted+8)
			shifted++
		}
	}
	if got := count(words); got != ones {
		return nil, fmt.Errorf("compress: decode bits: %d ones, want %d", got, ones)
	}
	if shifted > len(code) || !bytes.Equal(code[shifted:], v.appendShortest(nil)) {
		return nil, errors.New("compress: decode bits: code and bits differ in length")
	}
	return words, nil
}

func count(words []uint64) uint32 {
	n := 0
	for _, w := range words {
		n += bits.OnesCount64(w)
	}
	return uint32(n)
}

// at returns byte i of the code, zero beyond its end.
func at(code []byte, i int) uint64 {
	if i < len(code) {
		return uint64(code[i])
	}
	return 0
}

// fill sets the first n bits.
func fill(words []uint64, n uint32) {
	for i := range words {
		words[i] = math.MaxUint64
	}
	if tail := n % 64; tail != 0 {
		words[len(words)-1] >>= 64 - tail
	}
}
