// Package sealed writes and reads the encodings of filters: a header of magic and version, a
// body in little-endian order, and the XXH64 of both with seed 0. The checksum detects
// corruption, not forgery.
//
// A reader takes memory only for what is there, so that an encoding of n bytes takes O(n) of
// memory and time, whatever it says.
package sealed

import (
	"encoding/binary"
	"errors"
	"fmt"

	"weir/filter/hash"
)

const checksumLen = 8

// Len returns the length of an encoding with a body of this many bytes.
func Len(header string, body int) int { return len(header) + body + checksumLen }

// AppendWords appends words.
func AppendWords(b []byte, words []uint64) []byte {
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// Seal appends the checksum of an encoding that begins at start.
func Seal(b []byte, start int) []byte {
	return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b[start:]))
}

// Reader reads the body of an encoding. After a failure it reads zeros.
type Reader struct {
	what string
	rest []byte
	err  error
}

// Open returns a reader of the encoding b, which must begin with the header and end with its
// checksum. Errors begin with what, the name of the package.
func Open(what, header string, b []byte) *Reader {
	r := &Reader{what: what}
	switch body := len(b) - checksumLen; {
	case body < len(header):
		r.Fail("%d bytes, need at least %d", len(b), Len(header, 0))
	case string(b[:len(header)]) != header:
		r.Fail("magic and version % x, want % x", b[:len(header)], header)
	case hash.Sum(0, b[:body]) != binary.LittleEndian.Uint64(b[body:]):
		r.Fail("checksum does not match")
	default:
		r.rest = b[len(header):body]
	}
	return r
}

// Fail notes an error, if it is the first.
func (r *Reader) Fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: decode: %w", r.what, fmt.Errorf(format, args...))
	}
	r.rest = nil
}

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// End returns the first error, which it is if something is left.
func (r *Reader) End() error {
	if len(r.rest) > 0 {
		r.Fail("%d bytes too many", len(r.rest))
	}
	return r.err
}

// Left returns the number of bytes that are left.
func (r *Reader) Left() int { return len(r.rest) }

var errShort = errors.New("cut short")

// Bytes reads n bytes, which remain those of the encoding. It returns nil if there are fewer.
func (r *Reader) Bytes(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.Fail("%w: %d bytes, want %d", errShort, len(r.rest), n)
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

// Uint8 reads a byte.
func (r *Reader) Uint8() uint8 {
	if b := r.Bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// Uint32 reads a number of four bytes.
func (r *Reader) Uint32() uint32 {
	if b := r.Bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// Uint64 reads a number of eight bytes.
func (r *Reader) Uint64() uint64 {
	if b := r.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Uvarint reads a varint in its shortest form that is at most as large as the number of bytes
// left behind it, as the number of things must be that take a byte or more.
func (r *Reader) Uvarint() int {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 || n > 1 && r.rest[n-1] == 0 || v > uint64(len(r.rest)-n) {
		r.Fail("a number is cut short, too large or has leading zeros")
		return 0
	}
	r.rest = r.rest[n:]
	return int(v)
}

// Zero reads n bytes that must be zero.
func (r *Reader) Zero(n int) {
	for _, x := range r.Bytes(n) {
		if x != 0 {
			r.Fail("a byte is %#x, want 0", x)
			return
		}
	}
}

// Words reads n words. It returns nil if there are fewer.
func (r *Reader) Words(n uint64) []uint64 {
	if n > uint64(len(r.rest)/8) {
		r.Fail("%w: %d bytes, want %d words of 8", errShort, len(r.rest), n)
	}
	if r.err != nil {
		return nil
	}
	words := make([]uint64, n)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(r.rest[8*i:])
	}
	r.rest = r.rest[8*n:]
	return words
}
