package geo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"
)

func never() error { return nil }

func inCountry(codes ...string) func(Record) bool {
	return func(r Record) bool { return slices.Contains(codes, r.Country) }
}

func isoCode(code string) mmdbtype.DataType {
	return mmdbtype.Map{"iso_code": mmdbtype.String(code)}
}

// TestPrefixes compares the prefixes of random databases with what a lookup of random
// addresses says, and checks that no two of them could be one.
func TestPrefixes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 20 {
		w, err := mmdbwriter.New(mmdbwriter.Options{DatabaseType: "Test", RecordSize: []int{24, 28, 32}[round%3], IncludeReservedNetworks: true, IPVersion: 6 - 2*(round%4/3)})
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			n := &net.IPNet{IP: net.IPv4(198, 51, byte(r.IntN(4)), byte(r.IntN(256))).To4(), Mask: net.CIDRMask(18+r.IntN(15), 32)}
			if round%4 != 3 && r.IntN(2) == 0 {
				n = &net.IPNet{IP: net.ParseIP("2001:db8::"), Mask: net.CIDRMask(40+r.IntN(25), 128)}
				binary.BigEndian.PutUint32(n.IP[4:], r.Uint32()&0x0f0f0000)
			}
			n.IP = n.IP.Mask(n.Mask)
			if err := w.Insert(n, mmdbtype.Map{"country": isoCode([]string{"DE", "FR", "RU"}[r.IntN(3)])}); err != nil {
				t.Fatal(err)
			}
		}
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		got, err := Prefixes(b.Bytes(), inCountry("DE", "RU"), 0, never)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range got {
			if p != p.Masked() || i > 0 && p.Addr().Compare(got[i-1].Addr()) <= 0 {
				t.Errorf("%v after %v", p, got[max(i-1, 0)])
			}
			if i > 0 && p.Bits() == got[i-1].Bits() && netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked().Contains(got[i-1].Addr()) {
				t.Errorf("%v and %v are not joined", got[i-1], p)
			}
		}
		for range 2000 {
			a := netip.AddrFrom4([4]byte{198, 51, byte(r.IntN(6)), byte(r.IntN(256))})
			if r.IntN(2) == 0 {
				var b [16]byte
				copy(b[:], netip.MustParseAddr("2001:db8::").AsSlice())
				binary.BigEndian.PutUint32(b[4:], r.Uint32()&0x0f0f0fff)
				a = netip.AddrFrom16(b)
			}
			record, err := Lookup(b.Bytes(), a)
			if err != nil {
				t.Fatal(err)
			}
			want := inCountry("DE", "RU")(record)
			if listed := slices.ContainsFunc(got, func(p netip.Prefix) bool { return p.Contains(a) }); listed != want {
				t.Errorf("%v of country %q: listed %v", a, record.Country, listed)
			}
		}
	}
}

// TestRecords checks the forms of records.
func TestRecords(t *testing.T) {
	for _, c := range []struct {
		record mmdbtype.Map
		want   Record
	}{
		{mmdbtype.Map{"country": isoCode("DE"), "registered_country": isoCode("US")}, Record{"DE", 0}},
		{mmdbtype.Map{"country_code": mmdbtype.String("DE")}, Record{"DE", 0}},
		{mmdbtype.Map{"country": mmdbtype.String("Germany"), "country_code": mmdbtype.String("DE"), "asn": mmdbtype.String("AS64496")}, Record{"DE", 64496}},
		{mmdbtype.Map{"asn": mmdbtype.Uint32(64496)}, Record{"", 64496}},
		{asn(64496, "x"), Record{"", 64496}},
		{mmdbtype.Map{"registered_country": isoCode("DE")}, Record{}},
	} {
		if got, err := Lookup(database(t, "192.0.2.0/24", c.record), netip.MustParseAddr("192.0.2.1")); got != c.want || err != nil {
			t.Errorf("%v: %+v, %v; want %+v", c.record, got, err, c.want)
		}
	}
}

// graph returns a kilobyte that leads to a record in 2^127 ways.
func graph(t testing.TB) []byte {
	t.Helper()
	good := database(t, "::/1", mmdbtype.Map{"country": isoCode("RU")})
	nodes := 128
	var b bytes.Buffer
	record := func(n int) { b.Write([]byte{byte(n >> 16), byte(n >> 8), byte(n)}) }
	for i := range nodes - 1 {
		record(i + 1)
		record(i + 1)
	}
	record(nodes + 16) // the first record of the data
	record(nodes)      // no data
	b.Write(make([]byte, 16))
	b.WriteString("\xe1\x47country\xe1\x48iso_code\x42RU")
	metadata := bytes.Clone(good[bytes.LastIndex(good, []byte("\xab\xcd\xefMaxMind.com")):])
	i := bytes.Index(metadata, []byte("node_count")) + len("node_count")
	size := int(metadata[i] & 0x1f)
	clear(metadata[i+1:][:size])
	metadata[i+size] = byte(nodes)
	return append(b.Bytes(), metadata...)
}

// TestPrefixesHostile checks that a small database of endless networks is refused, and that others end when check
// says so.
func TestPrefixesHostile(t *testing.T) {
	good := database(t, "2001:db8::/32", mmdbtype.Map{"country": isoCode("DE")})
	const marker = "\xab\xcd\xefMaxMind.com"
	at := bytes.LastIndex(good, []byte(marker))
	if at < 0 {
		t.Fatal("no metadata")
	}
	// One node for each bit, both of whose records lead to the next one: 2^128 networks.
	nodes := 128
	var tree bytes.Buffer
	for i := range nodes {
		for range 2 {
			next := i + 1 // of the last one the number of nodes: no data
			tree.Write([]byte{byte(next >> 16), byte(next >> 8), byte(next)})
		}
	}
	tree.Write(make([]byte, 16)) // the separator of the data section
	metadata := bytes.Clone(good[at:])
	i := bytes.Index(metadata, []byte("node_count"))
	if i < 0 {
		t.Fatal("no node_count")
	}
	size := int(metadata[i+len("node_count")] & 0x1f) // of an unsigned number
	count := metadata[i+len("node_count")+1:][:size]
	clear(count)
	count[size-1] = byte(nodes)
	hostile := append(tree.Bytes(), metadata...)

	for name, err := range map[string]error{
		"no data": func() error { _, err := Prefixes(hostile, inCountry("DE"), 0, never); return err }(),
		"data":    func() error { _, err := Prefixes(graph(t), inCountry("RU"), 0, never); return err }(),
		"each":    Each(graph(t), func(netip.Prefix, Record) {}, never),
	} {
		if err == nil || !strings.Contains(err.Error(), "the search tree leads to one of them in several ways") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, err := Prefixes(good, inCountry("DE"), 1, never); err != nil || len(p) != 1 {
		t.Errorf("a tree: %v, %v", p, err)
	}
	stop := errors.New("enough")
	for range 2000 {
		broken := bytes.Clone(good)
		for range 1 + rand.IntN(8) {
			broken[rand.IntN(len(broken))] = byte(rand.Int())
		}
		calls := 0
		_, _ = Prefixes(broken, inCountry("DE"), 0, func() error {
			if calls++; calls == 10 {
				return stop
			}
			return nil
		})
	}
}
