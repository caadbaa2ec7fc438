package listfile

import (
	"bytes"
	"io"

	"weir/control/compressed"
)

const (
	// maxLine is the length in bytes above which a line is bad. A flow of two
	// IPv6 prefixes takes about 110; the rest is for remarks.
	maxLine = 4096

	// maxEmptyReads is the number of consecutive reads that may return nothing.
	maxEmptyReads = 100
)

// source reads a list's text, decompressed and without byte order mark, in
// pieces that end at line ends.
type source struct {
	raw  *counter
	text *compressed.Reader
	tail []byte // the start of a line, read but not yet returned
	eof  bool
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
	const mark = "\ufeff"
	raw := &counter{r: r}
	text, err := compressed.NewReader(raw)
	if err != nil {
		return nil, err
	}
	begin, err := text.Peek(len(mark))
	if err != nil && err != io.EOF {
		text.Close()
		return nil, err
	}
	if string(begin) == mark {
		_, _ = text.Discard(len(mark)) // cannot fail, it was peeked
	}
	return &source{raw: raw, text: text}, nil
}

// next reads as many whole lines into buf as fit, and returns the filled part
// of buf. Only the last line of the stream may lack its line end. A line that
// does not fit is shortened, but not below maxLine, so that it is still
// recognised as overlong; buf must be longer than that. After the last line,
// next returns io.EOF.
func (s *source) next(buf []byte) ([]byte, error) {
	n := copy(buf, s.tail)
	s.tail = s.tail[:0]
	for {
		// Not io.ReadFull: it returns the same error at the end of the stream
		// as for a truncated compressed stream, which must not pass for
		// complete.
		for empty := 0; n < len(buf) && !s.eof; {
			m, err := s.text.Read(buf[n:])
			if bytes.IndexByte(buf[n:n+m], 0) >= 0 {
				return nil, ErrBinary
			}
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
