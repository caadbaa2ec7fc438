package stable

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"weir/filter/internal/sealed"
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
const header = "WSTB\x01"

// params is the length of the parameters behind it.
const params = 15

// mostPlaces bounds the cells of an item.
const mostPlaces = 1<<31 - 1

// AppendBinary appends the filter's encoding to b. It fails if K or P is 2³¹ or more. It
// implements encoding.BinaryAppender.
func (f *Filter) AppendBinary(b []byte) ([]byte, error) {
	if f.K > mostPlaces || f.P > mostPlaces {
		return b, fmt.Errorf("stable: encode: %d and %d cells an item, want at most %d", f.K, f.P, mostPlaces)
	}
	start := len(b)
	b = append(b, header...)
	b = append(b, byte(f.Algorithm), byte(f.Bits), 0)
	for _, n := range []int{f.Cells, f.K, f.P} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return sealed.Seal(append(b, f.cells[:f.Bytes()]...), start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) {
	return f.AppendBinary(make([]byte, 0, sealed.Len(header, params+f.Bytes())))
}

// UnmarshalBinary decodes b into f. It accepts exactly what AppendBinary produces; otherwise
// it fails and leaves f unchanged. A filter that had a source of random numbers goes on to
// draw the cells to decrement from it; the zero Filter takes a random one. It implements
// encoding.BinaryUnmarshaler.
func (f *Filter) UnmarshalBinary(b []byte) error {
	r := sealed.Open("stable", header, b)
	p := Params{Algorithm: Algorithm(r.Uint8()), Bits: int(r.Uint8())}
	r.Zero(1)
	p.Cells, p.K, p.P = int(r.Uint32()), int(r.Uint32()), int(r.Uint32())
	if r.Err() == nil {
		if p.K > mostPlaces || p.P > mostPlaces {
			r.Fail("%d and %d cells an item, want at most %d", p.K, p.P, mostPlaces)
		} else if err := p.check(); err != nil {
			r.Fail("%w", err)
		}
	}
	cells := r.Bytes((p.Cells*p.Bits + 7) / 8)
	if rest := p.Cells * p.Bits % 8; r.Err() == nil && rest != 0 && cells[len(cells)-1]>>rest != 0 {
		r.Fail("bits behind the last cell")
	}
	if err := r.End(); err != nil {
		return err
	}
	random := f.rng
	if random == nil {
		random = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	*f = Filter{p, append(make([]byte, 0, len(cells)+1), cells...), random}
	f.cells = f.cells[:len(cells)+1]
	return nil
}
