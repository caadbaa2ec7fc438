package feed

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	"weir/control/list"
	"weir/control/list/listfile"
)

// maxRecord is the number of bytes that a record may have: a line, a record of CSV, a
// token of JSON. Records with an address have a few hundred.
const maxRecord = 1 << 20

var errLongRecord = fmt.Errorf("a record of more than %d bytes", maxRecord)

// lines counts the lines that are read from r, and maps offsets to lines.
type lines struct {
	r     io.Reader
	most  int // lines; 0: no limit
	read  int64
	last  byte    // the last byte read
	ends  []int64 // offsets of the line ends after the last offset looked up
	ended int     // lines whose ends are before those

	offsets bool  // offsets are looked up; otherwise, line ends are only counted
	record  int64 // offset where the current record begins, if there are records
	records bool  // records are limited to maxRecord
	err     error // the reason to stop reading
}

func (l *lines) Read(p []byte) (int, error) {
	if l.err != nil {
		return 0, l.err
	}
	if l.records {
		left := l.record + maxRecord - l.read
		if left <= 0 {
			return 0, errLongRecord
		}
		p = p[:min(int64(len(p)), left)]
	}
	n, err := l.r.Read(p)
	for i, c := range p[:n] {
		if c == 0 {
			l.err = fmt.Errorf("after line %d: %w", l.ended+len(l.ends), listfile.ErrBinary)
			return 0, l.err
		}
		if c != '\n' {
			continue
		}
		if l.offsets {
			l.ends = append(l.ends, l.read+int64(i))
		} else {
			l.ended++
		}
	}
	if ended := l.ended + len(l.ends); l.most > 0 && ended > l.most {
		l.err = fmt.Errorf("%w: more than %d", listfile.ErrTooManyLines, l.most)
		return 0, l.err
	}
	if n > 0 {
		l.last = p[n-1]
	}
	l.read += int64(n)
	return n, err
}

// begin begins a record at an offset.
func (l *lines) begin(offset int64) {
	l.records, l.record = true, offset
	if l.offsets {
		l.at(offset) // forgets the lines before it
	}
}

// at returns the line, from 1, of an offset that was read. Offsets must be
// looked up in ascending order.
func (l *lines) at(offset int64) int {
	for len(l.ends) > 0 && l.ends[0] < offset {
		l.ends = l.ends[1:]
		l.ended++
	}
	return l.ended + 1
}

// total returns the number of lines read.
func (l *lines) total() int {
	n := l.ended + len(l.ends)
	if l.read > 0 && l.last != '\n' {
		n++
	}
	return n
}

// place is the position of a value. An offset of 0 is unknown: if a line has
// one value, its number suffices.
type place struct {
	line   int
	offset int64 // of the value's first byte, for text with many values in one line
}

// collector parses the values that a format's reader finds.
type collector struct {
	text    lines
	options listfile.Options
	entries list.Entries
	report  listfile.Report

	// Values that are not yet parsed, one per line, and their positions. They
	// are parsed in bulk, by the same code as a list's lines.
	values []byte
	places []place

	seek seek // nil: collect the entries
}

// bulk is the length in bytes of the values that are parsed together: enough to
// amortise a call of listfile.Parse, and small in comparison with other buffers.
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
		// The list format would take such text for a comment, for several lines
		// or for compressed data.
		c.bad(at, v, errors.New("not an address"))
		return
	}
	c.values = append(append(c.values, v...), '\n')
	c.places = append(c.places, at)
	if len(c.values) >= bulk {
		c.flush()
	}
}

// scopes has the scopes of CrowdSec's decisions without addresses.
var scopes = []string{"country", "as", "session", "username"}

// scoped takes a value that may begin with its scope, as in Ip:192.0.2.1.
func (c *collector) scoped(at place, v string) {
	if scope, of, ok := strings.Cut(v, ":"); ok {
		switch scope = strings.ToLower(scope); {
		case scope == "ip" || scope == "range":
			v = of
		case slices.Contains(scopes, scope):
			c.leave("values of scope " + scope)
			return
		}
	}
	c.value(at, v)
}

// span takes an address, a prefix or a range, as other programs write it: they mask host bits.
// Each address stands for the network of that many bits around it; 0: for itself.
func (c *collector) span(at place, line, text string, bits int) {
	if strings.Trim(text, "0123456789abcdefABCDEF.:/-") != "" {
		c.bad(at, line, errors.New("not an address"))
		return
	}
	a, err := netip.ParseAddr(text)
	p, noPrefix := netip.ParsePrefix(text)
	r, noRange := netipx.ParseIPRange(text)
	switch {
	case noRange == nil && isMaskOf(r.To(), r.From()):
		c.bad(at, line, fmt.Errorf("the range ends in a netmask: write %v/%d", r.From(), maskBits(r.To())))
		return
	case err == nil && bits == 0:
	case err == nil:
		r = netipx.IPRangeFrom(a, a)
	case noPrefix == nil:
		text, r = p.Masked().String(), netipx.RangeOfPrefix(p.Masked())
	case noRange != nil && strings.Contains(text, "-") && !strings.Contains(text, ":") && strings.Count(text, ".") != 6:
		c.bad(at, line, errNoRange) // the list format may read it as something else
		return
	case noRange != nil:
		bits = 0 // the list format has the error
	}
	if bits > 0 {
		low, err := r.From().Prefix(bits)
		high, _ := r.To().Prefix(bits)
		if err != nil {
			c.bad(at, line, err)
			return
		}
		if text = low.String(); low != high {
			text = low.Addr().String() + "-" + netipx.PrefixLastIP(high).String()
		}
	}
	c.value(at, text)
}

// maxReasons bounds the reasons for which values are left out, which may have names of the text.
const maxReasons = 20

// leave counts what is no entry, by the grammar of its format, under a reason.
func (c *collector) leave(reason string) { leave(&c.report, reason) }

func leave(r *listfile.Report, reason string) {
	if r.LeftOut == nil {
		r.LeftOut = make(map[string]int)
	}
	if _, known := r.LeftOut[reason]; !known && len(r.LeftOut) >= maxReasons {
		reason = "others"
	}
	r.LeftOut[reason]++
}

func notPrintable(r rune) bool { return r < ' ' || r > '~' }

// bad records text that is not a value.
func (c *collector) bad(at place, text string, err error) {
	c.report.Bad++
	if c.report.Bad%hopelessStep == 0 {
		c.flush()
		c.judge()
	}
	if len(c.report.Errors) == listfile.MaxErrors {
		return
	}
	c.flush() // keeps errors in order
	c.describe(at, text, err)
}

// hopelessStep is the number of bad values between two looks whether they are too many.
const hopelessStep = 1000

// judge ends reading where there are too many bad values.
func (c *collector) judge() {
	if c.options.ToEnd {
		return
	}
	if err := c.report.Hopeless(c.options.MaxBad); err != nil && c.text.err == nil {
		c.text.err = err
	}
}

// describe adds a bad value to the report, unless that has enough of them.
func (c *collector) describe(at place, text string, err error) {
	if len(c.report.Errors) == listfile.MaxErrors {
		return
	}
	if at.offset > 0 {
		err = fmt.Errorf("byte %d: %w", at.offset, err)
	}
	const most = 60 // bytes of text in a message
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	c.report.Errors = append(c.report.Errors, listfile.LineError{File: c.report.File, Line: at.line, Text: text, Err: err})
}

// flush parses the values.
func (c *collector) flush() {
	if len(c.values) == 0 {
		return
	}
	defer func() { c.values, c.places = c.values[:0], c.places[:0] }()
	if c.seek != nil {
		for l, err := range listfile.ScanReader(c.report.File, bytes.NewReader(c.values), c.options) {
			if err != nil || !c.seek(c.places[l.Number-1].line, l) {
				break // the rest is read for nothing, but is short
			}
		}
		return
	}
	o := listfile.Options{Lenient: c.options.Lenient, IgnorePorts: c.options.IgnorePorts, MaxBad: 1, Work: c.options.Work}
	if c.options.MaxEntries > 0 {
		// With no room left, one more entry is too many.
		o.MaxEntries = max(c.options.MaxEntries-c.entries.Weight(), 1)
	}
	var e list.Entries
	var r listfile.Report
	var err error
	o.Work.Idle(func() { e, r, err = listfile.Parse(c.report.File, bytes.NewReader(c.values), o) })
	if ended := o.Work.Err(); ended != nil {
		c.text.err, c.entries = ended, list.Entries{}
		return
	}
	// Otherwise it fails only for too many entries: memory is readable, and no share
	// of bad lines exceeds 1.
	if err == nil && c.options.MaxEntries > 0 && c.entries.Weight()+e.Weight() > c.options.MaxEntries {
		err = listfile.ErrTooManyEntries
	}
	if wide, ok := errors.AsType[*listfile.TooWideError](err); ok {
		wide.Line = c.places[wide.Line-1].line
		c.text.err, c.entries = wide, list.Entries{}
		return
	}
	if err != nil {
		c.text.err = fmt.Errorf("%w: more than %d", listfile.ErrTooManyEntries, c.options.MaxEntries)
		c.entries = list.Entries{}
		return
	}
	c.entries.Append(e)
	c.report.AddWidest(r, func(line int) int { return c.places[line-1].line })
	c.report.Good += r.Good
	c.report.Bad += r.Bad
	for _, le := range r.Errors {
		c.describe(c.places[le.Line-1], le.Text, le.Err)
	}
	c.judge()
}

// finish returns the collected entries, or rejects them if err is set or too
// many of them are bad.
func (c *collector) finish(err error) (list.Entries, listfile.Report, error) {
	c.flush()
	if c.text.err != nil {
		err = c.text.err
	}
	r := &c.report
	r.Lines = c.text.total()
	if err == nil {
		err = r.Judge(c.options.MaxBad)
	}
	if err != nil {
		return list.Entries{}, *r, fmt.Errorf("%s: %w", r.File, err)
	}
	return c.entries, *r, nil
}
