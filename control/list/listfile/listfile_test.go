package listfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"go4.org/netipx"

	"weir/control/list"
	"weir/filter/key"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
)

// strs returns entries in the list format: IPv4, IPv6, flows.
func strs(e list.Entries) []string {
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

// good is a table of lines and their entries.
var good = []struct {
	line string
	want string // entries, separated by ", "; empty for blank lines and comments
}{
	{"", ""},
	{" \t ", ""},
	{"# comment", ""},
	{"; comment", ""},
	{"  # 1.2.3.4", ""},
	{"\r", ""},

	{"192.0.2.1", "192.0.2.1"},
	{"192.0.2.1\r", "192.0.2.1"},
	{"192.0.2.1\r\r", "192.0.2.1"},
	{"0.0.0.0", "0.0.0.0"},
	{"255.255.255.255", "255.255.255.255"},
	{"\t 192.0.2.1  ", "192.0.2.1"},
	{"192.0.2.1\t7", "192.0.2.1"},
	{"192.0.2.1 seen 2026-01-02 12:30:45", "192.0.2.1"},
	{"192.0.2.1 12:30:45", "192.0.2.1"},
	{"192.0.2.1 example.com", "192.0.2.1"},
	{"192.0.2.1 1.2.3.400", "192.0.2.1"},
	{"192.0.2.1 - scanner", "192.0.2.1"},
	{"192.0.2.1 -", "192.0.2.1"},
	{"192.0.2.1 # 192.0.2.2", "192.0.2.1"},
	{"192.0.2.1#scanner", "192.0.2.1"},
	{"192.0.2.1;SBL1", "192.0.2.1"},
	{"192.0.2.0/24 ; SBL1", "192.0.2.0/24"},
	{"192.0.2.1/32", "192.0.2.1"},
	{"192.0.2.0/24", "192.0.2.0/24"},
	{"0.0.0.0/0", "0.0.0.0/0"},
	{"0.0.0.0/0 anything", "0.0.0.0/0"},
	{"0.0.0.0 # this network", "0.0.0.0"},
	{"192.0.2.0 255.255.255.0", "192.0.2.0/24"},
	{"192.0.2.0\t255.255.255.128 # half", "192.0.2.0/25"},
	{"192.0.2.0/255.255.255.0", "192.0.2.0/24"},
	{"192.0.2.1/255.255.255.255", "192.0.2.1"},
	{"> 192.0.2.0/255.255.255.0", "> 192.0.2.0/24"},
	{"192[.]0[.]2[.]1", "192.0.2.1"},
	{"192.0.2[.]0/24", "192.0.2.0/24"},
	{"192(.)0(dot)2[dot]1", "192.0.2.1"},
	{"2001[:]db8[:][:]1", "2001:db8::1"},
	{"tcp 192[.]0[.]2[.]1:* > 198.51.100.7:443", "tcp 192.0.2.1:* > 198.51.100.7:443"},
	{"128.0.0.0/1", "128.0.0.0/1"},

	{"2001:db8::1", "2001:db8::1"},
	{"2001:DB8:0:0::1", "2001:db8::1"},
	{"2001:db8::1/128", "2001:db8::1"},
	{"2001:db8::/32 Deny Cloud", "2001:db8::/32"},
	{"::/0", "::/0"},
	{"::", "::"},
	{"fe80::1", "fe80::1"},
	{"::ffff:192.0.2.1", "192.0.2.1"},
	{"::ffff:c000:201", "192.0.2.1"},
	{"::ffff:192.0.2.0/120", "192.0.2.0/24"},
	{"::ffff:0:0/97", "0.0.0.0/1"},
	{"::ffff:0:0/96", "::ffff:0.0.0.0/96"},
	{"64:ff9b::192.0.2.1", "64:ff9b::c000:201"},

	{"192.0.2.1-192.0.2.1", "192.0.2.1"},
	{"192.0.2.0-192.0.2.255", "192.0.2.0/24"},
	{"192.0.2.5-192.0.2.10", "192.0.2.5, 192.0.2.6/31, 192.0.2.8/31, 192.0.2.10"},
	{"192.0.2.5 - 192.0.2.6", "192.0.2.5, 192.0.2.6"},
	{"192.0.2.5 -192.0.2.6\tremark", "192.0.2.5, 192.0.2.6"},
	{"192.0.2.5- 192.0.2.6 10", "192.0.2.5, 192.0.2.6"},
	{"2001:db8:: - 2001:db8::1", "2001:db8::/127"},
	{"192.0.2.0 /24", "192.0.2.0/24"},
	{"192.0.2.0/ 24 remark", "192.0.2.0/24"},
	{"192.0.2.0 / 24\t3", "192.0.2.0/24"},
	{"192.0.2.0 / 255.255.255.0", "192.0.2.0/24"},
	{"2001:db8:: /48", "2001:db8::/48"},
	{"> 192.0.2.0 /24", "> 192.0.2.0/24"},
	{"192.0.2.*", "192.0.2.0/24"},
	{"10.*.*.* remark", "10.0.0.0/8"},
	{"192.0.2.1,", "192.0.2.1"},
	{"192.0.2.0/24, # remark", "192.0.2.0/24"},
	{"[2001:db8::1]", "2001:db8::1"},
	{"[2001:db8::/32] remark", "2001:db8::/32"},

	{"192.0.2.1 24", "192.0.2.1"},
	{"192.0.2.3 reported to abuse 3 times", "192.0.2.3"},
	{"192.0.2.5 / port scan", "192.0.2.5"},
	{"192.0.2.6 to be removed", "192.0.2.6"},
	{"192.0.2.7 , noisy", "192.0.2.7"},
	{`192.0.2.8 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 404`, "192.0.2.8"},
	{"192.0.2.8 - frank [10/Oct/2026:13:55:36 +0000]", "192.0.2.8"},
	{"192.0.2.8 - 1000 [10/Oct/2026:13:55:36 +0000]", "192.0.2.8"},
	{"192.0.2.1 (Example, Inc.) seen 2 times from 192.0.2.9", "192.0.2.1"},
	{"tcp *:* > 198.51.100.7:443 to be removed", "tcp 0.0.0.0/0:* > 198.51.100.7:443"},

	{"224.0.0.0-255.255.255.255", "224.0.0.0/3"},
	{"255.255.255.255-255.255.255.255", "255.255.255.255"},
	{"192.0.0.0-192.0.0.0", "192.0.0.0"},
	{"0.0.0.0-255.255.255.255", "0.0.0.0/0"},
	{"2001:db8::-2001:db8::2", "2001:db8::/127, 2001:db8::2"},
	{"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::/0"},
	{"::ffff:192.0.2.2-::ffff:192.0.2.3", "192.0.2.2/31"},
	{"::fffe:8000:0-::1:0:0:0", "::fffe:8000:0/97, ::ffff:0.0.0.0/96, ::1:0:0:0"},

	{"tcp 192.0.2.1:* > 198.51.100.7:443", "tcp 192.0.2.1:* > 198.51.100.7:443"},
	{"tcp 192.0.2.1:*>198.51.100.7:443 remark", "tcp 192.0.2.1:* > 198.51.100.7:443"},
	{"\tudp  192.0.2.0/24:53\t>  198.51.100.0/25:* # remark", "udp 192.0.2.0/24:53 > 198.51.100.0/25:*"},
	{"udp *:* > 198.51.100.0/24:53", "udp 0.0.0.0/0:* > 198.51.100.0/24:53"},
	{"sctp 192.0.2.1:0 > *:65535", "sctp 192.0.2.1:0 > 0.0.0.0/0:65535"},
	{"icmp 192.0.2.1:* > 198.51.100.7:*", "icmp 192.0.2.1:* > 198.51.100.7:*"},
	{"icmp6 [::1]:* > *:*", "icmp6 [::1]:* > [::/0]:*"},
	{"6 192.0.2.1:* > 198.51.100.7:443", "tcp 192.0.2.1:* > 198.51.100.7:443"},
	{"47 192.0.2.1:* > 198.51.100.7:*", "47 192.0.2.1:* > 198.51.100.7:*"},
	{"0 192.0.2.1:* > 198.51.100.7:*", "0 192.0.2.1:* > 198.51.100.7:*"},
	{"any 192.0.2.1:* > 198.51.100.7:443", "any 192.0.2.1:* > 198.51.100.7:443"},
	{"any 192.0.2.0/24:* > 198.51.100.7:*", "any 192.0.2.0/24:* > 198.51.100.7:*"},
	{"any *:* > 198.51.100.7:*", "> 198.51.100.7"},
	{"tcp [2001:db8::/32]:* > [2001:db8:1::7]:443", "tcp [2001:db8::/32]:* > [2001:db8:1::7]:443"},
	{"tcp *:* > [2001:db8:1::7]:443", "tcp [::/0]:* > [2001:db8:1::7]:443"},
	{"tcp [::ffff:192.0.2.1]:* > 198.51.100.7:443", "tcp 192.0.2.1:* > 198.51.100.7:443"},
	{"udp *:* > *:53", "udp 0.0.0.0/0:* > 0.0.0.0/0:53, udp [::/0]:* > [::/0]:53"},
	{"any *:* > *:53", "any 0.0.0.0/0:* > 0.0.0.0/0:53, any [::/0]:* > [::/0]:53"},
	{"tcp *:* > 198.51.100.7:79-81", "tcp 0.0.0.0/0:* > 198.51.100.7:79, tcp 0.0.0.0/0:* > 198.51.100.7:80, tcp 0.0.0.0/0:* > 198.51.100.7:81"},
	{"tcp *:* > [2001:db8::7]:65535-65535 remark", "tcp [::/0]:* > [2001:db8::7]:65535"},
	{"any 192.0.2.1:0-1 > *:8-9", "any 192.0.2.1:0 > 0.0.0.0/0:8, any 192.0.2.1:0 > 0.0.0.0/0:9, any 192.0.2.1:1 > 0.0.0.0/0:8, any 192.0.2.1:1 > 0.0.0.0/0:9"},
	{"udp *:5-6 > *:*", "udp 0.0.0.0/0:5 > 0.0.0.0/0:*, udp [::/0]:5 > [::/0]:*, udp 0.0.0.0/0:6 > 0.0.0.0/0:*, udp [::/0]:6 > [::/0]:*"},
	{"> 198.51.100.7", "> 198.51.100.7"},
	{">198.51.100.0/24 remark", "> 198.51.100.0/24"},
	{"> 2001:db8::/32", "> 2001:db8::/32"},
}

// bad is a table of lines and parts of the reasons why they are rejected.
var bad = []struct{ line, reason string }{
	{"192.0.2", `not an address: IPv4 address too short`},
	{"1..218.28", `not an address: IPv4 field must have at least one digit (at ".218.28")`},
	{"192.0.2.256", "not an address: IPv4 field has value >255"},
	{"192.0.2.01", "leading zeros"},
	{"192..002.1", "not an address"},
	{"010.0.0.0/8", "leading zeros"},
	{"192.0.2.1 - 192.000.002.009", "end of the range: an octet with leading zeros"},
	{"0.0.0.0 ads.example.com", "a hosts file's line for this host"},
	{"::1 localhost", "a hosts file's line for this host"},
	{"192.0.2.1;198.51.100.7", "a second address on the line"},
	{"192.0.2.0 mask /24", "may be a part of the entry"},
	{"192.0.2.0 prefix: /24", "may be a part of the entry"},
	{"ALL: 192.0.2.1", "a line of TCP wrappers"},
	{"sshd, vsftpd : 192.0.2.1", "a line of TCP wrappers"},
	{"sshd: [2001:db8::1]", "a line of TCP wrappers"},
	{"192.0.2.1; 198.51.100.1-198.51.100.9", "a second address on the line"},
	{"192.0.2.1; 2001:db8::/32;", "a second address on the line"},
	{"192.0.2.1.5", "not an address"},
	{"192.0.2.1x", "not an address"},
	{"192.0.2.1,scanner", "not an address"},
	{"-1.2.3.4", "not an address"},
	{"192.0.2.1:443", `write a flow, as in "tcp 192.0.2.1:443 > *:*"`},
	{"192.0.2.1|443", "an address with a port"},
	{"[2001:db8::1]:443", "an address with a port"},
	{"192.0.2.1:x", "not an address"},
	{"192.0.2.1:65536", "not an address"},
	{"example.com", "not an address"},
	{"http://example.com", "a URL: weir matches addresses"},
	{"hxxp://192[.]0[.]2[.]1/x", "a URL: weir matches addresses"},
	{`{"cidr":"27.122.32.0/20"}`, "not an address"},
	{"2001:db8::1::2", "not an address"},
	{"fe80::1%eth0", "zones"},
	{"\xff\xfe1.2.3.4", "not an address"},
	{"192.0.2.1\u00a0remark", "not an address"},

	{"192.0.2.1/24", "host bits set beyond /24"},
	{"2001:db8::1/64", "host bits set beyond /64"},
	{"::ffff:192.0.2.1/90", "host bits set beyond /90"},
	{"192.0.2.0/33", `"33" is not a prefix length from 0 to 32`},
	{"192.0.2.0/024", "not a prefix length"},
	{"192.0.2.0/", "not a prefix length"},
	{"192.0.2.0/+8", "not a prefix length"},
	{"192.0.2.0/0.0.0.255", "a wildcard mask"},
	{"192.0.2.0/255.0.255.0", "a netmask with gaps"},
	{"192.0.2.1/255.255.255.0", "host bits set beyond /24"},
	{"2001:db8::/255.255.255.0", "a netmask"},
	{"192.0.2.0/24/24", "not a prefix length"},
	{"2001:db8::/129", "not a prefix length from 0 to 128"},

	{"192.0.2.2-192.0.2.1", "ends before it starts"},
	{"2001:db8::2-2001:db8::1", "ends before it starts"},
	{"192.0.2.1-2001:db8::1", "mixed"},
	{"192.0.2.1-::ffff:192.0.2.9", "mixed"},
	{"192.0.2.1-", "end of the range: not an address"},
	{"192.0.2.1-9", "the range ends in a number"},
	{"192.0.2.0/24-192.0.3.0/24", "start of the range: not an address"},
	{"192.0.2.1-192.0.2.2-192.0.2.3", "end of the range: not an address"},
	{"192.0.2.1 - 192.0.2.0/24", "end of the range: not an address"},
	{"192.0.2.9 - 192.0.2.1", "ends before it starts"},

	{"192.0.2.0-255.255.255.0", "the end of the range is a netmask: write 192.0.2.0/24"},
	{"192.0.2.0 - 255.255.255.128", "a netmask: write 192.0.2.0/25"},
	{"192.0.2.1-255.255.255.255", "a netmask: write 192.0.2.1/32"},
	{"2001:db8::-ffff:ffff::", "a netmask: write 2001:db8::/32"},

	{"192.0.2.1, 24", "unexpected character"},
	{"192.0.2.1 /24", "host bits set beyond /24: write 192.0.2.0/24"},
	{"192.0.2.0 /33", "not a prefix length"},
	{"192.0.2.0/24 /25", `"/25" may be a part of the entry`},
	{"192.0.*", "IPv4 address too short"},
	{"192.0.2.**", "not an address"},
	{"192.0.2.* - 192.0.9.*", "start of the range"},
	{"192.0.2.4 to 192.0.2.9", "a range as FIRST-LAST"},
	{"192.0.2.4 -> 192.0.2.9", "second address"},
	{"192.0.2.4 ->192.0.2.9", "end of the range"},
	{"192.0.2.4 \u2013 192.0.2.9", "second address"},
	{"192.0.2.4 \u2013192.0.2.9", "second address"},
	{"192.0.2.4 , 192.0.2.9", "second address"},
	{"192.0.2.4 and also 192.0.2.9", "second address"},
	{"192.0.2.0/24 except 192.0.2.7", "second address"},
	{"192.0.2.0/24 (not 192.0.2.7)", "second address"},
	{"192.0.2.0/24 !192.0.2.7", "second address"},
	{"192.0.2.0/24 nomatch", "takes the entry out of the set"},
	{"192.0.2.0 netmask 255.255.255.0", "a network as ADDRESS/LENGTH"},
	{"192.0.2.0 netmask 0xffffff00", "second address"},
	{"192.0.2.0 0xffffff00", "second address"},
	{"192.0.2.0 Netmask 24", `"Netmask 24" may be a part of the entry`},
	{"192.0.2.4 - 10", `"- 10" may be a part of the entry`},
	{"192.0.2.4 -10 scanner", `write FIRST-LAST, ADDRESS/LENGTH, or "#" before a remark`},
	{"192.0.2.4 to 10.", "may be a part of the entry"},
	{"192.0.2.4 \u2013 10", "may be a part of the entry"},
	{"192.0.2.0 , 24", "may be a part of the entry"},
	{"2001:db8:: | 48", "may be a part of the entry"},
	{"> 192.0.2.0 prefix 24", "may be a part of the entry"},
	{"tcp 192.0.2.1:* > 198.51.100.7:443 - 445", "may be a part of the entry"},
	{"tcp 192.0.2.1:* > 198.51.100.7:443 /24", "may be a part of the entry"},

	{"192.0.2.0 0.0.0.255", "second address"},
	{"192.0.2.0 255.255.255.0 192.0.3.0", "second address"},
	{"192.0.2.0-192.0.2.255 255.255.255.0", "second address"},
	{"192.0.2.0\t192.0.2.255\t24", "second address"},
	{"192.0.2.1 2001:db8::1", "second address"},
	{"192.0.2.1 198.51.100.7, 203.0.113.9", "second address"},
	{"192.0.2.1 198.51.100.1-198.51.100.9", "second address"},
	{"192.0.2.1-192.0.2.3 198.51.100.1-198.51.100.9", "second address"},
	{"2001:db8::1 2001:db8:1::1-2001:db8:1::9", "second address"},
	{"192.0.2.1 198.51.100.0/255.255.255.0", "second address"},
	{"> 192.0.2.1 198.51.100.1-198.51.100.9", "second address"},
	{"192.0.2.1-192.0.2.3 192.0.2.9", "second address"},
	{"> 192.0.2.1 192.0.2.2", "second address"},
	{"192.0.2.1 > 198.51.100.7", `stray ">"`},
	{"192.0.2.1\r198.51.100.7", "carriage return"},
	{"# comment\r198.51.100.7", "carriage return"},
	{strings.Repeat("1", maxLine+1), "longer than 4096 bytes"},
	{"192.0.2.1 " + strings.Repeat("x", maxLine), "longer than 4096 bytes"},
	{"#" + strings.Repeat("x", maxLine), "longer than 4096 bytes"},

	{"Deny from 1.2.3.0/24", `"Deny" is neither an address nor a protocol`},
	{"<html>", `"<html>" is neither an address nor a protocol`},
	{"12345", `"12345" is neither an address nor a protocol`},
	{"tcp", `no ">" in the flow`},
	{"tcp 192.0.2.1:* 198.51.100.7:443", `no ">" in the flow`},
	{"tcp 192.0.2.1:* x > 198.51.100.7:443", `"x" before the ">"`},
	{"tcp > 198.51.100.7:443", "source: no port"},
	{"tcp 192.0.2.1:* >", "destination: no port"},
	{"tcp 192.0.2.1 > 198.51.100.7:443", "source: no port"},
	{"tcp 192.0.2.1:* > [2001:db8::1]", "destination: no port"},
	{"tcp 192.0.2.1:x > 198.51.100.7:443", `source: "x" is not a port`},
	{"tcp 192.0.2.1:* > 198.51.100.7:65536", "destination: \"65536\" is not a port"},
	{"tcp 192.0.2.1:* > 198.51.100.7:-1", "not a port"},
	{"tcp 192.0.2.1:* > 198.51.100.7:080", "not a port"},
	{"tcp 192.0.2.1:* > 198.51.100.7:", "not a port"},
	{"tcp 192.0.2.1:* > 198.51.100.7:81-80", "destination: the range of ports ends before it starts"},
	{"tcp 192.0.2.1:81-80 > 198.51.100.7:*", "source: the range of ports ends before it starts"},
	{"tcp *:* > *:1-", `destination: "1-" is not a port`},
	{"tcp *:* > *:1-65536", `destination: "1-65536" is not a port`},
	{"tcp *:* > *:1-2-3", `destination: "1-2-3" is not a port`},
	{"tcp *:* > *:*-3", `destination: "*-3" is not a port`},
	{"tcp *:* > *:0-2048", "the ports make 4098 entries, 4096 at most"},
	{"tcp *:0-65535 > 198.51.100.7:0-65535", "the ports make 4294967296 entries, 4096 at most"},
	{"icmp *:* > *:1-2", "protocol icmp has no ports"},
	{"tcp 192.0.2.1:* > 198.51.100.7:443 198.51.100.8", "second address"},
	{"tcp 192.0.2.1:* > 198.51.100.7:443 198.51.100.8:443", "second address"},
	{"tcp 192.0.2.1/24:* > 198.51.100.7:443", "source: host bits"},
	{"tcp 192.0.2.1:* > [198.51.100.7]:443", "destination: write IPv6 in brackets"},
	{"tcp 2001:db8::1:* > *:443", "source: write IPv6 in brackets"},
	{"tcp [2001:db8::1:* > *:443", "brackets"},
	{"tcp [*]:* > *:443", "brackets"},
	{"tcp 192.0.2.1:* > [2001:db8::1]:443", "mixed"},
	{"tcp [fe80::1%eth0]:* > *:443", "zones"},
	{"icmp 192.0.2.1:* > 198.51.100.7:8", "protocol icmp has no ports"},
	{"47 192.0.2.1:1 > 198.51.100.7:*", "protocol 47 has no ports"},
	{"256 192.0.2.1:* > 198.51.100.7:*", "neither"},
	{"tcp 192.0.2.1:* > x > 198.51.100.7:443", `stray ">"`},
	{"TCP 192.0.2.1:* > 198.51.100.7:443", "neither"},
	{">", "not an address"},
	{"> *", "not an address"},
	{"> 192.0.2.1/24", "host bits"},
	{"> 192.0.2.1-192.0.2.2", "not an address"},
}

func TestGoodLines(t *testing.T) {
	for _, c := range good {
		e, r, err := Parse("f", strings.NewReader(c.line), Options{})
		if err != nil {
			t.Errorf("%q: %v", c.line, err)
			continue
		}
		if got := strings.Join(strs(e), ", "); got != c.want {
			t.Errorf("%q: got %q, want %q", c.line, got, c.want)
		}
		wantGood := 1
		if c.want == "" {
			wantGood = 0
		}
		if r.Good != wantGood || r.Bad != 0 {
			t.Errorf("%q: %d good and %d bad lines", c.line, r.Good, r.Bad)
		}
	}
}

// A range of ports lists each of them, and no other, up to the bound of a line.
func TestRangesOfPorts(t *testing.T) {
	for text, want := range map[string]struct{ flows, first, last int }{
		"tcp *:* > *:1000-2000":                 {2002, 1000, 2000},
		"tcp *:* > *:0-2047":                    {4096, 0, 2047},
		"udp 192.0.2.0/24:* > *:61440-65535":    {4096, 61440, 65535},
		"udp 192.0.2.0/24:1-4 > *:64512-65535":  {4096, 64512, 65535},
		"sctp [2001:db8::1]:* > *:32768-32768":  {1, 32768, 32768},
		"any 192.0.2.1:* > 198.51.100.7:80-255": {176, 80, 255},
	} {
		e, err := ParseEntry(text)
		if err != nil || len(e.Flows) != want.flows || e.Len() != want.flows {
			t.Errorf("%q: %d entries, %v, want %d", text, e.Len(), err, want.flows)
			continue
		}
		seen := make(map[key.Key]bool)
		for _, k := range e.Flows {
			if port := int(k.DstPort); port < want.first || port > want.last || k.Fields&key.FieldDstPort == 0 {
				t.Errorf("%q: %v", text, k)
			}
			seen[k] = true
		}
		if len(seen) != want.flows {
			t.Errorf("%q: %d different entries, want %d", text, len(seen), want.flows)
		}
	}
}

func TestIgnorePorts(t *testing.T) {
	for line, want := range map[string]string{
		"192.0.2.1:443":             "192.0.2.1",
		"192.0.2.1|443 c2":          "192.0.2.1",
		"192[.]0[.]2[.]1:443":       "192.0.2.1",
		"[2001:db8::1]:443":         "2001:db8::1",
		"2001:db8::1|443":           "2001:db8::1",
		"2001:db8::1":               "2001:db8::1",
		"192.0.2.1":                 "192.0.2.1",
		"tcp 192.0.2.1:443 > *:*":   "tcp 192.0.2.1:443 > 0.0.0.0/0:*",
		"192.0.2.1:65536":           "",
		"192.0.2.1:":                "",
		"192.0.2.1:443 192.0.2.2:1": "",
	} {
		e, r, err := Parse("f", strings.NewReader(line), Options{IgnorePorts: true, MaxBad: 1})
		if got := strings.Join(strs(e), ", "); err != nil || got != want || r.Bad == 0 != (want != "") {
			t.Errorf("%q: got %q, want %q; %+v, %v", line, got, want, r, err)
		}
	}
}

func TestBadLines(t *testing.T) {
	for _, c := range bad {
		e, r, err := Parse("f", strings.NewReader("\n"+c.line), Options{MaxBad: 1})
		if err != nil || e.Len() != 0 || r.Bad != 1 || r.Good != 0 || len(r.Errors) != 1 {
			t.Errorf("%.80q: got entries %v, report %+v, error %v", c.line, strs(e), r, err)
			continue
		}
		le := r.Errors[0]
		if !strings.Contains(le.Err.Error(), c.reason) {
			t.Errorf("%.80q: reason %q, want %q", c.line, le.Err, c.reason)
		}
		if le.File != "f" || le.Line != 2 {
			t.Errorf("%.80q: placed at %s:%d, want f:2", c.line, le.File, le.Line)
		}
		if n := len(le.Error()); n > 300 {
			t.Errorf("%.80q: the error has %d bytes", c.line, n)
		}
	}
}

func TestLineErrorText(t *testing.T) {
	_, r, _ := Parse("feed.txt", strings.NewReader("1.1.1.1\n1.2.3.4/8 remark\n"), Options{MaxBad: 1})
	const want = `feed.txt:2: host bits set beyond /8: write 1.0.0.0/8 or 1.2.3.4, or set lenient: "1.2.3.4/8 remark"`
	if len(r.Errors) != 1 || r.Errors[0].Error() != want {
		t.Errorf("got %v, want %s", r.Errors, want)
	}
}

func TestLenient(t *testing.T) {
	for line, want := range map[string]string{
		"192.0.2.1/24":                         "192.0.2.0/24",
		"2001:db8::1/64":                       "2001:db8::/64",
		"::ffff:192.0.2.1/120":                 "192.0.2.0/24",
		"::ffff:192.0.2.1/96":                  "::ffff:0.0.0.0/96",
		"::ffff:192.0.2.1/90":                  "::ffc0:0:0/90",
		"tcp 192.0.2.1/24:* > 198.51.100.7:80": "tcp 192.0.2.0/24:* > 198.51.100.7:80",
		"> 192.0.2.1/24":                       "> 192.0.2.0/24",
	} {
		e, _, err := Parse("f", strings.NewReader(line), Options{Lenient: true})
		if got := strings.Join(strs(e), ", "); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", line, got, err, want)
		}
	}
}

func TestMaxBad(t *testing.T) {
	text := func(good, bad int) string {
		return "# comment\n\n" + strings.Repeat("192.0.2.1\n", good) + strings.Repeat("nonsense\n", bad)
	}
	for _, c := range []struct {
		good, bad int
		maxBad    float64
		refused   bool
	}{
		{95, 5, 0, false},
		{94, 6, 0, true},
		{0, 0, 0, false},
		{0, 1, 0, true},
		{0, 1, 1, false},
		{1, 1, 0.5, false},
		{1, 2, 0.5, true},
		{1000, 1, -1, true},
		{1000, 0, -1, false},
		{1000, 30, 0.5, false},
	} {
		e, r, err := Parse("feed", strings.NewReader(text(c.good, c.bad)), Options{MaxBad: c.maxBad})
		if errors.Is(err, ErrTooManyBad) != c.refused || err != nil && !c.refused {
			t.Errorf("%+v: error %v", c, err)
		}
		if c.refused == (e.Len() > 0) && c.good > 0 {
			t.Errorf("%+v: %d entries", c, e.Len())
		}
		want := Report{File: "feed", Lines: 2 + c.good + c.bad, Good: c.good, Bad: c.bad, Errors: r.Errors}
		if !reflect.DeepEqual(r, want) || len(r.Errors) != min(c.bad, MaxErrors) {
			t.Errorf("%+v: report %+v", c, r)
		}
		var le LineError
		if c.refused && (!errors.As(err, &le) || le.Line != 3+c.good) {
			t.Errorf("%+v: the error does not place the first bad line: %v", c, err)
		}
	}
}

func zipped(t testing.TB, zip string, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	switch zip {
	case "gzip":
		w = gzip.NewWriter(&b)
	case "zstd":
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	default:
		return text
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestEncodings checks that compression, line ends, byte order mark and the end
// of the last line do not matter.
func TestEncodings(t *testing.T) {
	long.Seconds(t)
	var text []byte
	rng := rand.New(rand.NewPCG(1, 1))
	for range 50_000 {
		text = fmt.Appendf(text, "%s\n", randomLine(rng))
	}
	want, wantReport, err := Parse("f", bytes.NewReader(text), Options{MaxBad: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, zip := range []string{"", "gzip", "zstd"} {
		for _, mark := range []string{"", "\ufeff"} {
			for _, lineEnd := range []string{"\n", "\r\n"} {
				for _, last := range []string{"", lineEnd} {
					data := bytes.ReplaceAll(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"), []byte(lineEnd))
					data = slices.Concat([]byte(mark), data, []byte(last))
					got, r, err := Parse("f", bytes.NewReader(zipped(t, zip, data)), Options{MaxBad: 1})
					if err != nil {
						t.Fatal(err)
					}
					if !equal(got, want) || !reflect.DeepEqual(r, wantReport) {
						t.Errorf("zip %q, mark %q, line end %q, last %q: got another result", zip, mark, lineEnd, last)
					}
				}
			}
		}
	}
}

// TestTruncated checks that no truncated compressed file passes for complete,
// wherever it ends.
func TestTruncated(t *testing.T) {
	var text []byte
	for i := range 300 {
		text = fmt.Appendf(text, "192.0.2.%d\n", i%256)
	}
	for _, zip := range []string{"gzip", "zstd"} {
		data := zipped(t, zip, text)
		if e, _, err := Parse("f", bytes.NewReader(data), Options{}); err != nil || e.Len() != 300 {
			t.Fatalf("%s, whole: %d entries, error %v", zip, e.Len(), err)
		}
		for n := 1; n < len(data); n++ {
			if e, _, err := Parse("f", bytes.NewReader(data[:n]), Options{}); err == nil || e.Len() != 0 {
				t.Fatalf("%s, %d bytes of %d: %d entries, error %v", zip, n, len(data), e.Len(), err)
			} else if n > 20 && !strings.Contains(err.Error(), "cut off after line ") {
				t.Fatalf("%s, %d bytes of %d: error %v", zip, n, len(data), err)
			}
		}
	}
}

func TestConcatenatedMembers(t *testing.T) {
	for _, zip := range []string{"gzip", "zstd"} {
		data := slices.Concat(zipped(t, zip, []byte("192.0.2.1\n")), zipped(t, zip, []byte("192.0.2.2\n")))
		e, _, err := Parse("f", bytes.NewReader(data), Options{})
		if err != nil || e.Len() != 2 {
			t.Errorf("%s: got %v, %v", zip, strs(e), err)
		}
	}
}

func TestUnreadable(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	if _, _, err := Load(missing, Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if _, _, err := Load(t.TempDir(), Options{}); err == nil {
		t.Error("a directory was accepted as a list")
	}
	broken := errors.New("broken")
	many := strings.NewReader(strings.Repeat("192.0.2.1\n", 100_000))
	e, r, err := Parse("f", io.MultiReader(many, errReader{broken}), Options{})
	if !errors.Is(err, broken) || e.Len() != 0 {
		t.Errorf("got %d entries, report %+v, error %v", e.Len(), r, err)
	}
	for l, err := range scanFile(missing, Options{}) {
		if !errors.Is(err, fs.ErrNotExist) || l.Number != 0 {
			t.Errorf("scan of a missing file: %+v, %v", l, err)
		}
	}
	if _, _, err := Parse("f", errReader{nil}, Options{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that never returns data: %v", err)
	}
}

// errReader reads nothing and returns an error, which may be nil.
type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// TestOverlong checks that a line of any length costs no memory and that the
// lines around it keep their numbers.
func TestOverlong(t *testing.T) {
	for _, n := range []int{maxLine + 1, chunkLen - 20, chunkLen, chunkLen + 1, 3*chunkLen + 7, 8 << 20} {
		text := "192.0.2.1\n" + strings.Repeat("1", n) + "\n192.0.2.2\nnonsense\n192.0.2.3"
		e, r, err := Parse("f", strings.NewReader(text), Options{MaxBad: 1})
		if err != nil || len(e.V4) != 3 || r.Lines != 5 || r.Bad != 2 {
			t.Fatalf("%d bytes: %v, %+v, %v", n, strs(e), r, err)
		}
		if r.Errors[0].Line != 2 || !errors.Is(r.Errors[0], errOverlong) || r.Errors[1].Line != 4 {
			t.Errorf("%d bytes: %v", n, r.Errors)
		}
	}
	// At the very end, and as the only line.
	for _, text := range []string{"192.0.2.1\n" + strings.Repeat("1", 2*chunkLen), strings.Repeat("1", chunkLen)} {
		_, r, err := Parse("f", strings.NewReader(text), Options{MaxBad: 1})
		if err != nil || r.Bad != 1 || !errors.Is(r.Errors[0], errOverlong) {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// scanFile is ScanReader for the file at path.
func scanFile(path string, o Options) iter.Seq2[Line, error] {
	return func(yield func(Line, error) bool) {
		f, _, err := open(path)
		if err != nil {
			yield(Line{}, err)
			return
		}
		defer f.Close()
		ScanReader(path, f, o)(yield)
	}
}

func TestScan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list.gz")
	text := "# head\n192.0.2.1\r\nnonsense\n192.0.2.5-192.0.2.6 remark\n\nudp *:* > *:53"
	must.Write(t, path, zipped(t, "gzip", []byte(text)))
	var got []string
	for l, err := range scanFile(path, Options{}) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%d %s: %s", l.Number, l.Text, strings.Join(strs(l.Entries), ", ")))
	}
	want := []string{
		"2 192.0.2.1: 192.0.2.1",
		"4 192.0.2.5-192.0.2.6 remark: 192.0.2.5, 192.0.2.6",
		"6 udp *:* > *:53: udp 0.0.0.0/0:* > 0.0.0.0/0:53, udp [::/0]:* > [::/0]:53",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for range scanFile(path, Options{}) {
		break // ends the iteration without an error
	}
}

func TestProgress(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list")
	text := bytes.Repeat([]byte("192.0.2.1\n"), 200_000)
	must.Write(t, path, text)
	var last int64
	calls := 0
	_, _, err := Load(path, Options{Progress: func(done, total int64) {
		calls++
		if done < last || total != int64(len(text)) {
			t.Errorf("%d of %d after %d", done, total, last)
		}
		last = done
	}})
	if err != nil || calls < 5 || last != int64(len(text)) {
		t.Errorf("%d calls, %d bytes, error %v", calls, last, err)
	}
}

// Add is ParseEntry of a key's text.
func TestAdd(t *testing.T) {
	rng := seed.New(t)
	n := 0
	for range 20_000 {
		read, err := ParseEntry(string(randomLine(rng)))
		if err != nil {
			continue
		}
		for k := range read.Set().All() {
			if k.Src.Is4In6() || k.Dst.Is4In6() {
				continue // of a range across ::ffff:0:0/96, whose text is read as IPv4
			}
			var e list.Entries
			e.Add(k)
			want, err := ParseEntry(k.String())
			if err != nil || !reflect.DeepEqual(e, want) {
				t.Fatalf("%v: %+v, want %+v, %v", k, e, want, err)
			}
			n++
		}
	}
	if n < 10_000 {
		t.Errorf("%d keys", n)
	}
}

// randomLine returns a line of any kind, sometimes mutated.
func randomLine(rng *rand.Rand) []byte {
	var b []byte
	switch n := rng.IntN(20); {
	case n < 8:
		b = randomV4(rng).AppendTo(b)
	case n < 12:
		p, _ := randomV4(rng).Prefix(rng.IntN(33))
		b = p.AppendTo(b)
	case n == 12:
		p, _ := randomV6(rng).Prefix(rng.IntN(129))
		b = p.AppendTo(b)
	case n < 16:
		b = append(b, good[rng.IntN(len(good))].line...)
	case n == 16:
		line := bad[rng.IntN(len(bad))].line
		b = append(b, line...)
	default:
		b = randomV6(rng).AppendTo(b)
	}
	b = bytes.TrimRight(b, "\r") // the caller adds line ends
	if rng.IntN(10) == 0 {
		b = mutate(rng, b)
	}
	return b
}

// mutate changes, removes or adds a byte of b.
func mutate(rng *rand.Rand, b []byte) []byte {
	const alphabet = "0123456789abcdef.:/-*>[] #x,"
	i, c := rng.IntN(len(b)+1), alphabet[rng.IntN(len(alphabet))]
	switch rng.IntN(3) {
	case 0:
		return slices.Insert(b, i, c)
	case 1:
		if i < len(b) {
			b[i] = c
		}
	default:
		if i < len(b) {
			return slices.Delete(b, i, i+1)
		}
	}
	return b
}

func randomV4(rng *rand.Rand) netip.Addr { return list.V4(rng.Uint32(), 32).Prefix().Addr() }

func randomV6(rng *rand.Rand) netip.Addr {
	var b [16]byte
	for i := range b {
		if rng.IntN(3) > 0 {
			b[i] = byte(rng.Uint32())
		}
	}
	return netip.AddrFrom16(b)
}

// TestParallel compares the parallel reader with a plain loop over lines, for
// various numbers of goroutines and chunk boundaries.
func TestParallel(t *testing.T) {
	var text []byte
	rng := rand.New(rand.NewPCG(2, 2))
	for range 20_000 {
		text = append(append(text, randomLine(rng)...), '\n')
	}
	want, wantReport := serial("f", text, false)
	for _, workers := range []int{1, 2, 3, 8} {
		for _, chunkLen := range []int{maxLine + 2, 5000, 65536, 4 << 20} {
			got, r, err := collect("f", bytes.NewReader(text), int64(len(text)), Options{MaxBad: 1}, workers, chunkLen)
			if err != nil {
				t.Fatal(err)
			}
			if !equal(got, want) || !reflect.DeepEqual(unranked(r), wantReport) {
				t.Errorf("%d workers, chunks of %d: got another result than serially", workers, chunkLen)
			}
		}
	}
}

// serial parses a text line by line.
func serial(name string, text []byte, lenient bool) (list.Entries, Report) {
	p := parser{lenient: lenient}
	r := Report{File: name}
	lines := strings.Split(strings.TrimPrefix(string(text), "\ufeff"), "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	for i, line := range lines {
		line = strings.TrimRight(line, "\r")
		r.Lines++
		ok, err := p.line([]byte(line))
		switch {
		case err != nil:
			r.Bad++
			if len(r.Errors) < MaxErrors {
				r.Errors = append(r.Errors, LineError{name, i + 1, shorten(line), err})
			}
		case ok:
			r.Good++
		}
	}
	return p.out, r
}

// unranked returns a report without its widest lines: which of equal lines are among them depends on
// where chunks end. TestWidest tests them.
func unranked(r Report) Report {
	r.Widest = [2][]WideLine{}
	return r
}

// equal reports whether entries are the same, each as often as it may be.
func equal(a, b list.Entries) bool {
	return slices.Equal(distinct(a.V4, list.V4Prefix.Compare), distinct(b.V4, list.V4Prefix.Compare)) &&
		slices.Equal(distinct(a.V6, netip.Prefix.Compare), distinct(b.V6, netip.Prefix.Compare)) &&
		slices.Equal(distinct(a.Flows, key.Key.Compare), distinct(b.Flows, key.Key.Compare))
}

func distinct[T comparable](all []T, compare func(a, b T) int) []T {
	all = slices.Clone(all)
	slices.SortFunc(all, compare)
	return slices.Compact(all)
}

// TestExtend checks that a wrong guess of the size neither makes copying
// quadratic nor allocates without bound.
func TestExtend(t *testing.T) {
	next := make([]list.V4Prefix, 100)
	for _, size := range []int64{0, 1, 1 << 20, 1 << 50} {
		var s []list.V4Prefix
		copies := 0
		for i := range 10_000 {
			before := cap(s)
			s = extend(s, next, int64(i+1), size)
			if cap(s) != before {
				copies++
			}
			if cap(s) > 7*len(s) { // sixfold, plus the allocator's rounding
				t.Fatalf("size %d: room for %d with %d entries", size, cap(s), len(s))
			}
		}
		if len(s) != 1_000_000 || copies > 60 {
			t.Errorf("size %d: %d entries, copied %d times", size, len(s), copies)
		}
	}
}

// checkScanV4 compares scanV4 with netip.
func checkScanV4(t *testing.T, s string) {
	t.Helper()
	var want netip.Prefix
	if a, err := netip.ParseAddr(s); err == nil && a.Is4() {
		want = netip.PrefixFrom(a, 32)
	} else if p, err := netip.ParsePrefix(s); err == nil && p.Addr().Is4() {
		want = p
	}
	a, bits, n := scanV4(s)
	if whole := n > 0 && n == len(s); whole != want.IsValid() || whole && list.V4(a, bits).Prefix() != want {
		t.Fatalf("%q: got %v/%d from %d bytes, netip says %v", s, a, bits, n, want)
	}
}

func TestScanV4(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 300_000 {
		b := randomV4(rng).AppendTo(nil)
		if rng.IntN(2) == 0 {
			b = fmt.Appendf(b, "/%d", rng.IntN(36))
		}
		for range rng.IntN(3) {
			b = mutate(rng, b)
		}
		checkScanV4(t, string(b))
	}
}

// TestPrefixes compares the decomposition of ranges with a brute-force oracle.
func TestPrefixes(t *testing.T) {
	// All ranges of a small block: the prefixes are contiguous, and no two
	// adjacent ones could be joined.
	check := func(first, last netip.Addr) int {
		t.Helper()
		next, n := first, 0
		var before netip.Prefix
		for _, p := range netipx.IPRangeFrom(first, last).Prefixes() {
			if p != p.Masked() || p.Addr() != next {
				t.Fatalf("%v-%v: %v follows %v", first, last, p, before)
			}
			if before.IsValid() && before.Bits() == p.Bits() {
				if whole, _ := p.Addr().Prefix(p.Bits() - 1); whole == netip.PrefixFrom(before.Addr(), p.Bits()-1) {
					t.Fatalf("%v-%v: %v and %v should be one prefix", first, last, before, p)
				}
			}
			end := p.Addr()
			for i := p.Bits(); i < end.BitLen(); i++ { // bit by bit, unlike netipx
				b := end.AsSlice()
				b[i/8] |= 0x80 >> (i % 8)
				end, _ = netip.AddrFromSlice(b)
			}
			before, next = p, end.Next()
			n++
			if end == last {
				return n
			}
		}
		t.Fatalf("%v-%v: the prefixes end at %v", first, last, before)
		return 0
	}
	for _, base := range []netip.Addr{netip.MustParseAddr("192.0.2.0"), netip.MustParseAddr("2001:db8::")} {
		for i := range 64 {
			for j := i; j < 64; j++ {
				b, c := base.AsSlice(), base.AsSlice()
				b[len(b)-1], c[len(c)-1] = byte(i), byte(j)
				first, _ := netip.AddrFromSlice(b)
				last, _ := netip.AddrFromSlice(c)
				check(first, last)
			}
		}
	}
	rng := rand.New(rand.NewPCG(4, 4))
	for range 2000 {
		for _, r := range [][2]netip.Addr{{randomV4(rng), randomV4(rng)}, {randomV6(rng), randomV6(rng)}} {
			if r[1].Less(r[0]) {
				r[0], r[1] = r[1], r[0]
			}
			check(r[0], r[1])
		}
	}
	for _, c := range []struct {
		first, last string
		want        int
	}{
		{"0.0.0.0", "255.255.255.255", 1},
		{"0.0.0.1", "255.255.255.254", 62},
		{"255.255.255.255", "255.255.255.255", 1},
		{"::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 1},
		{"::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe", 254},
		{"::", "::ffff:ffff:ffff:ffff", 1},
		{"::1", "0:0:0:1::", 65},
	} {
		if n := check(netip.MustParseAddr(c.first), netip.MustParseAddr(c.last)); n != c.want {
			t.Errorf("%s-%s: %d prefixes, want %d", c.first, c.last, n, c.want)
		}
	}
}

// checkEntries checks the invariants of entries, among them that their text
// parses to just them.
func checkEntries(t *testing.T, e list.Entries) {
	t.Helper()
	back := func(text string) list.Entries {
		e, r := serial("f", []byte(text), false)
		if r.Good != 1 || e.Len() != 1 {
			t.Fatalf("%q is read as %v, %v", text, strs(e), r.Errors)
		}
		return e
	}
	for _, p := range e.V4 {
		if p.Bits() > 32 || p.Addr()<<p.Bits() != 0 {
			t.Fatalf("%#x is not a masked prefix", uint64(p))
		}
		if got := back(p.String()); len(got.V4) != 1 || got.V4[0] != p {
			t.Fatalf("%v parses as %v", p, strs(got))
		}
	}
	for _, p := range e.V6 {
		if p != p.Masked() || p.Addr().Is4() || p.Addr().Is4In6() && p.Bits() > 96 {
			t.Fatalf("%v is not masked or not IPv6", p)
		}
		if got := back(key.Source(p).String()); len(got.V6) != 1 || got.V6[0] != p {
			t.Fatalf("%v parses as %v", p, strs(got))
		}
	}
	for _, k := range e.Flows {
		if got, err := key.Parse(k.Append(nil)); err != nil || got != k {
			t.Fatalf("%v is not canonical: serialised it is %v, %v", k, got, err)
		}
		got := back(k.String())
		if !k.Tuple() && k.DstBits == 0 {
			// A flow with only a source is written like an address.
			pre := netip.PrefixFrom(k.Src, int(k.SrcBits))
			if v4 := got.V4; len(v4) == 1 && v4[0].Prefix() == pre || len(got.V6) == 1 && got.V6[0] == pre {
				continue
			}
		}
		if len(got.Flows) != 1 || got.Flows[0] != k {
			t.Fatalf("%v parses as %v", k, strs(got))
		}
	}
}

func TestRoundTrip(t *testing.T) {
	for _, c := range good {
		e, _, err := Parse("f", strings.NewReader(c.line), Options{})
		if err != nil {
			t.Fatal(err)
		}
		checkEntries(t, e)
	}
	rng := rand.New(rand.NewPCG(5, 5))
	protos := []uint8{1, 6, 17, 47, 58, 132}
	for range 20_000 {
		tuple := key.Tuple{
			Src: randomV4(rng), Dst: randomV4(rng), Proto: protos[rng.IntN(len(protos))],
			HasPorts: true, SrcPort: uint16(rng.Uint32()), DstPort: uint16(rng.Uint32()),
		}
		s := key.Shape{Fields: key.Fields(rng.IntN(8) << 1), SrcBits: uint8(rng.IntN(33)), DstBits: uint8(rng.IntN(33))}
		if rng.IntN(2) == 0 {
			tuple.Src, tuple.Dst = randomV6(rng), randomV6(rng)
			s.Fields |= key.FieldV6
			s.SrcBits, s.DstBits = uint8(rng.IntN(129)), uint8(rng.IntN(129))
		}
		if s.Fields&key.FieldProto != 0 && !key.HasPorts(tuple.Proto) {
			s.Fields &^= key.FieldSrcPort | key.FieldDstPort
		}
		k, _ := s.Of(tuple)
		checkEntries(t, list.Entries{Flows: []key.Key{k}})
	}
}

func FuzzParse(f *testing.F) {
	for _, c := range good {
		f.Add([]byte(c.line), false)
	}
	for _, c := range bad {
		f.Add([]byte(c.line), true)
	}
	f.Add([]byte("\ufeff# head\r\n192.0.2.1\t7\r\nnonsense\n\n2001:db8::/32"), false)
	f.Add(zipped(f, "gzip", []byte("192.0.2.1\n")), false)
	f.Add(zipped(f, "zstd", []byte("192.0.2.1\n")), false)
	files, err := filepath.Glob("../../feed/testdata/field/*")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d files: %v", len(files), err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, data []byte, lenient bool) {
		o := Options{Lenient: lenient, MaxBad: 1}
		parse := func(text []byte) (list.Entries, Report, error) { // in chunks of minimum length
			return collect("f", bytes.NewReader(text), int64(len(text)), o, 2, maxLine+2)
		}
		e, r, err := parse(data)
		if err != nil {
			if e.Len() != 0 {
				t.Fatalf("rejected with entries: %v", err)
			}
			return
		}
		if r.Good+r.Bad > r.Lines || len(r.Errors) != min(r.Bad, MaxErrors) || e.Len() == 0 && r.Good > 0 {
			t.Fatalf("%d entries from %+v", e.Len(), r)
		}
		checkEntries(t, e)
		if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) || bytes.HasPrefix(data, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			return
		}
		if want, wantReport := serial("f", data, lenient); !equal(e, want) || !reflect.DeepEqual(unranked(r), wantReport) {
			t.Fatalf("got %v, %+v, serially %v, %+v", strs(e), r, strs(want), wantReport)
		}
		// The same text repeated, with chunk boundaries anywhere.
		if e.Len() > 1000 {
			return
		}
		long := bytes.Repeat(append(data, '\n'), 1+2*maxLine/(len(data)+1))
		want, wantReport := serial("f", long, lenient)
		got, report, err := parse(long)
		if err != nil || !equal(got, want) || !reflect.DeepEqual(unranked(report), wantReport) {
			t.Fatalf("repeated: got %+v, serially %+v, error %v", report, wantReport, err)
		}
	})
}

func FuzzScanV4(f *testing.F) {
	for _, c := range good {
		f.Add(c.line)
	}
	for _, c := range bad {
		f.Add(c.line)
	}
	f.Fuzz(func(t *testing.T, s string) { checkScanV4(t, s) })
}

// benchmarkText returns a list of n lines: IPv4 addresses, a quarter of them
// prefixes.
func benchmarkText(n int) []byte {
	var text []byte
	rng := rand.New(rand.NewPCG(6, 6))
	for i := range n {
		a, bits := rng.Uint32(), 32
		if i%4 == 0 {
			bits = 12 + rng.IntN(20)
			a = a >> (32 - bits) << (32 - bits)
		}
		text = append(append(text, list.V4(a, bits).String()...), '\n')
	}
	return text
}

// benchmarks returns texts with the given number of lines.
func benchmarks(lines int) map[string][]byte {
	plain := benchmarkText(lines)
	return map[string][]byte{
		"plain":   plain,
		"remarks": bytes.ReplaceAll(plain, []byte("\n"), []byte("\t7\n")),
		"ip6":     bytes.Repeat([]byte("2001:db8:1234:5678::9abc\n2001:db8:1234:5678::9abd\n"), lines/2),
		"flows":   bytes.Repeat([]byte("tcp 192.0.2.0/24:* > 198.51.100.7:443\ntcp 192.0.2.0/24:* > 198.51.100.7:444\n"), lines/2),
	}
}

// BenchmarkLoad loads files on all processors.
func BenchmarkLoad(b *testing.B) {
	const lines = 1_000_000
	texts := benchmarks(lines)
	texts["gzip"], texts["zstd"] = texts["plain"], texts["plain"]
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		path := filepath.Join(b.TempDir(), name)
		if err := os.WriteFile(path, zipped(b, name, texts[name]), 0o600); err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(texts[name])))
			b.ReportAllocs()
			for b.Loop() {
				e, _, err := Load(path, Options{})
				if err != nil || e.Len() != lines {
					b.Fatal(e.Len(), err)
				}
			}
			b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}

// BenchmarkLine parses lines on one processor, reading and collecting left out.
func BenchmarkLine(b *testing.B) {
	const lines = 10_000
	texts := benchmarks(lines)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		b.Run(name, func(b *testing.B) {
			c := chunk{text: texts[name]}
			b.SetBytes(int64(len(c.text)))
			for b.Loop() {
				c.parse()
			}
			b.ReportMetric(float64(lines)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}

// No text with a NUL byte is a list, wherever it is.
func TestBinary(t *testing.T) {
	whole := strings.Repeat("192.0.2.1 remark\n", 40_000) // of several chunks
	for _, at := range []int{0, 12, len(whole) / 2, len(whole)} {
		text := whole[:at] + "\x00" + whole[at:]
		if e, _, err := Parse("f", strings.NewReader(text), Options{MaxBad: 1}); !errors.Is(err, ErrBinary) || e.Len() > 0 {
			t.Errorf("at %d: %d entries, %v", at, e.Len(), err)
		}
	}
}
