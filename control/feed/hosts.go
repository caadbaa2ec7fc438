package feed

import (
	"bytes"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
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
		Grammar: "Addresses that are denied are entries; in Apache, the first octets of one are a network, as in `198.51`. Lines that begin with `#`, what follows `#` behind `;`, sections, `Order`, and what allows all others are remarks. All else is bad. `Order Deny,Allow` with `Allow from all` denies no one, and refuses the file.",
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
		if at := (place{line: line}); len(words) > 1 && isAddr(words[1]) {
			c.bad(at, string(text), errors.New("a second address instead of a name: write one per line"))
		} else {
			c.value(at, words[0])
		}
		return nil
	})
	if err == nil && own && !others {
		return errors.New("the lines have no addresses but the host's own: the file blocks names, and weir matches addresses")
	}
	return err
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func isAddr(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// isOwn reports whether hosts files have an address for the host or its links.
func isOwn(a netip.Addr) bool {
	return a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a == broadcast ||
		a.Zone() != "" // fe80::1%lo0
}

// deny reads the addresses that a web server denies: of Apache's "Deny from" and
// "Require not ip", each with one or several, and of nginx's "deny".
func deny(_ *reader, c *collector) error {
	allowed, last := false, false
	err := eachLine(c, func(line int, text []byte) error {
		if text[0] == '#' {
			return nil
		}
		s := string(text)
		at := place{line: line}
		statement, remark, nginx := strings.Cut(s, ";")
		if remark = strings.TrimSpace(remark); remark != "" && remark[0] != '#' {
			c.bad(at, s, errors.New("a second statement on the line: write one per line"))
			return nil
		}
		words := strings.Fields(statement)
		is := func(names ...string) bool {
			return len(words) >= len(names) && slices.EqualFunc(words[:len(names)], names, strings.EqualFold)
		}
		switch {
		case is("allow", "from", "all"):
			allowed = true
			return nil
		case is("order"):
			last = strings.HasPrefix(strings.ToLower(strings.Join(words[1:], "")), "deny")
			return nil
		case strings.HasPrefix(s, "<"), is("require", "all"), is("allow", "all"):
			return nil // sections, and what holds for everybody else
		case is("deny", "from"):
			words = words[2:]
		case is("require", "not", "ip"):
			words = words[3:]
		case is("deny"):
			words = words[1:]
		case is("geo") || is("map") || is("server"): // of nginx
			return errors.New("a block of nginx: format geo reads those of geo and map")
		case is("allow"):
			return errors.New("allow takes addresses out of those that are denied: put them into an allow list, and take the line out")
		default:
			c.bad(at, s, errors.New(`not "Deny from", "Require not ip" or "deny"`))
			return nil
		}
		if len(words) == 0 {
			c.bad(at, s, errNoValue)
		}
		for _, w := range words {
			if !nginx {
				w = network(w)
			}
			c.value(at, w)
		}
		return nil
	})
	if err == nil && allowed && last {
		return errors.New(`"Order Deny,Allow" with "Allow from all" denies no one`)
	}
	return err
}

var partial = regexp.MustCompile(`^[0-9]{1,3}(\.[0-9]{1,3}){0,2}\.?$`)

// network returns the network that the first octets of an address mean in Apache, as in
// 198.51, and another text as it is.
func network(text string) string {
	if !partial.MatchString(text) {
		return text
	}
	octets := strings.Split(strings.TrimSuffix(text, "."), ".")
	return strings.Join(octets, ".") + strings.Repeat(".0", 4-len(octets)) + "/" + strconv.Itoa(8*len(octets))
}
