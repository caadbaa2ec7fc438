package feed_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/klauspost/compress/zstd"

	"weir/control/feed"
	"weir/control/list/listfile"
	"weir/tests/must"
)

// fieldFile is a file with its right result: the entries, with a number of bad lines beside them,
// or an error that matches an expression.
type fieldFile struct {
	name, format string
	text         string
	entries      string // joined by commas; flows and destinations sorted
	bad          int
	refused      string // a regular expression
}

// fieldFiles reads the table of testdata/field.
func fieldFiles(t *testing.T) (all []fieldFile) {
	t.Helper()
	index, err := os.ReadFile("testdata/field/INDEX.md")
	if err != nil {
		t.Fatal(err)
	}
	unquoted := strings.ReplaceAll(string(index), `\|`, "\x00") // a bar within a column
	for line := range strings.Lines(unquoted) {
		columns := strings.Split(strings.TrimSpace(line), "|")
		if len(columns) != 7 || strings.HasPrefix(columns[1], "-") || strings.TrimSpace(columns[1]) == "file" {
			continue
		}
		for i := range columns {
			columns[i] = strings.ReplaceAll(strings.TrimSpace(columns[i]), "\x00", "|")
		}
		text := must.Read(t, filepath.Join("testdata/field", columns[1]))
		bad, err := strconv.Atoi(columns[4])
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fieldFile{columns[1], columns[2], string(text), columns[3], bad, columns[5]})
	}
	return all
}

// TestField reads each file of testdata/field, and others with faults of the same kinds.
func TestField(t *testing.T) {
	t.Parallel()
	files := fieldFiles(t)
	if entries, err := os.ReadDir("testdata/field"); err != nil || len(entries)-1 > len(files) {
		t.Errorf("testdata/field has %d files, its table %d: %v", len(entries)-1, len(files), err)
	}
	for i, f := range siblings {
		f.name = fmt.Sprintf("%d %s %.40q", i, f.format, f.text)
		files = append(files, f)
	}
	for _, f := range append(files, packed(t)...) {
		t.Run(strings.ReplaceAll(f.name, "/", "_"), func(t *testing.T) { f.check(t) })
	}
}

func (f fieldFile) check(t *testing.T) {
	t.Helper()
	format, err := feed.ParseFormat(f.format)
	if err != nil {
		t.Fatal(err)
	}
	var items []spans
	var want spans
	var directed []string
	if f.entries != "" {
		for text := range strings.SplitSeq(f.entries, ",") {
			if text = strings.TrimSpace(text); strings.Contains(text, ">") {
				directed = append(directed, text)
				continue
			}
			s := parsed(text)
			items = append(items, s)
			want = want.and(s)
		}
	}
	refused := regexp.MustCompile("(?s)" + f.refused)
	matches := func(err error) bool { return f.refused != "" && refused.MatchString(err.Error()) }

	// As a source that weir reads: whole, or not at all.
	e, report, err := feed.Read(f.name, strings.NewReader(f.text), format, 1<<30, listfile.Options{})
	got, flows := covered(e)
	switch {
	case err != nil && f.bad > 0: // the entries are beside bad lines
	case err != nil && !matches(err):
		t.Errorf("error %q, want %q, or %v", err, f.refused, want)
	case err == nil && (f.bad > 0 || !slices.Equal(got, want) || f.entries == "" || !slices.Equal(flows, directed)):
		t.Errorf("%v %q, with %v, want %v with %d bad, or %q", got, flows, report.Errors, want, f.bad, f.refused)
	}

	// With bad lines left out, however many these are, entries are whole, and none is missing
	// without a bad line.
	e, report, err = feed.Read(f.name, strings.NewReader(f.text), format, 1<<30, listfile.Options{MaxBad: 1})
	got, _ = covered(e)
	if more := got.without(want); len(more) > 0 && f.entries != "" {
		t.Errorf("with bad lines left out: too much: %v; %v", more, report.Errors)
	}
	for _, item := range items {
		if left := item.without(got); len(left) > 0 && !slices.Equal(left, item) {
			t.Errorf("with bad lines left out: %v without %v", item, left)
		} else if len(left) > 0 && err == nil && report.Bad == 0 {
			t.Errorf("%v is missing without a bad line", item)
		}
	}
	if f.bad > 0 && (err != nil || report.Bad != f.bad || !slices.Equal(got, want)) {
		t.Errorf("%v with %d bad, %v; want %v with %d bad", got, report.Bad, err, want, f.bad)
	}
	if f.entries == "" && err == nil && len(got) > 0 {
		t.Errorf("with bad lines left out: %v, want none; %v", got, report.Errors)
	}
}

const (
	here = `:1: `     // the first line is bad
	some = `[0-9a-z]` // any error
	line = `(:\d+: |\bline \d+|\bbyte \d+)`
)

// siblings are further files of the same kinds.
var siblings = []fieldFile{
	// Sets of ipset whose options change what entries are.
	{format: "ipset", text: "create s hash:ip family inet6 netmask 64\nadd s 2001:db8::1\n", entries: "2001:db8::/64"},
	{format: "ipset", text: "create s bitmap:ip range 192.0.2.0/24 netmask 28\nadd s 192.0.2.17\n", entries: "192.0.2.16/28"},
	{format: "ipset", text: "create s hash:ip netmask 24\nadd s 192.0.2.0-192.0.3.4\n", entries: "192.0.2.0/23", refused: line},
	{format: "ipset", text: "create s hash:ip bitmask 255.255.0.255\nadd s 192.0.2.1\n", refused: "bitmask"},
	{format: "ipset", text: "create s hash:ip bitmask 255.255.255.0\nadd s 192.0.2.1\n", entries: "192.0.2.0/24", refused: "bitmask"},
	{format: "ipset", text: "create s hash:ip flavour 24\nadd s 192.0.2.1\n", refused: "flavour"},
	{format: "ipset", text: "create s hash:ip netmask\nadd s 192.0.2.1\n", refused: "netmask"},
	{format: "ipset", text: "create s hash:ip netmask 33\nadd s 192.0.2.1\n", refused: "netmask"},
	{format: "ipset", text: "create s hash:ip netmask 24 netmask 16\nadd s 192.0.2.1\n", entries: "192.0.0.0/16", refused: "netmask"},
	{format: "ipset", text: "create s hash:net,net\nadd s 192.0.2.0/24,198.51.100.0/24\n", refused: `\bs\b.*hash:net,net|hash:net,net.*\bs\b`},
	{format: "ipset", text: "create s hash:ip,port\nadd s 192.0.2.1,tcp:80\n", refused: `\bs\b.*hash:ip,port|hash:ip,port.*\bs\b`},
	{format: "ipset", text: "create s hash:net,iface\nadd s 192.0.2.0/24,eth0\n", refused: `\bs\b.*hash:net,iface|hash:net,iface.*\bs\b`},
	{format: "ipset", text: "create s hash:net\nadd s 192.0.2.0/24\nadd s 192.0.2.7 nomatch\n", entries: "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.255", refused: "3: .*nomatch"},

	// Options and commands of ipset in other places and forms.
	{format: "ipset", text: "-exist create s hash:net\n-exist add s 192.0.2.0/24\n-! add s 192.0.2.0/24\n", entries: "192.0.2.0/24"},
	{format: "ipset", text: "create s -exist hash:net\nadd s -exist 192.0.2.0/24\nadd -quiet s 198.51.100.1 -!\n", entries: "192.0.2.0/24, 198.51.100.1"},
	{format: "ipset", text: "-N s hash:net\n-A s 192.0.2.0/24\n", entries: "192.0.2.0/24", refused: line},
	{format: "ipset", text: "n s hash:net\na s 192.0.2.0/24\n", entries: "192.0.2.0/24", refused: line},
	{format: "ipset", text: "create s hash:ip\nadd s 192.0.2.1\nadd s 192.0.2.2\ndel s 192.0.2.1\n", entries: "192.0.2.2", refused: "4.*del"},
	{format: "ipset", text: "create s hash:ip\nadd s 192.0.2.1\nadd s 192.0.2.2\n-D s 192.0.2.1\n", entries: "192.0.2.2", refused: "4"},
	{format: "ipset", text: "create s hash:ip\nadd s 192.0.2.1\nflush s\nadd s 192.0.2.2\n", entries: "192.0.2.2", refused: "3.*flush"},
	{format: "ipset", text: "create s hash:ip\nadd s 192.0.2.1\nflush\nadd s 192.0.2.2\n", entries: "192.0.2.2", refused: "3.*flush"},
	{format: "ipset,sets=s", text: "create s hash:ip\ncreate n hash:ip\nadd s 192.0.2.1\nadd n 192.0.2.2\nswap s n\ndestroy n\n", entries: "192.0.2.2", refused: "5.*swap"},
	{format: "ipset,sets=s", text: "create n hash:ip\nadd n 192.0.2.2\nrename n s\n", entries: "192.0.2.2", refused: "3.*rename|rename.*3"},
	{format: "ipset,sets=s", text: "create s hash:ip\nadd s 192.0.2.2\ndestroy s\n", refused: "3.*destroy|no entries"},
	{format: "ipset", text: "create s hash:ip\nadd s 192.0.2.1 until tomorrow\n", refused: ":2: "},
	{format: "ipset", text: "create s hash:ip\nadd s 192.0.2.1 192.0.2.2\n", refused: ":2: "},
	{format: "ipset", text: "create s hash:ip\nadd s 192.0.2.1,192.0.2.2\n", refused: ":2: "},
	{format: "ipset", text: "create s hash:ip\nappend s 192.0.2.1\nadd s 192.0.2.2\n", refused: `\b2\b`},
	{format: "ipset", text: "create s hash:ip\nadd s 010.0.2.1\n", refused: ":2: .*leading zero"},
	{format: "ipset", text: "create s hash:ip\nadd s 192.0.2.1 comment \"a\nadd s 192.0.2.2\n", entries: "192.0.2.1, 192.0.2.2", refused: `\b2\b`},

	// What nft takes between an address and what belongs to it.
	{format: "nft", text: nftTable("type ipv4_addr; flags interval; elements = { 192.0.2.4- 192.0.2.9,198.51.100.0/ 24 }"), entries: "192.0.2.4-192.0.2.9, 198.51.100.0/24"},
	{format: "nft", text: nftTable("type ipv4_addr; flags interval; elements = { 192.0.2.4\n-\n192.0.2.9 , }"), entries: "192.0.2.4-192.0.2.9", refused: line},
	{format: "nft", text: nftTable("type ipv6_addr; flags interval; elements = { 2001:db8:: / 32, 2001:db9:: - 2001:db9::5 timeout 1h comment \"x - y\" }"), entries: "2001:db8::/32, 2001:db9::-2001:db9::5"},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 192.0.2.2 }"), refused: line},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 . 80 }"), refused: line},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 & 255.255.255.0 }"), refused: line},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { != 192.0.2.1 }"), refused: line},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { example.net, 192.0.2.1 }"), entries: "192.0.2.1", bad: 1},

	// Variables and files of nft.
	{format: "nft", text: "define a = 192.0.2.9\n" + nftTable("type ipv4_addr; elements = { 192.0.2.1, $a }"), entries: "192.0.2.1, 192.0.2.9", refused: `2.*(variable|define|\$a).*nft list`},
	{format: "nft", text: "define a = { 192.0.2.9 }\n" + nftTable("type ipv4_addr; elements = { $a }"), entries: "192.0.2.9", refused: `2.*(variable|define|\$a).*nft list`},
	{format: "nft", text: "include \"/etc/nft/define.nft\"\n" + nftTable("type ipv4_addr; elements = { 192.0.2.1 }"), refused: `1.*include`},
	{format: "nft", text: nftTable("type ipv4_addr; include \"/etc/nft/set.nft\"\nelements = { 192.0.2.1 }"), refused: `1.*include`},
	{format: "nft", text: "define s = f\ntable inet $s { set s { type ipv4_addr; elements = { 192.0.2.1 }; }; }\n", entries: "192.0.2.1", refused: line},
	{format: "nft", text: "define name = s\n" + nftTable("type ipv4_addr; elements = { 192.0.2.1 }") + "add element inet f $name { 192.0.2.2 }\n", entries: "192.0.2.1, 192.0.2.2", refused: `3`},

	// Commands of nft that change a set.
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1, 192.0.2.7 }") + "destroy element inet f s { 192.0.2.7 }\n", entries: "192.0.2.1", refused: `2.*destroy`},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 }") + "flush set inet f s\nadd element inet f s { 192.0.2.2 }\n", entries: "192.0.2.2", refused: `2.*flush`},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 }") + "flush ruleset\n" + nftTable("type ipv4_addr; elements = { 192.0.2.2 }"), entries: "192.0.2.2", refused: `2.*flush`},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 }") + "delete table inet f\n" + nftTable("type ipv4_addr; elements = { 192.0.2.2 }"), entries: "192.0.2.2", refused: `2.*delete`},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1, 192.0.2.7 }") + "delete set inet f s\n", refused: `2.*delete|no entries`},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 }") + "reset set inet f s\n", entries: "192.0.2.1", refused: `2.*reset`},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 }") + "replace element inet f s { 192.0.2.2 }\n", refused: `2.*replace`},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1 }") + "create element inet f s { 192.0.2.2 }\n", entries: "192.0.2.1, 192.0.2.2", refused: `2.*create`},
	{format: "nft", text: nftTable("type ipv4_addr; elements = { 192.0.2.1, 192.0.2.7 }") + "delete element f s { 192.0.2.7 }\n", entries: "192.0.2.1, 192.0.2.7", refused: `2.*delete`},
	{format: "nft", text: `{"nftables": [{"add": {"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": ["192.0.2.1", "192.0.2.7"]}}}, {"delete": {"element": {"family": "inet", "table": "f", "name": "s", "elem": ["192.0.2.7"]}}}]}`, entries: "192.0.2.1", refused: `delete`},
	{format: "nft", text: `{"nftables": [{"add": {"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": ["192.0.2.1"]}}}, {"flush": {"set": {"family": "inet", "table": "f", "name": "s"}}}, {"add": {"element": {"family": "inet", "table": "f", "name": "s", "elem": ["192.0.2.2"]}}}]}`, entries: "192.0.2.2", refused: `flush`},
	{format: "nft", text: `{"nftables": [{"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": ["192.0.2.1", {"prefix": {"addr": "198.51.100.0", "len": 24}}]}}, {"flush": {"ruleset": null}}]}`, refused: `flush|no entries`},
	{format: "nft", text: `{"nftables": [{"create": {"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr"}}}, {"insert": {"rule": {"family": "inet"}}}, {"replace": {"rule": {"family": "inet"}}}, {"rename": {"chain": {"family": "inet"}}}, {"list": {"ruleset": null}}, {"create": {"element": {"family": "inet", "table": "f", "name": "s", "elem": ["192.0.2.1"]}}}]}`, entries: "192.0.2.1"},
	{format: "nft", text: `{"nftables": [{"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": [{"&": ["192.0.2.1", "255.255.255.0"]}]}}]}`, refused: some},
	{format: "nft", text: `{"nftables": [{"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": [{"range": []}]}}]}`, refused: some},
	{format: "nft", text: `{"nftables": [{"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": [{"range": ["192.0.2.1"]}]}}]}`, refused: some},
	{format: "nft", text: `{"nftables": [{"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": [{"range": ["192.0.2.1", "192.0.2.2", "192.0.2.3"]}]}}]}`, refused: some},
	{format: "nft", text: `{"nftables": [{"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": "192.0.2.1"}}]}`, entries: "192.0.2.1", refused: some},
	{format: "nft", text: `{"nftables": [{"set": {"family": "inet", "table": "f", "name": "s", "type": "ipv4_addr", "elem": {"set": ["192.0.2.1", "192.0.2.2"]}}}]}`, entries: "192.0.2.1, 192.0.2.2", refused: some},

	// No set of addresses.
	{format: "nft", text: "table inet f {\n\tset s {\n\t\ttype inet_service\n\t\telements = { 22 }\n\t}\n}\n", refused: "(?i)no (set|entries)"},
	{format: "nft", text: "table inet f {\n\tchain c {\n\t\tip saddr 192.0.2.1 drop\n\t}\n}\n", refused: "(?i)no (set|entries)"},
	{format: "nft", text: nftTable("type ipv4_addr . inet_service; elements = { 192.0.2.1 . 22 }"), refused: "(?i)no (set|entries)"},

	// Words, signs and blanks between an address and what belongs to it.
	{format: "plain", text: "192.0.2.0 /24\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.0/ 24\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.0 / 24\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.4 to 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 -> 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 – 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4–192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 — 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 ... 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 .. 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 through 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 bis 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4:192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 , 192.0.2.9\n", entries: "192.0.2.4, 192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4, 192.0.2.9\n", entries: "192.0.2.4, 192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4,192.0.2.9\n", entries: "192.0.2.4, 192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 and 192.0.2.9\n", entries: "192.0.2.4, 192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 or 192.0.2.0/25\n", entries: "192.0.2.0/25", refused: here},
	{format: "plain", text: "192.0.2.4 - 10\n", entries: "192.0.2.4-192.0.2.10", refused: here},
	{format: "plain", text: "192.0.2.4 -10\n", entries: "192.0.2.4-192.0.2.10", refused: here},
	{format: "plain", text: "192.0.2.4- 10\n", entries: "192.0.2.4-192.0.2.10", refused: here},
	{format: "plain", text: "192.0.2.4 to 10\n", entries: "192.0.2.4-192.0.2.10", refused: here},
	{format: "plain", text: "192.0.2.4 – 10\n", entries: "192.0.2.4-192.0.2.10", refused: here},
	{format: "plain", text: "192.0.2.0 netmask 255.255.255.0\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.0 mask 255.255.255.0\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.0 0.0.0.255\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.0 wildcard 0.0.0.255\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.0 prefix 24\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.0 mask /24\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.0/24 except 192.0.2.7\n", entries: "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.255", refused: here},
	{format: "plain", text: "192.0.2.0/24 !192.0.2.7\n", entries: "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.255", refused: here},
	{format: "plain", text: "192.0.2.0/24 but not 192.0.2.7\n", entries: "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.255", refused: here},
	{format: "plain", text: "192.0.2.0/24 without 192.0.2.7\n", entries: "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.255", refused: here},
	{format: "plain", text: "!192.0.2.7\n", refused: here},
	{format: "plain", text: "! 192.0.2.7\n", refused: here},
	{format: "plain", text: "-192.0.2.7\n", refused: here},
	{format: "plain", text: "not 192.0.2.7\n", refused: here},
	{format: "plain", text: "2001:db8:: /48\n", entries: "2001:db8::/48", refused: here},
	{format: "plain", text: "2001:db8:: - 2001:db8::5\n", entries: "2001:db8::-2001:db8::5", refused: here},
	{format: "plain", text: "2001:db8::4 to 2001:db8::5\n", entries: "2001:db8::4-2001:db8::5", refused: here},
	{format: "plain", text: "2001:db8:: prefixlen 48\n", entries: "2001:db8::/48", refused: here},
	{format: "plain", text: "2001:db8::/48 , 2001:db9::/48\n", entries: "2001:db8::/48, 2001:db9::/48", refused: here},
	{format: "plain", text: "> 192.0.2.0 /24\n", entries: "> 192.0.2.0/24", refused: here},
	{format: "plain", text: "tcp 192.0.2.0 /24:* > *:25\n", refused: here},
	{format: "plain", text: "tcp 192.0.2.1:* > 198.51.100.0 /24:25\n", refused: here},
	{format: "plain", text: "192.0.2.4 - 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4 -192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.4\t192.0.2.9\t24\tscans\n", entries: "192.0.2.4-192.0.2.9", refused: here},

	// Remarks that only look so.
	{format: "plain", text: "192.0.2.1 /etc/passwd\n", entries: "192.0.2.1"},
	{format: "plain", text: "192.0.2.2 - 3 reports\n", entries: "192.0.2.2", refused: here},
	{format: "plain", text: "192.0.2.3 reported by 2 hosts\n", entries: "192.0.2.3"},
	{format: "plain", text: "192.0.2.4\t2026-10-10 13:55:36\tssh\n", entries: "192.0.2.4"},
	{format: "plain", text: "192.0.2.5 host5.example.net\n", entries: "192.0.2.5"},
	{format: "plain", text: "192.0.2.0/24 # was 198.51.100.0/24\n", entries: "192.0.2.0/24"},
	{format: "plain", text: "192.0.2.0/24 ; SBL1 - 198.51.100.7\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.6 # netmask 255.255.255.0\n", entries: "192.0.2.6"},
	{format: "plain", text: "192.0.2.7 to-do\n", entries: "192.0.2.7"},
	{format: "plain", text: "2001:db8::7 - scanner\n", entries: "2001:db8::7"},
	{format: "plain", text: "192.0.2.8 AS64496 Example, Inc.\n", entries: "192.0.2.8"},
	{format: "plain", text: "192.0.2.9|AS64496\n", entries: "192.0.2.9", refused: here},

	// Ranges whose end is a mask.
	{format: "plain", text: "192.0.2.0-255.255.255.128\n", entries: "192.0.2.0/25", refused: here + ".*(netmask|192.0.2.0/25)"},
	{format: "plain", text: "10.0.0.0 - 255.0.0.0\n", entries: "10.0.0.0/8", refused: here},
	{format: "plain", text: "192.0.2.0-0.0.0.255\n", entries: "192.0.2.0/24", refused: here},
	{format: "p2p", text: "Acme:192.0.2.0-255.255.255.0\n", entries: "192.0.2.0/24", refused: here + ".*(netmask|192.0.2.0/24)"},
	{format: "dat", text: "192.000.002.000 - 255.255.255.000 , 100 , Acme\n", entries: "192.0.2.0/24", refused: here + ".*(netmask|192.0.2.0/24)"},
	{format: "csv,column=1,last_column=2", text: "192.0.2.0,255.255.255.0\n", entries: "192.0.2.0/24", refused: here + ".*(netmask|192.0.2.0/24)"},

	// Wildcards, short ranges, commas at the end.
	{format: "plain", text: "192.0.*.*\n", entries: "192.0.0.0/16", refused: here + `.*192\.0\.0\.0/16`},
	{format: "plain", text: "192.0.*\n", entries: "192.0.0.0/16", refused: here},
	{format: "plain", text: "192.*.2.1\n", refused: here},
	{format: "plain", text: "192.0.2.\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2\n", refused: here},
	{format: "plain", text: "192.0.2.x\n", entries: "192.0.2.0/24", refused: here},
	{format: "plain", text: "192.0.2.10-4\n", refused: here},
	{format: "plain", text: "192.0.2.4-256\n", refused: here},
	{format: "plain", text: "192.0.2.[4-9]\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "plain", text: "192.0.2.0/24,\n", entries: "192.0.2.0/24", refused: here + ".*comma"},
	{format: "plain", text: "192.0.2.4-192.0.2.9,\n", entries: "192.0.2.4-192.0.2.9", refused: here + ".*comma"},
	{format: "plain", text: "\"192.0.2.1\",\n", entries: "192.0.2.1", refused: here},
	{format: "plain", text: "[2001:db8::1]\n", entries: "2001:db8::1", refused: here + ".*bracket"},
	{format: "plain", text: "192.0.2.1/24\n", refused: here + ".*lenient"},

	// Columns of CSV beside that of the address.
	{format: "csv,column=ip", text: "ip,note\n192.0.2.0 /24,x\n", entries: "192.0.2.0/24", refused: ":2: "},
	{format: "csv,column=ip", text: "ip,note\n192.0.2.4 to 192.0.2.9,x\n", entries: "192.0.2.4-192.0.2.9", refused: ":2: "},
	{format: "csv,column=ip", text: "ip,note\n\"192.0.2.4, 192.0.2.9\",x\n", entries: "192.0.2.4, 192.0.2.9", refused: ":2: "},
	{format: "csv,column=ip", text: "ip;note\n192.0.2.4;x\n", refused: `separator|column`},
	{format: "csv,column=ip,separator=;", text: "sep=;\nip;note\n192.0.2.4;x\n", entries: "192.0.2.4"},
	{format: "csv,column=ip", text: "#seen,ip\n2026-01-01,192.0.2.4\n", entries: "192.0.2.4", refused: "column"},
	{format: `csv,column=2,separator=\t`, text: "x\t192.0.2.4\n", entries: "192.0.2.4"},
	{format: "csv,column=network", text: "network,prefix\n192.0.2.0,24\n", entries: "192.0.2.0/24", refused: "mask_column"},
	{format: "csv,column=network", text: "network,mask\n192.0.2.0,255.255.255.0\n", entries: "192.0.2.0/24", refused: "mask_column"},
	{format: "csv,column=4,count_column=5,only=2=FR&3=ipv4,separator=|", text: "t|FR|ipv4|192.0.2.0|256|x\nt|DE|ipv4|198.51.100.0|256|x\nt|FR|asn|64496|1|x\n", entries: "192.0.2.0/24"},
	{format: "csv,column=1,integers=true", text: "3221225985\n", entries: "192.0.2.1"},
	{format: "csv,column=1,mask_column=2", text: "192.0.2.0,33\n", refused: here},
	{format: "csv,column=1,mask_column=2", text: "192.0.2.0,\n", refused: here},
	{format: "csv,column=1,mask_column=2", text: "192.0.2.0,/24\n", entries: "192.0.2.0/24", refused: here},
	{format: "csv,column=1,mask_column=2", text: "192.0.2.0,255.255.255.0\n", entries: "192.0.2.0/24", refused: here},
	{format: "csv,column=1,count_column=2", text: "192.0.2.0,0\n", refused: here},
	{format: "csv,column=1,count_column=2", text: "192.0.2.5,3\n", entries: "192.0.2.5-192.0.2.7", refused: here},
	{format: "csv,column=1,count_column=2", text: "255.255.255.0,512\n", refused: here},
	{format: "csv,column=1", text: "Ip:192.0.2.1\nrange:198.51.100.0/24\nip:2001:db8::1\nAS:64496\n", entries: "192.0.2.1, 198.51.100.0/24, 2001:db8::1", refused: ":4: "},
	{format: "csv,column=1", text: "3221225985\n", refused: here + ".*integer"},

	// JSON.
	{format: "json,path=.ips[]", text: `{"ips": null}` + "\n" + `{"ips": ["192.0.2.1"]}`, entries: "192.0.2.1"},
	{format: "json,path=.ips[]", text: `{"ips": ["192.0.2.0 /24"]}`, entries: "192.0.2.0/24", refused: some},
	{format: "json,path=.ips[]", text: `{"ips": ["192.0.2.1", null]}`, entries: "192.0.2.1", bad: 1},
	{format: "json,path=.ips[]", text: `{"ips": ["192.0.2.1"], "ips": ["192.0.2.2"]}`, entries: "192.0.2.1, 192.0.2.2", refused: some},
	{format: "json,path=.ips[]", text: `{"ips": ["192.0.2.4 - 192.0.2.9"]}`, entries: "192.0.2.4-192.0.2.9", refused: some},
	{format: "json,path=.ips[]", text: `{"ips": [["192.0.2.1"]]}`, refused: some},
	{format: "json,path=.ips[]", text: `{"ips": ["192.0.2.1"]} trailing`, refused: some},
	{format: "json,path=.ips[]", text: `{"ips": ["192.0.2.1"`, refused: some},
	{format: "jsonl,path=.ip", text: "{\"ip\": \"192.0.2.1\"}\n{\"ip\": null}\n", entries: "192.0.2.1", bad: 1},
	{format: "spamhaus", text: "{\"cidr\":\"192.0.2.0/24\"}\n{\"type\":\"metadata\",\"records\":2}\n", refused: "1|2"},
	{format: "spamhaus", text: "{\"cidr\":\"192.0.2.0/24\"}\n", refused: some},

	// Indicators of STIX that are not to be blocked.
	{format: "stix", text: bundle(`"indicator_types": ["benign"], "pattern": "[ipv4-addr:value = '192.0.2.2']"`, `"pattern": "[ipv4-addr:value = '192.0.2.1']"`), entries: "192.0.2.1"},
	{format: "stix", text: bundle(`"indicator_types": ["malicious-activity", "benign"], "pattern": "[ipv4-addr:value IN ('192.0.2.2', '192.0.2.3')]"`, `"pattern": "[ipv4-addr:value = '192.0.2.1']"`), entries: "192.0.2.1"},
	{format: "stix", text: bundle(`"indicator_types": ["Benign"], "pattern": "[ipv4-addr:value = '192.0.2.2']"`, `"pattern": "[ipv4-addr:value = '192.0.2.1']"`), entries: "192.0.2.1"},
	{format: "stix", text: bundle(`"pattern_type": "snort", "pattern": "alert tcp 192.0.2.2 any -> any any"`, `"pattern": "[ipv4-addr:value = '192.0.2.1']"`), entries: "192.0.2.1", refused: some},
	{format: "stix", text: bundle(`"pattern": "[ipv4-addr:value = '192.0.2.2'] REPEATS 5 TIMES WITHIN 60 SECONDS"`), refused: some},
	{format: "stix", text: bundle(`"pattern": "[ipv4-addr:value = '192.0.2.2' AND network-traffic:dst_port = 22]"`), refused: some},
	{format: "stix", text: bundle(`"pattern": "[ipv4-addr:value NOT = '192.0.2.2']"`), refused: some},
	{format: "stix", text: `{"type": "bundle", "objects": [{"type": "observed-data", "objects": {"0": {"type": "ipv4-addr", "value": "192.0.2.1"}}}]}`, refused: "(?i)no (indicator|entries)"},
	{format: "stix", text: `{"type": "bundle", "objects": [{"type": "ipv6-addr", "value": "2001:db8::1"}, {"type": "ipv4-addr", "value": "192.0.2.1"}]}`, refused: "(?i)no indicator.*(observable|ipv4-addr|ipv6-addr)"},

	// Servers for the web.
	{format: "deny", text: "deny 192.0.2.1;# scanner\n\tdeny   192.0.2.0/28 ; # range\n#deny 198.51.100.1;\n", entries: "192.0.2.0/28"},
	{format: "deny", text: "allow 192.0.2.7;\ndeny 192.0.2.0/28;\nallow all;\n", entries: "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.15", refused: "1.*allow|allow.*1"},
	{format: "deny", text: "allow 192.0.2.0/24;\ndeny all;\n", refused: `deny all|line 2|:2:`},
	{format: "deny", text: "deny 192.0.2.1; deny 192.0.2.3;\n", entries: "192.0.2.1, 192.0.2.3", refused: here},
	{format: "deny", text: "deny unix:;\ndeny 192.0.2.1;\n", entries: "192.0.2.1", refused: here},
	{format: "deny", text: "Deny from 10\nDeny from 172.20 # office\n", entries: "10.0.0.0/8, 172.20.0.0/16", refused: ":2:"},
	{format: "deny", text: "<RequireAll>\n  Require all granted\n  Require not ip 10 172.20 192.0.2.1\n  Require not ip 2001:db8::/32\n</RequireAll>\n", entries: "10.0.0.0/8, 172.20.0.0/16, 192.0.2.1, 2001:db8::/32"},
	{format: "deny", text: "Require not ip 192.0.2.0/24\nRequire not host example.net\n", entries: "192.0.2.0/24", refused: ":2: "},
	{format: "deny", text: "Order Deny,Allow\nDeny from 192.0.2.0/24\nAllow from 192.0.2.7\n", entries: "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.255", refused: "3.*(?i)allow|(?i)allow.*3"},
	{format: "deny", text: "Deny from all\n", refused: "1"},
	{format: "deny", text: "Deny from example.net 192.0.2.1\n", entries: "192.0.2.1", bad: 1},
	{format: "deny", text: "Deny from env=bad\nDeny from 192.0.2.1\n", entries: "192.0.2.1", bad: 1},
	{format: "plain", text: "ALL: 192.0.2.1\n", entries: "192.0.2.1", refused: here + ".*TCP wrappers"},
	{format: "plain", text: "sshd, vsftpd : 192.0.2.1\n", entries: "192.0.2.1", refused: here + ".*TCP wrappers"},
	{format: "plain", text: "ALL: 192.0.2. EXCEPT 192.0.2.7\n", entries: "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.255", refused: here + ".*TCP wrappers"},
	{format: "plain", text: "deny 192.0.2.1;\n", refused: here},
	{format: "plain", text: "Deny from 192.0.2.1\n", refused: here},
	{format: "plain", text: "-A INPUT -s 192.0.2.1/32 -j DROP\n", refused: here},
	{format: "plain", text: "add block 192.0.2.1\n", refused: here},

	// Other ways to write ranges.
	{format: "p2p", text: "Acme: Labs:2001:db8::4-2001:db8::7\n", entries: "2001:db8::4-2001:db8::7", refused: here},
	{format: "p2p", text: "Acme:192.0.2.9-192.0.2.4\n", refused: here},
	{format: "p2p", text: "Acme:192.0.2.4-192.0.2.9 # office\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "p2p", text: "Acme:192.0.2.4-192.0.2.9,198.51.100.4-198.51.100.9\n", entries: "192.0.2.4-192.0.2.9, 198.51.100.4-198.51.100.9", refused: here},
	{format: "p2p", text: "Acme:192.0.2.4 - 192.0.2.9\n", entries: "192.0.2.4-192.0.2.9", refused: here},
	{format: "dat", text: "192.000.002.004 - 192.000.002.009 , 100 , Acme\n198.051.100.001 - 198.051.100.009 , 200 , allowed\n", entries: "192.0.2.4-192.0.2.9", refused: ":2: .*allow"},
	{format: "dat", text: "192.0.2.4 - 192.0.2.9 , high , Acme\n", refused: here},
	{format: "hosts", text: "127.0.0.1 localhost\n192.0.2.1 bad.example.net # 198.51.100.1\n", entries: "192.0.2.1"},
	{format: "hosts", text: "192.0.2.1 198.51.100.1 bad.example.net\n", refused: here},
	{format: "hosts", text: "192.0.2.0/24 bad.example.net\n", entries: "192.0.2.0/24", refused: here},
}

func nftTable(set string) string { return "table inet f { set s { " + set + "; }; }\n" }

func bundle(indicators ...string) string {
	var objects []string
	for i, x := range indicators {
		if !strings.Contains(x, "pattern_type") {
			x = `"pattern_type": "stix", ` + x
		}
		objects = append(objects, fmt.Sprintf(`{"type": "indicator", "spec_version": "2.1", "id": "indicator--00000000-0000-4000-8000-%012d", "name": "n", "valid_from": "2026-01-01T00:00:00Z", %s}`, i, x))
	}
	return `{"type": "bundle", "id": "bundle--00000000-0000-4000-8000-000000000001", "objects": [` + strings.Join(objects, ", ") + "]}"
}

// packed returns files that are packed, compressed or encoded in other ways.
func packed(t *testing.T) []fieldFile {
	t.Helper()
	const text = "192.0.2.1\n198.51.100.0/24\n"
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var tarred, zipped bytes.Buffer
	tw := tar.NewWriter(&tarred)
	zw := zip.NewWriter(&zipped)
	for _, name := range []string{"blocked.txt", "never-block.txt"} {
		ok(tw.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text)), Format: tar.FormatUSTAR}))
		_, err := tw.Write([]byte(text))
		ok(err)
		w, err := zw.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		ok(err)
		_, err = w.Write([]byte(text))
		ok(err)
	}
	ok(tw.Close())
	ok(zw.Close())
	gz := func(s string) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write([]byte(s))
		ok(err)
		ok(w.Close())
		return b.String()
	}
	zst := func(s string) string {
		w, err := zstd.NewWriter(nil)
		ok(err)
		return string(w.EncodeAll([]byte(s), nil))
	}
	wide := func(order binary.AppendByteOrder, mark bool) string {
		units := utf16.Encode([]rune(text))
		if mark {
			units = append([]uint16{0xfeff}, units...)
		}
		var b []byte
		for _, u := range units {
			b = order.AppendUint16(b, u)
		}
		return string(b)
	}
	const archive, both = `(?i)(archive|tar|zip).*unpack`, "192.0.2.1, 198.51.100.0/24"
	return []fieldFile{
		{name: "tar", format: "plain", text: tarred.String(), refused: archive},
		{name: "tar as csv", format: "csv,column=1", text: tarred.String(), refused: archive},
		{name: "tar as ipset", format: "ipset", text: tarred.String(), refused: archive},
		{name: "tar as nft", format: "nft", text: tarred.String(), refused: archive},
		{name: "tar as json", format: "json,path=.[]", text: tarred.String(), refused: archive},
		{name: "tar as p2p", format: "p2p", text: tarred.String(), refused: archive},
		{name: "tar.zst", format: "plain", text: zst(tarred.String()), refused: archive},
		{name: "zip that stores", format: "plain", text: zipped.String(), refused: archive},
		{name: "zip in gzip", format: "plain", text: gz(zipped.String()), refused: archive},
		{name: "zip as hosts", format: "hosts", text: zipped.String(), refused: archive},
		{name: "gzip twice", format: "plain", text: gz(gz(text)), entries: both, refused: "(?i)gzip|twice"},
		{name: "gzip, two members", format: "plain", text: gz("192.0.2.1\n") + gz("198.51.100.0/24\n"), entries: both},
		{name: "gzip and more", format: "plain", text: gz(text) + "198.51.100.7\n", refused: some},
		{name: "gzip of zstd", format: "plain", text: gz(zst(text)), entries: both, refused: "(?i)zstd|twice"},
		{name: "zstd", format: "plain", text: zst(text), entries: both},
		{name: "bzip2", format: "plain", text: "BZh91AY&SY\x8c\x9e\x03\x04\x00\x00\x05\x59", refused: "(?i)bzip2.*(gzip|decompress|unpack)"},
		{name: "lz4", format: "plain", text: "\x04\x22\x4d\x18\x64\x40\xa7\x1a\x00\x00\x80" + text, refused: "(?i)lz4.*(gzip|decompress|unpack)"},
		{name: "xz in gzip", format: "plain", text: gz("\xfd7zXZ\x00\x00\x04"), refused: `\bxz\b`},
		{name: "7z", format: "plain", text: "7z\xbc\xaf\x27\x1c\x00\x04" + text, refused: some},
		{name: "NUL", format: "plain", text: "192.0.2.1\x00\n198.51.100.0/24\n", refused: some},
		{name: "NUL in a remark", format: "plain", text: "192.0.2.1 a\x00b\n198.51.100.0/24\n", refused: some},
		{name: "UTF-16 LE", format: "plain", text: wide(binary.LittleEndian, true), entries: both, refused: "UTF-16.*UTF-8"},
		{name: "UTF-16 BE", format: "plain", text: wide(binary.BigEndian, true), entries: both, refused: "UTF-16.*UTF-8"},
		{name: "UTF-16 without a mark", format: "plain", text: wide(binary.LittleEndian, false), entries: both, refused: some},
		{name: "UTF-16 in gzip", format: "plain", text: gz(wide(binary.LittleEndian, true)), entries: both, refused: "UTF-16.*UTF-8"},
		{name: "UTF-16 as csv", format: "csv,column=1", text: wide(binary.LittleEndian, true), entries: both, refused: "UTF-16.*UTF-8"},
	}
}
