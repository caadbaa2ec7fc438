package snapshot

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// bitWriter appends numbers of some bits to bytes, the least significant bits first.
type bitWriter struct {
	b    []byte
	word uint64
	n    int // bits in word
}

// write appends the n ≤ 64 least significant bits of v; the others are 0.
func (w *bitWriter) write(v uint64, n int) {
	w.word |= v << w.n
	if w.n += n; w.n < 64 {
		return
	}
	w.b = binary.LittleEndian.AppendUint64(w.b, w.word)
	w.n -= 64
	w.word = v >> (n - w.n) // 0 if all of v was written: shifts by 64 give 0
}

// bytes appends the first n bits of left-aligned bytes.
func (w *bitWriter) bytes(b []byte, n int) {
	for ; n >= 8; n -= 8 {
		w.write(uint64(b[0]), 8)
		b = b[1:]
	}
	if n > 0 {
		w.write(uint64(b[0]>>(8-n)), n)
	}
}

// end returns the bytes, the last one filled with zeros.
func (w *bitWriter) end() []byte {
	for ; w.n > 0; w.n -= 8 {
		w.b = append(w.b, byte(w.word))
		w.word >>= 8
	}
	return w.b
}

// bitReader reads what a bitWriter has written. Beyond the end it reads zeros.
type bitReader struct {
	b    []byte
	at   int // bits read
	over bool
}

// word returns the next 57 bits or more.
func (r *bitReader) word() uint64 {
	if i := r.at >> 3; i+8 <= len(r.b) {
		return binary.LittleEndian.Uint64(r.b[i:]) >> (r.at & 7)
	}
	var w [8]byte
	if i := r.at >> 3; i < len(r.b) {
		copy(w[:], r.b[i:])
	}
	return binary.LittleEndian.Uint64(w[:]) >> (r.at & 7)
}

func (r *bitReader) skip(n int) {
	r.at += n
	r.over = r.over || r.at > 8*len(r.b)
}

// read reads a number of n ≤ 64 bits.
func (r *bitReader) read(n int) uint64 {
	if n > 32 {
		low := r.read(32)
		return low | r.read(n-32)<<32
	}
	v := r.word() & (1<<n - 1)
	r.skip(n)
	return v
}

// ones reads ones, up to most ≤ 56, and the zero after less.
func (r *bitReader) ones(most int) int {
	n := min(bits.TrailingZeros64(^r.word()), most)
	if n < most {
		r.skip(n + 1)
	} else {
		r.skip(n)
	}
	return n
}

// bytes reads n bits into left-aligned bytes.
func (r *bitReader) bytes(b []byte, n int) {
	for i := range b {
		size := min(8, n-8*i)
		b[i] = byte(r.read(size) << (8 - size))
	}
}

var errPadding = errors.New("bits after the end")

// end returns an error unless the bytes end here, with zeros in the last one.
func (r *bitReader) end() error {
	if r.over {
		return errShort
	}
	if (r.at+7)>>3 != len(r.b) || r.at&7 != 0 && r.b[r.at>>3]>>(r.at&7) != 0 {
		return errPadding
	}
	return nil
}
