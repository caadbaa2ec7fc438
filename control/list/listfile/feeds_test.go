package listfile

import (
	"bufio"
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"go4.org/netipx"

	"weir/tests/data"
	"weir/tests/long"
	"weir/tests/must"
)

// feed returns the path of a file of the data directory.
func feed(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(data.Dir(t), name)
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// text returns the content of a gzipped file.
func text(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(z); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestFeeds loads real lists and compares them with the counts of the data's
// index and, entry by entry, with netip's parsing of each line's first word.
func TestFeeds(t *testing.T) {
	long.Seconds(t)
	for _, c := range []struct {
		name           string
		lines, bad     int
		addrs, cidrs   int // IPv4
		addrs6, cidrs6 int // IPv6
	}{
		{name: "feeds/ipsum.txt.gz", lines: 120_437, addrs: 120_430},
		{name: "feeds/ipsum-level3.txt.gz", lines: 14_217, addrs: 14_217},
		{name: "feeds/malicious-ip-full.txt.gz", lines: 552_293, addrs: 552_293},
		{name: "feeds/union-2026.txt.gz", lines: 1_301_038, addrs: 1_301_038},
		{name: "feeds/bitwire-inbound-networks.txt.gz", lines: 213_288, cidrs: 213_288},
		{name: "feeds/bitwire-inbound-ipv6.txt.gz", lines: 1_117, addrs6: 947, cidrs6: 170},
		{name: "feeds/x4b-vpn-ipv4.txt.gz", lines: 10_862, cidrs: 10_862},
		{name: "feeds/x4b-vpn-ipv6.txt.gz", lines: 498, cidrs6: 498},
		{name: "feeds/ipranges-all-ipv4.txt.gz", lines: 111_110, addrs: 1_142, cidrs: 109_968},
		{name: "feeds/ipranges-all-ipv6-merged.txt.gz", lines: 12_872, cidrs6: 12_872},
		{name: "feeds/firehol_level1-2020.netset.gz", lines: 2_551, addrs: 407, cidrs: 2_110},
		{name: "feeds/firehol_level2-2020.netset.gz", lines: 23_195, addrs: 22_872, cidrs: 292},
		{name: "feeds/spamhaus_drop-2020.netset.gz", lines: 797, cidrs: 766},
		{name: "feeds/isc-sans-malformed.txt.gz", lines: 131_072, addrs: 130_573, bad: 499},
		{name: "feeds/country-us-v4.cidr.gz", lines: 27_769, cidrs: 27_769},
		{name: "feeds/country-us-v6.cidr.gz", lines: 10_009, cidrs6: 10_009},
		{name: "routes/bgp-full-table.txt.gz", lines: 1_062_046, cidrs: 901_899, cidrs6: 160_147},
	} {
		t.Run(filepath.Base(c.name), func(t *testing.T) {
			path := feed(t, c.name)
			e, r, err := Load(path, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for _, le := range r.Errors {
				if r.Bad > c.bad {
					t.Error(le)
				}
			}
			if r.Lines != c.lines || r.Bad != c.bad || r.Good != e.Len() {
				t.Errorf("%d lines, %d bad, %d good, %d entries", r.Lines, r.Bad, r.Good, e.Len())
			}
			if len(e.V4) != c.addrs+c.cidrs || len(e.V6) != c.addrs6+c.cidrs6 || len(e.Flows) != 0 {
				t.Errorf("%d IPv4, %d IPv6, %d flows", len(e.V4), len(e.V6), len(e.Flows))
			}
			v4, v6 := e.V4, e.V6
			lines := bufio.NewScanner(bytes.NewReader(text(t, path)))
			for lines.Scan() {
				word, _, _ := strings.Cut(lines.Text(), "\t")
				p, err := netip.ParsePrefix(word)
				if a, aerr := netip.ParseAddr(word); aerr == nil {
					p, err = netip.PrefixFrom(a, a.BitLen()), nil
				}
				switch {
				case err != nil:
				case p.Addr().Is4():
					if v4[0].Prefix() != p {
						t.Fatalf("got %v, want %v", v4[0], p)
					}
					v4 = v4[1:]
				default:
					if v6[0] != p {
						t.Fatalf("got %v, want %v", v6[0], p)
					}
					v6 = v6[1:]
				}
			}
			if len(v4)+len(v6) > 0 {
				t.Errorf("%d missing entries", len(v4)+len(v6))
			}
		})
	}
}

// TestForeignFormats checks that files in other formats are rejected, rather
// than read for the few lines that look like entries.
func TestForeignFormats(t *testing.T) {
	for _, c := range []struct {
		name      string
		good, bad int
	}{
		{"scanners.csv.gz", 0, 57_575},
		{"spamhaus-drop_v4-2026.ndjson.gz", 0, 1_700},
		{"tor-exits.csv.gz", 0, 5_934},
		{"apache-deny.conf.gz", 0, 1_455},
		{"ipcat-ranges.csv.gz", 0, 3_429},
		{"aws-ip-ranges.json.gz", 0, 100_976},
		{"maltrail-cobaltstrike.txt.gz", 0, 14_700},
		{"cidram-ipv6.dat.gz", 9_438, 2_528},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := feed(t, filepath.Join("feeds", c.name))
			e, r, err := Load(path, Options{})
			if !errors.Is(err, ErrTooManyBad) || e.Len() != 0 {
				t.Errorf("%d entries, error %v", e.Len(), err)
			}
			if c.bad >= hopelessLines && r.Bad >= hopelessLines && r.Bad < c.bad {
				c.bad = r.Bad // it is not read to its end
			}
			if r.Good != c.good || r.Bad != c.bad || len(r.Errors) != MaxErrors {
				t.Errorf("%d good, %d bad, want %d and %d", r.Good, r.Bad, c.good, c.bad)
			}
		})
	}
}

// TestRealRanges reads the ranges of real feeds, converted from CSV to the list
// format, and joins the prefixes again.
func TestRealRanges(t *testing.T) {
	for name, want := range map[string]int{
		"ipcat-ranges.csv.gz":            3_429,
		"asn-country-ipv6-ranges.csv.gz": 68_368,
	} {
		t.Run(name, func(t *testing.T) {
			csv := strings.Split(strings.TrimSpace(string(text(t, feed(t, filepath.Join("feeds", name))))), "\n")
			var list strings.Builder
			for _, line := range csv {
				f := strings.SplitN(line, ",", 3)
				list.WriteString(f[0] + "-" + f[1] + " " + strings.ReplaceAll(f[2], "#", "") + "\n")
			}
			path := filepath.Join(t.TempDir(), "list")
			must.Write(t, path, list.String())
			_, r, err := Load(path, Options{MaxBad: -1})
			if err != nil || r.Good != want {
				t.Fatalf("%+v, %v", r, err)
			}
			for l, err := range scanFile(path, Options{}) {
				if err != nil {
					t.Fatal(err)
				}
				pieces := l.V6
				for _, p := range l.V4 {
					pieces = append(pieces, p.Prefix())
				}
				f := strings.SplitN(csv[l.Number-1], ",", 3)
				next := netip.MustParseAddr(f[0])
				var last netip.Addr
				for _, p := range pieces {
					if p.Addr() != next {
						t.Fatalf("%s: %v where %v should follow", l.Text, p, next)
					}
					last = netipx.PrefixLastIP(p)
					next = last.Next()
				}
				if last != netip.MustParseAddr(f[1]) {
					t.Fatalf("%s: ends at %v", l.Text, last)
				}
			}
		})
	}
}
