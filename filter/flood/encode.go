package flood

import (
	"bytes"
	"encoding/binary"

	"weir/filter/internal/sealed"
)

const header = "WFLD\x01"

var (
	ratesLen  = binary.Size(second{}.rates)
	recordLen = binary.Size(Record{})
)

// AppendBinary appends an encoding of the baseline: what is usual, without what is known of a
// flood.
func (d *Detector) AppendBinary(b []byte) ([]byte, error) {
	start := len(b)
	b = append(b, header...)
	b = binary.AppendUvarint(b, uint64(len(d.quiet)))
	for i := range d.quiet {
		s := &d.quiet[i]
		b, _ = binary.Append(b, binary.LittleEndian, s.rates) // of a fixed size, as the following
		b = binary.AppendUvarint(b, uint64(len(s.records)))
		for j := range s.records {
			b, _ = binary.Append(b, binary.LittleEndian, &s.records[j])
		}
	}
	return sealed.Seal(b, start), nil
}

// MarshalBinary returns the encoding of AppendBinary.
func (d *Detector) MarshalBinary() ([]byte, error) { return d.AppendBinary(nil) }

// UnmarshalBinary makes d a detector with the baseline of an encoding, and without a flood. With an
// error, d is as before.
func (d *Detector) UnmarshalBinary(b []byte) error {
	r := sealed.Open("flood", header, b)
	n := r.Uvarint()
	if n > BaselineSeconds {
		r.Fail("%d seconds, want at most %d", n, BaselineSeconds)
	}
	var quiet []second
	for i := 0; i < n && r.Err() == nil; i++ {
		var s second
		if text := r.Bytes(ratesLen); text != nil {
			_, _ = binary.Decode(text, binary.LittleEndian, &s.rates)
		}
		for _, x := range s.rates {
			if !(x >= 0 && x < 1e18) {
				r.Fail("second %d has a rate of %v", i, x)
			}
		}
		records := r.Uvarint()
		if records > BaselineRecords {
			r.Fail("second %d has %d records, want at most %d", i, records, BaselineRecords)
		}
		for j := 0; j < records && r.Err() == nil; j++ {
			var x Record
			if text := r.Bytes(recordLen); text != nil {
				_, _ = binary.Decode(text, binary.LittleEndian, &x)
				if again, _ := binary.Append(nil, binary.LittleEndian, &x); !bytes.Equal(again, text) {
					r.Fail("second %d, record %d: a truth value is neither 0 nor 1", i, j)
				}
			}
			s.records = append(s.records, x)
		}
		quiet = append(quiet, s)
	}
	if err := r.End(); err != nil {
		return err
	}
	*d = Detector{quiet: quiet, wary: suspectWait}
	return nil
}
