package list

import (
	"bufio"
	"bytes"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

const (
	// maxLine is the length in bytes above which a line is bad. A flow of two
	// IPv6 prefixes takes about 110; the rest is for remarks.
	maxLine = 4096

	// maxWindow is the most memory in bytes that a zstd file may ask for as its
	// window: what zstd --long=27 makes, the most that its own decoder takes
	// unasked.
	maxWindow = 128 << 20

	// maxEmptyReads is how often in a row a reader may return nothing.
	maxEmptyReads = 100
)

// source reads a list's text, decompressed and without byte order mark, in
// pieces that end at line ends.
type source struct {
	raw   *counter
	text  io.Reader
	close func()
	tail  []byte // the begin of a line, read but not yet given out
	eof   bool
}

// counter counts the bytes that are read from r.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

func newSource(r io.Reader) (*source, error) {
	s := &source{raw: &counter{r: r}, close: func() {}}
	in := bufio.NewReader(s.raw)
	magic, err := peek(in, 4)
	if err != nil {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = bufio.NewReader(z)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// Concurrency 1 decodes in the goroutine that reads, which is not the
		// one that parses.
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		s.close = z.Close
		in = bufio.NewReader(z)
	}
	s.text = in
	mark, err := peek(in, 3)
	if err != nil {
		s.close()
		return nil, err
	}
	if string(mark) == "\ufeff" {
		_, _ = in.Discard(len(mark)) // cannot fail, it was peeked
	}
	return s, nil
}

// peek gives the next n bytes, fewer only at the end of the stream.
func peek(r *bufio.Reader, n int) ([]byte, error) {
	b, err := r.Peek(n)
	if err == io.EOF {
		return b, nil
	}
	return b, err
}

// next reads whole lines into buf, as many as fit, and gives the part of buf
// that they fill. Only the last line of the stream may lack its line end. Of a
// line that does not fit, bytes are left out, but more than maxLine stay, so
// that it is still known as overlong; buf must be longer than that. After the
// last line, next returns io.EOF.
func (s *source) next(buf []byte) ([]byte, error) {
	n := copy(buf, s.tail)
	s.tail = s.tail[:0]
	for {
		// Not io.ReadFull: it gives a stream that ends here the same error as a
		// compressed stream that was cut off, which must not pass for whole.
		for empty := 0; n < len(buf) && !s.eof; {
			m, err := s.text.Read(buf[n:])
			n += m
			switch {
			case err == io.EOF:
				s.eof = true
			case err != nil:
				return nil, err
			case m > 0:
				empty = 0
			default:
				if empty++; empty == maxEmptyReads {
					return nil, io.ErrNoProgress
				}
			}
		}
		switch end := bytes.LastIndexByte(buf[:n], '\n') + 1; {
		case s.eof && n == 0:
			return nil, io.EOF
		case s.eof:
			return buf[:n], nil
		case end > 0:
			s.tail = append(s.tail, buf[end:n]...)
			return buf[:end], nil
		}
		n = maxLine + 1
	}
}
