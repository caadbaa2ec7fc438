package lists

import (
	"fmt"
	"sort"
	"time"

	"weir/control/api"
	"weir/control/audit"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/list/listfile"
)

// Parsed are the entries of a change, as each of its texts has them. They do not change, and are
// handed out as copies: [list.Entries.Append] and [list.Entries.Set] take over slices.
type Parsed []list.Entries

// First returns the entries of the first n texts together.
func (p Parsed) First(n int) (all list.Entries) {
	for _, e := range p[:n] {
		all.V4, all.V6, all.Flows = append(all.V4, e.V4...), append(all.V6, e.V6...), append(all.Flows, e.Flows...)
	}
	return all
}

// Parse returns the entries of a change, or an error that names the first one that is none, or too
// many.
func Parse(c api.Change) (all Parsed, err error) {
	total := 0
	for i, text := range c.Entries {
		e, err := listfile.ParseEntry(text)
		if total += e.Len(); err == nil && total > api.MaxChange {
			err = api.ErrMaxChange
		}
		if err != nil {
			return nil, &api.BadRequest{Entry: &i, Text: text, Err: err}
		}
		all = append(all, e)
	}
	return all, nil
}

// Entry returns an entry, without its key, that a change adds to a list with an action at a time.
// It fails where the change is for another action.
func Entry(name, action string, c api.Change, added time.Time) (journal.Entry, error) {
	if action != c.Action {
		return journal.Entry{}, &api.BadRequest{Err: fmt.Errorf("list %s has action %s: name one with action %s", name, action, c.Action)}
	}
	e := journal.Entry{List: name, Allow: action == api.Allow, Added: added, Reason: c.Reason, UID: c.UID, Client: audit.Cut(c.Client, journal.MaxClientLen-len("…"))}
	if c.TTL > 0 {
		e.Expires = added.Add(time.Duration(c.TTL * float64(time.Second)))
	}
	return e, nil
}

// Refuse returns an error that names the first entry of a change with which those up to it are
// refused, nil if all of them together are not. why returns why some are.
func Refuse(c api.Change, parsed Parsed, why func(list.Entries) error) error {
	if why(parsed.First(len(parsed))) == nil {
		return nil
	}
	return Blame(c, parsed, why)
}

// Blame is Refuse where all of them together are known to be refused.
func Blame(c api.Change, parsed Parsed, why func(list.Entries) error) error {
	i := sort.Search(len(parsed)-1, func(i int) bool { return why(parsed.First(i+1)) != nil })
	return &api.BadRequest{Entry: &i, Text: c.Entries[i], Err: why(parsed.First(i + 1))}
}
