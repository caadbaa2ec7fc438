package feed

import (
	"fmt"
	"slices"
	"strings"
)

// wanted selects the sets to read, and refuses to guess.
type wanted struct {
	names []string // none: the only one
	seen  []string
	full  []string // those of which entries were read
}

// fill notes that entries of a set were read.
func (w *wanted) fill(name string) {
	if !slices.Contains(w.full, name) {
		w.full = append(w.full, name)
	}
}

// takes returns an error for a command that takes entries from a set that is read, "" for all
// sets, and says how to mend it. Before any entries, as in scripts, it takes nothing away.
func (w *wanted) takes(verb, object, name, mend string) error {
	for _, full := range w.full {
		if full == name || name == "" {
			return fmt.Errorf("%s %s takes entries from set %s, or all: %s", verb, object, full, mend)
		}
	}
	return nil
}

// set reports whether to read the set of that name. addresses reports whether
// it contains addresses, if that is known.
func (w *wanted) set(name string, addresses bool) (bool, error) {
	named := slices.Contains(w.names, name)
	switch {
	case named && !addresses:
		return false, fmt.Errorf("set %.60s does not contain addresses", name)
	case !named && (!addresses || len(w.names) > 0):
		return false, nil
	case !slices.Contains(w.seen, name):
		w.seen = append(w.seen, name)
	}
	if len(w.names) == 0 && len(w.seen) > 1 {
		return false, fmt.Errorf("several sets (%.120s): name those to read", strings.Join(w.seen, " and "))
	}
	return true, nil
}

// reads reports whether the set of that name is read, as far as is known.
func (w *wanted) reads(name string) bool {
	return slices.Contains(w.names, name) || len(w.names) == 0 && slices.Contains(w.seen, name)
}

// missing returns an error for a named set that does not exist, and where there is none of
// addresses but something else.
func (w *wanted) missing(c *collector) error {
	if len(w.names)+len(w.seen) == 0 && len(c.report.LeftOut) > 0 {
		return fmt.Errorf("no set of addresses; left out: %s", strings.Join(c.report.Skipped(), ", "))
	}
	for _, name := range w.names {
		if !slices.Contains(w.seen, name) {
			return fmt.Errorf("no set %s", name)
		}
	}
	return nil
}
