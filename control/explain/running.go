package explain

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"

	"weir/control/ruleset"
	"weir/control/status"
	"weir/filter/membership"
	"weir/loader"
)

// Running answers a query for the lists of the program that filters on an
// interface; without a name, on any. The files are read as they are now, and
// the notes say which have changed since the program was built.
func Running(query string, pins loader.Pins, t loader.Target, progress ruleset.Progress) (*Explanation, error) {
	i, err := find(pins, t)
	if err != nil {
		return nil, err
	}
	if configured(i.Lists) {
		return nil, errConfigured(i)
	}
	r, err := i.Rules()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", i.Name, err)
	}
	e, err := Explain(query, r, progress)
	if err != nil {
		return nil, err
	}
	e.Interface = i.Name
	if r.Mode == membership.Approximate {
		e.Notes = append(e.Notes, "the running filter has a seed of its own: what it blocks by mistake is not what is shown here")
	}
	for _, l := range i.Lists {
		if changed(l) {
			e.Notes = append(e.Notes, fmt.Sprintf("%s has changed since it was loaded; a reload (SIGHUP) puts it in force", l.File))
		}
	}
	return e, nil
}

// configured tells whether lists are those of a configuration. They are of no
// files that were named, but of what the daemon has read and been told.
func configured(lists []status.List) bool {
	return slices.ContainsFunc(lists, func(l status.List) bool { return l.File == "" })
}

// errConfigured says who knows what no file does.
func errConfigured(i status.Interface) error {
	if i.Running {
		return fmt.Errorf("%s: process %d filters there by a configuration: ask it by its socket, without --iface, --netns and --pins", i.Name, i.PID)
	}
	return fmt.Errorf("%s: what filters there was started with a configuration, and its process %d, which knew the lists, runs no more: "+
		"start it again with `weir run -c CONFIG`, or name lists with --block and --allow", i.Name, i.PID)
}

// changed tells whether a list's file is another than was loaded. A file that
// is put in its place may well be older.
func changed(l status.List) bool {
	if l.Written.IsZero() {
		return false // no regular file, or not known
	}
	st, err := os.Stat(l.File)
	return err == nil && (st.Size() != l.Size || !st.ModTime().Equal(l.Written))
}

// find gives the state of the interface, or of any that is filtered where all
// have the same lists.
func find(pins loader.Pins, t loader.Target) (i status.Interface, err error) {
	if t.Iface != "" {
		a, err := pins.Open(t)
		if err != nil {
			return i, err
		}
		defer a.Close()
		return status.Of(a)
	}
	all, err := status.Read(pins)
	if err != nil {
		return i, err
	}
	all = slices.DeleteFunc(all, func(i status.Interface) bool { return i.Severed })
	if len(all) == 0 {
		return i, errors.New("weir is attached nowhere: name the lists to ask with --block and --allow")
	}
	for _, other := range all[1:] {
		first, err1 := all[0].Rules()
		rules, err2 := other.Rules()
		if err := errors.Join(err1, err2); err != nil {
			return i, err
		}
		if !reflect.DeepEqual(first, rules) {
			return i, errors.New("the interfaces have different lists: say which with --iface")
		}
	}
	return all[0], nil
}
