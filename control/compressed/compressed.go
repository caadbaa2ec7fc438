// Package compressed opens streams that may be compressed with gzip or zstd,
// which is recognised by their first bytes, never by a name.
//
// Lists and captures come from anywhere: a stream costs its reader two buffers
// and the decompressor's window, whatever it says.
package compressed

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// The first bytes of a compressed stream.
var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// others are streams that are refused by bytes at their start.
var others = []struct {
	at          int
	magic, what string
}{
	{257, "ustar", "a tar archive: unpack it"},
	{0, "PK\x03\x04", "a zip archive: unpack it"},
	{0, "PK\x05\x06", "a zip archive without files"},
	{0, "7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it"},
	{0, "Rar!\x1a\x07", "a rar archive: unpack it"},
	{0, "!<arch>\n", "an ar archive: unpack it"},
	{0, "\xfd7zXZ", "compressed with xz, where gzip and zstd can be read: decompress it"},
	{4, "1AY&SY", "compressed with bzip2, where gzip and zstd can be read: decompress it"},
	{0, "\x04\x22\x4d\x18", "compressed with lz4, where gzip and zstd can be read: decompress it"},
	{0, "LZIP", "compressed with lzip, where gzip and zstd can be read: decompress it"},
	{0, "\xff\xfe", "text in UTF-16: save it as UTF-8"},
	{0, "\xfe\xff", "text in UTF-16: save it as UTF-8"},
}

const (
	// maxWindow is the most memory in bytes that a zstd stream may ask for as
	// its window: what zstd --long=27 makes, the most that its own decoder takes
	// unasked.
	maxWindow = 128 << 20

	// bufferSize is the bytes read at once: few system calls, and within a
	// processor's second-level cache.
	bufferSize = 64 << 10
)

// Reader reads a stream's text, decompressed.
type Reader struct {
	*bufio.Reader
	zstd *zstd.Decoder // nil where it is none
}

// NewReader finds out how src is compressed. A stream that is cut off ends in
// [io.ErrUnexpectedEOF] and not in [io.EOF], here or when it is read;
// concatenated streams of one kind are one. Archives, streams that are compressed twice or
// in another way, and text in UTF-16 are errors. The caller closes the Reader, and src after it.
func NewReader(src io.Reader) (*Reader, error) {
	in := bufio.NewReaderSize(src, bufferSize)
	start, err := peek(in)
	if err != nil {
		return nil, err
	}
	r := &Reader{Reader: in}
	switch {
	case bytes.HasPrefix(start, gzipMagic):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		r.Reader = bufio.NewReaderSize(z, bufferSize)
	case bytes.HasPrefix(start, zstdMagic):
		// Concurrency 1 decodes in the goroutine that reads.
		r.zstd, err = zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		r.Reader = bufio.NewReaderSize(r.zstd, bufferSize)
	default:
		return r, nil
	}
	if start, err = peek(r.Reader); err == nil && Is(start) {
		err = errors.New("compressed twice")
	}
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// Is reports whether a stream is compressed, by its first four bytes.
func Is(start []byte) bool {
	return bytes.HasPrefix(start, gzipMagic) || bytes.HasPrefix(start, zstdMagic)
}

// peek returns what was read at once of the start of a stream, which may be interactive,
// and refuses it by that.
func peek(in *bufio.Reader) ([]byte, error) {
	// A shorter stream is fine, and not compressed.
	if _, err := in.Peek(len(zstdMagic)); err != nil && err != io.EOF {
		return nil, err
	}
	start, _ := in.Peek(in.Buffered())
	for _, o := range others {
		if len(start) > o.at && bytes.HasPrefix(start[o.at:], []byte(o.magic)) {
			return nil, errors.New(o.what)
		}
	}
	return start, nil
}

// Close releases the decompressor. It leaves the source open.
func (r *Reader) Close() {
	if r.zstd != nil {
		r.zstd.Close()
	}
}
