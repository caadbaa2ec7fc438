package feed

import (
	"bytes"
	"context"
	"os"
	"runtime"
	"slices"
	"testing"
)

// keeping returns a feed that keeps entries until its source, which cannot be read, is read, and the
// directory where they are saved.
func keeping(t *testing.T, content string) (*Feed, Config, string) {
	t.Helper()
	s, dir := serve(t, text(content)), t.TempDir()
	c := config(from(s))
	c.Sources[0].MaxBytes = 16 << 20
	c.Hold, c.Purpose = true, "block src"
	former := mustOpen(t, c, "")
	if o := fetch(t, former); o.Result != New {
		t.Fatalf("%+v", o)
	}
	s.now(text("<html>"))
	c.Sources = slices.Clone(c.Sources)
	c.Sources[0].URL += "?v=2"
	f := mustOpen(t, c, dir)
	f.Inherit(former, true)
	return f, c, dir
}

// What is damaged is not used, and saving takes little memory beside the entries.
func TestFormerFile(t *testing.T) {
	const entries = 200_000
	f, c, dir := keeping(t, addresses(entries))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := f.Keep(0); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	path := formerPath(f.sources[0].saved)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(len(whole))/4 {
		t.Errorf("saving %d bytes took %d", len(whole), took)
	}
	kept := func(ctx context.Context) int {
		f, err := open(c, dir)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.loadFormer(ctx, f.sources[0])
		return f.Contents().Len()
	}
	if n := kept(t.Context()); n != entries {
		t.Errorf("%d entries", n)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if n := kept(ended); n != 0 {
		t.Errorf("%d entries after the end", n)
	}
	for name, damaged := range map[string][]byte{
		"byte":  append(bytes.Replace(whole[:1000:1000], []byte("1"), []byte("2"), 1), whole[1000:]...),
		"cut":   whole[:len(whole)-1],
		"front": whole[20:],
		"none":  nil,
	} {
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if n := kept(t.Context()); n != 0 {
			t.Errorf("%s: %d entries", name, n)
		}
	}
}
