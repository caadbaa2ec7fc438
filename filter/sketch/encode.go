package sketch

import (
	"encoding/binary"
	"unsafe"

	"weir/filter/internal/sealed"
)

// The encoding of a sketch, in little-endian order: magic "WSKT", version 1, layout, rows, the
// bytes of a counter; the number of counters in 8 bytes, the counters, and the XXH64 of
// everything before it, with seed 0. The checksum detects corruption, not forgery.
//
// A Bank has none: it has the memory of one interval.
const header = "WSKT\x01"

// AppendBinary appends the sketch's encoding to b. The error is always nil. It implements
// encoding.BinaryAppender.
func (s *Sketch[C]) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = append(append(b, header...), byte(s.layout), byte(s.rows), byte(width[C]()))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(s.counters)))
	for _, c := range s.counters {
		if width[C]() == 4 {
			b = binary.LittleEndian.AppendUint32(b, uint32(c))
		} else {
			b = binary.LittleEndian.AppendUint64(b, uint64(c))
		}
	}
	return sealed.Seal(b, start), nil
}

// MarshalBinary returns the encoding of AppendBinary. It implements encoding.BinaryMarshaler.
func (s *Sketch[C]) MarshalBinary() ([]byte, error) { return s.AppendBinary(nil) }

// UnmarshalBinary decodes b into s, which has counters of its own from then on, of the width that
// they were encoded with. It accepts exactly what AppendBinary produces; otherwise it fails and
// leaves s unchanged. It implements encoding.BinaryUnmarshaler.
func (s *Sketch[C]) UnmarshalBinary(b []byte) error {
	r := sealed.Open("sketch", header, b)
	layout, rows, bytes := Layout(r.Uint8()), int(r.Uint8()), int(r.Uint8())
	if r.Err() == nil && bytes != width[C]() {
		r.Fail("counters of %d bytes, want %d", bytes, width[C]())
	}
	n := r.Uint64()
	if n > uint64(r.Left()/width[C]()) {
		r.Fail("%d bytes of %d counters", r.Left(), n)
	}
	encoded := r.Bytes(r.Left() / width[C]() * width[C]())
	if r.Err() == nil && uint64(len(encoded)) != n*uint64(width[C]()) {
		r.Fail("%d bytes of %d counters", len(encoded), n)
	}
	if err := r.End(); err != nil {
		return err
	}
	counters := make([]C, n)
	for i := range counters {
		if width[C]() == 4 {
			counters[i] = C(binary.LittleEndian.Uint32(encoded[4*i:]))
		} else {
			counters[i] = C(binary.LittleEndian.Uint64(encoded[8*i:]))
		}
	}
	d, err := Over(layout, rows, counters)
	if err != nil {
		return err
	}
	*s = *d
	return nil
}

// width returns the bytes of a counter.
func width[C Counter]() int {
	var c C
	return int(unsafe.Sizeof(c))
}
