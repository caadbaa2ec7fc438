package feed

import (
	"errors"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

var errNoRange = errors.New(`no range, as in "192.0.2.0-192.0.2.255"`)

var p2pFormat = format{
	Description: Description{
		Name: "p2p", Example: "p2p", About: "PeerGuardian's `name:first-last`", Grammar: "A range of IPv4 a line, after the last colon, or of IPv6, after the first one: the name of that has none. Lines that begin with `#` are remarks.",
	},
	read: p2p,
}

var datFormat = format{
	Description: Description{
		Name: "dat", Example: "dat", About: "eMule's `ipfilter.dat`",
		Grammar: "`first - last , level , name` a line. A level above 127 allows, and is bad. Lines that begin with `#` or `;` are remarks.",
	},
	read: dat,
}

// hexadecimal matches names that may be the beginning of an address of IPv6.
var hexadecimal = regexp.MustCompile(`^[0-9A-Fa-f]{0,4}$`)

// p2p reads the text form of PeerGuardian, "name:first-last" a line, in which a name
// may contain colons.
func p2p(_ *reader, c *collector) error {
	return eachLine(c, func(line int, text []byte) error {
		if text[0] == '#' {
			return nil
		}
		s := string(text)
		name, span, _ := strings.Cut(s, ":")
		_, last, _ := strings.Cut(span, "-")
		switch a, err := netip.ParseAddr(strings.TrimSpace(last)); {
		case err != nil || a.Is4():
			span = s[strings.LastIndexByte(s, ':')+1:] // the name may have colons
		case hexadecimal.MatchString(name):
			c.bad(place{line: line}, s, errors.New("no name before the range, or one like a part of an address: add another one, and a colon"))
			return nil
		}
		c.decimal(place{line: line}, s, span)
		return nil
	})
}

// dat reads ipfilter.dat of eMule, "first - last , level , name" a line. A level
// above 127 means that the range is allowed.
func dat(_ *reader, c *collector) error {
	return eachLine(c, func(line int, text []byte) error {
		if text[0] == '#' || text[0] == ';' {
			return nil
		}
		at, s := place{line: line}, string(text)
		span, rest, _ := strings.Cut(s, ",")
		level, _, hasLevel := strings.Cut(rest, ",")
		if level = strings.TrimSpace(level); hasLevel || level != "" {
			n, err := strconv.ParseUint(level, 10, 8)
			switch {
			case err != nil:
				c.bad(at, s, errors.New("no level from 0 to 255"))
				return nil
			case n > 127:
				c.bad(at, s, errors.New("a level above 127, which allows: put it into an allow list"))
				return nil
			}
		}
		c.decimal(at, s, span)
		return nil
	})
}

// decimal takes a range whose octets, in IPv4, are decimal even with leading zeros.
func (c *collector) decimal(at place, line, text string) {
	first, last, ok := strings.Cut(text, "-")
	if !ok {
		c.bad(at, line, errNoRange)
		return
	}
	c.span(at, line, withoutZeros(first)+"-"+withoutZeros(last), 0)
}

func withoutZeros(address string) string {
	octets := strings.Split(strings.TrimSpace(address), ".")
	for i, o := range octets {
		for len(o) > 1 && o[0] == '0' {
			o = o[1:]
		}
		octets[i] = o
	}
	return strings.Join(octets, ".")
}
