package store

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
)

// saved returns what a node has of a list.
func saved(t *testing.T, l *List, private ed25519.PrivateKey) *List {
	t.Helper()
	chunks, signed, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	h, err := wire.OpenHead(private.Public().(ed25519.PublicKey), signed)
	if err != nil {
		t.Fatal(err)
	}
	file, err := wire.AppendSavedHead(nil, h)
	if err != nil {
		t.Fatal(err)
	}
	file = append(file, bytes.Join(chunks, nil)...)
	if err := l.Deltas(h.Version, func(_ uint64, message []byte) error {
		file = wire.AppendSavedDelta(file, message)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	theirs, whole, err := Saved(private, "drop", bytes.NewReader(file))
	if err != nil || !whole || theirs.Place() != l.Place() {
		t.Fatal(theirs, whole, err)
	}
	return theirs
}

// change makes a version with entries of 192.0.2.0/24 added and removed.
func change(t *testing.T, l *List, add, remove []int) {
	t.Helper()
	set := func(all []int) *list.Set {
		var some list.Entries
		for _, i := range all {
			e, err := listfile.ParseEntry(fmt.Sprintf("192.0.2.%d", i))
			if err != nil {
				t.Fatal(err)
			}
			some.Append(e)
		}
		return some.Set()
	}
	next, _ := list.Union(l.Contents(), set(add)).Apply(list.Delta{Remove: set(remove)})
	if changed, err := l.Commit(Change{Contents: next}); err != nil || !changed {
		t.Fatal(changed, err)
	}
}

// What a copy of a store lacks of a node's history is known after any number of epochs that went on from copies, the same
// one or others, also where a change was undone in between.
func TestMissing(t *testing.T) {
	private := newKey(t)
	dir := t.TempDir()
	now := time.Unix(1<<30, 0)
	copies := 0
	fromCopy := func(of string) (*Store, *List) {
		t.Helper()
		to := filepath.Join(dir, fmt.Sprint("copy-", copies))
		copies++
		if err := os.CopyFS(to, os.DirFS(of)); err != nil {
			t.Fatal(err)
		}
		s, l, damaged := open(t, to, private)
		if damaged != nil {
			t.Fatal(damaged)
		}
		now = now.Add(time.Minute)
		s.Now = func() time.Time { return now }
		return s, l
	}
	missing := func(l, theirs *List) (add, remove []string) {
		t.Helper()
		since, ok := l.Since(theirs)
		if !ok {
			t.Fatalf("%v and %v have nothing in common", l.Place(), theirs.Place())
		}
		added, removed, err := l.Missing(since, theirs)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range removed {
			remove = append(remove, k.String())
		}
		slices.Sort(remove)
		return texts(maps.Keys(added)), remove
	}
	want := func(what string, got, want []string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}

	truth := filepath.Join(dir, "truth")
	_, l, _ := open(t, truth, private)
	change(t, l, []int{1, 2}, nil)
	first := filepath.Join(dir, "first") // a copy
	if err := os.CopyFS(first, os.DirFS(truth)); err != nil {
		t.Fatal(err)
	}
	change(t, l, []int{3}, nil)
	second := filepath.Join(dir, "second")
	if err := os.CopyFS(second, os.DirFS(truth)); err != nil {
		t.Fatal(err)
	}
	change(t, l, []int{4}, []int{1, 3})
	theirs := saved(t, l, private)

	for round := range wire.MaxPast + 3 {
		for _, c := range []struct {
			name, of    string
			add, remove []string
		}{{"first", first, nil, []string{"192.0.2.1"}}, {"second", second, nil, []string{"192.0.2.1", "192.0.2.3"}}} {
			s, l := fromCopy(c.of)
			what := fmt.Sprintf("round %d, the %s copy", round, c.name)
			for range round % 3 { // by commands that come first: as many as are missing, or more
				change(t, l, []int{200}, nil)
				change(t, l, nil, []int{200})
			}
			add, remove := missing(l, theirs)
			c.add = append(c.add, "192.0.2.4")
			for i := range round {
				c.add = append(c.add, fmt.Sprintf("192.0.2.%d", 100+i))
			}
			slices.Sort(c.add)
			want(what+" adds", add, c.add)
			want(what+" removes", remove, c.remove)
			if c.name == "second" && round%2 == 0 || c.name == "first" && round%2 == 1 {
				continue
			}
			// This copy goes on: it takes all in, and begins an epoch.
			all, _ := l.Contents().Apply(theirs.Contents().Diff(l.Contents()))
			if _, err := l.Commit(Change{Contents: all}); err != nil {
				t.Fatal(err)
			}
			l.Took(theirs)
			if err := s.NewEpoch(theirs.Place().Epoch); err != nil {
				t.Fatal(err)
			}
			change(t, l, []int{100 + round}, nil)
			theirs = saved(t, l, private)
			break
		}
	}
}

// Where a history was lost, what a later copy has is not taken from it.
func TestMissingBranch(t *testing.T) {
	private := newKey(t)
	dir := t.TempDir()
	truth := filepath.Join(dir, "truth")
	_, l, _ := open(t, truth, private)
	change(t, l, []int{1}, nil)
	copied := filepath.Join(dir, "copy")
	if err := os.CopyFS(copied, os.DirFS(truth)); err != nil {
		t.Fatal(err)
	}
	change(t, l, []int{2}, nil)
	later := filepath.Join(dir, "later")
	if err := os.CopyFS(later, os.DirFS(truth)); err != nil {
		t.Fatal(err)
	}
	s, branch, _ := open(t, copied, private)
	if err := s.NewEpoch(0); err != nil { // which knows nothing of 2
		t.Fatal(err)
	}
	change(t, branch, []int{3}, []int{1})
	_, l, _ = open(t, later, private)
	theirs := saved(t, branch, private)
	since, ok := l.Since(theirs)
	add, remove, err := l.Missing(since, theirs)
	if !ok || err != nil || len(add) != 1 || len(remove) != 1 || remove[0].String() != "192.0.2.1" {
		t.Errorf("%v %t: adds %v, removes %v, %v", since, ok, add, remove, err)
	}
	// Commands that come first are later than what a node has.
	change(t, l, []int{3}, nil)
	change(t, l, nil, []int{1})
	if add, remove, err = l.Missing(since, theirs); err != nil || len(add)+len(remove) > 0 {
		t.Errorf("after commands: adds %v, removes %v, %v", add, remove, err)
	}
}

func texts(keys func(func(key.Key) bool)) (all []string) {
	for k := range keys {
		all = append(all, k.String())
	}
	slices.Sort(all)
	return all
}
