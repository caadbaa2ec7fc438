package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Print writes the configuration as YAML, the defaults included, so that [Parse]
// returns it again. Secrets are printed in clear: headers, and the user and query
// of URLs. It fails for text that is not in UTF-8. It does not use the library's
// encoder, which leaves a tab without quotes.
func (c *Config) Print(w io.Writer) error {
	var b bytes.Buffer
	write(&b, tree(reflect.ValueOf(c).Elem()), "")
	if !utf8.Valid(b.Bytes()) {
		return errors.New("a name or path is not in UTF-8, as YAML is: rename it to print the configuration")
	}
	_, err := w.Write(b.Bytes())
	return err
}

// What is printed: a mapping, a sequence, or a scalar's text.
type (
	mapping  []pair
	sequence []any
	pair     struct {
		key   string
		value any
	}
)

// tree converts a value to what is printed.
func tree(v reflect.Value) any {
	if isText(v.Type()) {
		return quoted(textOf(v))
	}
	switch v.Kind() {
	case reflect.Struct:
		return structTree(v)
	case reflect.Slice:
		if key, ok := keyField(v.Type().Elem()); ok {
			var all mapping
			for i := range v.Len() {
				all = append(all, pair{v.Index(i).FieldByIndex(key.index).String(), tree(v.Index(i))})
			}
			return all
		}
		var all sequence
		for i := range v.Len() {
			all = append(all, tree(v.Index(i)))
		}
		return all
	case reflect.Map:
		var all mapping
		for _, k := range slices.Sorted(maps.Keys(v.Interface().(map[string]string))) {
			all = append(all, pair{k, tree(v.MapIndex(reflect.ValueOf(k)))})
		}
		return all
	case reflect.Bool:
		return strconv.FormatBool(v.Bool())
	case reflect.Int:
		return strconv.FormatInt(v.Int(), 10)
	case reflect.Float64:
		return strconv.FormatFloat(v.Float(), 'f', -1, 64)
	}
	return quoted(v.String())
}

// structTree leaves out fields that are empty where that is their default. A
// struct of which only its short field is left is written as that field.
func structTree(v reflect.Value) any {
	var all mapping
	short := false
	for _, f := range fields(v.Type()) {
		fv := v.FieldByIndex(f.index)
		if f.isKey || f.omitEmpty && isEmpty(fv) {
			continue
		}
		value := tree(fv)
		if m, ok := value.(mapping); ok && len(m) == 0 {
			continue
		}
		all = append(all, pair{f.name, value})
		short = f.short
	}
	if short && len(all) == 1 {
		return all[0].value
	}
	return all
}

// isEmpty reports whether a value is zero or has no elements.
func isEmpty(v reflect.Value) bool {
	if k := v.Kind(); k == reflect.Slice || k == reflect.Map {
		return v.Len() == 0
	}
	return v.IsZero()
}

// plain matches text that needs no quotes, unless plainNot matches it, too.
var (
	plain    = regexp.MustCompile(`^[A-Za-z0-9/_.][A-Za-z0-9/_.:%+@-]*$`)
	plainNot = regexp.MustCompile(`(?i)^(true|false|null|yes|no|on|off|y|n|[+-]?\.(inf|nan))$|:$`)
)

// quoted quotes text that YAML would read as something else.
func quoted(s string) string {
	if !utf8.ValidString(s) {
		return s // for Print to find
	}
	_, notNumber := strconv.ParseFloat(s, 64)
	_, notInteger := strconv.ParseInt(s, 0, 64)
	if plain.MatchString(s) && !plainNot.MatchString(s) && notNumber != nil && notInteger != nil {
		return s
	}
	var b strings.Builder
	e := json.NewEncoder(&b) // a JSON string is a YAML string
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // cannot fail
	return strings.TrimSuffix(b.String(), "\n")
}

// write writes a tree whose lines, except the first, begin with an indentation.
func write(b *bytes.Buffer, value any, indent string) {
	const step = "  "
	switch value := value.(type) {
	case mapping:
		for i, p := range value {
			if i > 0 {
				b.WriteString(indent)
			}
			b.WriteString(quoted(p.key) + ":")
			switch below := p.value.(type) {
			case mapping:
				if len(below) > 0 {
					b.WriteString("\n" + indent + step)
					write(b, below, indent+step)
					continue
				}
				b.WriteString(" {}\n")
			case sequence:
				if len(below) > 0 {
					b.WriteString("\n" + indent + step)
					write(b, below, indent+step)
					continue
				}
				b.WriteString(" []\n")
			default:
				b.WriteByte(' ')
				write(b, below, "")
			}
		}
	case sequence:
		for i, e := range value {
			if i > 0 {
				b.WriteString(indent)
			}
			b.WriteString("- ")
			write(b, e, indent+step)
		}
	case string:
		b.WriteString(value + "\n")
	}
}
