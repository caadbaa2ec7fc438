package feed

import (
	"errors"
	"net/netip"
	"testing"

	"weir/filter/key"
)

// written returns a feed of entries that are written in the configuration.
func written(entries ...string) Config {
	c := config()
	c.Entries = entries
	return c
}

// Entries of the configuration are there once the feed is open, whatever was saved of earlier
// ones, and are found by their number.
func TestWrittenEntries(t *testing.T) {
	dir := t.TempDir()
	f := mustOpen(t, written("192.0.2.2", "192.0.2.1 # remark"), dir)
	want(t, f, f.Status().Sources[0].Last, New, NoFailure, "192.0.2.1 192.0.2.2")
	want(t, f, fetch(t, f), Unchanged, NoFailure, "192.0.2.1 192.0.2.2")
	o := f.Find([]key.Key{key.Source(netip.MustParsePrefix("192.0.2.1/32"))})[0]
	if o.Source != "the configuration" || o.Line != 2 {
		t.Errorf("found at %s:%d", o.Source, o.Line)
	}

	f = mustOpen(t, written("192.0.2.3"), dir)
	want(t, f, f.Status().Sources[0].Last, New, NoFailure, "192.0.2.3")

	// A format is for sources, and does not matter to written entries.
	c := written("192.0.2.4")
	c.Format = Format{Kind: CSV, Column: "ip"}
	f = mustOpen(t, c, dir)
	want(t, f, f.Status().Sources[0].Last, New, NoFailure, "192.0.2.4")

	c = written("192.0.2.5/24", "192.0.2.6:80")
	c.Lenient, c.IgnorePorts = true, true
	f = mustOpen(t, c, dir)
	want(t, f, f.Status().Sources[0].Last, New, NoFailure, "192.0.2.0/24 192.0.2.6")
}

// Where they cannot become active, the earlier ones stay, as of any source.
func TestWrittenEntriesHeld(t *testing.T) {
	dir := t.TempDir()
	c := written("192.0.2.1")
	c.Hold = true
	f := mustOpen(t, c, dir)
	if err := f.Keep(f.Version()); err != nil {
		t.Fatal(err)
	}
	if s := f.Status().Sources[0]; s.Unsaved || s.Entries != 1 {
		t.Errorf("kept: %+v", s)
	}
	c.Entries = []string{"192.0.2.2"}
	f = mustOpen(t, c, dir)
	f.Revert(f.Version(), errors.New("no room"))
	if got := textsOf(f.Contents()); len(got) != 1 || got[0] != "192.0.2.1" {
		t.Errorf("reverted to %v", got)
	}
}
