package feed

import (
	"fmt"
	"slices"
	"strings"
)

// wanted gives whether a set is to be read, and refuses to guess which.
type wanted struct {
	names []string // none: the only one
	seen  []string
}

// set reports whether to read the set of that name. addresses says whether it
// holds addresses, as far as that is known.
func (w *wanted) set(name string, addresses bool) (bool, error) {
	named := slices.Contains(w.names, name)
	switch {
	case named && !addresses:
		return false, fmt.Errorf("set %s holds something else than addresses", name)
	case !named && (!addresses || len(w.names) > 0):
		return false, nil
	case !slices.Contains(w.seen, name):
		w.seen = append(w.seen, name)
	}
	if len(w.names) == 0 && len(w.seen) > 1 {
		return false, fmt.Errorf("there are several sets, %s among them: name those to read", strings.Join(w.seen, " and "))
	}
	return true, nil
}

// missing says which of the sets that were named there are not.
func (w *wanted) missing() error {
	for _, name := range w.names {
		if !slices.Contains(w.seen, name) {
			return fmt.Errorf("there is no set %s", name)
		}
	}
	return nil
}
