package feed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/tests/crash"
	"weir/tests/must"
)

// listedSince returns since when a feed lists addresses, in the order of the versions at which
// that was, with a + for a time when they were listed already; "-" for those not listed.
func listedSince(t *testing.T, f *Feed, versions []time.Time, addresses ...string) string {
	t.Helper()
	var keys []key.Key
	for _, a := range addresses {
		e, err := listfile.ParseEntry(a)
		if err != nil {
			t.Fatal(err)
		}
		for k := range e.Set().All() {
			keys = append(keys, k)
		}
	}
	var all []string
	for _, o := range f.Find(keys) {
		at := "-"
		if !o.Listed.IsZero() {
			at = "?"
		}
		for i, v := range versions {
			if o.Listed.Equal(v) {
				at = fmt.Sprint(i)
			}
		}
		if o.Earlier {
			at += "+"
		}
		all = append(all, at)
	}
	return strings.Join(all, " ")
}

// It is known since when an entry is listed, also after a restart, a crash between two renames
// and a version that could not be activated; never of an older copy of the state.
func TestAges(t *testing.T) {
	for _, hold := range []bool{false, true} {
		t.Run(fmt.Sprintf("hold=%t", hold), func(t *testing.T) {
			crash.WithoutSyncs(t)
			dir, path := t.TempDir(), filepath.Join(t.TempDir(), "list")
			must.Write(t, path, "192.0.2.1\n192.0.2.2\n")
			c := config(Source{File: Path(path)})
			c.Hold = hold
			f := mustOpen(t, c, dir)
			var versions []time.Time
			serve := func(text string, keep bool) {
				t.Helper()
				must.Write(t, path, text)
				o := fetch(t, f)
				if o.Result != New || o.Unsaved != nil {
					t.Fatalf("%v, %v, %v", o.Result, o.Err, o.Unsaved)
				}
				versions = append(versions, f.sources[0].current.Read)
				if hold && keep {
					if err := f.Keep(f.Version()); err != nil {
						t.Fatal(err)
					}
				}
			}
			is := func(when, want string) {
				t.Helper()
				if got := listedSince(t, f, versions, "192.0.2.1", "192.0.2.2", "192.0.2.0/24", "2001:db8::1", "203.0.113.1"); got != want {
					t.Errorf("%s: listed since %q, want %q", when, got, want)
				}
			}
			serve("192.0.2.1\n192.0.2.2\n", true)
			is("at first", "0+ 0+ - - -")
			serve("192.0.2.1\n192.0.2.2\n192.0.2.0/24\n", true)
			serve("192.0.2.1\n192.0.2.2\n192.0.2.0/24\n2001:db8::1\n", true)
			is("two versions later", "0+ 0+ 1 2 -")
			f = mustOpen(t, c, dir)
			is("after a restart", "0+ 0+ 1 2 -")
			serve("192.0.2.1\n2001:db8::1\n", true)
			serve("192.0.2.1\n192.0.2.2\n2001:db8::1\n", true)
			is("removed, and there again", "0+ 4 - 2 -")
			saved := f.sources[0].saved
			if hold {
				serve("203.0.113.1\n", false)
				f.Revert(f.Version(), fmt.Errorf("it does not fit"))
				is("a version that was not activated", "0+ 4 - 2 -")
				f = mustOpen(t, c, dir)
				is("after a restart", "0+ 4 - 2 -")
			}
			before := must.Read(t, agesPath(saved))
			n := len(versions)
			serve("192.0.2.1\n192.0.2.2\n2001:db8::1\n203.0.113.1\n", true)
			is("the next version", fmt.Sprintf("0+ 4 - 2 %d", n))
			if err := os.Rename(agesPath(saved), next(agesPath(saved))); err != nil {
				t.Fatal(err)
			}
			must.Write(t, agesPath(saved), string(before))
			f = mustOpen(t, c, dir)
			is("after a crash between two renames", fmt.Sprintf("0+ 4 - 2 %d", n))
			serve("192.0.2.1\n192.0.2.2\n2001:db8::1\n203.0.113.1\n192.0.2.0/24\n", true)
			is("after that", fmt.Sprintf("0+ 4 %d 2 %d", n+1, n))

			must.Write(t, agesPath(saved), string(before))
			f = mustOpen(t, c, dir)
			is("with an older copy of the ages", "- - - - -")
			must.Write(t, agesPath(saved), "weir ages 1 torn")
			is("with torn ages", "- - - - -")
			serve("192.0.2.1\n198.51.100.1\n", true)
			is("the version after", fmt.Sprintf("%d+ - - - -", n+1))
		})
	}
}

// Ages take no more than a share of a large source, and forget what is oldest.
func TestAgesAreBounded(t *testing.T) {
	set := func(from, n int) *list.Set {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "10.%d.%d.%d\n", from, i>>8, i&255)
		}
		e, _, err := listfile.Parse("test", strings.NewReader(text.String()), listfile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return e.Set()
	}
	at := time.Now()
	a := ages{before: at, eras: []era{{at.Add(3), set(3, 100)}, {at.Add(2), set(2, 100)}, {at.Add(1), set(1, 100)}}}
	a.bound(250)
	if len(a.eras) != 2 || !a.before.Equal(at.Add(1)) {
		t.Errorf("%d eras, before %v", len(a.eras), a.before)
	}
	for k := range set(1, 1).All() {
		if since, earlier := a.listed(k); !since.Equal(at.Add(1)) || !earlier {
			t.Errorf("listed since %v, or before: %t", since, earlier)
		}
	}
}
