package feed

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ipsetQuoted matches a comment's text, which ipset does not let contain
// quotes.
var ipsetQuoted = regexp.MustCompile(`"[^"]*"`)

// maxSets bounds the sets that are remembered; ipset allows as many.
const maxSets = 1<<16 - 1

var ipsetFormat = format{
	Description: Description{
		Name: "ipset", Options: []string{"sets"}, Example: "{kind: ipset, sets: [a, b]}",
		About:   "the output of `ipset save`; without `sets`, its only set of addresses",
		Grammar: "`add` lines of the sets are entries.",
	},
	read: (*reader).ipset,
}

// ipset reads the output of "ipset save". It ignores timeouts, which are
// relative to the time when the set was saved.
func (f *reader) ipset(c *collector) error {
	w := wanted{names: f.Sets}
	types := map[string]string{}
	err := eachLine(c, func(line int, text []byte) error {
		if text[0] == '#' {
			return nil
		}
		words := strings.Fields(ipsetQuoted.ReplaceAllString(string(text), `""`))
		switch at := (place{line: line}); {
		case words[0] == "COMMIT":
			return nil
		case len(words) < 3:
			c.bad(at, string(text), errors.New(`neither "create SET TYPE" nor "add SET ADDRESS"`))
			return nil
		case words[0] == "create":
			if types[words[1]] = words[2]; len(types) > maxSets {
				return fmt.Errorf("more than %d sets", maxSets)
			}
			_, err := w.set(words[1], ipsetHasAddresses(words[2]))
			return err
		case words[0] == "add":
			kind, known := types[words[1]]
			read, err := w.set(words[1], !known || ipsetHasAddresses(kind))
			if err != nil || !read {
				return err
			}
			if slices.Contains(words[3:], "nomatch") {
				c.bad(at, string(text), errors.New("an exception from the set: put it into an allow list"))
				return nil
			}
			c.value(at, words[2])
			return nil
		default:
			c.bad(at, string(text), fmt.Errorf("command %.60q", words[0]))
			return nil
		}
	})
	if err != nil {
		return err
	}
	return w.missing()
}

func ipsetHasAddresses(kind string) bool {
	return kind == "hash:ip" || kind == "hash:net" || kind == "bitmap:ip"
}
