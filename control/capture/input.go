package capture

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// input is the uncompressed bytes of a capture. Only take, inside, skip and
// packet move it forward, because they keep the count.
type input struct {
	*bufio.Reader
	offset int64  // bytes taken
	begin  int64  // where the record being read begins
	buf    []byte // of the last packet: headroom, then its bytes
}

// cutShort turns an end of input inside something into ErrTruncated. Other
// errors, of the disk or of the decompressor, stay as they are.
func cutShort(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrTruncated
	}
	return err
}

// take returns the next n bytes, which are valid until the next read. It
// returns io.EOF where the input properly ends before the first of them.
func (in *input) take(n int) ([]byte, error) {
	b, err := in.Peek(n)
	if err == io.EOF && len(b) == 0 {
		return nil, io.EOF
	}
	if err != nil {
		return nil, cutShort(err)
	}
	in.offset += int64(n)
	_, err = in.Discard(n)
	return b, err
}

// inside is take for the middle of a record, where the input must not end.
func (in *input) inside(n int) ([]byte, error) {
	b, err := in.take(n)
	return b, cutShort(err)
}

// skip passes over n bytes in the middle of a record.
func (in *input) skip(n int) error {
	m, err := in.Discard(n)
	in.offset += int64(m)
	return cutShort(err)
}

// packet reads a packet of n bytes and returns it behind headroom bytes. Both
// are valid until the next call. A packet above MaxPacket is refused before
// any memory is spent on it.
func (in *input) packet(n uint32) ([]byte, error) {
	if n > MaxPacket {
		return nil, fmt.Errorf("a packet of %d bytes, above the limit of %d", n, MaxPacket)
	}
	in.buf = slices.Grow(in.buf[:0], headroom+int(n))[:headroom+int(n)]
	m, err := io.ReadFull(in, in.buf[headroom:])
	in.offset += int64(m)
	return in.buf, cutShort(err)
}

// newFormat recognises the format by its magic number and reads the header.
func newFormat(in *input) (format, error) {
	magic, err := in.Peek(4)
	if err != nil {
		return nil, fmt.Errorf("file header: %w", cutShort(err))
	}
	switch string(magic) {
	case "\xd4\xc3\xb2\xa1":
		return newPcap(in, binary.LittleEndian, 1000)
	case "\xa1\xb2\xc3\xd4":
		return newPcap(in, binary.BigEndian, 1000)
	case "\x4d\x3c\xb2\xa1":
		return newPcap(in, binary.LittleEndian, 1)
	case "\xa1\xb2\x3c\x4d":
		return newPcap(in, binary.BigEndian, 1)
	case "\x0a\x0d\x0d\x0a":
		return newPcapng(in)
	}
	return nil, fmt.Errorf("neither pcap nor pcapng: it begins with % x", magic)
}
