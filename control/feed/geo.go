package feed

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

var geoFormat = format{
	Description: Description{
		Name: "geo", Options: []string{"only"}, Example: "{kind: geo, only: value=1}", About: "the `geo` and `map` blocks of nginx; `only: value=1` reads the addresses with this value",
		Grammar: "In a block, `ADDRESS VALUE;` is an entry if `only` names the value. `#` begins a remark. Entries with other values, and `default`, are left out. `delete`, `include`, `ranges`, `proxy` and all else refuse the file.",
	},
	needs: []string{"only"}, read: (*reader).geo,
}

// geo reads the addresses of nginx's geo and map blocks that have a value.
func (f *reader) geo(c *collector) error {
	if len(f.only) != 1 || f.only[0].field != "value" {
		return errors.New("only: want one value, as in only: value=1")
	}
	open := false
	err := eachLine(c, func(line int, text []byte) error {
		s, _, _ := strings.Cut(string(text), "#")
		s = strings.TrimSpace(s)
		words := strings.Fields(strings.TrimSuffix(s, ";"))
		switch {
		case s == "":
		case !open && strings.HasSuffix(s, "{") && slices.Contains([]string{"geo", "map"}, words[0]):
			open = true
		case open && s == "}":
			open = false
		case !open || !strings.HasSuffix(s, ";") || len(words) != 2 || strings.Count(s, ";") > 1 || slices.Contains([]string{"delete", "include", "proxy"}, words[0]):
			return fmt.Errorf(`%.60q is neither a block of geo or map, nor an address and its value: write one "ADDRESS VALUE;" per line`, s)
		case words[0] == "default":
			c.leave("the default")
		case strings.Trim(words[1], `"'`) != f.only[0].text:
			c.leave("addresses with other values")
		default:
			c.span(place{line: line}, s, strings.Trim(words[0], `"'`), 0)
		}
		return nil
	})
	if err == nil && open {
		return errors.New("a block is not closed: the file is cut")
	}
	return err
}
