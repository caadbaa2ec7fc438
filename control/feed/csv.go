package feed

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
)

var csvFormat = format{
	Description: Description{
		Name: "csv", Options: []string{"column", "last_column", "separator"}, Example: "{kind: csv, column: ip}",
		About:   "values in columns; the column by name or number from 1. `last_column` is the end of a range, `separator` another character than a comma",
		Grammar: "A record is a line, or several within quotes. A line that begins with `#` is a remark, and so is a first record with a word where the address should be.",
	},
	needs: []string{"column"}, read: (*reader).csv,
}

// csv reads comma-separated values.
func (f *reader) csv(c *collector) error {
	r := csv.NewReader(&c.text)
	r.Comment = '#'
	r.FieldsPerRecord = -1
	r.ReuseRecord = true
	if f.Separator != 0 {
		r.Comma = rune(f.Separator)
	}
	r.TrimLeadingSpace = !unicode.IsSpace(r.Comma) // or else empty columns vanish
	first, last := number(f.Column), number(f.LastColumn)
	for begin := true; ; {
		c.text.begin(r.InputOffset())
		record, err := r.Read()
		if err == io.EOF {
			return nil
		}
		if p := (*csv.ParseError)(nil); errors.As(err, &p) {
			if p.Line != p.StartLine {
				// Everything after the quote was parsed as one field.
				return fmt.Errorf("line %d: a quote that is not closed", p.StartLine)
			}
			c.bad(place{line: p.Line}, "", p.Err)
			continue
		}
		if err != nil {
			return err
		}
		if begin {
			begin = false
			header, err := f.header(record, &first, &last)
			if err != nil {
				return err
			}
			if header {
				continue
			}
		}
		line, _ := r.FieldPos(0)
		if most := max(first, last); len(record) < most {
			c.bad(place{line: line}, strings.Join(record, string(r.Comma)), fmt.Errorf("no column %d", most))
			continue
		}
		v := record[first-1]
		if last > 0 {
			v += "-" + record[last-1]
		}
		c.value(place{line: line}, v)
	}
}

// header examines the first record: columns given by name are found in it.
// Otherwise it counts as a header if it has a word where an address should be.
func (f *reader) header(record []string, first, last *int) (bool, error) {
	named := false
	for name, n := range map[string]*int{f.Column: first, f.LastColumn: last} {
		if name == "" || *n > 0 {
			continue
		}
		named = true
		for i, title := range record {
			if strings.EqualFold(strings.TrimSpace(title), name) {
				*n = i + 1
			}
		}
		if *n == 0 {
			return false, fmt.Errorf("no column %q, only %.60q", name, strings.Join(record[:min(len(record), 20)], ", "))
		}
	}
	if named || len(record) < *first {
		return named, nil
	}
	v := strings.TrimSpace(record[*first-1])
	return v != "" && (v[0] < '0' || v[0] > '9') && !strings.Contains(v, ":"), nil
}

// number parses a column's number; it returns 0 for a name.
func number(column string) int {
	n, err := strconv.Atoi(column)
	if err != nil || n < 1 {
		return 0
	}
	return n
}
