package daemon

import (
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"

	"weir/control/engine"
	"weir/control/feed"
	"weir/tests/timed"
)

// The prefixes of a country, and all but those of a large country, load within a second, and take
// at most eight bytes each.
func TestCountriesLoad(t *testing.T) {
	timed.Alone(t)
	const (
		prefixes = 50_000
		most     = time.Second
		each     = 8 // bytes
	)
	w, err := mmdbwriter.New(mmdbwriter.Options{DatabaseType: "Country", RecordSize: 28, IncludeReservedNetworks: true, IPVersion: 4})
	if err != nil {
		t.Fatal(err)
	}
	insert := func(ip net.IP, bits int, code string) {
		t.Helper()
		n := &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, 32)}
		if err := w.Insert(n, mmdbtype.Map{"country": mmdbtype.Map{"iso_code": mmdbtype.String(code)}}); err != nil {
			t.Fatal(err)
		}
	}
	for a := 1; a < 224; a++ {
		insert(net.IPv4(byte(a), 0, 0, 0).To4(), 8, "FR")
	}
	// Every other /22, so that no two make a wider one.
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 2 * prefixes {
		code := "RU"
		if i%2 == 1 {
			code = "DE"
		}
		a := uint32(1<<24 + i*2<<10)
		insert(net.IPv4(byte(a>>24), byte(a>>16), byte(a>>8), 0).To4(), 22+rng.IntN(3), code)
	}
	path := filepath.Join(t.TempDir(), "countries.mmdb")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteTo(f); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"mmdb,countries=RU", "mmdb,except=DE"} {
		kind, err := feed.ParseFormat(format)
		if err != nil {
			t.Fatal(err)
		}
		took, n, bytes := time.Hour, 0, 0
		for range 3 {
			c := feed.Config{Name: "countries", Spec: feed.DefaultSpec(feed.Source{File: feed.Path(path)})}
			c.Format = kind
			began := time.Now()
			opened, err := feed.Open(t.Context(), c, "")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := opened.Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
			set := opened.Contents()
			g, err := engine.Build([]engine.List{{Name: "countries", Contents: set}}, engine.Config{})
			if err != nil {
				t.Fatal(err)
			}
			took, n, bytes = min(took, time.Since(began)), set.Len(), g.KernelBytes()
			g.Close()
		}
		t.Logf("%s: %d prefixes in %v, %d bytes, %.2f each", format, n, took, bytes, float64(bytes)/float64(n))
		if n < prefixes || took > most || bytes > each*n {
			t.Errorf("%s: %d prefixes in %v, %d bytes, want at most %v and %d bytes each", format, n, took, bytes, most, each)
		}
	}
}
