package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The committed pages are what the sources give; make papers renews them.
func TestPagesAreCurrent(t *testing.T) {
	const committed = "../../docs/papers"
	fresh := t.TempDir()
	if err := generate(fresh); err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, dir := range []string{fresh, committed} {
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
