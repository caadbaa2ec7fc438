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

var jsonFormat = format{
	Description: Description{
		Name: "json", Options: []string{"path"}, Example: `{kind: json, path: ".data[].ip"}`,
		About:   "one or several JSON documents; `[]` goes into each element, several paths are joined by commas. `.prefixes[service=EC2&region=eu-west-1].ip_prefix` takes only objects with these fields; `{}` at the end of a path takes the names of an object's fields",
		Grammar: "Values at the paths are entries; what is beside them is left out. A path that leads nowhere is bad. `null` is an empty array. `Ip:` and `Range:` before a value are cut, and values with the other scopes of CrowdSec are left out.",
	},
	needs: []string{"path"}, read: (*reader).json,
}

var jsonLinesFormat = format{
	Description: Description{
		Name: "jsonl", Options: []string{"path"}, Example: "{kind: jsonl, path: .ip}",
		About: "JSON, one document per line", Grammar: "As `json`; a line that is no document is bad.",
	},
	needs: []string{"path"}, read: (*reader).jsonLines,
}

var spamhausFormat = format{
	Description: Description{
		Name: "spamhaus", Example: "spamhaus", About: "Spamhaus DROP as JSON, whose last line proves that it is complete",
		Grammar: "A record a line, with the entry in `cidr`. The last line has the number of records: without it, or with another one, the text is refused.",
	},
	read: spamhaus,
}

// step is a step of a path: into each element, or each object that meets conditions, or
// into the field of that name.
type step struct {
	field string
	each  bool
	keys  bool        // of each, the name of its field
	only  []condition // of each
}

// condition is a field of an object and the text that it must have.
type condition struct{ field, text string }

func (s step) String() string {
	if s.keys {
		return "{}"
	}
	if s.each {
		return "[]"
	}
	return "." + s.field
}

// parsePaths parses paths that are separated by commas. A path is a sequence of
// ".name" and "[]", which may be preceded by a dot, or a single dot; "{}" may end it. A name is
// anything without dots, brackets, commas and blanks. Brackets may have conditions, as in
// "[service=EC2&region=eu-west-1]".
func parsePaths(s string) ([][]step, error) {
	var paths [][]step
	for text := range strings.SplitSeq(s, ",") {
		text = strings.TrimSpace(text)
		rest, ok := strings.CutPrefix(text, ".")
		path := []step{}
		for ok && rest != "" {
			if after, each := strings.CutPrefix(rest, "["); each {
				inside, behind, closed := strings.Cut(after, "]")
				only, err := parseConditions(inside)
				if err != nil {
					return nil, fmt.Errorf("path %q: %w", text, err)
				}
				path = append(path, step{each: true, only: only})
				rest, ok = behind, closed
			} else if rest == "{}" {
				path, rest = append(path, step{each: true, keys: true}), ""
			} else {
				end := strings.IndexAny(rest, ".[")
				if end < 0 {
					end = len(strings.TrimSuffix(rest, "{}"))
				}
				path = append(path, step{field: rest[:end]})
				ok = end > 0 && !strings.ContainsAny(rest[:end], "] \t")
				rest = rest[end:]
			}
			if after, dot := strings.CutPrefix(rest, "."); dot {
				ok = ok && after != ""
				rest = after
			} else {
				ok = ok && (rest == "" || rest[0] == '[' || rest == "{}")
			}
		}
		if !ok {
			return nil, fmt.Errorf(`path %q: want something like ".data[].ip"`, text)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// maxConditions bounds the conditions of a step: an element has a bit for each that it
// does not meet yet.
const maxConditions = 8

// parseConditions parses conditions that are separated by "&"; there may be none.
func parseConditions(s string) ([]condition, error) {
	if s == "" {
		return nil, nil
	}
	var all []condition
	for text := range strings.SplitSeq(s, "&") {
		field, value, ok := strings.Cut(text, "=")
		if !ok || field == "" || strings.ContainsAny(text, "[ \t") {
			return nil, fmt.Errorf(`condition %q: want a field and its text, as in "[service=EC2]", or with a second one "[service=EC2&region=eu-west-1]"`, text)
		}
		all = append(all, condition{field, value})
	}
	if len(all) > maxConditions {
		return nil, fmt.Errorf("%d conditions in one pair of brackets: the maximum is %d", len(all), maxConditions)
	}
	return all, nil
}

// branch is the remainder of a path that leads into a value.
type branch struct {
	steps []step
	in    *element // the innermost one on the way; nil: none has conditions
}

// element is an element of an array that counts only if it is an object that meets
// conditions. They may be known only at its end, as an object has no order.
type element struct {
	only  []condition
	unmet uint // a bit for each condition
	begun bool
	held  []found
	above *element // nil: none
}

// found is a value or an error in an element.
type found struct {
	at   place
	text string
	err  error // nil: a value
}

// maxHeld bounds the bytes of the values of all open elements with conditions.
const maxHeld = 1 << 20

// field notes a field of the element.
func (e *element) field(name string, t json.Token) {
	for i, c := range e.only {
		if c.field == name && t != nil && fmt.Sprint(t) == c.text {
			e.unmet &^= 1 << i
		}
	}
}

// json reads documents, one after another.
func (f *reader) json(c *collector) error {
	c.text.offsets = true
	w := &walker{
		document: newDocument(&c.text, &c.text),
		value:    c.scoped,
		bad:      func(at place, err error) { c.bad(at, "", err) },
	}
	if err := w.documents(f.paths); err != nil {
		at := w.place()
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
		one := &lines{r: bytes.NewReader(text)}
		w := &walker{
			document: newDocument(one, one),
			value:    func(_ place, v string) { values = append(values, v) },
			bad:      func(_ place, err error) { bad = err },
		}
		if err := w.documents(f.paths); err != nil {
			bad = err
		}
		if bad != nil {
			c.bad(place{line: line}, string(text), bad)
			return nil
		}
		for _, v := range values {
			c.scoped(place{line: line}, v)
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
	document
	value func(at place, v string)
	bad   func(at place, err error)
	depth int
	held  int // bytes of values in elements with conditions
}

// maxDepth bounds the nesting of values, and with it the stack.
const maxDepth = 100

// documents traverses all documents.
func (w *walker) documents(paths [][]step) error {
	w.dec.UseNumber() // a number beyond float64 is not an error
	all := make([]branch, len(paths))
	for i, p := range paths {
		all[i].steps = p
	}
	for w.more() {
		if _, err := w.walk(all); err != nil {
			return err
		}
	}
	if _, err := w.dec.Token(); err != io.EOF {
		return err
	}
	return nil
}

// find hands on a value, or an error, or holds it until the end of its element.
func (w *walker) find(in *element, f found) error {
	switch {
	case in != nil:
		const each = 64 // bytes, beside the text
		if w.held += len(f.text) + each; w.held > maxHeld {
			return fmt.Errorf("elements with conditions have more than %d bytes of addresses", maxHeld)
		}
		in.held = append(in.held, f)
	case f.err != nil:
		w.bad(f.at, f.err)
	default:
		w.value(f.at, f.text)
	}
	return nil
}

// end hands on what an element holds if it meets its conditions.
func (w *walker) end(e *element) error {
	for _, f := range e.held {
		const each = 64
		w.held -= len(f.text) + each
		if e.unmet == 0 {
			if err := w.find(e.above, f); err != nil {
				return err
			}
		}
	}
	e.held = nil
	return nil
}

// walk traverses a value and returns it if it is a scalar. paths are the remainders of
// those that lead into it; an empty remainder selects the value itself.
func (w *walker) walk(paths []branch) (json.Token, error) {
	t, err := w.token()
	if err != nil {
		return nil, err
	}
	d, container := t.(json.Delim)
	if !container {
		return t, w.scalar(t, paths)
	}
	if w.depth == maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	w.depth++
	var begin place
	if len(paths) > 0 {
		begin = w.at(w.dec.InputOffset() - 1)
	}
	own := begun(paths)
	known := false
	for w.dec.More() {
		field := ""
		if d == '{' {
			t, err := w.token()
			if err != nil {
				return nil, err
			}
			field = t.(string) // the decoder accepts nothing else
		}
		for _, p := range paths {
			if len(p.steps) > 0 && p.steps[0].keys {
				f := found{at: w.at(w.dec.InputOffset() - 1), text: field}
				if d != '{' {
					f.err = errors.New("an array instead of an object whose names are addresses")
				}
				if err := w.find(p.in, f); err != nil {
					return nil, err
				}
			}
		}
		below := into(paths, field, d == '{')
		known = known || len(below) > 0
		scalar, err := w.walk(below)
		if err != nil {
			return nil, err
		}
		if d == '{' {
			for _, e := range own {
				e.field(field, scalar)
			}
		}
	}
	if _, err := w.token(); err != nil { // the closing bracket
		return nil, err
	}
	w.depth--
	if in, err := missing(paths); err != nil && !known {
		if err := w.find(in, found{at: begin, err: err}); err != nil {
			return nil, err
		}
	}
	for _, e := range own {
		if err := w.end(e); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// begun returns the elements that begin with the value into which paths lead.
func begun(paths []branch) []*element {
	var own []*element
	for _, p := range paths {
		if p.in != nil && !p.in.begun {
			p.in.begun = true
			own = append(own, p.in)
		}
	}
	return own
}

// scalar handles a scalar value.
func (w *walker) scalar(t json.Token, paths []branch) error {
	if len(paths) == 0 {
		return nil
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
		f := found{at: at, text: v}
		switch {
		case p.in != nil && !p.in.begun:
			continue // no object, so that it meets no condition
		case t == nil && len(p.steps) > 0 && p.steps[0].each:
			continue // as some programs write an empty array
		case len(p.steps) > 0:
			f.err = fmt.Errorf("%s leads into %.60q", p.steps[0], v)
		case !text:
			f.err = fmt.Errorf("%.60s instead of a string with an address", v)
		}
		if err := w.find(p.in, f); err != nil {
			return err
		}
	}
	return nil
}

// into returns the remainders of the paths that lead into a field of an object,
// or into an element of an array.
func into(paths []branch, field string, object bool) []branch {
	var below []branch
	for _, p := range paths {
		if len(p.steps) == 0 || p.steps[0].keys || !p.steps[0].each && !(object && p.steps[0].field == field) {
			continue
		}
		in := p.in
		if only := p.steps[0].only; len(only) > 0 {
			in = &element{only: only, unmet: 1<<len(only) - 1, above: in}
		}
		below = append(below, branch{p.steps[1:], in})
	}
	return below
}

// missing returns the error for a container into which none of the paths leads, and the
// element that it is in. The error is nil if all of them select its elements, or if there
// is no path.
func missing(paths []branch) (*element, error) {
	var fields []string
	var in *element
	for _, p := range paths {
		switch {
		case len(p.steps) == 0:
			return p.in, errors.New("an object or array instead of a string with an address")
		case !p.steps[0].each:
			fields = append(fields, p.steps[0].String())
			in = p.in
		}
	}
	if fields == nil {
		return nil, nil
	}
	return in, fmt.Errorf("no field %s", strings.Join(fields, " or "))
}

// spamhaus reads Spamhaus DROP: one record per line, and a last one with their
// number.
func spamhaus(_ *reader, c *collector) error {
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
