package geo

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/maxmind/mmdbwriter/mmdbtype"

	"weir/control/quantity"
	"weir/tests/mmdb"
	"weir/tests/must"
)

// database returns a database with one record for a network.
func database(t testing.TB, network string, record mmdbtype.Map) []byte {
	t.Helper()
	return mmdb.New(t, map[string]mmdbtype.Map{network: record})
}

func asn(number int, name string) mmdbtype.Map {
	return mmdbtype.Map{"autonomous_system_number": mmdbtype.Uint32(number), "autonomous_system_organization": mmdbtype.String(name)}
}

func write(t testing.TB, path string, contents []byte, modified time.Time) quantity.Path {
	t.Helper()
	must.Write(t, path, contents)
	if err := os.Chtimes(path, modified, modified); err != nil {
		t.Fatal(err)
	}
	return quantity.Path(path)
}

// A database is read again when it changes; of a broken file the former stays.
func TestFind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "asn.mmdb")
	now := time.Now()
	d, err := OpenASN(write(t, path, database(t, "192.0.2.0/24", asn(64496, "Example")), now))
	if err != nil {
		t.Fatal(err)
	}
	check := func(address string, want Name) {
		t.Helper()
		if got, err := d.Find(netip.MustParseAddr(address)); got != want || err != nil {
			t.Errorf("%s: %+v, %v; want %+v", address, got, err, want)
		}
	}
	check("192.0.2.7", Name{"AS64496", "Example"})
	check("198.51.100.1", Name{})
	check("2001:db8::1", Name{})
	write(t, path, []byte("no database"), now.Add(time.Second))
	if err := d.Refresh(); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), ".mmdb") {
		t.Errorf("a broken file: %v", err)
	}
	check("192.0.2.7", Name{"AS64496", "Example"})
	write(t, path, database(t, "2001:db8::/32", asn(64497, "Other")), now.Add(2*time.Second))
	if err := d.Refresh(); err != nil {
		t.Fatal(err)
	}
	check("192.0.2.7", Name{})
	check("2001:db8::1", Name{"AS64497", "Other"})
}

func TestCountry(t *testing.T) {
	record := mmdbtype.Map{"country": mmdbtype.Map{"iso_code": mmdbtype.String("NZ"), "names": mmdbtype.Map{"en": mmdbtype.String("New Zealand")}}}
	d, err := OpenCountry(write(t, filepath.Join(t.TempDir(), "c.mmdb"), database(t, "192.0.2.0/24", record), time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Find(netip.MustParseAddr("192.0.2.1")); got != (Name{"NZ", "New Zealand"}) || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	for _, path := range []string{"/nonexistent", t.TempDir()} {
		if _, err := OpenCountry(quantity.Path(path)); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A hostile database does no harm.
func TestHostileDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "asn.mmdb")
	good := database(t, "192.0.2.0/24", asn(64496, "Example"))
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 3000 {
		bad := bytes.Clone(good)
		for range 1 + rng.IntN(8) {
			bad[rng.IntN(len(bad))] = byte(rng.IntN(256))
		}
		bad = bad[:len(bad)-rng.IntN(2)*rng.IntN(len(bad))]
		d, err := OpenASN(write(t, path, bad, time.Unix(int64(i), 0)))
		if err != nil {
			continue
		}
		for _, a := range []string{"192.0.2.1", "2001:db8::1", "0.0.0.0"} {
			_, _ = d.Find(netip.MustParseAddr(a)) // must not panic
		}
	}
}
