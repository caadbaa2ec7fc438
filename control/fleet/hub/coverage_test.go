package hub

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/config"
	"weir/control/feed"
	"weir/control/list/listfile"
	"weir/tests/wait"
)

// A feed that covers too much is refused: its old contents stay, also after a restart,
// whether one source does or all together, until it covers less.
func TestMaxCoverage(t *testing.T) {
	t.Parallel() // it waits a lot
	f := newFleet(t)
	one, other := filepath.Join(f.dir, "one.txt"), filepath.Join(f.dir, "other.txt")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(one, "192.0.2.1\n")
	write(other, "192.0.2.2\n")
	lists := fmt.Sprintf("max_coverage: 30%%\nlists: {wide: {sources: [{file: %s}, {file: %s}]}, ours: {action: allow, sources: [{file: %s}]}}\n", one, other, one)
	has := func(entry string, want bool) {
		t.Helper()
		e, err := listfile.ParseEntry(entry)
		if err != nil {
			t.Fatal(err)
		}
		have := !want
		for deadline := wait.Deadline(); have != want && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			if err := f.hub.Do(t.Context(), func() error {
				for k := range e.Set().All() {
					have = f.hub.lists.get("wide").history.Contents().Has(k)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if have != want {
			t.Fatalf("%s is in the list: %v", entry, have)
		}
	}
	// reported waits until the list's state has all of some words.
	reported := func(refused bool, words ...string) {
		t.Helper()
		var text string
		for deadline := wait.Deadline(); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			s, err := f.hub.Fleet(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			text = strings.Join(s.Problems, "\n")
			for _, l := range s.Lists {
				for _, source := range l.Feeds {
					text += fmt.Sprintf("\n%s %s %s", l.Name, source.Failure, source.Error)
				}
			}
			met := f.hub.lists.get("wide").refuses() == refused
			for _, w := range words {
				met = met && strings.Contains(text, w)
			}
			if met {
				return
			}
		}
		t.Fatalf("want %q, refused %v:\n%s", words, refused, text)
	}
	f.start(lists)
	has("192.0.2.1", true)
	has("192.0.2.2", true)

	write(one, "0.0.0.0/1\n192.0.2.3\n")
	reported(true, "wide "+feed.Refused.String(), "list wide: it would cover 50 % of IPv4, where max_coverage is 30 %", "prefixes: "+one+":1: 0.0.0.0/1 (50 %)")
	has("192.0.2.3", false)
	has("192.0.2.1", true)

	write(one, "64.0.0.0/3\n192.0.2.4\n")
	has("192.0.2.4", true)
	reported(false)
	write(other, "128.0.0.0/3\n192.0.2.5\n") // 25 % together with one
	has("192.0.2.5", true)
	write(one, "64.0.0.0/3\n192.0.2.4\n32.0.0.0/4\n192.0.2.6\n")
	reported(true, "list wide: it would cover 31.3 % of IPv4")
	has("192.0.2.6", false)
	has("192.0.2.4", true)

	f.stop()
	f.start(lists)
	reported(true, "31.3 %")
	has("192.0.2.6", false)
	has("192.0.2.4", true)

	// What was right once, and is too much since the configuration has changed.
	f.stop()
	f.start(strings.Replace(lists, "30%", "20%", 1))
	reported(true, "list wide keeps its last version")
	has("192.0.2.4", true)
	write(one, "192.0.2.7\n")
	has("192.0.2.7", true)
	has("192.0.2.4", false)
	reported(false)

	_, err := f.hub.Change(t.Context(), block("192.0.2.8", "0.0.0.0/2"))
	if bad, ok := errors.AsType[*api.BadRequest](err); !ok || bad.Entry == nil || *bad.Entry != 1 || !strings.Contains(bad.Error(), "25 % of IPv4") {
		t.Errorf("a quarter is blocked manually: %v", err)
	}
	f.change(api.Change{Action: api.Allow, Entries: []string{"0.0.0.0/2"}})

	// A range of several prefixes comes first, and a lower address after it.
	ranged := block("198.51.100.1-198.51.100.7", "192.0.2.7", "0.0.0.0/1")
	if _, err = f.hub.Change(t.Context(), ranged); err == nil {
		t.Error("a half is blocked manually")
	} else if bad, ok := errors.AsType[*api.BadRequest](err); !ok || bad.Entry == nil || *bad.Entry != 2 {
		t.Errorf("a half is blocked manually: %v", err)
	}
	ranged.Entries = ranged.Entries[:2]
	if changed := f.change(ranged); changed.Added != 4 {
		t.Errorf("%+v", changed)
	}
	var got []string
	for e := range f.hub.journal.EntriesOf(config.FleetBlock) {
		got = append(got, e.Key.String())
	}
	slices.Sort(got)
	if want := []string{"192.0.2.7", "198.51.100.1", "198.51.100.2/31", "198.51.100.4/30"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Private networks of a source are left out where the list says so, and do not count as coverage.
func TestExcludePrivate(t *testing.T) {
	f := newFleet(t)
	file := filepath.Join(f.dir, "feed.txt")
	if err := os.WriteFile(file, []byte("10.0.0.0/8\n192.0.2.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.start(fmt.Sprintf("max_coverage: 0.1%%\nlists: {drop: {exclude_private: true, sources: [{file: %s}]}}\n", file))
	wait.Until(t, func() error {
		s, err := f.hub.Fleet(t.Context())
		if err == nil && (s.Lists[0].Entries != 1 || s.Lists[0].Published != s.Lists[0].Version) {
			err = fmt.Errorf("%+v", s.Lists[0])
		}
		return err
	})
}
