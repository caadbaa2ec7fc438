package lists

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/journal"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
)

// It is tried again at growing intervals.
func TestRetry(t *testing.T) {
	var r Retry
	now := time.Now()
	if !r.Due(now) {
		t.Error("it waits before the first attempt")
	}
	const most = 5 * time.Minute
	for n, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		r.Fail(errors.New("no memory"), now, most)
		if at := now.Add(want * time.Second); r.Due(at.Add(-time.Nanosecond)) || !r.Due(at) {
			t.Errorf("attempt %d: not after %d s", n, want)
		}
	}
	for range 100 {
		r.Fail(errors.New("no memory"), now, most)
	}
	if !r.Due(now.Add(most)) {
		t.Error("after many: later")
	}
}

// Manual entries count by the action that they were added with, until they expire.
func TestManual(t *testing.T) {
	j, err := journal.Open("", nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	add := func(text string, name string, allow bool, expires time.Duration) {
		t.Helper()
		e, err := listfile.ParseEntry(text)
		if err != nil {
			t.Fatal(err)
		}
		for k := range e.Set().All() {
			one := journal.Entry{List: name, Allow: allow, Key: k, Added: time.Now()}
			if expires != 0 {
				one.Expires = time.Now().Add(expires)
			}
			if err := j.Apply([]journal.Change{{Entry: one}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	add("192.0.2.1", "a", false, 0)
	add("192.0.2.2", "a", false, time.Hour)
	add("192.0.2.3", "a", false, -time.Second)
	add("192.0.2.4", "a", true, 0)
	add("192.0.2.5", "b", false, 0)
	for allow, want := range map[bool]string{false: "192.0.2.1 192.0.2.2", true: "192.0.2.4"} {
		var keys []key.Key
		for e := range Manual(j, "a", allow) {
			keys = append(keys, e.Key)
		}
		var all []string
		for k := range list.SetOf(keys...).All() {
			all = append(all, k.String())
		}
		if got := strings.Join(all, " "); got != want {
			t.Errorf("allow %t: %s, want %s", allow, got, want)
		}
	}
}

// A change that is refused names the entry that is to blame.
func TestRefuse(t *testing.T) {
	c := api.Change{Action: api.Block, Entries: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}}
	for most, want := range []int{0, 1, 2, -1} {
		parsed, err := Parse(c)
		if err != nil {
			t.Fatal(err)
		}
		err = Refuse(c, parsed, func(some list.Entries) error {
			if some.Len() > most {
				return fmt.Errorf("%d are more than %d", some.Len(), most)
			}
			return nil
		})
		bad, refused := errors.AsType[*api.BadRequest](err)
		if refused != (want >= 0) || refused && (*bad.Entry != want || bad.Text != c.Entries[want] || !strings.Contains(err.Error(), fmt.Sprintf("%d are more", want+1))) {
			t.Errorf("at most %d: %v", most, err)
		}
	}
	c.Entries[1] = "nonsense"
	_, err := Parse(c)
	if bad, ok := errors.AsType[*api.BadRequest](err); !ok || *bad.Entry != 1 || bad.Text != "nonsense" {
		t.Errorf("nonsense: %v", err)
	}
	if _, err := Entry("a", api.Allow, c, time.Now()); err == nil || !strings.Contains(err.Error(), "list a has action allow") {
		t.Errorf("an entry to block in a list that allows: %v", err)
	}
	_, err = ByName[int]{"a": 1, "b": 2}.Find("c")
	if !errors.Is(err, api.ErrNoList) || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("a list that is not there: %v", err)
	}
}

// What is made of the entries of a change does not change them, though slices are taken over.
func TestParsedIsKept(t *testing.T) {
	c := api.Change{Action: api.Block, Entries: []string{
		"198.51.100.1-198.51.100.14", "192.0.2.7", "2001:db8::1", "tcp *:* > 192.0.2.1:22", "> 192.0.2.2", "10.0.0.0/8", "2001:db8::-2001:db8::6",
	}}
	parsed, err := Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	fresh := func(n int) *list.Set {
		c := c
		c.Entries = c.Entries[:n]
		again, err := Parse(c)
		if err != nil {
			t.Fatal(err)
		}
		all := new(list.Set)
		for _, e := range again {
			all = list.Union(all, e.Set())
		}
		return all
	}
	for range 3 {
		for n := range len(c.Entries) + 1 {
			if got, want := parsed.First(n).Set(), fresh(n); got.Diff(want).Len() != 0 {
				t.Fatalf("the first %d: %v", n, slices.Collect(got.All()))
			}
		}
		for most := range 20 {
			err := Refuse(c, parsed, func(some list.Entries) error {
				if some.Set().Len() > most {
					return errors.New("too many")
				}
				return nil
			})
			bad, refused := errors.AsType[*api.BadRequest](err)
			want := sort.Search(len(c.Entries), func(i int) bool { return fresh(i+1).Len() > most })
			if refused != (want < len(c.Entries)) || refused && *bad.Entry != want {
				t.Fatalf("at most %d: %v, want entry %d", most, err, want)
			}
		}
	}
}
