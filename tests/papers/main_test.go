package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"weir/tests/long"
)

// The committed pages follow from the sources; make papers renews them. Two pages are
// quick to compute; the others, with the index, take WEIR_LONG=1.
func TestPagesAreCurrent(t *testing.T) {
	long.Seconds(t)
	const committed = "../../docs/papers"
	fresh := t.TempDir()
	quick := slices.DeleteFunc(slices.Clone(pages), func(p paper) bool {
		return p.name != "weighted-report" && p.name != "false-positive-rate"
	})
	if err := generate(fresh, long.Or(quick, pages)); err != nil {
		t.Fatal(err)
	}
	dirs := []string{fresh, committed}
	if !long.Enabled {
		dirs = dirs[:1]
		if err := os.Remove(filepath.Join(fresh, "README.md")); err != nil {
			t.Fatal(err)
		}
	}
	names := map[string]bool{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names[e.Name()] = true
		}
	}
	for name := range names {
		got, err := os.ReadFile(filepath.Join(committed, name))
		want, missing := os.ReadFile(filepath.Join(fresh, name))
		switch {
		case err != nil:
			t.Errorf("docs/papers/%s is missing: run make papers", name)
		case missing != nil:
			t.Errorf("docs/papers/%s belongs to no page", name)
		case !bytes.Equal(got, want):
			t.Errorf("docs/papers/%s is out of date: run make papers", name)
		}
	}
}
