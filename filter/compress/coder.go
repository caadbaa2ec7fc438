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
// read as fractions of 2⁶⁴, that encode the bits so far. Each bit narrows it to
// the part that is the bit's probability. Leading bytes on which low and high
// agree are settled and shifted out.
//
// At rare times low and high differ in their first byte and yet are close, so
// that probabilities get rounded. That costs length, less than 10⁻⁶ of it, and
// never correctness, because no part of an interval is ever empty.
type interval struct{ low, high uint64 }

var unit = interval{0, math.MaxUint64}

// one is the last number of the part for a 1-bit of probability p/2⁶⁴. The
// part for a 0-bit begins after it.
func (v interval) one(p uint64) uint64 {
	part, _ := bits.Mul64(v.high-v.low, p)
	return v.low + part
}

// settled reports whether the leading byte of all numbers is the same.
func (v interval) settled() bool { return (v.low^v.high)>>56 == 0 }

// shift drops the leading byte.
func (v interval) shift() interval { return interval{v.low << 8, v.high<<8 | 0xff} }

// appendShortest appends the fewest bytes which, followed by zeros, lie in the
// interval.
func (v interval) appendShortest(b []byte) []byte {
	for n := 0; ; n++ {
		rest := uint64(math.MaxUint64) >> (8 * n)
		if x := (v.low + rest) &^ rest; v.low <= x && x <= v.high {
			return append(b, binary.BigEndian.AppendUint64(nil, x)[:n]...)
		}
	}
}

// probability is ones/n in units of 2⁻⁶⁴, for 0 < ones < n.
func probability(ones, n uint32) uint64 {
	p, _ := bits.Div64(uint64(ones), 0, uint64(n))
	return p
}

// onesLen is the length of the number of ones before coded bits, in bytes.
const onesLen = 4

// AppendBits appends n bits to b, entropy-coded: bit i is bit i%64 of
// words[i/64], and those beyond n must be zero. What it appends is the number
// of ones, 4 bytes in little-endian order, and then the bits in an arithmetic
// code in which each is a one with the probability ones/n: together
// 32 + n·H(ones/n) bits, rounded up to the next byte or the one after, where H
// is the entropy of section 2.6.
func AppendBits(b []byte, words []uint64, n uint32) []byte {
	ones := count(words)
	b = binary.LittleEndian.AppendUint32(b, ones)
	if ones == 0 || ones == n {
		return b // the number says it all
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

// DecodeBits is the inverse of AppendBits: the n bits that b encodes. It fails
// on anything that AppendBits does not produce for n bits. It allocates n bits
// whatever b holds, so n must be known or limited by the caller.
func DecodeBits(b []byte, n uint32) ([]uint64, error) {
	if len(b) < onesLen {
		return nil, fmt.Errorf("compress: decode bits: %d bytes, need at least %d", len(b), onesLen)
	}
	ones, code := binary.LittleEndian.Uint32(b), b[onesLen:]
	words := make([]uint64, (int(n)+63)/64)
	switch {
	case ones > n:
		return nil, fmt.Errorf("compress: decode bits: %d ones among %d bits", ones, n)
	case ones == 0 || ones == n:
		if len(code) > 0 {
			return nil, fmt.Errorf("compress: decode bits: %d bytes too many", len(code))
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
		return nil, errors.New("compress: decode bits: code does not end where the bits do")
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

// at is byte i of the code, zero beyond its end.
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
