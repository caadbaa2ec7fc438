package feed

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"

	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/tests/data"
	"weir/tests/mmdb"
	"weir/tests/must"
)

// countries returns a database of countries, or of systems, by network.
func countries(t testing.TB, of map[string]string) []byte {
	t.Helper()
	records := make(map[string]mmdbtype.Map)
	for network, code := range of {
		if records[network] = mmdb.Country(code); strings.HasPrefix(code, "AS") {
			records[network] = mmdbtype.Map{"asn": mmdbtype.String(code)}
		}
	}
	return mmdb.New(t, records)
}

// TestMMDB reads countries and autonomous systems, and checks the errors for names that the
// database does not have.
func TestMMDB(t *testing.T) {
	country := countries(t, map[string]string{
		"192.0.2.0/25": "DE", "192.0.2.128/25": "DE", "198.51.100.0/24": "FR", "203.0.113.0/26": "RU", "2001:db8::/32": "DE", "2001:db9::/48": "RU",
	})
	asns := countries(t, map[string]string{"192.0.2.0/24": "AS64496", "2001:db8::/32": "AS64497"})
	for _, c := range []struct {
		contents []byte
		format   string
		want     string // entries, or what the error has
	}{
		{country, "mmdb,countries=DE", "192.0.2.0/24 2001:db8::/32"},
		{country, "mmdb,countries=DE,RU", "192.0.2.0/24 203.0.113.0/26 2001:db8::/32 2001:db9::/48"},
		{country, "mmdb,except=DE", "198.51.100.0/24 203.0.113.0/26 2001:db9::/48"},
		{asns, "mmdb,asns=AS64496,64497", "192.0.2.0/24 2001:db8::/32"},
		{country, "mmdb,countries=DE,XX", "the database has no network of country XX, only of 3 others"},
		{country, "mmdb,except=DE,FR,RU", "the database has no network but those that are left out"},
		{country, "mmdb,except=XX", "the database has no network of country XX"},
		{country, "mmdb,asns=64496", "the database has no autonomous systems"},
		{asns, "mmdb,countries=DE", "the database has no countries"},
		{asns, "mmdb,asns=1", "the database has no network of AS1"},
		{[]byte("192.0.2.1\n"), "mmdb,countries=DE", "want a database in MaxMind's format"},
	} {
		f, err := ParseFormat(c.format)
		if err != nil {
			t.Fatal(err)
		}
		entries, report, err := read(t, f, bytes.NewReader(c.contents))
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || entries.Len() > 0 {
				t.Errorf("%s: %v, want %s", c.format, err, c.want)
			}
			continue
		}
		if got := strings.Join(texts(entries), " "); got != c.want || report.Good != entries.Len() {
			t.Errorf("%s: %s (%d), want %s", c.format, got, report.Good, c.want)
		}
	}
	for text, want := range map[string]string{
		"mmdb":                                "needs countries, except or asns",
		"mmdb,countries=DE,except=FR":         "needs countries, except or asns, as in",
		"mmdb,countries=de":                   `country "de": want its code of two capital letters`,
		"mmdb,asns=AS":                        `autonomous system "AS": want its number`,
		"plain,countries=DE":                  "countries goes with format mmdb only",
		"mmdb,countries=DE,column=1":          "column goes with format csv only",
		"mmdb,countries=Germany,except=A,B,C": "want its code",
	} {
		if _, err := ParseFormat(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// TestMMDBFeed checks that a database that changes is read again, that one without the
// country leaves the last contents, and that an entry has its country as the reason.
func TestMMDBFeed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "country.mmdb")
	put := func(of map[string]string) {
		t.Helper()
		must.Write(t, path+".new", countries(t, of))
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	put(map[string]string{"192.0.2.0/24": "DE", "198.51.100.0/24": "FR"})
	spec := DefaultSpec(Source{File: Path(path)})
	spec.Format = Format{Kind: MMDB, Countries: []Country{"DE"}}
	f, err := Open(t.Context(), Config{Name: "de", Spec: spec}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	refresh := func() error {
		outcomes, err := f.Fetch(t.Context())
		if err != nil {
			return err
		}
		return outcomes[0].Err
	}
	has := func(want ...string) {
		t.Helper()
		var got []string
		for p := range f.Contents().V4.Plain.All() {
			got = append(got, p.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("contents %v, want %v", got, want)
		}
	}
	if err := refresh(); err != nil {
		t.Fatal(err)
	}
	has("192.0.2.0/24")
	k := list.V4(0xc0000200, 24).Key(true)
	if o := f.Find([]key.Key{k}); o[0].Source != path || o[0].Reason != "country DE" || o[0].Line != 0 {
		t.Errorf("origin %+v", o[0])
	}
	time.Sleep(10 * time.Millisecond) // for another time of modification
	put(map[string]string{"192.0.2.0/25": "DE", "203.0.113.0/24": "DE", "198.51.100.0/24": "FR"})
	if err := refresh(); err != nil {
		t.Fatal(err)
	}
	has("192.0.2.0/25", "203.0.113.0/24")
	time.Sleep(10 * time.Millisecond)
	put(map[string]string{"198.51.100.0/24": "FR"})
	if err := refresh(); err == nil || !strings.Contains(err.Error(), "no network of country DE") {
		t.Errorf("no country: %v", err)
	}
	has("192.0.2.0/25", "203.0.113.0/24")
}

// TestMMDBOfACountry reads the networks of the United States from a database that was made
// of a list of them, and compares both.
func TestMMDBOfACountry(t *testing.T) {
	dir := data.Dir(t)
	w, err := mmdbwriter.New(mmdbwriter.Options{DatabaseType: "Country", RecordSize: 28, IncludeReservedNetworks: true})
	if err != nil {
		t.Fatal(err)
	}
	var all list.Entries
	for _, name := range []string{"country-us-v4.cidr.gz", "country-us-v6.cidr.gz"} {
		e, _, err := listfile.Load(filepath.Join(dir, "feeds", name), listfile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		all.Append(e)
	}
	prefixes := slices.Clone(all.V6)
	for _, p := range all.V4 {
		prefixes = append(prefixes, p.Prefix())
	}
	for _, p := range prefixes {
		n := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
		if err := w.Insert(n, mmdbtype.Map{"country": mmdbtype.Map{"iso_code": mmdbtype.String("US")}}); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	f, err := ParseFormat("mmdb,countries=US")
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	entries, _, err := read(t, f, &b)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d networks in %v; the list has %d", entries.Len(), time.Since(began), all.Len())
	addresses := func(e list.Entries) (n uint64) {
		for _, p := range e.V4 {
			n += 1 << (32 - p.Bits())
		}
		return n
	}
	if got, want := addresses(entries), addresses(all); got != want {
		t.Errorf("%d IPv4 addresses, want %d", got, want)
	}
	set := entries.Set()
	for _, p := range prefixes {
		if p.Addr().Is6() && netip.MustParsePrefix("2002::/16").Overlaps(p) {
			continue // repeats IPv4
		}
		if !covered(set, p) {
			t.Errorf("%v is missing", p)
		}
	}
}

// covered reports whether a set has a prefix, or one around it.
func covered(s *list.Set, p netip.Prefix) bool {
	for bits := p.Bits(); bits >= 0; bits-- {
		if around := netip.PrefixFrom(p.Addr(), bits).Masked(); s.Has(key.Source(around)) {
			return true
		}
	}
	return false
}
