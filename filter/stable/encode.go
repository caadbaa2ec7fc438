package stable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"weir/filter/hash"
)

// The encoding of a filter, in little-endian order:
//
//	 0  magic "WSTB"
//	 4  version, 1
//	 5  algorithm
//	 6  d
//	 7  zero
//	 8  m, 4 bytes
//	12  K, 4 bytes
//	16  P, 4 bytes
//	20  the cells, as in memory
//	    XXH64 of everything before it, with seed 0, 8 bytes
//
// The checksum detects corruption, not forgery. The source of random numbers is not part
// of it.
const (
	magic       = "WSTB\x01"
	headerLen   = 20
	checksumLen = 8
)

// AppendBinary appends the filter's encoding to b. It fails if K or P is 2³¹ or more. It
// implements encoding.BinaryAppender.
func (f *Filter) AppendBinary(b []byte) ([]byte, error) {
	const most = 1<<31 - 1
	if f.K > most || f.P > most {
		return b, fmt.Errorf("stable: encode: %d and %d cells an item, want at most %d", f.K, f.P, most)
	}
	start := len(b)
	b = append(b, magic...)
	b = append(b, byte(f.Algorithm), byte(f.Bits), 0)
	for _, n := range []int{f.Cells, f.K, f.P} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	b = append(b, f.cells[:f.Bytes()]...)
	return binary.LittleEndian.AppendUint64(b, hash.Sum(0, b[start:])), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) {
	return f.AppendBinary(make([]byte, 0, headerLen+f.Bytes()+checksumLen))
}

// Decode returns the filter of an encoding, which draws the cells to decrement from source.
// It accepts exactly what AppendBinary produces.
func Decode(b []byte, source rand.Source) (*Filter, error) {
	if len(b) < headerLen+checksumLen {
		return nil, fmt.Errorf("stable: decode: %d bytes, need at least %d", len(b), headerLen+checksumLen)
	}
	if string(b[:len(magic)]) != magic {
		return nil, fmt.Errorf("stable: decode: magic and version % x, want % x", b[:len(magic)], magic)
	}
	body := b[:len(b)-checksumLen]
	if hash.Sum(0, body) != binary.LittleEndian.Uint64(b[len(body):]) {
		return nil, errors.New("stable: decode: checksum does not match")
	}
	number := func(at int) int { return int(binary.LittleEndian.Uint32(b[at:])) }
	p := Params{Algorithm: Algorithm(b[5]), Bits: int(b[6]), Cells: number(8), K: number(12), P: number(16)}
	if b[7] != 0 || p.K > 1<<31-1 || p.P > 1<<31-1 {
		return nil, fmt.Errorf("stable: decode: header % x", b[:headerLen])
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("stable: decode: %w", err)
	}
	cells := body[headerLen:]
	if want := (p.Cells*p.Bits + 7) / 8; len(cells) != want {
		return nil, fmt.Errorf("stable: decode: %d bytes of cells, want %d", len(cells), want)
	}
	if rest := p.Cells * p.Bits % 8; rest != 0 && cells[len(cells)-1]>>rest != 0 {
		return nil, errors.New("stable: decode: bits behind the last cell")
	}
	f, err := New(p, source)
	if err != nil {
		return nil, err
	}
	copy(f.cells, cells)
	return f, nil
}
