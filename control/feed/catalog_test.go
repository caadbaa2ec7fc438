package feed

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/list/listfile"
	"weir/control/quantity"
)

// TestCatalog checks what the catalog says of each feed, and reads a sample in the form
// of its maintainers, with addresses for documentation: testdata/catalog has one for each
// host, or for each directory of one.
func TestCatalog(t *testing.T) {
	all := Catalog()
	if len(all) < 40 {
		t.Errorf("%d feeds, want at least 40", len(all))
	}
	if !slices.IsSortedFunc(all, func(a, b Known) int { return strings.Compare(string(a.Name), string(b.Name)) }) {
		t.Error("not sorted by name")
	}
	samples, err := os.ReadDir("testdata/catalog")
	if err != nil {
		t.Fatal(err)
	}
	unused := map[string]bool{}
	for _, s := range samples {
		unused[s.Name()] = true
	}
	for _, k := range all {
		t.Run(string(k.Name), func(t *testing.T) {
			if got, ok := k.Name.Known(); !ok || got.Name != k.Name {
				t.Errorf("Known returns %v, %v", got, ok)
			}
			if !namePattern.MatchString(string(k.Name)) || k.About == "" || k.License == "" || !strings.HasPrefix(k.Page, "https://") || k.Least < time.Minute {
				t.Errorf("incomplete: %+v", k)
			}
			s := Spec{FeedName: k.Name}
			s.SetDefaults()
			s.FeedName = k.Name
			s.Complete(func(string) bool { return false })
			if err := s.Validate(); err != nil {
				t.Error(err)
			}
			r, err := newReader(s.Format)
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range k.URLs {
				var to URL
				if err := to.UnmarshalText([]byte(u)); err != nil || to != u || !strings.HasPrefix(string(u), "https://") {
					t.Errorf("%s: %v", u, err)
				}
				name := sampleOf(k.Name, string(u), unused)
				text, err := os.Open(filepath.Join("testdata/catalog", name))
				if err != nil {
					t.Fatalf("no sample: %v", err)
				}
				defer text.Close()
				left := int64(1 << 20)
				entries, report, err := r.read(name, text, &left, listfile.Options{Lenient: s.Lenient, IgnorePorts: s.IgnorePorts, MaxBad: 1})
				if err != nil || report.Bad > 0 {
					t.Errorf("%s: %v, bad lines %v", name, err, report.Errors)
				}
				if entries.Set().Len() < 2 {
					t.Errorf("%s: entries %v, want at least 2", name, texts(entries))
				}
			}
		})
	}
	for name := range unused {
		if _, err := os.Stat(filepath.Join("testdata/catalog", name)); err == nil && unused[name] {
			t.Errorf("no feed uses the sample %s", name)
		}
	}
}

// sampleOf returns the name of the sample for a URL: that of the feed itself, else the
// longest that the URL begins with, with dashes instead of slashes.
func sampleOf(feed Name, url string, unused map[string]bool) string {
	best := ""
	path := strings.ReplaceAll(strings.TrimPrefix(url, "https://"), "/", "-")
	for name := range unused {
		if name == string(feed) || best != string(feed) && strings.HasPrefix(path, name) && len(name) > len(best) {
			best = name
		}
	}
	unused[best] = false
	return best
}

func TestCatalogName(t *testing.T) {
	var n Name
	if err := n.UnmarshalText([]byte("firehol_leve1")); err == nil || err.Error() != `unknown feed "firehol_leve1": did you mean firehol_level1?` {
		t.Errorf("a feed with a mistake in its name: %v", err)
	}
	if err := n.UnmarshalText([]byte("Spamhaus")); err == nil || err.Error() != `unknown feed "Spamhaus": did you mean spamhaus_drop?` {
		t.Errorf("the name of a publisher: %v", err)
	}
	for _, name := range []string{"nosuch", "e", ""} { // too many have an e
		if err := n.UnmarshalText([]byte(name)); err == nil || !strings.Contains(err.Error(), "`weir feeds` prints") {
			t.Errorf("an unknown feed: %v", err)
		}
	}
	if err := n.UnmarshalText([]byte("firehol_level1")); err != nil || n != "firehol_level1" {
		t.Errorf("%q, %v", n, err)
	}
}

// TestCatalogGiven checks that what a list says itself stays, and that maintainers are not
// asked more often than they ask for, other than a mirror.
func TestCatalogGiven(t *testing.T) {
	spec := func(given ...string) Spec {
		var s Spec
		s.SetDefaults()
		s.FeedName = "dshield"
		s.Interval = quantity.Duration(time.Minute)
		s.Sources = []Source{{URL: "https://mirror.example/block.txt", Timeout: 1e9, MaxBytes: 1, MaxCPU: 1e9}}
		s.Complete(func(name string) bool { return slices.Contains(given, name) })
		return s
	}
	if s := spec("sources", "interval"); len(s.Sources) != 1 || s.Sources[0].URL != "https://mirror.example/block.txt" || s.Format.Kind != CSV || s.Validate() != nil {
		t.Errorf("a mirror: %+v, %v", s, s.Validate())
	}
	if s := spec("interval"); s.Sources[0].URL != "https://feeds.dshield.org/block.txt" || s.Validate() == nil {
		t.Errorf("every minute: %+v, %v", s, s.Validate())
	}
	if s := spec(); s.Interval != quantity.Duration(time.Hour) || s.Validate() != nil {
		t.Errorf("by default: %+v, %v", s, s.Validate())
	}
	if s := spec("format", "lenient"); s.Format.Kind != Plain || s.Lenient {
		t.Errorf("another format: %+v", s)
	}
}
