package feed

import (
	"compress/gzip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/tests/must"
)

// An entry is found in the source, the file and the line that have it first, in
// the active contents, even if the source has changed since.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	must.Write(t, path("one"), "# a feed\n192.0.2.1\n\n203.0.113.5-203.0.113.9 seven\n198.51.100.0/24\n2001:db8::/32\n")
	must.Write(t, path("two"), "192.0.2.1\nudp *:* > 198.51.100.7:53\r\n> 192.0.2.8\ntcp *:* > 198.51.100.7:80-89 # web\n")
	must.Write(t, path("csv"), "when,who\ntoday,192.0.2.1\n\"to\nmorrow\",\"192.0.2.7\"\n")
	must.Write(t, path("json"), "{\"data\":\n[\"192.0.2.1\",\n\n\"192.0.2.7\"]}\n")
	if err := os.Mkdir(path("files"), 0o700); err != nil {
		t.Fatal(err)
	}
	must.Write(t, path("files/a"), "192.0.2.1\n192.0.2.2\n")
	var zipped strings.Builder
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write([]byte("192.0.2.2\n192.0.2.3\n192.0.2.7\n")); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	must.Write(t, path("files/b"), zipped.String())

	plain := named("", Format{}, Source{File: Path(path("one"))}, Source{File: Path(path("two"))})
	for _, c := range []struct {
		name   string
		config Config
		entry  string
		want   Origin
	}{
		{"first", plain, "192.0.2.1", Origin{Source: path("one"), Line: 2}},
		{"in a range", plain, "203.0.113.6/31", Origin{Source: path("one"), Line: 4}},
		{"prefix", plain, "198.51.100.0/24", Origin{Source: path("one"), Line: 5}},
		{"IPv6", plain, "2001:db8::/32", Origin{Source: path("one"), Line: 6}},
		{"flow", plain, "udp *:* > 198.51.100.7:53", Origin{Source: path("two"), Line: 2}},
		{"destination", plain, "> 192.0.2.8", Origin{Source: path("two"), Line: 3}},
		{"range of ports", plain, "tcp *:* > 198.51.100.7:85", Origin{Source: path("two"), Line: 4, Reason: "tcp *:* > 198.51.100.7:80-89 # web"}},
		{"nowhere", plain, "198.51.100.0/25", Origin{}},
		{"CSV", named("", Format{Kind: CSV, Column: "who"}, Source{File: Path(path("csv"))}), "192.0.2.7", Origin{Source: path("csv"), Line: 3}},
		{"JSON", named("", Format{Kind: JSON, Path: ".data[]"}, Source{File: Path(path("json"))}), "192.0.2.7", Origin{Source: path("json"), Line: 4}},
		{"directory", named("", Format{}, Source{Directory: Path(path("files"))}), "192.0.2.7", Origin{Source: path("files/b"), Line: 3}},
		{"directory, first", named("", Format{}, Source{Directory: Path(path("files"))}), "192.0.2.2", Origin{Source: path("files/a"), Line: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.Name = "test"
			f := mustOpen(t, c.config, t.TempDir())
			if got := f.Find([]key.Key{keyOf(t, c.entry)}); !slices.Equal(got, []Origin{{}}) {
				t.Errorf("found before it was read: %+v", got)
			}
			if _, err := f.Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			none := keyOf(t, "192.0.2.255")
			if got := placesOf(f, none, keyOf(t, c.entry)); !slices.Equal(got, []Origin{{}, c.want}) {
				t.Errorf("found %+v, want %+v", got, c.want)
			}
		})
	}

	t.Run("without a directory", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "list")
		must.Write(t, file, "192.0.2.1\n192.0.2.2\n")
		f := mustOpen(t, config(Source{File: Path(file)}), "")
		fetch(t, f)
		find := func() Origin {
			return placesOf(f, keyOf(t, "192.0.2.2"))[0]
		}
		if got := find(); got != (Origin{Source: file, Line: 2}) {
			t.Errorf("found %+v", got)
		}
		must.Write(t, file, "192.0.2.2\n192.0.2.3\n")
		if got := find(); got != (Origin{Source: file, Line: 0}) {
			t.Errorf("found %+v in another file", got)
		}
	})

	t.Run("read only", func(t *testing.T) {
		file, dir := filepath.Join(t.TempDir(), "list"), t.TempDir()
		must.Write(t, file, "192.0.2.1\n192.0.2.2\n")
		fetch(t, mustOpen(t, config(Source{File: Path(file)}), dir))
		must.Write(t, file, "# more\n192.0.2.1\n192.0.2.2\n192.0.2.3\n")
		c := config(Source{File: Path(file)})
		c.ReadOnly = true
		f := mustOpen(t, c, dir)
		if got := f.Contents().Len(); got != 2 {
			t.Errorf("%d entries were saved", got)
		}
		fetch(t, f)
		if got := placesOf(f, keyOf(t, "192.0.2.2")); got[0] != (Origin{Source: file, Line: 3}) {
			t.Errorf("found %+v", got)
		}
		if got := mustOpen(t, c, dir).Contents().Len(); got != 2 {
			t.Errorf("%d entries are saved, after one who is to save nothing", got)
		}
	})

	t.Run("changed since", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "list")
		must.Write(t, file, "192.0.2.1\n192.0.2.2\n")
		f := mustOpen(t, config(Source{File: Path(file)}), t.TempDir())
		fetch(t, f)
		must.Write(t, file, "192.0.2.2\n192.0.2.3\n")
		find := func() Origin {
			return placesOf(f, keyOf(t, "192.0.2.2"))[0]
		}
		if got := find(); got != (Origin{Source: file, Line: 2}) {
			t.Errorf("found %+v", got)
		}
		if err := os.Remove(f.sources[0].saved); err != nil {
			t.Fatal(err)
		}
		if got := find(); got != (Origin{Source: file, Line: 0}) {
			t.Errorf("found %+v, though nothing is saved", got)
		}
	})
}

// placesOf returns where the entries of keys come from, without their ages.
func placesOf(f *Feed, keys ...key.Key) []Origin {
	origins := f.Find(keys)
	for i := range origins {
		origins[i].Listed, origins[i].Earlier = time.Time{}, false
	}
	return origins
}

// keyOf returns the key of an entry in the list format.
func keyOf(t *testing.T, text string) key.Key {
	t.Helper()
	e, err := listfile.ParseEntry(text)
	switch {
	case err != nil:
		t.Fatal(err)
	case len(e.V4) > 0:
		return e.V4[0].Key(true)
	case len(e.V6) > 0:
		return key.Destination(e.V6[0])
	}
	return e.Flows[0]
}
