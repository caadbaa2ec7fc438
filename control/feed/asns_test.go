package feed

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/list"
	"weir/filter/key"
	"weir/tests/must"
)

// TestASNs reads lists of autonomous systems, as Spamhaus has them, too, and joins them with
// a database: again when that changes, and never to nothing.
func TestASNs(t *testing.T) {
	dir := t.TempDir()
	file, database := filepath.Join(dir, "asns.txt"), filepath.Join(dir, "asn.mmdb")
	put := func(path string, contents []byte) {
		t.Helper()
		must.Write(t, path+".new", contents)
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	put(file, []byte("AS64496 # a hoster\n\n64511 ; another\nAS64500\n"))
	spec := DefaultSpec(Source{File: Path(file)})
	spec.Format, spec.Entries = Format{Kind: ASNs, Database: Path(database)}, []string{"AS64501"}
	f, err := Open(t.Context(), Config{Name: "asns", Spec: spec}, filepath.Join(dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	fetch := func() Outcome {
		t.Helper()
		o, err := f.Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return o[0]
	}
	want := func(entries string) {
		t.Helper()
		if got := contentsOf(f); got != entries {
			t.Errorf("contents %s, want %s", got, entries)
		}
	}
	if o := fetch(); o.Failure != Unreachable || !strings.Contains(o.Err.Error(), database) {
		t.Errorf("without a database: %+v", o)
	}
	put(database, countries(t, map[string]string{
		"192.0.2.0/24": "AS64496", "2001:db8::/32": "AS64511", "198.51.100.0/24": "AS64502", "203.0.113.7/32": "AS64501",
	}))
	if o := fetch(); o.Result != New {
		t.Errorf("%+v", o)
	}
	want("192.0.2.0/24 203.0.113.7 2001:db8::/32")
	if lines, _ := f.Status().Sources[0].BadLines(); len(lines) != 1 || !strings.Contains(lines[0], `asns.txt:4: no network in the database: "AS64500"`) {
		t.Errorf("bad lines %q", lines)
	}
	for _, k := range []key.Key{list.V4(0xc0000200, 24).Key(true), list.V4(0xcb007107, 32).Key(true)} {
		if o := f.Find([]key.Key{k}); o[0].Reason != map[string]string{"192.0.2.0/24": "AS64496", "203.0.113.7": "AS64501"}[k.String()] {
			t.Errorf("origin of %v: %+v", k, o[0])
		}
	}
	put(database, countries(t, map[string]string{"192.0.2.0/25": "AS64496"}))
	if o := fetch(); o.Result != New {
		t.Errorf("%+v", o)
	}
	want("192.0.2.0/25 203.0.113.7") // of the entries nothing is left in the database: the last ones stay
	put(database, countries(t, map[string]string{"198.51.100.0/24": "AS64502"}))
	if o := fetch(); o.Failure != Refused || !strings.Contains(o.Err.Error(), "no network of any of 3") {
		t.Errorf("%+v", o)
	}
	want("192.0.2.0/25 203.0.113.7")

	put(database, countries(t, map[string]string{"192.0.2.0/24": "AS64496"}))
	drop := `{"asn":64496,"rir":"ripencc","domain":"example.net","cc":"DE","asname":"EXAMPLE"}` + "\n"
	put(file, fmt.Appendf(nil, `%s{"type":"metadata","timestamp":1,"records":1}`, drop))
	if o := fetch(); o.Result != New {
		t.Errorf("ASN-DROP: %+v", o)
	}
	put(file, fmt.Appendf(nil, `%s{"type":"metadata","timestamp":1,"records":2}`, drop))
	if o := fetch(); o.Failure != Truncated {
		t.Errorf("a truncated one: %+v", o)
	}
	put(file, []byte("<html>\n<body>\n"))
	if o := fetch(); o.Result != Failed || !strings.Contains(o.Err.Error(), "want its number") {
		t.Errorf("a page: %+v", o)
	}
	want("192.0.2.0/24 203.0.113.7")

	for text, want := range map[string]string{
		"asns":                              "needs database",
		"asns,database=asn.mmdb":            "asn.mmdb",
		"mmdb,countries=DE,database=/x":     "goes with format asns only",
		"asns,database=/x,countries=DE":     "countries goes with format mmdb only",
		"csv,column=1,database=/x/asn.mmdb": "goes with format asns only",
	} {
		if _, err := ParseFormat(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
