package bloom

import (
	"encoding/binary"
	"fmt"

	"weir/filter/internal/sealed"
)

// The encodings, in little-endian order. A geometry:
//
//	0  1 for the partitioned filter, else 0
//	1  k
//	2  zero, 2 bytes
//	4  m, 4 bytes
//
// and a filter:
//
//	 0  magic "WBLM"
//	 4  version, 1
//	 5  zero, 3 bytes
//	 8  geometry
//	16  seed, 8 bytes
//	24  the bits, in words of 8 bytes
//	    XXH64 of everything before it, with seed 0, 8 bytes
//
// The checksum detects corruption, not forgery.
const header = "WBLM\x01\x00\x00\x00"

// GeometryLen is the length of an encoded Geometry in bytes.
const GeometryLen = 8

// AppendBinary appends the geometry's encoding, GeometryLen bytes, to b. The
// error is always nil. It implements encoding.BinaryAppender.
func (g Geometry) AppendBinary(b []byte) ([]byte, error) {
	var kind byte
	if g.Partitioned() {
		kind = 1
	}
	return binary.LittleEndian.AppendUint32(append(b, kind, byte(g.k), 0, 0), g.m), nil
}

// UnmarshalBinary decodes b into g. It accepts exactly what AppendBinary
// produces for geometries of [Standard] and [Partitioned]; otherwise it fails
// and leaves g unchanged. It implements encoding.BinaryUnmarshaler.
func (g *Geometry) UnmarshalBinary(b []byte) error {
	if len(b) != GeometryLen {
		return fmt.Errorf("bloom: decode geometry: %d bytes, want %d", len(b), GeometryLen)
	}
	kind, k, m := b[0], int(b[1]), binary.LittleEndian.Uint32(b[4:])
	d, err := Standard(m, k)
	if kind == 1 {
		d, err = Partitioned(m, k)
	}
	if err != nil {
		return fmt.Errorf("bloom: decode geometry: %w", err)
	}
	if kind > 1 || b[2] != 0 || b[3] != 0 || d.m != m {
		return fmt.Errorf("bloom: decode geometry: invalid geometry % x", b)
	}
	*g = d
	return nil
}

// AppendBinary appends the filter's encoding, including its seed, to b. The
// error is always nil. It implements encoding.BinaryAppender.
func (f *Filter) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = append(b, header...)
	b, _ = f.Geometry.AppendBinary(b)
	b = binary.LittleEndian.AppendUint64(b, f.seed)
	return sealed.Seal(sealed.AppendWords(b, f.words), start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements
// encoding.BinaryMarshaler.
func (f *Filter) MarshalBinary() ([]byte, error) {
	return f.AppendBinary(make([]byte, 0, sealed.Len(header, GeometryLen+8+8*len(f.words))))
}

// UnmarshalBinary decodes b into f. It accepts exactly what AppendBinary
// produces; otherwise it fails and leaves f unchanged. It implements
// encoding.BinaryUnmarshaler.
func (f *Filter) UnmarshalBinary(b []byte) error {
	r := sealed.Open("bloom", header, b)
	var g Geometry
	if encoded := r.Bytes(GeometryLen); encoded != nil {
		if err := g.UnmarshalBinary(encoded); err != nil {
			return err
		}
	}
	seed := r.Uint64()
	words := r.Words(uint64(wordsOf(g.m)))
	if err := r.End(); err != nil {
		return err
	}
	d, err := FromWords(g, seed, words)
	if err != nil {
		return fmt.Errorf("bloom: decode: %w", err)
	}
	*f = *d
	return nil
}
