package feed

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/quantity"
	"weir/tests/crash"
	"weir/tests/must"
	"weir/tests/seed"
)

// rangesOf returns n lines.
func rangesOf(n int, line func(i int) string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(line(i) + "\n")
	}
	return b.String()
}

// Ranges that become too many entries are refused with the line from which on they do, and what to
// write, unless the operator has set a bound; as many as real lists have are read.
func TestRangesTooWide(t *testing.T) {
	ports := func(i int) string { return fmt.Sprintf("any 192.0.2.%d:%d > *:0-4095", i%256, i/256+1) }
	v6 := func(i int) string {
		return fmt.Sprintf("2001:db8:0:%x::1-2001:db8:0:%x:ffff:ffff:ffff:fffe", i, i)
	}
	csv := func(i int) string { return v6(i) + ",a remark" }
	for _, c := range []struct {
		text   string
		format Format
		most   quantity.Count
		line   string // "": it is read
	}{
		{rangesOf(20, ports), Format{}, 0, ""},
		{rangesOf(34, ports), Format{}, 0, "line 25: "},
		{rangesOf(34, ports), Format{}, 1_000_000, ""},
		{"# a remark\n" + rangesOf(10_000, v6), Format{}, 0, "line "},
		{rangesOf(10_000, csv), Format{Kind: "csv", Column: "1"}, 0, "line "},
	} {
		path := filepath.Join(t.TempDir(), "list")
		must.Write(t, path, c.text)
		conf := named("l", c.format, Source{File: Path(path), MaxEntries: c.most})
		o := fetch(t, mustOpen(t, conf, ""))
		switch {
		case c.line == "" && o.Result != New:
			t.Errorf("%q: %v", c.text[:60], o.Err)
		case c.line != "" && (o.Failure != TooLarge || !strings.Contains(o.Err.Error(), "set max_entries")):
			t.Errorf("%q: %v, %v; want %s", c.text[:60], o.Failure, o.Err, c.line)
		case c.line != "" && !strings.Contains(o.Err.Error(), c.line):
			t.Errorf("%q: %v, want %s", c.text[:60], o.Err, c.line)
		}
	}
}

// What is damaged is said to be, whatever else a fetch fails for, until one succeeds.
func TestDamagedUntilRead(t *testing.T) {
	dir := t.TempDir()
	c, saved := keep(t, dir)
	whole := must.Read(t, saved)
	whole[rand.IntN(len(whole))] ^= 1
	must.Write(t, saved, string(whole))
	path := string(c.All()[0].File)
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	f, o := loaded(t, c, dir)
	for range 3 {
		if o.Result != Failed || o.Failure != Damaged || !strings.Contains(o.Err.Error(), saved) {
			t.Fatalf("%v (%v): %v", o.Result, o.Failure, o.Err)
		}
		o = fetch(t, f)
		if last := f.Status().Sources[0].Last; last.Failure != Damaged || !strings.Contains(last.Err.Error(), "no such file") {
			t.Fatalf("%v: %v", last.Failure, last.Err)
		}
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if o := fetch(t, f); o.Failure != Unreachable {
		t.Errorf("read, then away: %v: %v", o.Failure, o.Err)
	}
}

// Random damage of saved state, with the source away, leaves either the right entries or an error that
// says what is damaged, also after a fetch has failed.
func TestRandomDamage(t *testing.T) {
	crash.WithoutSyncs(t)
	r := seed.New(t)
	dir := t.TempDir()
	c, saved := keep(t, dir)
	whole := must.Read(t, saved)
	right := mustOpen(t, c, dir).Contents()
	if err := os.Remove(string(c.All()[0].File)); err != nil {
		t.Fatal(err)
	}
	unharmed := 0
	for i := range 320 {
		b := bytes.Clone(whole)
		at := r.IntN(len(b))
		n := 1 + r.IntN(len(b)-at)
		switch i % 5 {
		case 0:
			b[at] ^= 1 << r.IntN(8)
		case 1:
			b = b[:at]
		case 2:
			b = append(b, whole...)
		case 3:
			clear(b[at:][:n])
		case 4:
			b = append(bytes.Clone(whole[at:][:n]), b...)
		}
		must.Write(t, saved, string(b))
		f, _ := loaded(t, c, dir)
		o := fetch(t, f)
		got := f.Contents()
		switch d := got.Diff(right); {
		case d.Len() == 0:
			unharmed++
		case got.Len() > 0 || o.Failure != Damaged || f.Status().Sources[0].Last.Failure != Damaged:
			t.Errorf("damage %d at %d, %d bytes: %d entries, %v: %v", i%5, at, n, got.Len(), o.Failure, o.Err)
		}
	}
	if unharmed == 320 {
		t.Error("nothing was damaged")
	}
}
