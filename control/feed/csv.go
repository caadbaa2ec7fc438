package feed

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

var csvFormat = format{
	Description: Description{
		Name: "csv", Options: []string{"column", "last_column", "mask_column", "count_column", "separator", "only", "integers"}, Example: "{kind: csv, column: ip}",
		About:   "values in columns; the column by name or number from 1. `last_column` is the end of a range, `mask_column` a prefix length or netmask, `count_column` a number of addresses, and of IPv6 a prefix length, as registries have it. `separator` is another character than a comma; `only: cc=FR&type=ipv4` reads the records with these values; `integers: true` reads numbers as addresses",
		Grammar: "A record is a line, or several within quotes. Lines that begin with `#`, and `sep=;` in the first, are remarks; so is a first record with the names of the columns, which may also stand after `#`, or with a word where the address should be. `Ip:` and `Range:` before a value are cut; values with the other scopes of CrowdSec, and records that `only` does not ask for, are left out. The end of a range that is a netmask is bad. A column named `mask` or `prefix` that no option names refuses the text, unless `mask_column: none` says that it is no matter.",
	},
	needs: []string{"column"}, read: (*reader).csv,
}

// noColumn is the name of no column.
const noColumn = "none"

// csvColumns are the numbers of columns, from 1; 0: not known, or none.
type csvColumns struct {
	first, last, mask, count int
	only                     []int
}

// csv reads comma-separated values.
func (f *reader) csv(c *collector) error {
	in := bufio.NewReader(&c.text)
	r := csv.NewReader(in)
	r.Comment = '#'
	r.FieldsPerRecord = -1
	r.ReuseRecord = true
	if f.Separator != 0 {
		r.Comma = rune(f.Separator)
	}
	r.TrimLeadingSpace = !unicode.IsSpace(r.Comma) // or else empty columns vanish
	start, _ := in.Peek(4096)                      // an error is found again
	comment := ""
	for bytes.HasPrefix(start, []byte("#")) {
		var line []byte
		line, start, _ = bytes.Cut(start, []byte("\n"))
		comment = strings.TrimLeft(string(line), "# ")
	}
	columns := csvColumns{only: make([]int, len(f.only))}
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
		line, _ := r.FieldPos(0)
		if separator, ok := strings.CutPrefix(record[0], "sep="); begin && ok && line == 1 {
			if separator != "" && f.Separator == 0 {
				r.Comma = []rune(separator)[0]
			}
			continue
		}
		if begin {
			begin = false
			header, err := f.header(c, record, strings.Split(comment, string(r.Comma)), &columns)
			if err != nil {
				return err
			}
			if header {
				continue
			}
		}
		f.record(c, place{line: line}, record, columns, string(r.Comma))
	}
}

// record takes a record.
func (f *reader) record(c *collector, at place, record []string, columns csvColumns, separator string) {
	value := func(column int) string { // "": none
		if column == 0 {
			return ""
		}
		return strings.TrimSpace(record[column-1])
	}
	all := strings.Join(record, separator)
	for i, n := range columns.only {
		if n > len(record) || value(n) != f.only[i].text {
			c.leave("records that only does not ask for")
			return
		}
	}
	if most := max(columns.first, columns.last, columns.mask, columns.count); len(record) < most {
		c.bad(at, all, fmt.Errorf("no column %d", most))
		return
	}
	first, last := value(columns.first), value(columns.last)
	if f.Integers {
		first, last = addressOf(first), addressOf(last)
	}
	if _, err := strconv.ParseUint(first, 10, 64); err == nil && !f.Integers {
		c.bad(at, all, errors.New("a number instead of an address: integers: true reads it as one"))
		return
	}
	base, _ := netip.ParseAddr(first)
	switch mask, count := value(columns.mask), value(columns.count); {
	case columns.last > 0:
		if end, err := netip.ParseAddr(last); err == nil && first != last && isMaskOf(end, base) {
			c.bad(at, all, fmt.Errorf("the range ends in a netmask: name its column in mask_column"))
			return
		}
		c.value(at, first+"-"+last)
	case columns.mask > 0:
		c.value(at, first+"/"+strings.TrimPrefix(mask, "/"))
	case columns.count > 0:
		n, err := strconv.ParseUint(count, 10, 33)
		switch {
		case err != nil || !base.IsValid() || n == 0 || base.Is4() && n > 1<<32-uint64(v4(base)):
			c.bad(at, all, errors.New("no address and number of addresses from it on"))
		case base.Is6():
			c.value(at, first+"/"+count)
		default:
			c.value(at, first+"-"+addressOf(strconv.FormatUint(uint64(v4(base))+n-1, 10)))
		}
	case len(record) > columns.first && f.MaskColumn == "" && base.IsValid() && isNetmask(record[columns.first]):
		c.bad(at, all, errors.New("a netmask beside the address: name its column in mask_column, or say mask_column: none"))
	default:
		c.scoped(at, first)
	}
}

// isMaskOf reports whether an address of IPv4 is the netmask of a network that begins at
// another one, rather than the last of a range.
func isMaskOf(mask, base netip.Addr) bool {
	bits := maskBits(mask)
	p, err := base.Prefix(bits)
	return mask.Is4() && base.Is4() && bits > 0 && bits < 32 && err == nil && p.Addr() == base && base.As4()[0] < 224
}

// isNetmask reports whether a text is the netmask of a network of IPv4.
func isNetmask(text string) bool {
	mask, err := netip.ParseAddr(strings.TrimSpace(text))
	return err == nil && mask.Is4() && maskBits(mask) >= 8
}

// v4 returns an IPv4 address as a number.
func v4(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

// addressOf returns the address that is written as a decimal number, and another text as it
// is. Numbers of 32 bits are of IPv4.
func addressOf(text string) string {
	n, ok := new(big.Int).SetString(text, 10)
	if !ok || n.Sign() < 0 || n.BitLen() > 128 || strings.Trim(text, "0123456789") != "" {
		return text
	}
	size := 4
	if n.BitLen() > 32 {
		size = 16
	}
	a, _ := netip.AddrFromSlice(n.FillBytes(make([]byte, size))) // which has a valid size
	return a.String()
}

// masks are the names of columns without which a network is not what the record says, and
// hints of others that may be.
var (
	masks = []string{"mask", "netmask", "subnet_mask", "prefix", "prefixlen", "prefix_len", "prefix_length", "masklen"}
	hints = []string{"length", "cidr", "count"}
)

// header examines the first record, and the comment before it: columns given by name are
// found in one of them. Otherwise the record counts as a header if it has a word where an
// address should be.
func (f *reader) header(c *collector, record, comment []string, to *csvColumns) (header bool, err error) {
	names := []string{f.Column, f.LastColumn, f.MaskColumn, f.CountColumn}
	numbers := []*int{&to.first, &to.last, &to.mask, &to.count}
	for i, only := range f.only {
		names, numbers = append(names, only.field), append(numbers, &to.only[i])
	}
	var titles []string
	for i, name := range names {
		if *numbers[i] = number(name); name == "" || name == noColumn || *numbers[i] > 0 {
			continue
		}
		for _, titles = range [][]string{record, comment} {
			*numbers[i] = 1 + slices.IndexFunc(titles, func(title string) bool { return strings.EqualFold(strings.Trim(title, " \t\r\""), name) })
			if *numbers[i] > 0 {
				break
			}
		}
		if *numbers[i] == 0 {
			return false, fmt.Errorf("no column %q, only %.60q", name, strings.Join(record[:min(len(record), 20)], ", "))
		}
	}
	if header = titles != nil && &titles[0] == &record[0]; titles == nil && len(record) >= to.first {
		v := strings.TrimSpace(record[to.first-1])
		if header = v != "" && (v[0] < '0' || v[0] > '9') && !strings.Contains(v, ":"); header {
			titles = record
		}
	}
	for i, title := range titles {
		title = strings.ToLower(strings.Trim(title, " \t\r\""))
		switch used := i+1 == to.first || f.LastColumn+f.MaskColumn+f.CountColumn != ""; {
		case !used && slices.Contains(masks, title):
			return false, fmt.Errorf("a column %q: name it in mask_column, or say mask_column: none", title)
		case !used && slices.Contains(hints, title):
			c.leave("the column " + title + ", which mask_column or count_column could read")
		}
	}
	return header, nil
}

// number parses a column's number; it returns 0 for a name.
func number(column string) int {
	n, err := strconv.Atoi(column)
	if err != nil || n < 1 {
		return 0
	}
	return n
}
