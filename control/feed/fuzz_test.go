package feed

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"weir/control/list/listfile"
)

// FuzzFormats reads arbitrary text in every format: it must terminate, respect
// its limits, count what it returns, and be deterministic.
func FuzzFormats(f *testing.F) {
	names := []string{"testdata/ruleset.nft", "testdata/ruleset.json", "testdata/sets.ipset"}
	for _, samples := range []string{"testdata/field/*", "testdata/formats/*"} {
		found, err := filepath.Glob(samples)
		if err != nil || len(found) == 0 {
			f.Fatalf("%d of %s: %v", len(found), samples, err)
		}
		names = append(names, found...)
	}
	for _, name := range names {
		seed, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	for _, seed := range []string{
		good, "", "\ufeff", "a,ip\n1,192.0.2.1\n\"2\",\"192.0.2.0/24\"\n",
		`{"data": [{"ip": "192.0.2.1"}, {"ip": 7}], "ip": "2001:db8::"}`,
		"{\"cidr\":\"192.0.2.0/24\"}\n{\"type\":\"metadata\",\"records\":1}\n",
		decided("["+ban("192.0.2.1", "1h")+"]", "null"),
		"Acme: Labs:192.0.2.4-192.0.2.7\n192.000.002.001 - 192.000.002.001 , 127 , A\n127.0.0.1 localhost\nRequire not ip 192.0.2.1\ndeny 192.0.2.7;\n",
		"add b 192.0.2.1-192.0.2.200 comment \"x\"\n", "[[[[", "{{{{", "\"\"\"", "set b { type ipv4_addr; elements = { 192.0.2.1",
	} {
		f.Add([]byte(seed))
		f.Add(zip(f, []byte(seed)))
	}
	var readers []*reader
	for _, format := range []Format{
		{}, {Kind: CSV, Column: "ip"}, {Kind: CSV, Column: "1", LastColumn: "2", Separator: '\t'},
		jsonAt(".data[].ip, .ip"), jsonAt("."), jsonAt(".[][]"), {Kind: JSONLines, Path: ".ip"},
		{Kind: Spamhaus}, {Kind: CrowdSec}, {Kind: NFTables}, {Kind: NFTables, Sets: []string{"block4", "b"}}, {Kind: IPSet}, {Kind: IPSet, Sets: []string{"nets"}},
		{Kind: "p2p"}, {Kind: "dat"}, {Kind: "hosts"}, {Kind: Deny},
		{Kind: CSV, Column: "network", LastColumn: "mask"}, jsonAt(".[].decisions[type=ban].value"), {Kind: "stix"},
	} {
		r, err := newReader(format)
		if err != nil {
			f.Fatal(err)
		}
		readers = append(readers, r)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		const most = 1 << 20
		for _, r := range readers {
			o := listfile.Options{MaxBad: 1}
			left := int64(most)
			e, report, err := r.read("feed", bytes.NewReader(text), &left, o)
			if err != nil && e.Len() > 0 {
				t.Fatalf("%+v: %d entries beside error %v", r.Format, e.Len(), err)
			}
			if left >= 0 && report.Bad > 0 && len(report.Errors) != min(report.Bad, listfile.MaxErrors) {
				t.Fatalf("%+v: %d bad, %d described", r.Format, report.Bad, len(report.Errors))
			}
			for i, le := range report.Errors {
				if le.Line < 1 || le.Line > report.Lines || i > 0 && le.Line < report.Errors[i-1].Line || le.Err == nil {
					t.Fatalf("%+v: %d lines, errors %v", r.Format, report.Lines, report.Errors)
				}
			}
			if e.Len() == 0 && report.Good > 0 && err == nil { // of equal entries in a row, one is kept
				t.Fatalf("%+v: %d good, %d entries", r.Format, report.Good, e.Len())
			}
			left = most
			again, same, _ := r.read("feed", bytes.NewReader(text), &left, o)
			if !reflect.DeepEqual(e, again) || same.Good != report.Good || same.Bad != report.Bad {
				t.Fatalf("%+v: another result the second time", r.Format)
			}
		}
	})
}

// FuzzDecisions reads arbitrary answers of CrowdSec's API: accepted ones
// survive a round trip.
func FuzzDecisions(f *testing.F) {
	f.Add([]byte(decided("["+ban("192.0.2.1", "1h")+","+ban("198.51.100.0/24", "-4h")+"]", "["+ban("192.0.2.2", "-1s")+"]")))
	f.Add([]byte(decided("null", "null")))
	f.Add([]byte(`{"new":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		left := int64(enough)
		d, _, _, err := decisions{}.update(&input{r: bytes.NewReader(text), left: &left, to: bytes.NewBuffer(nil)}, 1000, backThen)
		if err != nil {
			return
		}
		src, err := d.body("x", nil).parts[0].open()
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseDecisions(src, nil)
		if err != nil || len(again) != len(d) {
			t.Fatalf("%v became %v, %v", d, again, err)
		}
		for value, is := range d {
			saved := again[value]
			if !saved.Expires.Equal(is.Expires) || !saved.Added.Equal(is.Added) || saved.Origin != is.Origin || saved.Scenario != is.Scenario {
				t.Fatalf("%s: %v became %v", value, is, saved)
			}
		}
	})
}
