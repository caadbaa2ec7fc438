package feed

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"weir/control/compressed"
)

var errCut = errors.New("the last line has no end, and the server did not say how long the list is: it may be cut off")

// endless reports whether the answer ends where the connection does, so that one that
// was cut off looks whole.
func (a *answer) endless() bool {
	return a.ContentLength < 0 && len(a.TransferEncoding) == 0 && a.ProtoMajor == 1 && !a.Uncompressed
}

// ending reads a text without a last line that has no end, unless the version before
// ended so, too, or it ends a document. Compressed text has an end of its own.
type ending struct {
	io.ReadCloser
	text  *bufio.Reader
	whole bool // the last line is read, however it ends
	begun bool
	line  []byte // what of a line is not yet returned
	lines int    // that have an end

	unended bool
	rest    []byte // that was not returned
}

// cut reports whether a last line was left out.
func (e *ending) cut() bool { return e != nil && len(e.rest) > 0 }

func (e *ending) Read(p []byte) (n int, err error) {
	if !e.begun {
		e.begun = true
		start, _ := e.text.Peek(4)
		if compressed.Is(start) {
			e.whole = true
		}
	}
	for n < len(p) && err == nil {
		if len(e.line) > 0 {
			i := copy(p[n:], e.line)
			n, e.line = n+i, e.line[i:]
			continue
		}
		if n > 0 && e.text.Buffered() == 0 {
			break
		}
		e.line, err = e.text.ReadSlice('\n')
		switch {
		case err == nil:
			e.lines++
		case errors.Is(err, bufio.ErrBufferFull):
			err = nil
		case err == io.EOF && len(e.line) > 0:
			e.unended, err = true, nil
			if end := bytes.TrimSpace(e.line); !e.whole && len(end) > 0 && end[len(end)-1] != '}' && end[len(end)-1] != ']' {
				e.rest, e.line = bytes.Clone(e.line), nil
			}
		}
	}
	return n, err
}
