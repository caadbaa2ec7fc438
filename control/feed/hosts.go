package feed

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
)

var hostsFormat = format{
	Description: Description{
		Name: "hosts", Example: "hosts", About: "a hosts file; addresses of the host itself are left out",
		Grammar: "The first word of a line is an entry, the others are its names; `#` begins a remark. Loopback, multicast, broadcast and unspecified addresses are left out. A list of *names* to block has no other addresses, and is refused.",
	},
	read: hosts,
}

var denyFormat = format{
	Description: Description{
		Name: "deny", Example: "deny", About: "`Deny from` and `Require not ip` of Apache, `deny` of nginx",
		Grammar: "Addresses that are denied are entries. Sections, `Order`, and what allows all others are left out. All else is bad.",
	},
	tags: true, read: deny,
}

// hosts reads the addresses of hosts(5), without those of the host itself, of
// multicast and of broadcast. A list of names to block has no others.
func hosts(_ *reader, c *collector) error {
	others, own := false, false
	err := eachLine(c, func(line int, text []byte) error {
		text, _, _ = bytes.Cut(text, []byte{'#'})
		words := strings.Fields(string(text))
		if len(words) == 0 {
			return nil
		}
		if a, err := netip.ParseAddr(words[0]); err == nil && isOwn(a) {
			own = true
			return nil
		}
		others = true
		c.value(place{line: line}, words[0])
		return nil
	})
	if err == nil && own && !others {
		return errors.New("the lines have no addresses but the host's own: the file blocks names, and weir matches addresses")
	}
	return err
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// isOwn reports whether hosts files have an address for the host or its links.
func isOwn(a netip.Addr) bool {
	return a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == broadcast ||
		a.Zone() != "" // fe80::1%lo0
}

// deny reads the addresses that a web server denies: of Apache's "Deny from" and
// "Require not ip", each with one or several, and of nginx's "deny".
func deny(_ *reader, c *collector) error {
	return eachLine(c, func(line int, text []byte) error {
		if text[0] == '#' {
			return nil
		}
		s := string(text)
		at := place{line: line}
		words := strings.Fields(strings.TrimRight(s, "; \t"))
		is := func(names ...string) bool {
			if len(words) < len(names) {
				return false
			}
			for i, name := range names {
				if !strings.EqualFold(words[i], name) {
					return false
				}
			}
			return true
		}
		switch {
		case strings.HasPrefix(s, "<"), is("order"), is("require", "all"), is("allow", "from", "all"), is("allow", "all"):
			return nil // sections, and what holds for everybody else
		case is("deny", "from"):
			words = words[2:]
		case is("require", "not", "ip"):
			words = words[3:]
		case is("deny"):
			words = words[1:]
		default:
			c.bad(at, s, errors.New(`not "Deny from", "Require not ip" or "deny"`))
			return nil
		}
		if len(words) == 0 {
			c.bad(at, s, errNoValue)
		}
		for _, w := range words {
			c.value(at, w)
		}
		return nil
	})
}
