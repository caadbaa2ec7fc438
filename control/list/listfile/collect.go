package listfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"sync/atomic"

	"weir/control/list"
)

// chunkLen is the length in bytes of the pieces in which a file is read and
// parsed: about ten thousand lines, enough to make passing it between
// goroutines cheap, and small enough for the second-level cache.
const chunkLen = 256 << 10

// Between two looks at the room for entries are at most roomLines lines, and little more
// than roomWeight: a range of addresses has at most 254 prefixes, one of ports many flows.
const (
	roomLines  = 64
	roomWeight = 254 * roomLines
)

// maxWorkers returns the number of parsing goroutines: one for each processor,
// up to the number that a single reader can feed.
func maxWorkers() int { return min(runtime.GOMAXPROCS(0), 8) }

// chunk is a piece of a file on its way from the reader through a parser to the
// collector, and back to the reader for reuse.
type chunk struct {
	buf    []byte
	text   []byte // part of buf
	err    error  // from the reader, instead of text
	read   int64  // bytes of the file read so far, before decompression
	parser parser
	report Report // counts the lines from the chunk's first
	wide   int    // the line whose ranges were too much, from 1; 0: none
	room   *room  // of all chunks of the file
	work   *Work
	parsed chan struct{} // receives when the parser is done
}

// room is the number of entries that a file may still have; a nil room has no
// limit.
type room struct{ left atomic.Int64 }

func newRoom(most int) *room {
	if most == 0 {
		return nil
	}
	r := &room{}
	r.left.Store(int64(most))
	return r
}

// take takes n entries and reports whether there was room for them.
func (r *room) take(n int) bool { return r == nil || r.left.Add(int64(-n)) >= 0 }

func (r *room) exceeded() bool { return r != nil && r.left.Load() < 0 }

// parse parses the chunk's text, or as much of it as there is room for.
func (c *chunk) parse() {
	shift := c.work.Begin()
	defer shift.End()
	c.report = Report{Errors: c.report.Errors[:0]}
	p := &c.parser
	p.out = list.Entries{V4: p.out.V4[:0], V6: p.out.V6[:0], Flows: p.out.Flows[:0]}
	taken := 0
	p.wide, c.wide = 0, 0
	defer func() { c.work.reserve(p.out.Weight()) }()
	var last []byte    // the last good line
	var counted [3]int // entries of the lines before
	for text := c.text; len(text) > 0; {
		if n := p.out.Weight(); c.report.Lines%roomLines == 0 || n-taken > roomWeight {
			if !c.room.take(n - taken) {
				return
			}
			taken = n
		}
		var line []byte
		line, text = cutLine(text)
		c.report.Lines++
		switch {
		case len(line) == 0:
			continue
		case bytes.Equal(line, last):
			c.report.Good++
			continue
		}
		switch entry, err := p.line(line); {
		case err != nil:
			c.report.Bad++
			if len(c.report.Errors) < MaxErrors {
				c.report.Errors = append(c.report.Errors, LineError{
					Line: c.report.Lines, Text: shorten(string(line)), Err: err,
				})
			}
		case entry:
			c.report.Good++
			last = line
			c.widest(&counted)
			if p.wide > 0 {
				if !c.work.widen(p.wide) {
					c.wide = c.report.Lines
					return
				}
				p.wide = 0
			}
		}
	}
	c.room.take(p.out.Weight() - taken)
}

// widest keeps the line with the parser's entries behind those seen if it is one of the widest.
func (c *chunk) widest(seen *[3]int) {
	out := &c.parser.out
	if single := [3]int{seen[0] + 1, seen[1], seen[2]}; single == [3]int{len(out.V4), len(out.V6), len(out.Flows)} && out.V4[seen[0]].Bits() > narrowV4 {
		*seen = single // as nearly all lines
		return
	}
	var line [2]WideLine
	add := func(p netip.Prefix) {
		w := &line[0]
		if p.Addr().Is6() {
			w = &line[1]
		}
		if w.Share == 0 || p.Bits() < w.Entry.Bits() {
			w.Line, w.Entry = c.report.Lines, p
		}
		w.Share += list.Share(p)
	}
	for _, p := range out.V4[seen[0]:] {
		if p.Bits() <= narrowV4 {
			add(p.Prefix())
		}
	}
	for _, p := range out.V6[seen[1]:] {
		if p.Bits() <= narrowV6 {
			add(p)
		}
	}
	for _, k := range out.Flows[seen[2]:] {
		if !k.Tuple() {
			p, _ := list.PrefixOf(k)
			add(p)
		}
	}
	for _, w := range line {
		c.report.widest(w)
	}
	*seen = [3]int{len(out.V4), len(out.V6), len(out.Flows)}
}

// cutLine cuts text after its first line and returns the line without its end:
// LF, CRLF, or CRCRLF, which results from converting twice.
func cutLine(text []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(text, []byte{'\n'})
	for len(line) > 0 && line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	return line, rest
}

// collect reads and parses a list of the given size in bytes, 0 if unknown. One
// goroutine reads chunks, several parse them, and the caller's collects them in
// the order of the file. A fixed number of chunks circulates, which bounds the
// memory.
func collect(name string, r io.Reader, size int64, o Options, workers, chunkLen int) (list.Entries, Report, error) {
	var all list.Entries
	report := Report{File: name}
	begun := o.Work.Begin()
	begun.in(r)
	src, err := newSource(r)
	(*Shift)(nil).in(r)
	begun.End()
	if err != nil {
		return list.Entries{}, report, fmt.Errorf("%s: %w", name, after(0, err))
	}
	defer src.text.Close()

	// No send on these channels blocks: each has room for every chunk.
	chunks := 2 * workers
	room := newRoom(o.MaxEntries)
	seen := &ranges{}
	if o.Work != nil {
		seen = &o.Work.ranges
	}
	var stop atomic.Bool // the rest is not read
	free, work, order := make(chan *chunk, chunks), make(chan *chunk, chunks), make(chan *chunk, chunks)
	for range chunks {
		p := newParser(o)
		p.ranges = seen
		free <- &chunk{parser: p, room: room, work: o.Work, parsed: make(chan struct{}, 1)}
	}
	go func() {
		defer close(work)
		defer close(order)
		for c := range free {
			if stop.Load() {
				return
			}
			if c.buf == nil { // lazily: a short file takes one chunk
				c.buf = make([]byte, chunkLen)
			}
			shift := o.Work.Begin()
			shift.in(r)
			c.text, c.err = src.next(c.buf)
			(*Shift)(nil).in(r)
			shift.End()
			c.read = src.raw.n
			order <- c
			if c.err != nil {
				return
			}
			work <- c
		}
	}()
	for range workers {
		go func() {
			for c := range work {
				c.parse()
				c.parsed <- struct{}{}
			}
		}()
	}

	err = nil
	for c := range order { // until the reader has ended, so that the caller may use r again
		if c.err != nil {
			if c.err != io.EOF {
				err = after(report.Lines, c.err)
			}
			continue // drain: the reader sends nothing after an error
		}
		<-c.parsed
		if err == nil {
			before := report.Lines
			report.add(c.report)
			if err = report.hopeless(o, room); err == nil && c.wide > 0 {
				err = &TooWideError{before + c.wide}
			}
		}
		if err != nil {
			all, c.parser.out = list.Entries{}, list.Entries{}
			stop.Store(true)
			free <- c
			continue
		}
		addEntries(&all, c.parser.out, c.read, size)
		if c.parser.out.Len() > chunkLen/2 { // of ranges: too much memory to keep
			c.parser.out = list.Entries{}
		}
		if o.Progress != nil {
			o.Progress(c.read, size)
		}
		free <- c
	}
	if err == nil {
		err = report.Judge(o.MaxBad)
	}
	if err != nil {
		return list.Entries{}, report, fmt.Errorf("%s: %w", name, err)
	}
	return all, report, nil
}

// add appends the report on the subsequent lines.
func (r *Report) add(next Report) {
	for _, e := range next.Errors[:min(len(next.Errors), MaxErrors-len(r.Errors))] {
		e.File = r.File
		e.Line += r.Lines
		r.Errors = append(r.Errors, e)
	}
	r.AddWidest(next, func(line int) int { return r.Lines + line })
	r.Lines += next.Lines
	r.Good += next.Good
	r.Bad += next.Bad
}

// hopelessLines is the number of bad lines from which on a file is rejected before it
// was read to its end, if they are too many of its lines so far: an error page, another
// format, or garbage of gigabytes.
const hopelessLines = 10_000

// hopeless rejects a file that is not worth reading on.
func (r *Report) hopeless(o Options, room *room) error {
	switch err := o.Work.Err(); {
	case err != nil:
		return err
	case room.exceeded():
		return fmt.Errorf("%w: more than %d", ErrTooManyEntries, o.MaxEntries)
	case o.MaxLines > 0 && r.Lines > o.MaxLines:
		return fmt.Errorf("%w: more than %d", ErrTooManyLines, o.MaxLines)
	}
	if o.ToEnd {
		return nil
	}
	return r.Hopeless(o.MaxBad)
}

// Hopeless rejects a file of which a part was read, if it has many bad lines, and more
// than the given share of those read so far.
func (r *Report) Hopeless(maxBad float64) error {
	if r.Bad < hopelessLines {
		return nil
	}
	return r.Judge(maxBad)
}

// Judge rejects a file with more than a share of bad lines, as of [Options.MaxBad].
func (r *Report) Judge(maxBad float64) error {
	if maxBad == 0 {
		maxBad = DefaultMaxBad
	}
	if r.Bad == 0 || float64(r.Bad) <= maxBad*float64(r.Bad+r.Good) {
		return nil
	}
	return fmt.Errorf("%w: %d of %d, where max_bad is %.3g %%; the first: %w", ErrTooManyBad, r.Bad, r.Bad+r.Good, max(0, 100*maxBad), r.Errors[0])
}

// addEntries appends the entries of a chunk, given the number of bytes of the file
// read so far and the file's size, 0 if unknown.
func addEntries(e *list.Entries, next list.Entries, read, size int64) {
	e.V4 = extend(e.V4, next.V4, read, size)
	e.V6 = extend(e.V6, next.V6, read, size)
	e.Flows = extend(e.Flows, next.Flows, read, size)
}

// extend appends next to s. If it has to grow s, it extrapolates the size of
// the whole file, so that a large list is not copied, and in memory twice, when
// it is nearly complete. As the guess may be wrong, since a file may change in
// density or be read long before it is decompressed, s grows by at least a
// quarter, which keeps copying linear, and fourfold until the guess rests on a
// sixth of the file.
func extend[T any](s, next []T, read, size int64) []T {
	need := len(s) + len(next)
	if need > cap(s) && size > 0 {
		room := int(float64(need) * 1.02 * float64(size) / float64(read))
		if room > 6*need {
			room = 4 * need
		}
		s = list.Grown(s, max(room, need+need/4))
	}
	return list.Append(s, next)
}

// after says behind which line a text could not be read on.
func after(line int, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("cut off after line %d, so it has to be fetched or written again: %w", line, err)
	}
	if line == 0 { // as of a directory
		return err
	}
	return fmt.Errorf("after line %d: %w", line, err)
}

// scan calls fn for each good line until it returns false.
func scan(name string, r io.Reader, o Options, fn func(Line) bool) error {
	src, err := newSource(r)
	if err != nil {
		return fmt.Errorf("%s: %w", name, after(0, err))
	}
	defer src.text.Close()
	p := newParser(o)
	buf := make([]byte, chunkLen)
	for number := 0; ; {
		text, err := src.next(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, after(number, err))
		}
		for len(text) > 0 {
			var line []byte
			line, text = cutLine(text)
			number++
			p.out = list.Entries{V4: p.out.V4[:0], V6: p.out.V6[:0], Flows: p.out.Flows[:0]}
			entry, err := p.line(line)
			if err == nil && entry && !fn(Line{Number: number, Text: line, Entries: p.out}) {
				return nil
			}
		}
	}
}
