package config

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"weir/control/feed"
	"weir/control/quantity"
	"weir/filter/ordered"
)

// Error is an error in a configuration.
type Error struct {
	File         string // "": it comes from no file
	Line, Column int    // from 1
	Path         string // as in "lists.drop.sources[0].url"; "" for the whole
	Err          error
}

func (e *Error) Error() string {
	at := ""
	if e.File != "" {
		at = fmt.Sprintf("%s:%d:%d: ", e.File, e.Line, e.Column)
	}
	if e.Path != "" {
		at += e.Path + ": "
	}
	return at + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Errors are all errors in a configuration, one or more, in the order of the file.
type Errors []*Error

// Error returns a line for each.
func (es Errors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// A Reader reads a configuration, again at each reload.
type Reader interface{ Read() (*Config, error) }

// File is the path of a configuration. It is a [Reader].
type File string

// Read is [Load].
func (f File) Read() (*Config, error) { return Load(string(f)) }

// Load reads and validates a configuration, and the files that it names as far as
// an error in them would keep weir from starting. The error is of type [Errors],
// unless the file cannot be read.
func Load(path string) (*Config, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return read(path, text, Default(), (*Config).checkFiles, (*Config).check)
}

// Places returns a function that makes errors at paths of the file, as in "lists.drop", or at the
// nearest path above that is there. It reads the file again; where it cannot, errors have no place.
func (f File) Places() func(path string, err error) *Error {
	d := &decoder{file: string(f), at: map[string]*token.Position{"": {Line: 1, Column: 1}}}
	text, err := readFile(d.file)
	if err != nil {
		return func(path string, err error) *Error { return &Error{Path: path, Err: err} }
	}
	d.document(text, reflect.ValueOf(Default()).Elem())
	return func(path string, err error) *Error {
		d.errs = nil
		d.fail(path, err)
		return d.errs[0]
	}
}

// readFile reads a file, but not far beyond maxSize.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxSize+1))
}

// Parse is Load for the text of a file, without the files that it names. Errors
// call the file by name.
func Parse(name string, text []byte) (*Config, error) {
	return read(name, text, Default(), (*Config).check)
}

// read decodes the text of a file into c, which has the defaults, and checks it.
func read[T any](name string, text []byte, c *T, checks ...func(*T) quantity.FieldErrors) (*T, error) {
	d := &decoder{file: name, at: map[string]*token.Position{"": {Line: 1, Column: 1}}}
	d.document(text, reflect.ValueOf(c).Elem())
	misread := slices.Clone(d.errs)
	for _, check := range checks {
		for _, wrong := range check(c) {
			// A value that was not understood gets no second error.
			if !slices.ContainsFunc(misread, func(e *Error) bool { return within(e.Path, wrong.Field) || within(wrong.Field, e.Path) }) {
				d.fail(wrong.Field, wrong.Err)
			}
		}
	}
	if len(d.errs) > 0 {
		ordered.By(d.errs, func(a, b *Error) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		})
		return nil, d.errs
	}
	return c, nil
}

// Validate checks a configuration that comes from no file as [Load] checks one
// that does. The error is of type [Errors].
func (c *Config) Validate() error {
	var errs Errors
	for _, wrong := range append(c.checkFiles(), c.check()...) {
		errs = append(errs, &Error{Path: wrong.Field, Err: wrong.Err})
	}
	if len(errs) > 0 {
		return errs
	}
	return nil
}

// within reports whether a path is another path or below it.
func within(path, above string) bool {
	rest, ok := strings.CutPrefix(path, above)
	return ok && (rest == "" || above == "" || rest[0] == '.' || rest[0] == '[')
}

// decoder decodes YAML into a Config, and goes on after errors.
type decoder struct {
	file string
	errs Errors
	at   map[string]*token.Position // by path, of the values in the file
}

// fail adds an error at a path or, if that is not in the file, at the nearest path
// above it.
func (d *decoder) fail(path string, err error) {
	at, ok := d.at[path]
	for above := path; !ok; at, ok = d.at[above] {
		above = above[:max(0, strings.LastIndexAny(above, ".["))]
	}
	d.errs = append(d.errs, &Error{File: d.file, Line: at.Line, Column: at.Column, Path: path, Err: err})
}

func (d *decoder) failf(path, format string, args ...any) {
	d.fail(path, fmt.Errorf(format, args...))
}

// The limits of a file. The parser's time grows with the square of the number of keys
// and of the depth, and its memory with that of the depth.
const (
	maxSize  = 1 << 20 // bytes
	maxDepth = 100     // of open brackets and dashes; a configuration has some 6
)

// tooDeep returns the first token that is nested deeper than maxDepth, nil for none. It
// counts brackets, and the dashes of a line; to nest otherwise takes indentation, and
// bytes that grow with the square of the depth.
func tooDeep(tokens token.Tokens) *token.Token {
	open, dashes, line := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
		}
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			open++
		case token.SequenceEndType, token.MappingEndType:
			open = max(open-1, 0)
		case token.SequenceEntryType:
			dashes++
		}
		if max(open, dashes) > maxDepth {
			return t
		}
	}
	return nil
}

func (d *decoder) document(text []byte, v reflect.Value) {
	if len(text) > maxSize {
		d.failf("", "more than %d bytes: put addresses into files, and name those as sources", maxSize)
		return
	}
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // as some editors begin a file
	if !utf8.Valid(text) {
		d.failf("", "not UTF-8: save it in this encoding")
		return
	}
	tokens := lexer.Tokenize(string(text))
	if t := tooDeep(tokens); t != nil {
		d.at[""] = t.Position
		d.failf("", "nested deeper than %d", maxDepth)
		return
	}
	f, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var syntax yaml.Error
		if errors.As(err, &syntax) && syntax.GetToken() != nil {
			d.at[""] = syntax.GetToken().Position
			err = errors.New(syntax.GetMessage())
			if strings.Contains(err.Error(), `character '	'`) {
				err = errors.New("a tab: indent with spaces")
			}
		}
		d.fail("", fmt.Errorf("not YAML: %w", err))
		return
	}
	var bodies []ast.Node
	for _, doc := range f.Docs {
		if doc.Body != nil {
			bodies = append(bodies, doc.Body)
		}
	}
	switch {
	case len(bodies) > 1:
		d.at[""] = position(bodies[1])
		d.failf("", "a second document: want only one")
	case len(bodies) == 1:
		d.decode(bodies[0], v, "")
	default:
		d.structure(nil, v, "") // for what is required
	}
}

// position returns where a node begins.
func position(n ast.Node) *token.Position {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
		return position(m.Values[0].Key)
	}
	return n.GetToken().Position
}

// decode sets v, which contains the defaults, to the value of a node.
func (d *decoder) decode(n ast.Node, v reflect.Value, path string) {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.failf(path, "anchors, aliases and tags are not supported: write the value out")
		return
	}
	if _, null := n.(*ast.NullNode); isScalar(n) && !null {
		d.at[path] = position(n) // not that of its key
	}
	if to, ok := reflect.TypeAssert[encoding.TextUnmarshaler](v.Addr()); ok {
		if text, ok := d.scalar(n, path); ok {
			if err := to.UnmarshalText([]byte(text)); err != nil {
				d.fail(path, err)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.structure(n, v, path)
	case reflect.Slice:
		d.slice(n, v, path)
	case reflect.Map:
		d.strings(n, v, path)
	case reflect.String:
		if _, isBool := n.(*ast.BoolNode); isBool {
			d.failf(path, "%s is a boolean: quote it if it is text", n)
		} else if text, ok := d.scalar(n, path); ok {
			v.SetString(text)
		}
	case reflect.Bool:
		if b, ok := n.(*ast.BoolNode); ok {
			v.SetBool(b.Value)
		} else {
			d.failf(path, "want true or false")
		}
	case reflect.Int:
		if text, ok := d.scalar(n, path); ok {
			i, err := parseInteger(text)
			if err != nil {
				d.failf(path, "%q: %v", text, err)
				return
			}
			v.SetInt(i)
		}
	case reflect.Float64:
		if text, ok := d.scalar(n, path); ok {
			f, err := strconv.ParseFloat(text, 64)
			if err != nil {
				d.failf(path, "%q: want a number", text)
				return
			}
			v.SetFloat(f)
		}
	default:
		panic("config: no way to read a " + v.Type().String())
	}
}

// scalar returns a scalar's text, quoted or not.
func (d *decoder) scalar(n ast.Node, path string) (string, bool) {
	switch n := n.(type) {
	case *ast.NullNode:
		d.failf(path, "no value")
	case *ast.LiteralNode:
		return n.Value.Value, true
	case ast.ScalarNode:
		return n.GetToken().Value, true
	default:
		d.failf(path, "want a single value")
	}
	return "", false
}

// isText reports whether a type is a scalar with its own text.
func isText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// textOf returns the text of a scalar. A string without a method is its own text.
func textOf(v reflect.Value) string {
	m, ok := reflect.TypeAssert[encoding.TextMarshaler](v)
	if !ok {
		return v.String()
	}
	text, err := m.MarshalText()
	if err != nil {
		panic(err) // UnmarshalText has read it
	}
	return string(text)
}

// field is a struct's field and its tags.
type field struct {
	name                              string
	index                             []int
	omitEmpty, required, short, isKey bool
	min, max                          string
}

// knownFields are the fields of the structs that were asked for: a configuration may have
// thousands of lists.
var knownFields sync.Map // of []field, by reflect.Type

func fields(t reflect.Type) []field {
	if known, ok := knownFields.Load(t); ok {
		return known.([]field)
	}
	var all []field
	for _, f := range reflect.VisibleFields(t) { // those of embedded structs, too
		if f.Anonymous || !f.IsExported() || f.Tag.Get("yaml") == "-" {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		has := func(o string) bool { return slices.Contains(strings.Split(options, ","), o) }
		all = append(all, field{
			name: name, index: f.Index,
			omitEmpty: has("omitempty"), required: has("required"), short: has("short"), isKey: has("key"),
			min: f.Tag.Get("min"), max: f.Tag.Get("max"),
		})
	}
	knownFields.Store(t, all)
	return all
}

// shortField returns the field that a scalar sets, if the struct has one.
func shortField(t reflect.Type) (field, bool) {
	return findField(t, func(f field) bool { return f.short })
}

// keyField returns the field that is the key of an element, if the struct has one.
func keyField(t reflect.Type) (field, bool) {
	return findField(t, func(f field) bool { return f.isKey })
}

func findField(t reflect.Type, is func(field) bool) (field, bool) {
	if t.Kind() == reflect.Struct {
		all := fields(t)
		if i := slices.IndexFunc(all, is); i >= 0 {
			return all[i], true
		}
	}
	return field{}, false
}

// structure decodes a mapping; n is nil for none.
func (d *decoder) structure(n ast.Node, v reflect.Value, path string) {
	if s, ok := reflect.TypeAssert[defaulter](v.Addr()); ok && v.IsZero() {
		s.SetDefaults()
	}
	if f, ok := shortField(v.Type()); ok {
		if _, null := n.(*ast.NullNode); !null && isScalar(n) {
			d.decode(n, v.FieldByIndex(f.index), path)
			return
		}
	}
	if as := example(n, v.Type()); as != "" {
		d.failf(path, "want a mapping, as in %s", as)
		return
	}
	entries, ok := d.mapping(n, path)
	if !ok {
		return
	}
	var there []string
	empty := "" // the key before, if it has no value
	for _, e := range entries {
		name, below := e.name, Join(path, e.name)
		above := empty
		empty = ""
		if _, null := e.value.(*ast.NullNode); null {
			empty = name
		}
		all := fields(v.Type())
		i := slices.IndexFunc(all, func(f field) bool { return f.name == name && !f.isKey })
		if i < 0 {
			var names []string
			for _, f := range all {
				if !f.isKey {
					names = append(names, f.name)
				}
			}
			if _, mapping := e.value.(*ast.MappingNode); mapping && above != "" && slices.Contains(there, above) && quantity.Nearest(name, names) == "" {
				d.failf(below, "unknown key %q: indent it further if it belongs to %s", name, above)
				continue
			}
			d.fail(below, fmt.Errorf("unknown key %w", wanted(name, names)))
			continue
		}
		there = append(there, name)
		d.decode(e.value, v.FieldByIndex(all[i].index), below)
	}
	if c, ok := reflect.TypeAssert[completer](v.Addr()); ok {
		c.Complete(func(name string) bool { return slices.Contains(there, name) })
	}
	for _, f := range fields(v.Type()) {
		if f.required && !slices.Contains(there, f.name) {
			d.failf(path, "%s is missing", f.name)
		}
	}
}

// example returns the mapping that a path or a URL stands for where a struct has a
// field for it.
func example(n ast.Node, t reflect.Type) string {
	if !isScalar(n) {
		return ""
	}
	text := n.GetToken().Value
	for _, f := range fields(t) {
		switch to := reflect.New(t.FieldByIndex(f.index).Type).Interface().(type) {
		case *feed.Path, *feed.URL:
			if text != "" && to.(encoding.TextUnmarshaler).UnmarshalText([]byte(text)) == nil {
				return fmt.Sprintf("{%s: %q}", f.name, text)
			}
		}
	}
	if t == reflect.TypeFor[feed.Source]() { // a relative path, which says not in which directory
		return fmt.Sprintf(`{file: "/DIRECTORY/%s"} or {url: "https://HOST/FILE"}`, strings.TrimPrefix(text, "./"))
	}
	return ""
}

func isScalar(n ast.Node) bool {
	_, scalar := n.(ast.ScalarNode)
	_, literal := n.(*ast.LiteralNode)
	return scalar || literal
}

// entry is a key of a mapping with its value.
type entry struct {
	name  string
	value ast.Node
}

// mapping returns the entries of a mapping, and adds errors for duplicate keys. It
// reports whether the node is a mapping or nothing.
func (d *decoder) mapping(n ast.Node, path string) ([]entry, bool) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case nil, *ast.NullNode:
	case *ast.MappingNode:
		values = n.Values
	default:
		d.failf(path, "want a mapping: keys and values")
		return nil, false
	}
	var entries []entry
	lines := map[string]int{}
	for _, kv := range values {
		name, at := kv.Key.GetToken().Value, kv.Key.GetToken().Position
		below := Join(path, name)
		if first := lines[name]; first > 0 {
			d.errs = append(d.errs, &Error{d.file, at.Line, at.Column, below, fmt.Errorf("duplicate key, first in line %d", first)})
			continue
		}
		lines[name] = at.Line
		d.at[below] = at
		if _, ok := kv.Key.(*ast.MergeKeyNode); ok {
			d.failf(below, "merging is not supported: write the values out")
			continue
		}
		entries = append(entries, entry{name, kv.Value})
	}
	return entries, true
}

// Join returns the path of a name below a path. A name that looks like a path is
// quoted.
func Join(path, name string) string {
	if strings.ContainsAny(name, ".[") {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// completer is a struct with defaults that depend on its other fields.
type completer interface {
	Complete(given func(name string) bool)
}

// defaulter is a struct with defaults that are not zero.
type defaulter interface{ SetDefaults() }

// element returns an element with its defaults.
func element(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := reflect.TypeAssert[defaulter](v); ok {
		d.SetDefaults()
	}
	return v.Elem()
}

// slice decodes a sequence, or where elements have a key, a mapping.
func (d *decoder) slice(n ast.Node, v reflect.Value, path string) {
	t := v.Type().Elem()
	if key, ok := keyField(t); ok {
		entries, _ := d.mapping(n, path)
		for _, named := range entries {
			_, null := named.value.(*ast.NullNode)
			_, mapping := named.value.(*ast.MappingNode)
			if !null && !mapping && slices.ContainsFunc(fields(t), func(f field) bool { return f.name == named.name }) {
				d.failf(Join(path, named.name), "a key of one of the %s: indent it further", path)
				continue
			}
			e := element(t)
			e.FieldByIndex(key.index).SetString(named.name)
			d.decode(named.value, e, Join(path, named.name))
			v.Set(reflect.Append(v, e))
		}
		return
	}
	switch n := n.(type) {
	case *ast.NullNode:
	case *ast.SequenceNode:
		for i, value := range n.Values {
			below := fmt.Sprintf("%s[%d]", path, i)
			d.at[below] = position(value)
			e := element(t)
			d.decode(value, e, below)
			v.Set(reflect.Append(v, e))
		}
	default:
		d.failf(path, "want a list: [ … ], or a line with a dash for each")
	}
}

// strings decodes a mapping of names to strings.
func (d *decoder) strings(n ast.Node, v reflect.Value, path string) {
	entries, _ := d.mapping(n, path)
	for _, named := range entries {
		e := element(v.Type().Elem())
		d.decode(named.value, e, Join(path, named.name))
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		v.SetMapIndex(reflect.ValueOf(named.name), e)
	}
}

// meanings are words of other programs, with what they are here.
var meanings = map[string]string{
	"file": "sources: [{file: …}]", "path": "sources: [{file: …}]", "url": "sources: [{url: …}]",
	"whitelist": "action: allow", "allowlist": "action: allow", "accept": "action: allow", "pass": "action: allow",
	"blacklist": "action: block", "blocklist": "action: block", "drop": "action: block", "deny": "action: block",
}

// wanted returns an error with what a word means here, the nearest of the valid words, or all of them.
func wanted(word string, words []string) error {
	means := meanings[strings.ToLower(word)]
	key, value, _ := strings.Cut(means, ": ")
	switch {
	case means == "" || slices.Contains(words, key):
	case slices.Contains(words, value):
		means = value
	case slices.Contains(words, "lists"): // which it is about
		means = "lists: {NAME: {" + means + "}}"
	default:
		means = ""
	}
	if means != "" {
		return fmt.Errorf("%q: did you mean %s?", word, means)
	}
	if near := quantity.Nearest(word, words); near != "" {
		return fmt.Errorf("%q: did you mean %s?", word, near)
	}
	last := len(words) - 1
	list := words[last]
	if last > 0 {
		list = strings.Join(words[:last], ", ") + " or " + list
	}
	return fmt.Errorf("%q: want %s", word, list)
}

// parseInteger parses a decimal integer, or one that begins with 0x, 0o or 0b.
func parseInteger(text string) (int64, error) {
	digits := strings.TrimLeft(text, "+-")
	if len(digits) > 1 && digits[0] == '0' && (digits[1] == '_' || '0' <= digits[1] && digits[1] <= '9') {
		return 0, errors.New("write it without leading zeros, which some programs read as octal")
	}
	i, err := strconv.ParseInt(text, 0, 0)
	if err != nil {
		return 0, errors.New("want an integer")
	}
	return i, nil
}
