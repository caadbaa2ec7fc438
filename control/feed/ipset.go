package feed

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var ipsetFormat = format{
	Description: Description{
		Name: "ipset", Options: []string{"sets"}, Example: "{kind: ipset, sets: [a, b]}",
		About:   "the output of `ipset save`, or a script for `ipset restore`; without `sets`, its only set of addresses",
		Grammar: "`add SET ENTRY` is an entry, of a set of type `hash:ip`, `hash:net` or `bitmap:ip`, whose `netmask` or `bitmask` makes a network of it. `-exist` may stand anywhere; `-A` and `-N` are `add` and `create`. Lines that begin with `#`, and timeouts, counters and comments of entries are remarks. Entries of other sets are left out. What takes entries from a set that is read (`nomatch`, `del`, `flush`, `destroy`, `swap`, `rename`), an option of such a set that is not known, and a mask with gaps refuse the file.",
	},
	read: (*reader).ipset,
}

// ipsetQuoted matches a comment's text, which ipset does not let contain
// quotes.
var ipsetQuoted = regexp.MustCompile(`"[^"]*"`)

// maxSets bounds the sets that are remembered; ipset allows as many.
const maxSets = 1<<16 - 1

var (
	ipsetShort = map[string]string{"-N": "create", "-A": "add", "-D": "del", "-X": "destroy", "-F": "flush", "-E": "rename", "-W": "swap"}
	ipsetTypes = map[string]string{"iphash": "hash:ip", "nethash": "hash:net", "ipmap": "bitmap:ip"} // the older names

	// Options without and with a value, of a set and of an entry. None changes the addresses.
	ipsetFlags = []string{"counters", "comment", "forceadd", "skbinfo"}
	ipsetNoise = []string{"hashsize", "maxelem", "bucketsize", "initval", "timeout", "range", "probes", "resize", "gc"}
	ipsetOfAdd = []string{"timeout", "packets", "bytes", "comment", "skbmark", "skbprio", "skbqueue"}
)

// ipsetMend says what to do with a script that weir does not read.
const ipsetMend = "load the file, and read the output of `ipset save`"

// ipsetSet is a set of a file.
type ipsetSet struct {
	kind   string // "": it is not created there
	create string // the line
	bits   int    // of its masks, 0: none
}

// ipset reads the output of "ipset save". It ignores timeouts, which are
// relative to the time when the set was saved.
func (f *reader) ipset(c *collector) error {
	w := wanted{names: f.Sets}
	sets := map[string]*ipsetSet{}
	err := eachLine(c, func(line int, text []byte) error {
		if text[0] == '#' {
			return nil
		}
		s := string(text)
		if strings.Contains(s, `"`) {
			s = ipsetQuoted.ReplaceAllString(s, `""`)
		}
		words := slices.DeleteFunc(strings.Fields(s), func(w string) bool {
			return w == "-exist" || w == "-!" || w == "-quiet" || w == "-q"
		})
		if len(words) == 0 || words[0] == "COMMIT" || words[0] == "quit" {
			return nil
		}
		command := words[0]
		if long := ipsetShort[command]; long != "" {
			command = long
		}
		name, at := strings.Join(words[1:min(len(words), 2)], ""), place{line: line}
		switch set := sets[name]; command {
		case "create", "add":
			if len(words) < 3 {
				c.bad(at, string(text), errors.New(`neither "create SET TYPE" nor "add SET ADDRESS"`))
				return nil
			}
			if set == nil {
				if set = new(ipsetSet); len(sets) == maxSets {
					return fmt.Errorf("more than %d sets", maxSets)
				}
				sets[name] = set
			}
			if command == "create" {
				return set.made(&w, words)
			}
			read, err := w.set(name, set.kind == "" || ipsetHasAddresses(set.kind))
			if err == nil && read {
				w.fill(name)
				return set.add(c, at, string(text), words[2:])
			} else if err == nil {
				c.leave("entries of set " + name + " " + set.kind)
			}
			return err
		case "del", "flush", "destroy":
			if err := w.takes(command, "SET", name, ipsetMend); err != nil {
				return err
			}
			c.leave(command + " of a set without entries yet")
			return nil
		case "swap", "rename":
			if slices.ContainsFunc(words[1:], w.reads) {
				return fmt.Errorf("%s changes a set that is read: %s", command, ipsetMend)
			}
			c.leave(command + " of sets that are not read")
			return nil
		}
		return fmt.Errorf("command %.60q is not read: %s", words[0], ipsetMend)
	})
	if err != nil {
		return err
	}
	return w.missing(c)
}

// made reads the words of a line that creates a set.
func (s *ipsetSet) made(w *wanted, words []string) error {
	name, kind, line := words[1], words[2], strings.Join(words, " ")
	if long := ipsetTypes[kind]; long != "" {
		kind = long
	}
	if s.create != line && (s.create != "" || slices.Contains(w.full, name)) {
		return fmt.Errorf("set %s is created twice, or after its entries", name)
	}
	s.kind, s.create = kind, line
	read, err := w.set(name, ipsetHasAddresses(kind))
	if err != nil || !read {
		return err
	}
	for rest := words[3:]; len(rest) > 0; {
		option := strings.TrimPrefix(rest[0], "--")
		if rest = rest[1:]; slices.Contains(ipsetFlags, option) {
			continue
		}
		if len(rest) == 0 {
			return fmt.Errorf("set %s: option %.60q is not known, or has no value", name, option)
		}
		value := rest[0]
		rest = rest[1:]
		n, err := strconv.Atoi(value)
		mask, bad := netip.ParseAddr(value)
		switch {
		case slices.Contains(ipsetNoise, option), option == "family" && strings.HasPrefix(value, "inet"), option == "family" && strings.HasPrefix(value, "ipv"):
			continue
		case option == "netmask" && err == nil && n > 0:
			s.bits = n
		case option == "bitmask" && bad == nil && maskBits(mask) > 0:
			s.bits = maskBits(mask)
		case option == "netmask" || option == "bitmask":
			return fmt.Errorf("set %s: %s %.60s is no prefix of an address: its entries are no networks", name, option, value)
		default:
			return fmt.Errorf("set %s: option %.60q is not known, and may change what its entries mean", name, option)
		}
	}
	return nil
}

// maskBits returns the length of a netmask, 0 if it has gaps.
func maskBits(mask netip.Addr) int {
	ones, _ := net.IPMask(mask.AsSlice()).Size()
	return ones
}

// add takes the words of an entry.
func (s *ipsetSet) add(c *collector, at place, line string, words []string) error {
	for rest := words[1:]; len(rest) > 0; {
		option := strings.TrimPrefix(rest[0], "--")
		switch known := slices.Contains(ipsetOfAdd, option); {
		case option == "nomatch":
			return fmt.Errorf("nomatch: %.60s is an exception from the set: put it into an allow list, and take the line out", words[0])
		case !known || len(rest) == 1:
			c.bad(at, line, fmt.Errorf("option %.60q is not known, or has no value", option))
			return nil
		}
		rest = rest[2:]
	}
	c.span(at, line, words[0], s.bits)
	return nil
}

func ipsetHasAddresses(kind string) bool {
	return kind == "hash:ip" || kind == "hash:net" || kind == "bitmap:ip"
}
