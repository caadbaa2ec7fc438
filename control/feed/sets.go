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

// missing returns an error for a named set that does not exist.
func (w *wanted) missing() error {
	for _, name := range w.names {
		if !slices.Contains(w.seen, name) {
			return fmt.Errorf("no set %s", name)
		}
	}
	return nil
}
