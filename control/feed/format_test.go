package feed

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/tests/data"
	"weir/tests/must"
)

// enough is a limit that only tests of the limit reach.
const enough = 64 << 20

// texts returns entries as strings.
func texts(e list.Entries) []string {
	var s []string
	for _, p := range e.V4 {
		s = append(s, p.String())
	}
	for _, p := range e.V6 {
		s = append(s, key.Source(p).String())
	}
	for _, k := range e.Flows {
		s = append(s, k.String())
	}
	return s
}

// textsOf is texts for a set, sorted by kind.
func textsOf(s *list.Set) (all []string) {
	for k := range s.All() {
		all = append(all, k.String())
	}
	return all
}

// read reads a text with a limit and tolerates any share of bad lines.
func read(t testing.TB, f Format, text io.Reader) (list.Entries, listfile.Report, error) {
	t.Helper()
	r, err := newReader(f)
	if err != nil {
		t.Fatal(err)
	}
	left := int64(enough)
	return r.read("feed", text, &left, listfile.Options{MaxBad: 1})
}

// jsonAt returns a format with a path.
func jsonAt(path string) Format { return Format{Kind: JSON, Path: path} }

func TestFormats(t *testing.T) {
	ruleset := must.Read(t, "testdata/ruleset.nft")
	ipsets := must.Read(t, "testdata/sets.ipset")
	inJSON, err := os.ReadFile("testdata/ruleset.json")
	if err != nil {
		t.Fatal(err)
	}
	jsonl := Format{Kind: JSONLines, Path: ".ip"}
	nft := func(sets ...string) Format { return Format{Kind: NFTables, Sets: sets} }
	ipset := func(sets ...string) Format { return Format{Kind: IPSet, Sets: sets} }
	for _, c := range []struct {
		name   string
		format Format
		text   string
		want   string // entries
		bad    string // lines and reasons of bad lines: "3: no address"
	}{
		{"plain", Format{}, "\ufeff192.0.2.1\n# x\n192.0.2.300\n2001:db8::/32\n", "192.0.2.1 2001:db8::/32", "3: not an address: IPv4 field has value >255"},

		{"csv by name", Format{Kind: CSV, Column: "IP"}, "id, ip ,port\r\n1, \"192.0.2.1\",22\r\n2,192.0.2.0/30,22\r\n", "192.0.2.1 192.0.2.0/30", ""},
		{"csv by number", Format{Kind: CSV, Column: "2"}, "\ufeff7,192.0.2.1\n8,\"2001:db8::1\"\n", "192.0.2.1 2001:db8::1", ""},
		{"csv by number with header", Format{Kind: CSV, Column: "1"}, "ipv4\n192.0.2.1\n", "192.0.2.1", ""},
		{"csv by number with an address instead of a header", Format{Kind: CSV, Column: "1"}, "192.0.2.256\nfe80::x\n192.0.2.1", "192.0.2.1",
			"1: not an address: IPv4 field has value >255; 2: not an address: each colon-separated field must have at least one digit (at …"},
		{"csv with a bad first line", Format{Kind: CSV, Column: "1"}, "192.0.2.7/24\n192.0.2.1\n", "192.0.2.1", "1: host bits set beyond /24: write 192.0.2.0/24 or 192.0.2.7, or set lenient"},
		{"csv comments and quotes", Format{Kind: CSV, Column: "2"}, "# \"first seen\",\"ip\"\n\"2026-01-02 03:04\",\"192.0.2.1\",\"a, b\"\n", "192.0.2.1", ""},
		{"csv ranges", Format{Kind: CSV, Column: "1", LastColumn: "2"}, "192.0.2.4,192.0.2.7,x\n", "192.0.2.4/30", ""},
		{"csv ranges by name", Format{Kind: CSV, Column: "from", LastColumn: "to", Separator: ';'}, "to;from\n192.0.2.7;192.0.2.4\n", "192.0.2.4/30", ""},
		{"csv with an empty column", Format{Kind: CSV, Column: "2", LastColumn: "3", Separator: '\t'}, "\t192.0.2.4\t192.0.2.7\t\nx\t\t192.0.2.8\t192.0.2.9\n", "192.0.2.4/30", "2: start of the range: not an address: unable to parse IP"},
		{"csv bad lines", Format{Kind: CSV, Column: "2"}, "a,192.0.2.1\nb\nc,\nd,\"x\"y\ne,192.0.2.2\nf,#1\ng,192.0.2.3", "192.0.2.1 192.0.2.2 192.0.2.3",
			"2: no column 2; 3: no address; 4: extraneous or missing \" in quoted-field; 6: not an address"},
		{"csv fields of several lines", Format{Kind: CSV, Column: "1"}, "192.0.2.1,\"a\nb\"\n192.0.2.300,x\n", "192.0.2.1", "3: not an address: IPv4 field has value >255"},

		{"json", jsonAt(".data[].ip"), `{"n": 1e999, "data": [{"ip": "192.0.2.1", "x": [[]]}, {"y": {"ip": "192.0.2.9"}, "ip": "2001:db8::/32"}]}`, "192.0.2.1 2001:db8::/32", ""},
		{"json array of strings", jsonAt(".[]"), `["192.0.2.1", "192.0.2.2"]`, "192.0.2.1 192.0.2.2", ""},
		{"json several paths", jsonAt(".a[].v4, .b[].v6"), `{"b": [{"v6": "2001:db8::1"}], "a": [{"v4": "192.0.2.1"}]}`, "192.0.2.1 2001:db8::1", ""},
		{"json either of two", jsonAt(".[].v4,.[].v6"), `[{"v6": "2001:db8::1"}, {"v4": "192.0.2.1"}, {"v5": 1}]`, "192.0.2.1 2001:db8::1", "1: byte 45: no field .v4 or .v6"},
		{"json object elements", jsonAt(".[][].ip"), `{"a": [{"ip": "192.0.2.1"}], "b": [{"ip": "192.0.2.2"}]}`, "192.0.2.1 192.0.2.2", ""},
		{"json whole document", jsonAt("."), "\"192.0.2.1\"\n\"192.0.2.2\" 7", "192.0.2.1 192.0.2.2", "2: byte 24: 7 instead of a string with an address"},
		{"json odd names", jsonAt(".ip-list[].an$address"), `{"ip-list": [{"an$address": "192.0.2.1"}]}`, "192.0.2.1", ""},
		{"json bad values", jsonAt(".[].ip"), "[\n{\"ip\": \"192.0.2.1\"},\n{\"ip\": \"192.0.2\"}, {\"ip\": null},\n{\"ip\": {\"a\": 1}}, 5,\n{\"i\": \"192.0.2.2\"},\n{\"ip\": \"192.0.2.1\\n192.0.2.2\"}]", "192.0.2.1",
			"3: byte 30: not an address: IPv4 address too short; 3: byte 49: null instead of a string with an address; " +
				"4: byte 63: an object or array instead of a string with an address; 4: byte 74: .ip leads into \"5\"; " +
				"5: byte 77: no field .ip; 6: byte 105: not an address"},
		{"json conditions", jsonAt(".a[x=1&y=b].ip,.a[z=true].ip"), `{"a": [{"ip": "192.0.2.1", "x": 1, "y": "b"}, {"y": "b", "ip": "192.0.2.2"},
			{"x": "1", "y": "b", "ip": 5}, {"z": true, "ip": "192.0.2.3", "u": {"z": false}}, {"u": {"z": true}, "ip": "192.0.2.4"}, "192.0.2.5", [{"z": true, "ip": "192.0.2.6"}]]}`,
			"192.0.2.1 192.0.2.3", "2: byte 107: 5 instead of a string with an address"},
		{"json conditions within conditions", jsonAt(".[on=yes].all[v=4].ips[]"),
			`[{"all": [{"ips": ["192.0.2.1", "192.0.2.2"], "v": 4}, {"v": "6", "ips": ["2001:db8::1"]}], "on": "yes"}, {"on": "no", "all": [{"v": 4, "ips": ["192.0.2.3"]}]},
			{"on": "yes", "all": [{"v": 4}]}, {"on": "yes", "all": [{"v": 6}]}]`, "192.0.2.1 192.0.2.2", "2: byte 186: no field .ips"},
		{"json empty arrays", jsonAt(".a[].ip"), `{"a": []}`, "", ""},

		{"jsonl", jsonl, "{\"ip\": \"192.0.2.1\"}\r\n\n{\"ip\": \"192.0.2.2\"}", "192.0.2.1 192.0.2.2", ""},
		{"jsonl bad lines", jsonl, "{\"ip\": \"192.0.2.1\"}\n{\"ip\": \"192.0.2.2\"\n<html>\n{}\n{\"ip\": \"192.0.2.4\"}{\"ip\"\n{\"ip\": \"192.0.2.3\"}\n", "192.0.2.1 192.0.2.3",
			"2: unexpected EOF; 3: invalid character '<' looking for beginning of value; 4: no field .ip; 5: unexpected EOF"},

		{"spamhaus", Format{Kind: Spamhaus}, "{\"cidr\":\"192.0.2.0/24\",\"sblid\":\"SBL1\"}\n{\"cidr\":\"2001:db8::/32\"}\n{\"type\":\"metadata\",\"records\":2}\n", "192.0.2.0/24 2001:db8::/32", ""},
		{"spamhaus bad lines", Format{Kind: Spamhaus}, "{\"cidr\":\"192.0.2.1/24\"}\nx\n{\"sblid\":\"SBL1\"}\n{\"type\":\"metadata\"}", "",
			"1: host bits set beyond /24: write 192.0.2.0/24 or 192.0.2.1, or set lenient; 2: invalid character 'x' looking for beginning of value; 3: no address"},

		{"nft set", nft("block4"), string(ruleset), "192.0.2.1 192.0.2.16/28 198.51.100.5 198.51.100.6/31 198.51.100.8/29 198.51.100.16/28 198.51.100.32/27 198.51.100.64/28 198.51.100.80 203.0.113.7", ""},
		{"nft sets", nft("empty", "block6"), string(ruleset), "2001:db8::/32 2001:db9::1 2001:dba::5 2001:dba::6/127 2001:dba::8/127", ""},
		{"nft script", nft("b"), "add set ip t b { type ipv4_addr; flags interval; elements = { 192.0.2.1 } }\nadd element ip t a { 192.0.2.9 }\nadd element ip t b { 192.0.2.2, # x\n 192.0.2.3 comment \"}\" }\n", "192.0.2.1 192.0.2.2 192.0.2.3", ""},
		{"nft script, only set", nft(), "add set ip t ports { type inet_service; }\nadd set ip t b { type ipv4_addr; }\nadd element ip t ports { 22 }\nadd element ip t b { 192.0.2.1 }\n", "192.0.2.1", ""},
		{"nft only set", nft(), "table ip t {\n set ports { type inet_service; elements = { 22 } }\n set b { type ipv4_addr\n elements = { 192.0.2.1,\n 192.0.2.0/33, 192.0.2.3 . 22, \"x\" } }\n}", "192.0.2.1",
			"5: byte 115: \"33\" is not a prefix length from 0 to 32; 5: byte 129: more than an address; 5: byte 147: not an address"},

		{"ipset", ipset("nets"), strings.Replace(string(ipsets), "add nets 198.51.100.64/26 nomatch\n", "", 1), "198.51.100.0/24 203.0.113.0/25", ""},
		{"ipsets", ipset("blacklist", "six", "bm"), string(ipsets), "192.0.2.1 192.0.2.2 192.0.2.5 192.0.2.6 192.0.2.7 2001:db8::1 2001:db8::/32", ""},
		{"nft -j", nft("block4"), string(inJSON), "192.0.2.1 192.0.2.16/28 198.51.100.5 198.51.100.6/31 198.51.100.8/29 198.51.100.16/28 198.51.100.32/27 198.51.100.64/28 198.51.100.80 203.0.113.7", ""},
		{"nft -j sets", nft("empty", "block6"), string(inJSON), "2001:db8::/32 2001:db9::1 2001:dba::5 2001:dba::6/127 2001:dba::8/127", ""},
		{"nft -j only set", nft(), "{\"nftables\": [\n {\"set\": {\"name\": \"b\", \"type\": {\"typeof\": {\"payload\": {\"protocol\": \"ip\", \"field\": \"daddr\"}}},\n \"elem\": [\"192.0.2.1\",\n 22, {\"concat\": [\"192.0.2.3\", 22]},\n {\"prefix\": {\"addr\": \"192.0.2.0\", \"len\": 33}}]}}]}", "192.0.2.1",
			"4: byte 133: more than an address; 4: byte 137: more than an address; 5: byte 169: \"33\" is not a prefix length from 0 to 32"},
		{"nft -j script", nft("b"), `{"nftables": [{"add": {"element": {"family": "ip", "table": "t", "name": "b", "elem": ["192.0.2.1"]}}}, {"create": {"set": {"name": "p", "type": "inet_service", "elem": [1]}}}, {"element": {"name": "a", "elem": ["192.0.2.9"]}}]}`, "192.0.2.1", ""},

		{"p2p", Format{Kind: "p2p"}, "# x\nAcme: Labs, 1.2.3.4:192.0.2.4-192.0.2.7\nZeros:010.000.000.000-010.000.000.001\nnone\nsix:2001:db8::1-2001:db8::2\n2001:db8::1-2001:db8::2\n", "192.0.2.4/30 10.0.0.0/31 2001:db8::1 2001:db8::2",
			"4: no range, as in \"192.0.2.0-192.0.2.255\"; 6: no name before the range, or one like a part of an address: add another one, and a colon"},
		{"dat", Format{Kind: "dat"}, "# x\r\n000.000.000.000 - 000.255.255.255 , 000 , Bogon\r\n192.000.002.001 - 192.000.002.001 , 127 , A, B\n192.0.2.9-192.0.2.9\n192.0.2.3 - 192.0.2.3 , 200 , friend\n192.0.2.3 - 192.0.2.3 , x , y\n192.0.2.3 - 192.0.2.256 , 0 , y", "0.0.0.0/8 192.0.2.1 192.0.2.9",
			"5: a level above 127, which allows: put it into an allow list; 6: no level from 0 to 255; 7: end of the range: not an address: IPv4 field has value >255"},
		{"hosts", Format{Kind: "hosts"}, "127.0.0.1 localhost\n::1 localhost # x\nfe80::1%lo0 localhost\nff02::1 ip6-allnodes\n255.255.255.255 broadcasthost\n0.0.0.0 ads.example.com\n\n192.0.2.1 bad.example.com # x\n192.0.2.300 x\n", "192.0.2.1",
			"9: not an address: IPv4 field has value >255"},
		{"deny", Format{Kind: Deny}, "# x\n<RequireAll>\n  Require all granted\n  Require not ip 192.0.2.1 198.51.100.0/24\n</RequireAll>\nOrder allow,deny\nAllow from all\nDeny from 203.0.113.0/255.255.255.0\ndeny 192.0.2.7;\ndeny all;\n", "192.0.2.1 198.51.100.0/24 203.0.113.0/24 192.0.2.7",
			"10: \"all\" is neither an address nor a protocol"},
		{"ipset without create", ipset(), "add b 192.0.2.1 -exist\n# x\nCOMMIT\nadd b 192.0.2.2-192.0.2.3\nadd b\nadd b 192.0.2.4 x", "192.0.2.1 192.0.2.2/31",
			"5: neither \"create SET TYPE\" nor \"add SET ADDRESS\"; 6: option \"x\" is not known, or has no value"},
		{"ipset with masks", ipset("a", "b", "c"), "create a hash:ip family inet netmask 24\nadd a 192.0.2.77\nadd a 198.51.100.5-198.51.101.9\n-N b bitmap:ip range 10.0.0.0/16 netmask 24\n-A b 10.0.1.7\ncreate c hash:ip family inet6 bitmask ffff:ffff:ffff:ffff::\nadd c 2001:db8::1\nadd c 2001:db8::/200\n",
			"192.0.2.0/24 198.51.100.0/23 10.0.1.0/24 2001:db8::/64", "8: \"200\" is not a prefix length from 0 to 128"},
		{"ipset with -exist", ipset("d"), "flush d\ndestroy d -quiet\ncreate -exist d hash:net\nadd -exist d 192.0.2.9/24\nadd d 198.51.100.1 -! comment \"-exist x\"\nadd d 192.0.2.4-9\nadd d >192.0.2.4\nadd other 192.0.2.8\n", "192.0.2.0/24 198.51.100.1",
			"6: no range, as in \"192.0.2.0-192.0.2.255\"; 7: not an address"},
		{"nft with spaces", nft(), "table inet f {\nset b {\ntype ipv4_addr; flags interval\nelements = { 192.0.2.4 - 192.0.2.9, 198.51.100.0 / 24, 203.0.113.9 /24, 192.0.2.77 timeout 1h comment \"a - b\",\n192.0.2.1 . 22, 192.0.2.2 foo, 192.0.2.3 counter : drop }\n}\nset p { type inet_service; elements = { $x } }\nchain c { ip saddr { 192.0.2.200 } drop; ip saddr @b counter }\n}\nflush chain inet f c\n",
			"192.0.2.4/30 192.0.2.8/31 198.51.100.0/24 203.0.113.0/24 192.0.2.77", "5: byte 165: more than an address; 5: byte 181: more than an address; 5: byte 196: more than an address"},
		{"nft -j remarks", nft(), `{"nftables": [{"flush": {"ruleset": null}}, {"add": {"set": {"name": "b", "type": "ipv4_addr", "elem": [{"elem": {"val": "192.0.2.1", "timeout": 3}}, {"elem": {"val": "192.0.2.2", "x": 3}}, {"range": ["192.0.2.4", "192.0.2.5"]}]}}}, {"element": {"name": "b", "elem": "192.0.2.3"}}]}`, "192.0.2.1 192.0.2.4/31 192.0.2.3", "1: byte 150: more than an address"},
		{"csv with masks", Format{Kind: CSV, Column: "net", MaskColumn: "prefix"}, "# net,prefix\n192.0.2.0,24\n198.51.100.0,255.255.255.128\n2001:db8::,/32\n192.0.2.0,x\n", "192.0.2.0/24 198.51.100.0/25 2001:db8::/32", "5: \"x\" is not a prefix length from 0 to 32"},
		{"csv with counts", Format{Kind: CSV, Column: "4", CountColumn: "5", Separator: '|', Only: "7=allocated&1=test"}, "2|test|x|3|4\ntest|FR|ipv4|192.0.2.0|384|2026|allocated\ntest|DE|ipv6|2001:db8::|32|2026|allocated\ntest|DE|ipv4|255.255.255.0|512|2026|allocated\nother|DE|ipv4|192.0.2.9|1|2026|allocated\n",
			"192.0.2.0/24 192.0.3.0/25 2001:db8::/32", "4: no address and number of addresses from it on"},
		{"csv with numbers", Format{Kind: CSV, Column: "1", LastColumn: "2", Integers: true}, "3221225984,3221226239\n42540766411282592856903984951653826560,42540766411282592856903984951653826560\n", "192.0.2.0/24 2001:db8::", ""},
		{"csv of Excel, with scopes", Format{Kind: CSV, Column: "ip"}, "sep=;\nid;ip\n1;Ip:192.0.2.1\n2;range:198.51.100.0/24\n3;Country:FR\n4;AS:64496\n", "192.0.2.1 198.51.100.0/24", ""},
		{"csv with a netmask beside", Format{Kind: CSV, Column: "1"}, "192.0.2.0,255.255.255.0\n192.0.2.1,1\n", "192.0.2.1", "1: a netmask beside the address: name its column in mask_column, or say mask_column: none"},
		{"json null and names", jsonAt(".a[].ip,.b{}"), `{"a": null, "b": {"192.0.2.1": {"x": 1}, "2001:db8::1": null}}`, "192.0.2.1 2001:db8::1", ""},
		{"deny of nginx", Format{Kind: Deny}, "deny 192.0.2.1; # a scanner\ndeny 198.51.100.0/24;   # 10.0.0.0/8\ndeny 10;\nallow all;\n", "192.0.2.1 198.51.100.0/24", "3: no \">\" in the flow"},
		{"deny of parts", Format{Kind: Deny}, "Deny from 198.51.100 203.0. 10\nRequire not ip 172.20\n", "198.51.100.0/24 203.0.0.0/16 10.0.0.0/8 172.20.0.0/16", ""},
		{"stix", Format{Kind: STIX, MinConfidence: 50}, `{"objects": [{"type": "indicator", "confidence": 50, "pattern": "[ipv4-addr:value = '192.0.2.1']"}, {"type": "indicator", "confidence": 90, "labels": ["x", "benign"], "pattern": "[ipv4-addr:value = '192.0.2.2']"}, {"type": "indicator", "pattern": "[ipv4-addr:value = '192.0.2.3']"}]}`, "192.0.2.1", ""},
		{"iptables", Format{Kind: "iptables"}, "*filter\n:INPUT ACCEPT [0:0]\n[1:2] -A INPUT -s 192.0.2.1/32 -m comment --comment \"-j x\" -j DROP\n-A x ! -s 192.0.2.2/32 -j DROP\n-A x -s 192.0.2.3/32 ! -i lo -j REJECT\n-A x -s 192.0.2.4/32 -j ACCEPT\n-A OUTPUT -s 192.0.2.5/32 -j DROP\nCOMMIT\n", "192.0.2.1",
			"4: a further condition: the address alone would block more; 5: a further condition: the address alone would block more; 6: an exception: put it into an allow list"},
		{"geo", Format{Kind: "geo", Only: "value=1"}, "geo $x {\ndefault 1;\n192.0.2.0/24 1; # x\n\"198.51.100.1\" '1';\n198.51.100.2 0;\n}\nmap $remote_addr $y {\n 192.0.2.300 1;\n}\n", "192.0.2.0/24 198.51.100.1", "8: not an address: IPv4 field has value >255"},
		{"stix by types", Format{Kind: STIX, Types: []string{"benign", "c2"}}, `{"objects": [{"type": "indicator", "indicator_types": ["benign"], "pattern": "[ipv4-addr:value = '192.0.2.1']"}, {"type": "indicator", "indicator_types": ["other"], "pattern": "[ipv4-addr:value = '192.0.2.2']"}]}`, "192.0.2.1", ""},
	} {
		for _, zipped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/zipped=%v", c.name, zipped), func(t *testing.T) {
				var src io.Reader = strings.NewReader(c.text)
				if zipped {
					src = bytes.NewReader(zip(t, []byte(c.text)))
				}
				e, r, err := read(t, c.format, src)
				if err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(texts(e), " "); got != c.want {
					t.Errorf("entries\n%s, want\n%s", got, c.want)
				}
				var bad []string
				for _, le := range r.Errors {
					bad = append(bad, fmt.Sprintf("%d: %v", le.Line, le.Err))
				}
				if got := strings.Join(bad, "; "); got != c.bad || r.Bad != len(bad) {
					t.Errorf("%d bad lines\n%s, want\n%s", r.Bad, got, c.bad)
				}
				lines := strings.Count(c.text, "\n")
				if !strings.HasSuffix(c.text, "\n") {
					lines++
				}
				if r.Lines != lines {
					t.Errorf("%d lines, want %d", r.Lines, lines)
				}
			})
		}
	}
}

// A range that ends before it starts is a bad line in all formats: neither none nor all of its addresses.
func TestReversedRanges(t *testing.T) {
	for name, c := range map[string]struct {
		format Format
		text   string
	}{
		"plain":  {Format{}, "192.0.2.200\n192.0.2.9-192.0.2.1\n"},
		"csv":    {Format{Kind: CSV, Column: "1", LastColumn: "2"}, "192.0.2.200,192.0.2.200\n192.0.2.9,192.0.2.1\n"},
		"json":   {jsonAt(".[]"), `["192.0.2.200", "192.0.2.9-192.0.2.1"]`},
		"nft":    {Format{Kind: NFTables}, "table ip t {\n set b { type ipv4_addr; flags interval\n elements = { 192.0.2.200, 192.0.2.9-192.0.2.1 } }\n}"},
		"nft -j": {Format{Kind: NFTables}, `{"nftables": [{"set": {"name": "b", "type": "ipv4_addr", "elem": ["192.0.2.200", {"range": ["192.0.2.9", "192.0.2.1"]}]}}]}`},
		"ipset":  {Format{Kind: IPSet}, "create b hash:net\nadd b 192.0.2.200\nadd b 192.0.2.9-192.0.2.1\n"},
		"p2p":    {Format{Kind: "p2p"}, "a:192.0.2.200-192.0.2.200\nb:192.0.2.9-192.0.2.1\n"},
		"dat":    {Format{Kind: "dat"}, "192.0.2.200 - 192.0.2.200 , 0 , a\n192.0.2.9 - 192.0.2.1 , 0 , b\n"},
	} {
		e, r, err := read(t, c.format, strings.NewReader(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := strings.Join(texts(e), " "); got != "192.0.2.200" || r.Bad != 1 || r.Errors[0].Line == 0 || !strings.Contains(r.Errors[0].Err.Error(), "ends before it starts") {
			t.Errorf("%s: entries %s, bad lines %v", name, got, r.Errors)
		}
	}
}

// zip compresses with gzip.
func zip(t testing.TB, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(text)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestRejected reads text that is not in the format, or not complete.
func TestRejected(t *testing.T) {
	ruleset := must.Read(t, "testdata/ruleset.nft")
	inJSON, err := os.ReadFile("testdata/ruleset.json")
	if err != nil {
		t.Fatal(err)
	}
	const page = "<html>\n<body>Service unavailable</body>\n</html>\n"
	spamhaus := Format{Kind: Spamhaus}
	column := Format{Kind: CSV, Column: "2"}
	for _, c := range []struct {
		name   string
		format Format
		text   string
		want   Failure
		reason string
	}{
		{"page as csv", Format{Kind: CSV, Column: "ip"}, page, Garbage, "a page of HTML"},
		{"page as json", jsonAt(".[]"), page, Garbage, "a page of HTML"},
		{"page as nft", Format{Kind: NFTables, Sets: []string{"b"}}, page, Garbage, "a page of HTML"},
		{"page as ipset", Format{Kind: IPSet, Sets: []string{"b"}}, page, Garbage, "a page of HTML"},
		{"a NUL byte in CSV", Format{Kind: CSV, Column: "1"}, "192.0.2.1\n192.0.2.2,\x00\n", Garbage, "after line 1: a NUL byte"},
		{"a NUL byte in a netset", Format{}, "192.0.2.1\n192.0.2.2 \x00\n", Garbage, "a NUL byte"},
		{"a zip archive", Format{}, "PK\x03\x04\n192.0.2.1\n", Garbage, "a zip archive: unpack it"},
		{"compressed twice", Format{}, string(zip(t, zip(t, []byte("192.0.2.1")))), Garbage, "compressed twice"},
		{"zipped and cut", Format{}, string(zip(t, []byte("192.0.2.1"))[:25]), Truncated, "unexpected EOF"},
		{"zipped, wrong checksum", Format{}, strings.Replace(string(zip(t, []byte("192.0.2.1"))), "\x00\x00\xff\xff", "\x00\x01\xff\xff", 1), Garbage, ""},
		{"csv with an open quote", column, "a,192.0.2.1\nb,\"192.0.2.2\nc,192.0.2.3\nd,192.0.2.4\n", Garbage, "line 2: a quote that is not closed"},
		{"json cut", jsonAt(".[]"), `["192.0.2.1", "192.0.2.2"`, Truncated, "unexpected EOF"},
		{"json cut in a string", jsonAt(".[]"), `["192.0.2.1", "192.0`, Truncated, "unexpected EOF"},
		{"json too deep", jsonAt("."), strings.Repeat("[", 1e6), Garbage, "nested deeper"},
		{"json error", jsonAt(".[]"), "[\"192.0.2.1\",\n}", Garbage, "line 2, byte 14: invalid character '}'"},
		{"jsonl with an endless line", Format{Kind: JSONLines, Path: "."}, `"` + strings.Repeat("x", 2<<20), Garbage, "line 1: bufio.Scanner: token too long"},
		{"spamhaus cut", spamhaus, "{\"cidr\":\"192.0.2.0/24\"}\n", Truncated, "the last line, with metadata, is missing"},
		{"spamhaus with a gap", spamhaus, "{\"cidr\":\"192.0.2.0/24\"}\n{\"type\":\"metadata\",\"records\":2}\n", Truncated, "1 records"},
		{"nft cut", Format{Kind: NFTables, Sets: []string{"block4"}}, string(ruleset[:180]), Truncated, "a block is not closed"},
		{"nft several sets", Format{Kind: NFTables}, string(ruleset), Garbage, "line 11: several sets (block4 and block6): name those to read"},
		{"nft other set", Format{Kind: NFTables, Sets: []string{"ports"}}, string(ruleset), Garbage, "set ports does not contain addresses"},
		{"nft elements without a type", Format{Kind: NFTables}, "set b { elements = { 192.0.2.1 }; type ipv4_addr }", Garbage, "before a type"},
		{"nft too deep", Format{Kind: NFTables}, strings.Repeat("table {", 1e6), Garbage, "nested deeper"},
		{"nft stray brace", Format{Kind: NFTables}, "}", Garbage, "stray }"},
		{"nft -j cut", Format{Kind: NFTables, Sets: []string{"block4"}}, string(inJSON[:500]), Truncated, "unexpected EOF"},
		{"nft -j several sets", Format{Kind: NFTables}, string(inJSON), Garbage, "several sets (block4 and block6): name those to read"},
		{"nft -j other set", Format{Kind: NFTables, Sets: []string{"conc"}}, string(inJSON), Garbage, "set conc does not contain addresses"},
		{"nft -j elements without a type", Format{Kind: NFTables}, `{"nftables": [{"set": {"name": "b", "elem": ["192.0.2.1"], "type": "ipv4_addr"}}]}`, Garbage, "before the set's name and type"},
		{"nft -j too deep", Format{Kind: NFTables}, `{"x": ` + strings.Repeat("[", 1e6), Garbage, "nested deeper"},
		{"nft -j with an endless element", Format{Kind: NFTables, Sets: []string{"b"}}, `{"nftables": [{"element": {"name": "b", "elem": ["` + strings.Repeat("x", 2<<20), Garbage, "a record of more than 1048576 bytes"},
		{"hosts of names", Format{Kind: "hosts"}, "0.0.0.0 a.example.com\n0.0.0.0 b.example.com\n", Garbage, "the file blocks names"},
		{"ipset that takes away", Format{Kind: IPSet}, "create a hash:ip\nadd a 192.0.2.1\ndel -exist a 192.0.2.1\n", Garbage, "line 3: del SET takes entries from set a"},
		{"ipset that takes all away", Format{Kind: IPSet}, "create a hash:ip\nadd a 192.0.2.1\nflush\n", Garbage, "line 3: flush SET takes entries from set a"},
		{"ipset that swaps", Format{Kind: IPSet, Sets: []string{"a"}}, "create a hash:ip\ncreate b hash:ip\nadd b 192.0.2.1\nswap b a\n", Garbage, "line 4: swap changes a set that is read"},
		{"ipset with another mask", Format{Kind: IPSet}, "create a hash:ip bitmask 255.0.255.0\nadd a 192.0.2.1\n", Garbage, "line 1: set a: bitmask 255.0.255.0 is no prefix"},
		{"ipset with an unknown option", Format{Kind: IPSet}, "create a hash:ip family inet inverse 1\nadd a 192.0.2.1\n", Garbage, `line 1: set a: option "inverse" is not known`},
		{"ipset created twice", Format{Kind: IPSet}, "create a hash:ip\nadd a 192.0.2.1\ncreate -exist a hash:ip netmask 8\n", Garbage, "line 3: set a is created twice"},
		{"ipset of other types", Format{Kind: IPSet}, "create a hash:net,port\nadd a 192.0.2.0/24,80\n", Garbage, "no set of addresses; left out: entries of set a hash:net,port (1)"},
		{"nft with a variable", Format{Kind: NFTables}, "define x = { 192.0.2.1 }\ntable ip t {\nset b { type ipv4_addr; elements = { 192.0.2.2, $x } }\n}\n", Garbage, "line 3: $x: variables are not read"},
		{"nft that includes", Format{Kind: NFTables}, "include \"/etc/x\"\n", Garbage, "what it brings in is not read"},
		{"nft that takes away", Format{Kind: NFTables}, "table ip t {\nset b { type ipv4_addr; elements = { 192.0.2.2 } }\n}\nflush ruleset\n", Garbage, "line 4: flush ruleset takes entries from set b"},
		{"nft with something new", Format{Kind: NFTables}, "merge element ip t b { 192.0.2.1 }\n", Garbage, `line 1: the statement "merge element ip t b" is not read`},
		{"nft with a property that is new", Format{Kind: NFTables}, "set b {\ntype ipv4_addr\ninverse 1\nelements = { 192.0.2.1 }\n}\n", Garbage, `line 3: set b: "inverse 1" is not known`},
		{"nft of two tables", Format{Kind: NFTables}, "table ip t {\nset b { type ipv4_addr; elements = { 192.0.2.2 } }\n}\ntable ip u {\nset b { type ipv4_addr; elements = { 192.0.2.3 } }\n}\n", Garbage, "several sets b, of table ip t and ip u"},
		{"nft -j that takes away", Format{Kind: NFTables}, `{"nftables": [{"set": {"name": "b", "type": "ipv4_addr", "elem": ["192.0.2.1"]}}, {"delete": {"element": {"name": "b", "elem": ["192.0.2.1"]}}}]}`, Garbage, "delete element takes entries from set b"},
		{"csv with a column of masks", Format{Kind: CSV, Column: "net"}, "net,Prefix\n192.0.2.0,24\n", Garbage, `a column "prefix": name it in mask_column`},
		{"geo that deletes", Format{Kind: "geo", Only: "value=1"}, "geo $x {\n192.0.2.0/24 1;\ndelete 192.0.2.0/24;\n}\n", Garbage, "line 3: "},
		{"geo cut", Format{Kind: "geo", Only: "value=1"}, "geo $x {\n192.0.2.0/24 1;\n", Garbage, "a block is not closed"},
		{"iptables that is none", Format{Kind: "iptables"}, "iptables -A INPUT -s 192.0.2.1 -j DROP\n", Garbage, "is no rule"},
		{"deny that allows", Format{Kind: Deny}, "Order Deny,Allow\nAllow from all\nDeny from 192.0.2.1\n", Garbage, "denies no one"},
		{"stix of observables", Format{Kind: STIX}, `{"objects": [{"type": "ipv4-addr", "value": "192.0.2.1"}]}`, Garbage, "no indicators, but 1 objects of type ipv4-addr"},
		{"ipset several sets", Format{Kind: IPSet}, "create a hash:ip\ncreate b hash:net\n", Garbage, "line 2: several sets (a and b)"},
		{"ipset other set", Format{Kind: IPSet, Sets: []string{"p"}}, "create p hash:ip,port\n", Garbage, "set p does not contain addresses"},
		{"ipset missing set", Format{Kind: IPSet, Sets: []string{"a", "b"}}, "create a hash:ip\nadd a 192.0.2.1\n", Garbage, "no set b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, _, err := read(t, c.format, strings.NewReader(c.text))
			var o Outcome
			if err != nil {
				o.fail(err)
			}
			if o.Failure != c.want || e.Len() > 0 || err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("%v: %v, with %d entries, want %v: %s", o.Failure, err, e.Len(), c.want, c.reason)
			}
		})
	}
}

// TestMaxBad checks the threshold in a format that is not the list's own.
func TestMaxBad(t *testing.T) {
	const text = "192.0.2.1\n192.0.2.2\n192.0.2.3\nx\n"
	for maxBad, ok := range map[float64]bool{0: false, 0.2: false, 0.25: true, -1: false} {
		r, err := newReader(Format{Kind: CSV, Column: "1"})
		if err != nil {
			t.Fatal(err)
		}
		left := int64(enough)
		e, report, err := r.read("feed", strings.NewReader(text), &left, listfile.Options{MaxBad: maxBad})
		if (err == nil) != ok || err != nil && (!errors.Is(err, listfile.ErrTooManyBad) || !strings.Contains(err.Error(), "feed:4:")) {
			t.Errorf("max bad %v: %v", maxBad, err)
		}
		if want := map[bool]int{true: 3}[ok]; e.Len() != want || report.Good != 3 || report.Bad != 1 {
			t.Errorf("max bad %v: %d entries, report %+v", maxBad, e.Len(), report)
		}
	}
}

// As many lines and sets as are allowed are read, and no more.
func TestMostLines(t *testing.T) {
	const most = 1000
	sets := func(n int) string {
		var text strings.Builder
		for i := range n {
			fmt.Fprintf(&text, "create s%d hash:ip\n", i)
		}
		return text.String() + "add s0 192.0.2.1\n"
	}
	for _, c := range []struct {
		name   string
		format Format
		text   string
		lines  int
		want   string // in the error
	}{
		{"lines", Format{Kind: CSV, Column: "1"}, strings.Repeat("192.0.2.1\n", most), most, ""},
		{"a line more", Format{Kind: CSV, Column: "1"}, strings.Repeat("192.0.2.1\n", most+1), most, "too many lines"},
		{"sets", Format{Kind: IPSet, Sets: []string{"s0"}}, sets(maxSets), 0, ""},
		{"a set more", Format{Kind: IPSet, Sets: []string{"s0"}}, sets(maxSets + 1), 0, "more than 65535 sets"},
	} {
		r, err := newReader(c.format)
		if err != nil {
			t.Fatal(err)
		}
		left := int64(enough)
		e, _, err := r.read("feed", strings.NewReader(c.text), &left, listfile.Options{MaxLines: c.lines})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && e.Len() == 0 {
			t.Errorf("%s: %d entries, %v, want %q", c.name, e.Len(), err, c.want)
		}
	}
}

// TestManyBadValues checks that errors are reported in order, but in bounded
// number, and that values before and after a bulk keep their lines.
func TestManyBadValues(t *testing.T) {
	var text strings.Builder
	const lines = 100_000 // several bulks
	for i := 1; i <= lines; i++ {
		switch {
		case i%5000 == 0:
			text.WriteString("x,\n") // bad by itself
		case i%5000 == 1:
			text.WriteString("x,192.0.2.256\n") // bad in the bulk
		default:
			fmt.Fprintf(&text, "x,10.%d.%d.%d\n", i>>16, i>>8&255, i&255)
		}
	}
	e, r, err := read(t, Format{Kind: CSV, Column: "2"}, strings.NewReader(text.String()))
	if err != nil || r.Bad != 2*lines/5000 || r.Good != lines-r.Bad || e.Len() != r.Good || len(r.Errors) != listfile.MaxErrors {
		t.Fatalf("%d entries, %d good, %d bad, %d described, %v", e.Len(), r.Good, r.Bad, len(r.Errors), err)
	}
	var got []int
	for _, le := range r.Errors {
		got = append(got, le.Line)
	}
	want := []int{1}
	for i := 5000; len(want) < listfile.MaxErrors; i += 5000 {
		want = append(want, i, i+1)
	}
	if !slices.Equal(got, want[:listfile.MaxErrors]) {
		t.Errorf("bad lines %v, want %v", got, want)
	}
}

// TestRealFeeds reads real feeds that are not in the list format.
func TestRealFeeds(t *testing.T) {
	dir := data.Dir(t)
	for _, c := range []struct {
		name        string
		format      Format
		good, bad   int
		first, last string
	}{
		{"scanners.csv.gz", Format{Kind: CSV, Column: "ip"}, 57_574, 0, "23.92.31.127", "209.38.94.231"},
		{"scanners.csv.gz", Format{Kind: CSV, Column: "1"}, 57_574, 0, "23.92.31.127", "209.38.94.231"},
		{"tor-exits.csv.gz", Format{Kind: CSV, Column: "ipaddr"}, 5_933, 0, "204.8.96.141", "2620:7:6003::148"},
		{"ipcat-ranges.csv.gz", Format{Kind: CSV, Column: "1", LastColumn: "2"}, 3_429, 0, "3.0.0.0/15", "223.27.168.0/21"},
		{"asn-country-ipv6-ranges.csv.gz", Format{Kind: CSV, Column: "1", LastColumn: "2"}, 68_368, 0, "2001:200::/32", "2c0f:fff0::/32"},
		{"aws-ip-ranges.json.gz", jsonAt(".prefixes[].ip_prefix, .ipv6_prefixes[].ipv6_prefix"), 10_668 + 6_160, 0, "3.4.12.4", ""},
		{"spamhaus-drop_v4-2026.ndjson.gz", Format{Kind: Spamhaus}, 1_699, 0, "1.10.16.0/20", "223.254.0.0/16"},
		{"spamhaus-drop_v4-2026.ndjson.gz", Format{Kind: JSONLines, Path: ".cidr"}, 1_699, 1, "1.10.16.0/20", "223.254.0.0/16"},
		{"ipsum.txt.gz", Format{}, 120_430, 0, "", ""},
	} {
		t.Run(fmt.Sprintf("%s as %v", c.name, c.format.Kind), func(t *testing.T) {
			f, err := os.Open(filepath.Join(dir, "feeds", c.name))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			e, r, err := read(t, c.format, f)
			if err != nil || r.Good != c.good || r.Bad != c.bad {
				t.Fatalf("%d good, %d bad, %v, error %v", r.Good, r.Bad, r.Errors, err)
			}
			all := texts(e)
			if c.first != "" && all[0] != c.first || c.last != "" && all[len(all)-1] != c.last {
				t.Errorf("from %s to %s", all[0], all[len(all)-1])
			}
		})
	}
}

func TestFormatMistakes(t *testing.T) {
	for reason, f := range map[string]Format{
		"format csv needs column":                  {Kind: CSV},
		"column goes with":                         {Column: "1"},
		"last_column goes with format csv only":    {Kind: JSON, Path: ".", LastColumn: "1"},
		"needs path":                               {Kind: JSONLines},
		"path goes with format json or jsonl only": {Kind: Spamhaus, Path: "."},
		"sets goes with":                           {Sets: []string{"x"}},
		"unknown format":                           {Kind: "xml"},
		`path "data": want`:                        jsonAt("data"),
		`path "": want`:                            jsonAt(".a,"),
		`path ".a.": want`:                         jsonAt(".a."),
		`path "..a": want`:                         jsonAt("..a"),
		`path ".a[0]": condition "0": want`:        jsonAt(".a[0]"),
		`path ".a[b=c": want`:                      jsonAt(".a[b=c"),
		`path ".a[=c]": condition "=c": want`:      jsonAt(".a[=c]"),
		`path ".a[b=c&].d": condition "": want`:    jsonAt(".a[b=c&].d"),
		"9 conditions in one pair of brackets":     jsonAt(".a[" + strings.Repeat("b=c&", 8) + "b=c]"),
		`path ".a b": want`:                        jsonAt(".a b"),
		`path ".a]": want`:                         jsonAt(".a]"),
		`path ".a[]b": want something like ".dat`:  jsonAt(".a[]b"),
	} {
		if _, err := newReader(f); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%+v: error %v, want %s", f, err, reason)
		}
	}
	if err := new(Kind).UnmarshalText([]byte("xml")); err == nil || !strings.Contains(err.Error(), `"xml": want plain, csv,`) {
		t.Error(err)
	}
}

func TestParseFormat(t *testing.T) {
	for text, want := range map[string]Format{
		"plain":                       {},
		"csv,column=ip":               {Kind: CSV, Column: "ip"},
		"csv,column=2,separator=;":    {Kind: CSV, Column: "2", Separator: ';'},
		"csv,column=a,last_column=b":  {Kind: CSV, Column: "a", LastColumn: "b"},
		"csv,column=a,b":              {Kind: CSV, Column: "a,b"},
		"json,path=.v4[].ip,.v6[].ip": {Kind: JSON, Path: ".v4[].ip,.v6[].ip"},
		"nftables,sets=a,b":           {Kind: NFTables, Sets: []string{"a", "b"}},
		"ipset,sets=a,sets=b":         {Kind: IPSet, Sets: []string{"a", "b"}},
		"hosts":                       {Kind: "hosts"},
	} {
		if got, err := ParseFormat(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"":                         "unknown format",
		"xml":                      `unknown format "xml": want plain, csv,`,
		"csv":                      "format csv needs column",
		"csv,2":                    `unknown option "2"`,
		"csv,colum=2":              `unknown option "colum": want column`,
		"csv,column=2,separator=":  "want one character",
		"plain,column=2":           "column goes with format csv only",
		"json,path=x":              "want something like",
		"nftables,sets=a,column=1": "column goes with",
	} {
		if got, err := ParseFormat(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %s", text, got, err, want)
		}
	}
}

// TestHeldValues checks that an element with conditions holds a bounded number of values
// until its end, and that those of elements before it do not count.
func TestHeldValues(t *testing.T) {
	element := `{"ips": [` + strings.Repeat(`"192.0.2.1",`, 10_000) + `"192.0.2.2"], "on": %v},`
	few := strings.Repeat(fmt.Sprintf(element, true), 3)
	if _, report, err := read(t, jsonAt(".[on=true].ips[]"), strings.NewReader("["+few+"{}]")); err != nil || report.Good != 30_003 {
		t.Errorf("%d values, %v", report.Good, err)
	}
	many := `[{"ips": [` + strings.Repeat(`"192.0.2.1",`, 20_000) + `"192.0.2.2"]}]`
	if _, _, err := read(t, jsonAt(".[on=true].ips[]"), strings.NewReader(many)); err == nil || !strings.Contains(err.Error(), "elements with conditions have more than") {
		t.Errorf("held without bound: %v", err)
	}
}
