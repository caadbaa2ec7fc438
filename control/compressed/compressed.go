// Package compressed opens streams that may be compressed with gzip or zstd,
// which is recognised by their first bytes, never by a name.
//
// Lists and captures come from anywhere: a stream costs its reader two buffers
// and the decompressor's window, whatever it says.
package compressed

import (
	"bufio"
	"bytes"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// The first bytes of a compressed stream.
var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

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
// concatenated streams of one kind are one. The caller closes the Reader, and
// src after it.
func NewReader(src io.Reader) (*Reader, error) {
	in := bufio.NewReaderSize(src, bufferSize)
	magic, err := in.Peek(len(zstdMagic))
	if err != nil && err != io.EOF { // a shorter stream is fine, and not compressed
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, gzipMagic):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		return &Reader{Reader: bufio.NewReaderSize(z, bufferSize)}, nil
	case bytes.Equal(magic, zstdMagic):
		// Concurrency 1 decodes in the goroutine that reads.
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return &Reader{bufio.NewReaderSize(z, bufferSize), z}, nil
	}
	return &Reader{Reader: in}, nil
}

// Close releases the decompressor. It leaves the source open.
func (r *Reader) Close() {
	if r.zstd != nil {
		r.zstd.Close()
	}
}
