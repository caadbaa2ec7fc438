// Package ipfix reads messages of IPFIX as RFC 7011 describes them, and nothing else.
package ipfix

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
)

// Record is a record of a flow.
type Record struct {
	Domain  uint32
	Source  netip.Addr
	Packets uint64
	Texts   []string // of enterprise elements
}

// A Reader reads the messages of one exporter.
type Reader struct {
	Records []Record
	Packets map[uint32]uint64 // by domain

	Sequence  map[uint32]uint32         // of the next message of a domain
	templates map[[2]uint32][][3]uint32 // by domain and number: element, length, enterprise
}

// NewReader returns a reader that has read nothing.
func NewReader() *Reader {
	return &Reader{Packets: make(map[uint32]uint64), templates: make(map[[2]uint32][][3]uint32), Sequence: make(map[uint32]uint32)}
}

// Texts returns the texts of all records.
func (r *Reader) Texts() (all []string) {
	for _, record := range r.Records {
		all = append(all, record.Texts...)
	}
	return all
}

var errMalformed = errors.New("malformed")

// Next reads the next message of a stream. The error is [io.EOF] where the stream ends before it.
func (r *Reader) Next(stream io.Reader) error {
	b := make([]byte, 64<<10)
	if _, err := io.ReadFull(stream, b[:4]); err != nil {
		return err
	}
	n := max(4, binary.BigEndian.Uint16(b[2:]))
	if _, err := io.ReadFull(stream, b[4:n]); err != nil {
		return errMalformed
	}
	return r.Read(b[:n])
}

// Read reads a message.
func (r *Reader) Read(b []byte) (err error) {
	defer func() {
		if recover() != nil { // out of bounds
			err = errMalformed
		}
	}()
	u16 := func(b []byte) uint32 { return uint32(binary.BigEndian.Uint16(b)) }
	u32 := binary.BigEndian.Uint32
	if u16(b) != 10 || int(u16(b[2:])) != len(b) {
		return errMalformed
	}
	domain := u32(b[12:])
	if u32(b[8:]) != r.Sequence[domain] {
		return errors.New("out of sequence")
	}
	for b = b[16:]; len(b) > 0; {
		id, n := u16(b), u16(b[2:])
		set := b[4:n]
		b = b[n:]
		if id == 2 || id == 3 {
			for len(set) > 0 {
				set = r.template(domain, id == 3, set)
			}
			continue
		}
		t, known := r.templates[[2]uint32{domain, id}]
		if !known {
			return errors.New("data before its template")
		}
		for len(set) > 0 {
			set = r.record(domain, t, set)
		}
	}
	return nil
}

// template reads a template, and returns what is behind it.
func (r *Reader) template(domain uint32, options bool, set []byte) []byte {
	u16 := func(b []byte) uint32 { return uint32(binary.BigEndian.Uint16(b)) }
	key, fields := [2]uint32{domain, u16(set)}, u16(set[2:])
	set = set[4:]
	if options {
		set = set[2:]
	}
	var all [][3]uint32
	for range fields {
		f := [3]uint32{u16(set), u16(set[2:]), 0}
		set = set[4:]
		if f[0]&0x8000 != 0 {
			f[0], f[2] = f[0]&0x7fff, binary.BigEndian.Uint32(set)
			set = set[4:]
		}
		all = append(all, f)
	}
	r.templates[key] = all
	return set
}

// record reads a record, and returns what is behind it.
func (r *Reader) record(domain uint32, t [][3]uint32, set []byte) []byte {
	record := Record{Domain: domain}
	for _, f := range t {
		length := f[1]
		if length == 0xffff {
			length, set = uint32(set[0]), set[1:]
		}
		value := set[:length]
		set = set[length:]
		switch {
		case f[2] != 0:
			record.Texts = append(record.Texts, string(value))
		case f[0] == 2:
			record.Packets = binary.BigEndian.Uint64(value)
		case f[0] == 8 || f[0] == 27:
			record.Source, _ = netip.AddrFromSlice(value)
		}
	}
	r.Records = append(r.Records, record)
	r.Packets[domain] += record.Packets
	r.Sequence[domain]++
	return set
}
