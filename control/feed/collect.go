package feed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"weir/control/list"
)

// lines counts the lines that are read from r, and tells the line of an offset.
type lines struct {
	r     io.Reader
	read  int64
	last  byte    // the last byte read
	ends  []int64 // offsets of the line ends after the last one asked for
	ended int     // lines whose ends are before those
}

func (l *lines) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.ends = append(l.ends, l.read+int64(i))
		}
		l.last = c
	}
	l.read += int64(n)
	return n, err
}

// at is the line, from 1, of an offset that was read. Offsets are asked for in
// ascending order.
func (l *lines) at(offset int64) int {
	for len(l.ends) > 0 && l.ends[0] < offset {
		l.ends = l.ends[1:]
		l.ended++
	}
	return l.ended + 1
}

// total is the number of lines read.
func (l *lines) total() int {
	n := l.ended + len(l.ends)
	if l.read > 0 && l.last != '\n' {
		n++
	}
	return n
}

// place is where a value stands. An offset of 0 says nothing: where a line has
// one value, its number is enough.
type place struct {
	line   int
	offset int64 // of the value's first byte in the text, for what is all in one line
}

// collector makes entries of the values that a format's reader finds.
type collector struct {
	text    lines
	options list.Options
	entries list.Entries
	report  list.Report

	// Values that are not yet parsed, one a line, and where they stand. They are
	// parsed in bulk, by the same code as a list's lines.
	values []byte
	places []place

	seek seek // nil: to collect them
}

// bulk is the length in bytes of the values that are parsed together: enough to
// make a call of list.Parse cheap, little beside what else is held.
const bulk = 256 << 10

var errNoValue = errors.New("no address")

// value takes an address, prefix, range or flow in the list format.
func (c *collector) value(at place, v string) {
	v = strings.TrimSpace(v)
	switch {
	case v == "":
		c.bad(at, v, errNoValue)
		return
	case strings.HasPrefix(v, "#") || strings.HasPrefix(v, ";") || strings.ContainsFunc(v, notPrintable):
		// Text of its own, which the list format would take for a comment, for
		// several lines or for something compressed.
		c.bad(at, v, errors.New("not an address"))
		return
	}
	c.values = append(append(c.values, v...), '\n')
	c.places = append(c.places, at)
	if len(c.values) >= bulk {
		c.flush()
	}
}

func notPrintable(r rune) bool { return r < ' ' || r > '~' }

// bad takes what should be a value and is none.
func (c *collector) bad(at place, text string, err error) {
	c.report.Bad++
	if len(c.report.Errors) == list.MaxErrors {
		return
	}
	c.flush() // errors in order
	c.describe(at, text, err)
}

// describe enters a bad value into the report, unless it has enough of them.
func (c *collector) describe(at place, text string, err error) {
	if len(c.report.Errors) == list.MaxErrors {
		return
	}
	if at.offset > 0 {
		err = fmt.Errorf("byte %d: %w", at.offset, err)
	}
	const most = 60 // bytes of text that a message can bear
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	c.report.Errors = append(c.report.Errors, list.LineError{File: c.report.File, Line: at.line, Text: text, Err: err})
}

// flush parses the values.
func (c *collector) flush() {
	if len(c.values) == 0 {
		return
	}
	defer func() { c.values, c.places = c.values[:0], c.places[:0] }()
	if c.seek != nil {
		for l, err := range list.ScanReader(c.report.File, bytes.NewReader(c.values), c.options) {
			if err != nil || !c.seek(c.places[l.Number-1].line, l.Entries) {
				break // the rest is read in vain, but is not much beside what it took to get here
			}
		}
		return
	}
	// It cannot fail: memory can be read, and no share of bad lines exceeds 1.
	e, r, _ := list.Parse(c.report.File, bytes.NewReader(c.values), list.Options{Lenient: c.options.Lenient, MaxBad: 1})
	c.entries.Append(e)
	c.report.Good += r.Good
	c.report.Bad += r.Bad
	for _, le := range r.Errors {
		c.describe(c.places[le.Line-1], le.Text, le.Err)
	}
}

// finish gives what was collected, and refuses it where err says that it is not
// whole, or where too great a share of it is bad.
func (c *collector) finish(err error) (list.Entries, list.Report, error) {
	c.flush()
	r := &c.report
	r.Lines = c.text.total()
	share := c.options.MaxBad
	if share == 0 {
		share = list.DefaultMaxBad
	}
	switch {
	case err != nil:
		err = fmt.Errorf("%s: %w", r.File, err)
	case r.Bad > 0 && float64(r.Bad) > share*float64(r.Bad+r.Good):
		err = fmt.Errorf("%s: %w: %d of %d values, the first is %w",
			r.File, list.ErrTooManyBad, r.Bad, r.Bad+r.Good, r.Errors[0])
	default:
		return c.entries, *r, nil
	}
	return list.Entries{}, *r, err
}
