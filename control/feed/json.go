package feed

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// step is a step of a path: into each element, or into the field of that name.
type step struct {
	field string
	each  bool
}

func (s step) String() string {
	if s.each {
		return "[]"
	}
	return "." + s.field
}

// parsePaths parses paths that are separated by commas. A path is a sequence of
// ".name" and "[]", which may be preceded by a dot, or a single dot. A name is
// anything without dots, brackets, commas and blanks.
func parsePaths(s string) ([][]step, error) {
	var paths [][]step
	for text := range strings.SplitSeq(s, ",") {
		text = strings.TrimSpace(text)
		rest, ok := strings.CutPrefix(text, ".")
		path := []step{}
		for ok && rest != "" {
			if after, each := strings.CutPrefix(rest, "[]"); each {
				path = append(path, step{each: true})
				rest = after
			} else {
				end := strings.IndexAny(rest, ".[")
				if end < 0 {
					end = len(rest)
				}
				path = append(path, step{field: rest[:end]})
				ok = end > 0 && !strings.ContainsAny(rest[:end], "] \t")
				rest = rest[end:]
			}
			if after, dot := strings.CutPrefix(rest, "."); dot {
				ok = ok && after != ""
				rest = after
			} else {
				ok = ok && (rest == "" || rest[0] == '[')
			}
		}
		if !ok {
			return nil, fmt.Errorf(`path %q: want something like ".data[].ip"`, text)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// json reads documents, one after another.
func (f *reader) json(c *collector) error {
	c.text.offsets = true
	w := &walker{
		dec:   json.NewDecoder(&c.text),
		begin: c.text.begin,
		at:    func(offset int64) place { return place{c.text.at(offset), offset} },
		value: c.value,
		bad:   func(at place, err error) { c.bad(at, "", err) },
	}
	if err := w.documents(f.paths); err != nil {
		at := w.at(w.dec.InputOffset())
		return fmt.Errorf("line %d, byte %d: %w", at.line, at.offset, err)
	}
	return nil
}

// jsonLines reads one document per line, so that a broken one is just a bad
// line.
func (f *reader) jsonLines(c *collector) error {
	return eachLine(c, func(line int, text []byte) error {
		var values []string
		var bad error
		w := &walker{
			dec:   json.NewDecoder(bytes.NewReader(text)),
			at:    func(int64) place { return place{line: line} },
			value: func(_ place, v string) { values = append(values, v) },
			bad:   func(_ place, err error) { bad = err },
		}
		if err := w.documents(f.paths); err != nil {
			bad = err
		}
		if bad != nil {
			c.bad(place{line: line}, string(text), bad)
			return nil
		}
		for _, v := range values {
			c.value(place{line: line}, v)
		}
		return nil
	})
}

// eachLine calls fn with each line that is not blank, trimmed, until it fails.
func eachLine(c *collector, fn func(line int, text []byte) error) error {
	s := bufio.NewScanner(&c.text)
	s.Buffer(nil, maxRecord)
	line := 0
	for s.Scan() {
		line++
		if text := bytes.TrimSpace(s.Bytes()); len(text) > 0 {
			if err := fn(line, text); err != nil {
				return fmt.Errorf("line %d: %w", line, err)
			}
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("line %d: %w", line+1, err)
	}
	return nil
}

// walker traverses JSON documents and finds the values at the paths, with one
// token in memory at a time.
type walker struct {
	dec   *json.Decoder
	begin func(offset int64)       // called before each token; may be nil
	at    func(offset int64) place // called with ascending offsets
	value func(at place, v string)
	bad   func(at place, err error)
	depth int
}

// maxDepth bounds the nesting of values, and with it the stack.
const maxDepth = 100

// documents traverses all documents.
func (w *walker) documents(paths [][]step) error {
	w.dec.UseNumber() // a number beyond float64 is not an error
	for {
		err := w.walk(paths)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// token returns the decoder's next token; inside a document, the end is an
// error.
func (w *walker) token() (json.Token, error) {
	if w.begin != nil {
		w.begin(w.dec.InputOffset())
	}
	t, err := w.dec.Token()
	if err == io.EOF && w.depth > 0 {
		err = io.ErrUnexpectedEOF
	}
	return t, err
}

// walk traverses a value. paths are the remainders of those that lead into it;
// an empty remainder selects the value itself.
func (w *walker) walk(paths [][]step) error {
	t, err := w.token()
	if err != nil {
		return err
	}
	d, container := t.(json.Delim)
	if !container {
		w.scalar(t, paths)
		return nil
	}
	if w.depth == maxDepth {
		return fmt.Errorf("nested deeper than %d", maxDepth)
	}
	w.depth++
	var begin place
	if len(paths) > 0 {
		begin = w.at(w.dec.InputOffset() - 1)
	}
	found := false
	for w.dec.More() {
		field := ""
		if d == '{' {
			t, err := w.token()
			if err != nil {
				return err
			}
			field = t.(string) // the decoder accepts nothing else
		}
		below := into(paths, field, d == '{')
		found = found || len(below) > 0
		if err := w.walk(below); err != nil {
			return err
		}
	}
	if _, err := w.token(); err != nil { // the closing bracket
		return err
	}
	w.depth--
	if err := missing(paths); err != nil && !found {
		w.bad(begin, err)
	}
	return nil
}

// scalar handles a scalar value.
func (w *walker) scalar(t json.Token, paths [][]step) {
	if len(paths) == 0 {
		return
	}
	v, text := t.(string)
	begin := w.dec.InputOffset()
	switch {
	case text:
		const quotes = 2
		begin -= int64(len(v) + quotes) // or somewhere inside, if it has escapes
	case t == nil:
		v = "null"
		begin -= int64(len(v))
	default:
		v = fmt.Sprint(t)
		begin -= int64(len(v))
	}
	at := w.at(max(begin, 0))
	for _, p := range paths {
		switch {
		case len(p) > 0:
			w.bad(at, fmt.Errorf("%s leads into %.60q", p[0], v))
		case !text:
			w.bad(at, fmt.Errorf("%.60s instead of a string with an address", v))
		default:
			w.value(at, v)
		}
	}
}

// into returns the remainders of the paths that lead into a field of an object,
// or into an element of an array.
func into(paths [][]step, field string, object bool) [][]step {
	var below [][]step
	for _, p := range paths {
		if len(p) > 0 && (p[0].each || object && p[0].field == field) {
			below = append(below, p[1:])
		}
	}
	return below
}

// missing returns the error for a container into which none of the paths leads.
// It is nil if all of them select its elements, or if there is no path.
func missing(paths [][]step) error {
	var fields []string
	for _, p := range paths {
		switch {
		case len(p) == 0:
			return errors.New("an object or array instead of a string with an address")
		case !p[0].each:
			fields = append(fields, p[0].String())
		}
	}
	if fields == nil {
		return nil
	}
	return fmt.Errorf("no field %s", strings.Join(fields, " or "))
}

// spamhaus reads Spamhaus DROP: one record per line, and a last one with their
// number.
func spamhaus(c *collector) error {
	records, closed := 0, false
	err := eachLine(c, func(line int, text []byte) error {
		var r struct {
			CIDR    string
			Type    string
			Records *int
		}
		if err := json.Unmarshal(text, &r); err != nil {
			c.bad(place{line: line}, string(text), err)
			return nil
		}
		if r.Type == "metadata" {
			closed = true
			if r.Records != nil && *r.Records != records {
				return fail(Truncated, "%d records, but the last line says %d", records, *r.Records)
			}
			return nil
		}
		records++
		c.value(place{line: line}, r.CIDR)
		return nil
	})
	if err == nil && !closed {
		return fail(Truncated, "the last line, with metadata, is missing")
	}
	return err
}
