package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/export"
	"weir/control/feed"
	"weir/control/geo"
	"weir/control/notify"
	"weir/control/stage/connections"
	"weir/control/stage/digest"
	"weir/control/stage/first"
	"weir/control/stage/loop"
	"weir/control/stage/multicast"
	"weir/control/stage/police"
	"weir/control/stage/tracker"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/tests/long"
	"weir/tests/must"
)

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse("weir.yaml", []byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return c
}

func print(t *testing.T, c *Config) string {
	t.Helper()
	var b strings.Builder
	if err := c.Print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// option is a line of the example that is commented out, unlike a remark.
var option = regexp.MustCompile(`(?m)^( *)# ( *(- )?[a-z0-9_]+:( |$))`)

// everything is the example with all that is commented out.
func everything() string { return option.ReplaceAllString(string(Example), "$1$2") }

// good are configurations that are fine.
var good = map[string]string{
	"example":    string(Example),
	"everything": everything(),
	"least":      "interfaces: [eth0]",
	"null": `
interfaces:
  - name: eth0
failsafe:
trackers:
lists:
  mine:
  ours: {action: allow, sources: }`,
	"numbers": `
interfaces: [1, {name: 0x10, netns: 1e3}, "true"]
bits_per_entry: 12
max_coverage: 1
api: {group: 104}
lists:
  "2024":
    max_bad: 0
    max_shrink: 0.333
    priority: -3
    sources: [{file: /x, max_bytes: 1024}]`,
	"nothing kept": `
interfaces: [{name: eth0, required: true}]
keep: false
state_dir: ""
api: {socket: ""}
learning: {elements: 100}
lists:
  a: {required: true, sources: [{file: /x}]}`,
	"texts": `
interfaces: ["*", "eth[0-9]", "?", "-", "~", "@a", "null", "a#b", '"q"', "%x", "{a}", "0.5", "no"]
api: {group: "a: b # c"}
lists:
  a.b-c_d:
    sources:
      - url: "https://user:pass@example.com/feed?key=1&x=#y"
        headers: {X-Api-Key: "0123", Empty: "", Quote: "'\"\\", Blank: " x ", Colon: "a: b"}`,
	"trackers": `
interfaces: [eth0]
trackers:
  - {key: src, threshold: 0.1%}
  - {key: src, unit: bytes, threshold: 1.5M/s, action: limit, limit: 500/s, burst: 1500}
  - {key: dst/24, threshold: 10000/s, action: block, duration: 90m, interval: 1.5s}
  - {key: flow, threshold: 50kpps+33.3333%, memory: 1MiB}`,
	"units": `
interfaces: [eth0]
failsafe: {ports: [22/tcp, udp/53]}
trackers:
  - {key: src, threshold: 10Mbit/s, action: limit, limit: 125kB/s}
  - {key: dst, threshold: 50kpps, action: limit, duration: 1d12h}`,
	"multicast": `
interfaces: [{name: eth0, netns: lab}, {name: "veth*", netns: lab}]
multicast:
  max_groups: 3
  interfaces: [eth1, {name: eth2, groups: [239.1.2.3, "ff0e::1", 224.0.1.0]}, {name: eth3, groups: ["ff0e:0::1"]}]`,
	"loop": `
interfaces: [eth0]
loop: {node: 1, key_file: /k, false_positive_rate: 1%, edges: ["eth*"]}`,
	"notify": `
interfaces: [eth0]
notify:
  targets:
    pager: {url: "https://[::1]/x?y=z", secret: "0123456789abcdef: x", headers: {Authorization: a}, events: [heavy, surge], timeout: 1s}
    script.1: {command: /bin/true, arguments: ["-a", "b c", "1", "a\nb\n", "'\"\\", " x ", "a: b", "!"]}
    siem: {syslog: "tls://[::1]:6514", format: cef, tls: {ca: /ca}}
  surge: {rate: 50kpps, times: 0}`,
	"export": `
interfaces: [eth0]
export:
  interval: 1m
  collectors:
    a: {ipfix: "udp://192.0.2.10:4739", templates: 10s, domain: 7, enterprise: 1}
    b.c: {ipfix: "tls://flows.example.com:4740", tls: {ca: /ca, cert: /c, key: /k}}
    d: {sflow: "udp://[::1]:6343", sampling: 64, drops: notifications}`,
	"digest": `
interfaces: [eth0]
learning: {elements: 0}
digest: {rate: 1M/s, slice: 2s, false_positive_rate: 0.1%, archive: {size: 1GiB}}`,
	"formats": `
interfaces: [{name: eth0, xdp: generic}, {name: eth0, netns: lab, xdp: native}]
mode: approx
lists:
  csv: {format: {kind: csv, column: 2, last_column: "3", separator: ";"}, sources: [{file: /a}]}
  tabs: {format: {kind: csv, column: ip, separator: "\t"}, sources: [{file: /a}]}
  json: {format: {kind: json, path: ".data[].ip"}, sources: [{url: "http://[::1]:8080/a"}]}
  sets: {format: {kind: nftables, sets: [a, b]}, sources: [{directory: /d, suffixes: [.nft]}, {file: /a}], ttl: 48h}
  crowdsec: {format: {kind: crowdsec}, sources: [{url: "http://127.0.0.1:8080", headers: {X-Api-Key: k}}]}
  signed:
    sources:
      - url: https://example.com/a
        signature_url: https://example.com/a.sig
        public_key: MCowBQYDK2VwAyEAMCowBQYDK2VwAyEAMCowBQYDK0A=
      - url: https://example.com/b
        sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855`,
}

// TestRoundTrip checks that what is printed is the same configuration, and that
// the schema takes both.
func TestRoundTrip(t *testing.T) {
	for name, text := range good {
		t.Run(name, func(t *testing.T) {
			c := parse(t, text)
			printed := print(t, c)
			again := parse(t, printed)
			if !reflect.DeepEqual(again, c) {
				t.Errorf("%+v\ninstead of\n%+v\nfor\n%s", again, c, printed)
			}
			for what, text := range map[string]string{"file": text, "print": printed} {
				if err := validate(t, []byte(text)); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			for _, l := range c.Lists {
				if len(l.Sources) > 0 {
					if _, err := feed.Open(t.Context(), l.Feed(), t.TempDir()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestPrinted checks that a key is left out only where that means the same.
func TestPrinted(t *testing.T) {
	for _, v := range []any{Config{}, Interface{}, tracker.Spec{}, List{}, Source{}} {
		v := element(reflect.TypeOf(v))
		for _, f := range fields(v.Type()) {
			if f.omitEmpty && !isEmpty(v.FieldByIndex(f.index)) {
				t.Errorf("%v.%s is left out when it is zero, but its default is not", v.Type(), f.name)
			}
		}
	}
	printed := print(t, parse(t, good["least"]))
	for _, want := range []string{"interfaces:\n", "mode: exact\n", "max_coverage: 25%\n", "  half_life: 10m\n", "malformed: pass\n"} {
		if !strings.Contains(printed, want) {
			t.Errorf("%q is missing in\n%s", want, printed)
		}
	}
	if strings.Contains(printed, "trackers") || strings.Contains(printed, "client_ca") {
		t.Errorf("what is not there is printed:\n%s", printed)
	}
}

// showDefaults checks that the sections of stages show the default of each key that has one, and
// are off where they are so by default, and on where they are on.
func showDefaults(t *testing.T, sections, byDefault reflect.Value) {
	t.Helper()
	for i := range sections.NumField() {
		shown, name := sections.Field(i), sections.Type().Field(i).Name
		if shown.Kind() != reflect.Struct {
			if !shown.Equal(byDefault.Field(i)) {
				t.Errorf("%s is %v, by default %v", name, shown, byDefault.Field(i))
			}
			continue
		}
		if shown.IsZero() {
			t.Errorf("%s is not shown", name)
		}
		defaults := element(shown.Type())
		for j := range shown.NumField() {
			got, want := shown.Field(j), defaults.Field(j)
			if !want.IsZero() && !reflect.DeepEqual(got.Interface(), want.Interface()) {
				t.Errorf("%s.%s is %v, the default is %v", name, shown.Type().Field(j).Name, got, want)
			}
		}
	}
}

// TestExample checks that the example's comments state the defaults.
func TestExample(t *testing.T) {
	c, d := parse(t, everything()), Default()
	if len(c.Lists) != 20 || c.API.TLS.ClientCA == "" || len(c.Trackers) != 2 || len(c.Interfaces) != 6 {
		t.Fatalf("not all is there: %+v", c)
	}
	policed := element(reflect.TypeFor[police.Spec]()).Interface().(police.Spec)
	policed.Rate = c.Interfaces[4].Police.Rate
	if c.Interfaces[4].Police != policed {
		t.Errorf("police %+v, the defaults are %+v", c.Interfaces[4].Police, policed)
	}
	c.Interfaces, c.Monitor, c.Failsafe, c.Metrics, c.Trackers = nil, false, Failsafe{}, Metrics{}, nil
	c.API = API{Socket: c.API.Socket}
	if g, err := c.Loop.Geometry(); err != nil || g != (icarus.Geometry{Size: 256, K: 12, Confirm: 1}) {
		t.Errorf("a loop filter %+v, %v", g, err)
	}
	if unsaid := new(loop.Spec); c.Loop.Action != loop.Report || fmt.Sprint(must.Have(unsaid.Geometry())) != fmt.Sprint(must.Have(c.Loop.Geometry())) {
		t.Errorf("loops %+v, other than the defaults", c.Loop)
	}
	defaults := digest.Spec{Rate: c.Digest.Rate, Archive: digest.ArchiveSpec{Size: c.Digest.Archive.Size}}
	defaults.SetDefaults()
	defaults.Archive.SetDefaults()
	if c.Digest != defaults {
		t.Errorf("digest %+v, the defaults are %+v", c.Digest, defaults)
	}
	if c.Multicast.MaxGroups != multicast.DefaultMaxGroups {
		t.Errorf("%d groups, not as many as by default", c.Multicast.MaxGroups)
	}
	var surge notify.SurgeSpec
	surge.SetDefaults()
	script := c.Notify.Targets[1]
	if c.Notify.Surge.Times != surge.Times || script.Timeout != element(reflect.TypeFor[notify.Target]()).Interface().(notify.Target).Timeout {
		t.Errorf("notify %+v, other than the defaults", c.Notify)
	}
	fresh := element(reflect.TypeFor[first.Spec]()).Interface().(first.Spec)
	fresh.Key, fresh.Importance, fresh.Ports = c.FirstSeen.Key, c.FirstSeen.Importance, c.FirstSeen.Ports
	if !reflect.DeepEqual(c.FirstSeen, fresh) || fresh.Key == "" {
		t.Errorf("first_seen %+v, the defaults are %+v", c.FirstSeen, fresh)
	}
	passing := element(reflect.TypeFor[connections.RepliesSpec]()).Interface().(connections.RepliesSpec)
	passing.Inside = c.Replies.Inside
	if !reflect.DeepEqual(c.Replies, passing) || !c.Replies.On() {
		t.Errorf("replies %+v, the defaults are %+v", c.Replies, passing)
	}
	if c.Collateral.Sources != 1<<16 {
		t.Errorf("collateral %+v", c.Collateral)
	}
	showDefaults(t, reflect.ValueOf(c.Sections), reflect.ValueOf(d.Sections))
	flows := export.Collector{Name: "flows", IPFIX: c.Export.Collectors[0].IPFIX}
	flows.SetDefaults()
	packets := export.Collector{Name: "packets", SFlow: c.Export.Collectors[1].SFlow}
	packets.SetDefaults()
	var exported export.Spec
	if exported.SetDefaults(); c.Export.Collectors[0] != flows || c.Export.Collectors[1] != packets || c.Export.Interval != exported.Interval {
		t.Errorf("export %+v, other than the defaults", c.Export)
	}
	scan := tracker.DefaultScan("src")
	scan.Action, scan.Limit = c.Scans[0].Action, c.Scans[0].Limit
	if c.Scans[0] != scan {
		t.Errorf("scans %+v, the defaults are %+v", c.Scans[0], scan)
	}
	c.Scans = nil
	c.Sections, c.Notify, c.Geo, c.Fleet, c.Console = d.Sections, Notify{}, geo.Spec{}, Fleet{}, Console{}
	c.Export = export.Spec{}
	i := slices.IndexFunc(c.Lists, func(l List) bool { return l.Name == "feed" })
	feed := c.Lists[i]
	want := element(reflect.TypeFor[List]()).Interface().(List)
	want.Name, want.TTL, want.Sources, want.Only = feed.Name, feed.TTL, feed.Sources, feed.Only
	want.Complete(func(name string) bool { return name != "exclude_private" })
	want.Prefix6, want.Aggregate = feed.Prefix6, Aggregate{IPv4: 24, IPv6: 48, At: defaultAggregateAt}
	if !reflect.DeepEqual(feed, want) {
		t.Errorf("list %+v, the defaults are %+v", feed, want)
	}
	source := element(reflect.TypeFor[Source]()).Interface().(Source)
	if s := feed.Sources[0]; s.Timeout != source.Timeout || s.MaxBytes != source.MaxBytes {
		t.Errorf("source %+v, the defaults are %+v", s, source)
	}
	c.Lists = nil
	if !reflect.DeepEqual(c, d) {
		t.Errorf("%+v\nthe defaults are\n%+v", c, d)
	}
	if string(d.API.Socket) != api.DefaultSocket {
		t.Errorf("the socket is %s, commands look for %s", d.API.Socket, api.DefaultSocket)
	}
}

// CrowdSec is read every ten seconds, unless the file says otherwise.
func TestCrowdSecDefaults(t *testing.T) {
	c := parse(t, `
interfaces: [eth0]
lists:
  a: {format: crowdsec, sources: [{url: "http://127.0.0.1:8080"}]}
  b: {interval: 1h, jitter: 1m, format: {kind: crowdsec}, sources: [{url: "http://127.0.0.1:8080"}]}
  c: {sources: [{url: "http://127.0.0.1:8080"}]}`)
	for i, want := range []string{"10s 0s", "1h0m0s 1m0s", "1h0m0s 1m0s"} {
		if l := c.Lists[i]; fmt.Sprint(time.Duration(l.Interval), " ", time.Duration(l.Jitter)) != want {
			t.Errorf("%s: every %v and %v, want %s", l.Name, l.Interval, l.Jitter, want)
		}
	}
}

func TestValues(t *testing.T) {
	c := parse(t, good["trackers"])
	k := func(i int) (key.Shape, key.Shape) { return c.Trackers[i].Key.Shapes() }
	for i, want := range []string{"src/32 ip6 src/128", "src/32 ip6 src/128", "dst/24 ip6 dst/48",
		"src/32+dst/32+sport+dport+proto ip6 src/128+dst/128+sport+dport+proto"} {
		if v4, v6 := k(i); fmt.Sprint(v4, " ", v6) != want {
			t.Errorf("tracker %d: %v and %v", i, v4, v6)
		}
	}
	if got := c.Trackers[0].Threshold.Share; got != 0.001 {
		t.Errorf("share %v", got)
	}
	if got := c.Trackers[1]; got.Threshold.Rate.Value != 1.5e6 || got.Limit.Value != 500 || got.Burst != 1500 ||
		time.Duration(got.Duration) != time.Minute {
		t.Errorf("%+v", got)
	}
	lists := parse(t, good["formats"]).Lists
	if lists[0].Name != "csv" || lists[5].Name != "signed" {
		t.Errorf("the lists are in another order")
	}
}

// TestErrors states what is said of each mistake. Where the schema can see it,
// it must.
func TestErrors(t *testing.T) {
	const eth0 = "interfaces: [eth0]\n"
	for _, c := range []struct {
		text   string
		want   []string // without the file's name
		unseen bool     // by the schema
	}{
		{eth0 + "lists: {a: {prefix6: 20, aggregate: {ipv4: 24, at: 1}}}", []string{`2:22: lists.a.prefix6: 20 is not between 32 and 127`, `2:52: lists.a.aggregate.at: 1 is not between 2 and 65536`}, false},
		{eth0 + "lists: {a: {action: allow, prefix6: 64, aggregate: {ipv4: 24}}}", []string{
			`2:37: lists.a.prefix6: an allow list would let in the neighbours of an address: list the prefix itself`,
			`2:41: lists.a.aggregate: an allow list would let in the neighbours of its addresses: list the prefix itself`}, true},
		{eth0 + "lists: {a: {aggregate: {}}}", []string{`2:13: lists.a.aggregate: say ipv4 or ipv6: the length of the prefixes, as in {ipv4: 24, ipv6: 48, at: 8}`}, true},
		{eth0 + "lists: {a: {prefix6: 64, aggregate: {ipv6: 64}}}", []string{`2:44: lists.a.aggregate.ipv6: 64 is not less than prefix6, by which each address has a prefix of 64 bits already`}, true},
		{eth0 + "lists: {a: {aggregate: {ipv4: 30}}}", []string{`2:13: lists.a.aggregate.at: a prefix of 30 bits has no more than 4 addresses`}, true},
		// Keys.
		{"interface: [eth0]", []string{`1:1: interface: unknown key "interface": did you mean interfaces?`, `1:1: interfaces is missing`}, false},
		{eth0 + "failsave:\n  ports: []", []string{`2:1: failsave: unknown key "failsave": did you mean failsafe?`}, false},
		{eth0 + "failsafe:\n  port: []", []string{`3:3: failsafe.port: unknown key "port": did you mean ports?`}, false},
		{eth0 + "loop:\n  size: 128", []string{`2:1: loop: node is missing`, `2:1: loop: key_file is missing`}, false},
		{eth0 + "digest:\nmulticast: {}", []string{`2:1: digest: rate is missing`, `3:1: multicast: interfaces is missing`}, false},
		{eth0 + "digest: {rate: 1k/s, slice: 2h, keep: 4h, archive: {keep: 1s}}", []string{`2:29: digest.slice: 2h is not between 100ms and 1h`,
			`2:43: digest.archive: size is missing`}, false},
		{eth0 + "loop: {node: 1, key_file: /k, size: 100}", []string{`2:1: loop: filter of 100 bits, want one of [64 128 256]: ` +
			"`weir plan loop` shows what filters can do"}, true},
		{eth0 + "loop: {node: 1, key_file: /k, size: 64, k: 33}", []string{`2:1: loop: masks of 33 bits in 64, want 1 to 32: ` +
			"`weir plan loop` shows what filters can do"}, true},
		{eth0 + "loop: {node: 1, key_file: /k, k: 5}", []string{`2:1: loop: k and confirm go with size: without it, all three follow from path_length and false_positive_rate`}, true},
		{eth0 + "loop: {node: 1, key_file: /k, size: 64, false_positive_rate: 1%}", []string{`2:62: loop.false_positive_rate: it goes without size, which would follow from it`}, true},
		{eth0 + "loop: {node: 1, key_file: /k, edges: ['eth[']}", []string{`2:39: loop.edges[0]: "eth[" is neither a name nor a pattern of interfaces`}, true},
		{eth0 + "loop: {node: 0, key_file: /k, action: block}", []string{`2:14: loop.node: 0 is not between 1 and 4294967295`,
			`2:39: loop.action: unknown action "block": want report or drop`}, false},
		{eth0 + "log:\n  xyz: 1", []string{`3:3: log.xyz: unknown key "xyz": want level or format`}, false},
		{eth0 + "api:\n  tls:\n    ca: /x", []string{`4:5: api.tls.ca: unknown key "ca": want cert, key or client_ca`}, false},
		{"interfaces:\n  - {name: eth0, xpd: generic}", []string{`2:18: interfaces[0].xpd: unknown key "xpd": did you mean xdp?`}, false},
		{eth0 + "trackers:\n  - key: src\n    treshold: 1/s", []string{
			`4:5: trackers[0].treshold: unknown key "treshold": did you mean threshold?`}, false},
		{eth0 + "lists:\n  drop:\n    soruces: []", []string{`4:5: lists.drop.soruces: unknown key "soruces": did you mean sources?`}, false},
		{eth0 + "lists:\n  drop:\n    sources:\n      - ulr: http://x\n", []string{`5:9: lists.drop.sources[0].ulr: unknown key "ulr": did you mean url?`}, false},
		{eth0 + "lists:\n  drop:\n    format: {kind: csv, colunm: 1}\n", []string{`4:25: lists.drop.format.colunm: unknown key "colunm": did you mean column?`}, false},
		{eth0 + "lists:\n  drop:\n    file: /x", []string{`4:5: lists.drop.file: unknown key "file": did you mean sources: [{file: …}]?`}, false},
		{eth0 + "lists:\n  drop:\n    Whitelist: x", []string{`4:5: lists.drop.Whitelist: unknown key "Whitelist": did you mean action: allow?`}, false},
		{eth0 + "whitelist: [192.0.2.1]", []string{`2:1: whitelist: unknown key "whitelist": did you mean lists: {NAME: {action: allow}}?`}, false},
		{eth0 + "file: /x", []string{`2:1: file: unknown key "file": did you mean lists: {NAME: {sources: [{file: …}]}}?`}, false},
		{eth0 + "lists: {drop: {action: drop}}", []string{`2:24: lists.drop.action: unknown action "drop": did you mean block?`}, false},
		{eth0 + "lists: {drop: {action: Whitelist}}", []string{`2:24: lists.drop.action: unknown action "Whitelist": did you mean allow?`}, false},
		{eth0 + "lists: {drop: {action: log}}", []string{`2:24: lists.drop.action: unknown action "log": want block or allow`}, false},
		{eth0 + "lists:\n  drop:\n    name: x", []string{`4:5: lists.drop.name: unknown key "name": want action, direction, priority, enforce, ports, protocols, interfaces, vlans, prefix6, aggregate, ttl, required, anti_lockout, exclude_private, labels, feed, format, lenient, ignore_ports, sources, entries, interval, jitter, max_bad, max_shrink or max_growth`}, false},
		{eth0 + "lists:\n  a: {}\n  b: {}\n  a: {}\n", []string{`5:3: lists.a: duplicate key, first in line 3`}, false},
		{eth0 + "lists:\n  a:\n    entries: [192.0.2.1, 192.0.2.1/24, '# none', 192.0.2.1, \"192.0.2.2\\n192.0.2.3\"]\n", []string{
			`4:26: lists.a.entries[1]: "192.0.2.1/24": host bits set beyond /24: write 192.0.2.0/24 or 192.0.2.1, or set lenient`,
			`4:40: lists.a.entries[2]: "# none": no entry`,
			`4:50: lists.a.entries[3]: the same as entries[0]`,
			`4:61: lists.a.entries[4]: "192.0.2.2\n192.0.2.3" has several lines: write each as an entry of its own`}, true},
		{eth0 + "lists: {a: {format: crowdsec, entries: [192.0.2.1]}}", []string{
			`2:31: lists.a.entries: a list of CrowdSec's decisions has no others: name another list for these`}, true},
		{eth0 + "lists: {a: {ports: [tcp/22-20, 22, icmp/1, tcp/1-70000, tcp/22, tcp/22]}}", []string{
			`2:21: lists.a.ports[0]: the range "tcp/22-20" is upside down: did you mean tcp/20-22?`,
			`2:32: lists.a.ports[1]: port "22" without its protocol: did you mean tcp/22?`,
			`2:36: lists.a.ports[2]: invalid port "icmp/1": want a protocol with ports, as tcp and udp, and a number or a range, as in tcp/22 or udp/5000-5010`,
			`2:44: lists.a.ports[3]: invalid port "tcp/1-70000": want a protocol with ports, as tcp and udp, and a number or a range, as in tcp/22 or udp/5000-5010`,
			`2:65: lists.a.ports[5]: the same as ports[4]`,
		}, false},
		{eth0 + "lists: {a: {ports: [tcp/22, tcp/22], protocols: [icmp, icmp]}}", []string{
			`2:21: lists.a.ports[0]: tcp/22, but protocols leaves tcp out: add it there, or leave out protocols`,
			`2:29: lists.a.ports[1]: the same as ports[0]`,
			`2:29: lists.a.ports[1]: tcp/22, but protocols leaves tcp out: add it there, or leave out protocols`,
			`2:56: lists.a.protocols[1]: the same as protocols[0]`,
		}, true},
		{eth0 + "lists: {a: {protocols: [icmpv6, tcp/22, 256, quic]}}", []string{
			`2:25: lists.a.protocols[0]: unknown protocol "icmpv6": want tcp, udp, icmp, icmp6, sctp, dccp, udplite or a number: did you mean icmp6?`,
			`2:33: lists.a.protocols[1]: unknown protocol "tcp/22": want tcp, udp, icmp, icmp6, sctp, dccp, udplite or a number; ports has ports, as in tcp/22`,
			`2:41: lists.a.protocols[2]: unknown protocol "256": want tcp, udp, icmp, icmp6, sctp, dccp, udplite or a number`,
			`2:46: lists.a.protocols[3]: unknown protocol "quic": want tcp, udp, icmp, icmp6, sctp, dccp, udplite or a number`,
		}, false},
		{"interfaces: [eth0, 'veth*']\nlists: {a: {interfaces: [wan0, veth1, 'a b', eth0], vlans: [10, 4095, -1]}}", []string{
			`2:26: lists.a.interfaces[0]: "wan0" is not filtered by that name: want one of interfaces, which has eth0, veth*`,
			`2:32: lists.a.interfaces[1]: "veth1" is not filtered by that name: name veth1 in interfaces, too, beside veth*`,
			`2:39: lists.a.interfaces[2]: "a b" cannot be an interface: 1 to 15 characters, no slash, colon or space`,
			`2:39: lists.a.interfaces[2]: "a b" is not filtered by that name: want one of interfaces, which has eth0, veth*`,
			`2:65: lists.a.vlans[1]: 4095 is no VLAN: want 1 to 4094, or 0 for packets without one`,
			`2:71: lists.a.vlans[2]: -1 is no VLAN: want 1 to 4094, or 0 for packets without one`,
		}, true},
		{eth0 + "lists: {a: {enforce: false, action: allow}, b: {enforce: no}}", []string{
			`2:22: lists.a.enforce: an allow list cannot be on trial, since it drops nothing: leave enforce out`,
			`2:58: lists.b.enforce: want true or false`,
		}, false},
		{eth0 + "lists: {a: {enforce: false, action: allow}}", []string{
			`2:22: lists.a.enforce: an allow list cannot be on trial, since it drops nothing: leave enforce out`,
		}, true},
		{eth0 + "mode: approx\nlists: {a: {enforce: false}, b: {ports: [tcp/22]}}", []string{
			`3:9: lists.a: enforce: false: mode: approx does not know which list matches a packet: set mode: exact`,
			`3:30: lists.b: ports, protocols, interfaces and vlans: mode: approx does not know which list matches a packet: set mode: exact`,
		}, true},
		{eth0 + "mode: exact\nmode: exact", []string{`3:1: mode: duplicate key, first in line 2`}, false},
		// Types.
		{"", []string{`1:1: interfaces is missing`}, false},
		{"# nothing\n", []string{`1:1: interfaces is missing`}, false},
		{"eth0", []string{`1:1: want a mapping: keys and values`}, false},
		{"interfaces: eth0", []string{`1:13: interfaces: want a list: [ … ], or a line with a dash for each`}, false},
		{"interfaces: {name: eth0}", []string{`1:1: interfaces: want a list: [ … ], or a line with a dash for each`}, false},
		{"interfaces: [[eth0]]", []string{`1:14: interfaces[0]: want a mapping: keys and values`}, false},
		{"interfaces: [true]", []string{`1:14: interfaces[0]: true is a boolean: quote it if it is text`}, false},
		{"interfaces:\n  -\n", []string{`2:5: interfaces[0]: name is missing`}, false},
		{eth0 + "monitor: yes", []string{`2:10: monitor: want true or false`}, false},
		{eth0 + "monitor:", []string{`2:1: monitor: want true or false`}, false},
		{eth0 + "bits_per_entry: many", []string{`2:17: bits_per_entry: "many": want a number`}, false},
		{eth0 + "first_seen: {key: src, events: 1.5}", []string{`2:32: first_seen.events: "1.5": want an integer`}, false},
		{eth0 + "lists: {a: {sources: [{url: 'https://a.example/', headers: {Authorization: \"a\\n\"}}]}}", []string{"2:23: lists.a.sources[0]: headers: Authorization: the value has a control character, such as a line end: write it on one line, in quotes"}, true},
		{eth0 + "notify: {targets: {a: {url: 'https://a.example/', headers: {Host: b}}}}", []string{"2:51: notify.targets.a.headers: Host: weir sets this one itself"}, true},
		{eth0 + "lists: {a: {vlans: [0100, 012]}}", []string{`2:21: lists.a.vlans[0]: "0100": write it without leading zeros, which some programs read as octal`, `2:27: lists.a.vlans[1]: "012": write it without leading zeros, which some programs read as octal`}, true},
		{eth0 + "learning: {elements: 1.5}", []string{`2:22: learning.elements: invalid number "1.5": want an integer up to 2^53, as in 2000, 64k or 10M`}, true},
		{eth0 + "learning: {elements: 2M}", []string{`2:22: learning.elements: 2M is not between 0 and 1048576`}, true},
		{eth0 + "log:\n  level:", []string{`3:3: log.level: no value`}, false},
		{eth0 + "failsafe: [tcp/22]", []string{`2:1: failsafe: want a mapping: keys and values`}, false},
		{eth0 + "failsafe:\n  ports:\n    tcp: 22", []string{`3:3: failsafe.ports: want a list: [ … ], or a line with a dash for each`}, false},
		{eth0 + "lists: [drop]", []string{`2:1: lists: want a mapping: keys and values`}, false},
		{eth0 + "lists: {a: {interval: [1h]}}", []string{`2:13: lists.a.interval: want a single value`}, false},
		{eth0 + "lists: {a: {sources: [{url: \"http://x\", headers: [k]}]}}", []string{`2:41: lists.a.sources[0].headers: want a mapping: keys and values`}, false},
		// Values.
		{eth0 + "mode: exakt", []string{`2:7: mode: unknown mode "exakt": want exact or approx`}, false},
		{eth0 + "mode: both", []string{`2:7: mode: unknown mode "both": want exact or approx`}, false},
		{eth0 + "log: {level: warning}", []string{`2:14: log.level: unknown level "warning": want debug, info, warn or error`}, false},
		{eth0 + "bits_per_entry: 0.5", []string{`2:17: bits_per_entry: 0.5 is not between 1 and 256`}, false},
		{eth0 + "bits_per_entry: .nan", []string{`2:17: bits_per_entry: ".nan": want a number`}, false},
		{eth0 + "learning: {elements: 2000000, half_life: 10}", []string{
			`2:22: learning.elements: 2M is not between 0 and 1048576`, `2:42: learning.half_life: invalid duration "10": want a number and its unit, as in 90s, 10m, 36h or 1d12h: did you mean 10s?`}, false},
		{eth0 + "learning: {half_life: 0.5ms}", []string{`2:23: learning.half_life: 500µs is not between 1s and 1d`}, true},
		{eth0 + "flood: {apply: always}", []string{`2:16: flood.apply: unknown apply "always": want ask or auto`}, false},
		{eth0 + "flood: {apply: auto}", []string{`2:16: flood.apply: auto takes collateral: without it, weir does not know whom a pattern cuts off`}, true},
		{eth0 + "collateral: 2048\nflood: {apply: auto}", []string{`3:16: flood.apply: auto takes failsafe ports or prefixes: a rule could lock you out`}, true},
		{eth0 + "collateral: 2048\nfailsafe: {ports: [tcp/22]}\nsamples: false\nflood: {apply: auto}", []string{`5:16: flood.apply: auto takes samples: without them, no flood is seen`}, true},
		{eth0 + "flood: {ttl: 10s, trial: 20s}", []string{`2:26: flood.trial: 20s is not shorter than ttl, 10s`}, true},
		{eth0 + "flood: {ttl: 2d}", []string{`2:14: flood.ttl: 2d is not between 10s and 1d`}, true},
		{eth0 + "learning: {half_life: 0s}", []string{`2:23: learning.half_life: 0s is not between 1s and 1d`}, true},
		{eth0 + "max_coverage: 120%", []string{`2:15: max_coverage: invalid share "120%": want 0% to 100%, as in 5% or 0.05`}, true},
		{eth0 + "max_coverage: -1", []string{`2:15: max_coverage: invalid share "-1": want 0% to 100%, as in 5% or 0.05`}, false},
		{eth0 + "max_coverage: 0", []string{`2:15: max_coverage: no list could have any entry`}, true},
		{eth0 + "state_dir: weir", []string{`2:12: state_dir: "weir": want an absolute path`}, false},
		{eth0 + "metrics: {listen: 9477}", []string{`2:19: metrics.listen: "9477": want host:port, as in 127.0.0.1:9477 or [::1]:9477`}, false},
		{eth0 + "metrics: {listen: \"::1:0\"}", []string{`2:19: metrics.listen: "::1:0": want host:port, as in 127.0.0.1:9477 or [::1]:9477`}, true},
		{eth0 + "failsafe:\n  ports: [22, icmp/1, tcp/70000]\n  prefixes: [192.0.2.1/24, 0.0.0.0/0, x]", []string{
			`3:11: failsafe.ports[0]: port "22" without its protocol: did you mean tcp/22?`,
			`3:15: failsafe.ports[1]: invalid port "icmp/1": want tcp, udp or sctp and a number, as in tcp/22 or 22/tcp`,
			`3:23: failsafe.ports[2]: invalid port "tcp/70000": want tcp, udp or sctp and a number, as in tcp/22 or 22/tcp`,
			`4:14: failsafe.prefixes[0]: prefix "192.0.2.1/24" has host bits set: did you mean 192.0.2.0/24?`,
			`4:28: failsafe.prefixes[1]: prefix "0.0.0.0/0": every source would pass, listed or not`,
			`4:39: failsafe.prefixes[2]: invalid prefix "x": want an address or a prefix, as in 192.0.2.0/24`}, false},
		// What goes together, and what is there twice.
		{"interfaces: []", []string{`1:1: interfaces: no interface to filter on`}, true},
		{"interfaces: [eth0, \"eth[\", \"a b\", averyverylongname, \"\", eth0]", []string{
			`1:20: interfaces[1]: "eth[" is a pattern with a bracket that does not end`,
			`1:28: interfaces[2]: "a b" cannot be an interface: 1 to 15 characters, no slash, colon or space`,
			`1:35: interfaces[3]: "averyverylongname" cannot be an interface: 1 to 15 characters, no slash, colon or space`,
			`1:54: interfaces[4]: "" cannot be an interface: 1 to 15 characters, no slash, colon or space`,
			`1:58: interfaces[5]: the same as interfaces[0]`}, true},
		{eth0 + "failsafe:\n  ports: [tcp/1, tcp/1]\n  prefixes: [10.0.0.1, 10.0.0.1/32]", []string{
			`3:18: failsafe.ports[1]: the same as ports[0]`, `4:24: failsafe.prefixes[1]: the same as prefixes[0]`}, true},
		{eth0 + "failsafe: {ports: [tcp/1, tcp/2, tcp/3, tcp/4, tcp/5, tcp/6, tcp/7, tcp/8, tcp/9]}", []string{
			`2:12: failsafe.ports: there are 9: the maximum is 8`}, true},
		{eth0 + "failsafe: {prefixes: ['::1', '::2', '::3', '::4', '::5', '::6', '::7', '::8', '::9', 10.0.0.1]}", []string{
			`2:12: failsafe.prefixes: there are 1 of IPv4 and 9 of IPv6: the maximum of each is 8`}, true},
		{eth0 + "api: {listen: \":9478\", tls: {cert: /a, key: /b}}", []string{
			`2:15: api.listen: it needs tls with cert, key and client_ca: a client that reaches the daemon controls the filter`}, true},
		{eth0 + "console: {}", []string{`2:1: console: listen is missing`}, false},
		{eth0 + "console: {listen: \"0.0.0.0:9479\"}", []string{
			`2:19: console.listen: 0.0.0.0:9479 is no address of a loopback interface, as 127.0.0.1:9479 is: others could reach it, which requires tls with cert, key and client_ca`}, true},
		{eth0 + "console: {listen: \"example.com:9479\"}", []string{
			`2:19: console.listen: example.com:9479 is no address of a loopback interface, as 127.0.0.1:9479 is: others could reach it, which requires tls with cert, key and client_ca`}, true},
		{eth0 + "console: {listen: \"127.0.0.1:9479\", proxy: {group: nginx}}", []string{`2:37: console.proxy: socket is missing`}, false},
		{eth0 + "console: {listen: \"127.0.0.1:9479\", proxy: {socket: weir.sock, user_header: Cookie}}", []string{
			`2:53: console.proxy.socket: "weir.sock": want an absolute path`,
			`2:77: console.proxy.user_header: "Cookie": want the name of a header, such as X-Forwarded-User`}, false},
		{eth0 + "console: {listen: \"127.0.0.1:9479\", proxy: {socket: /run/weir//weir.sock}}", []string{
			`2:53: console.proxy.socket: /run/weir//weir.sock is api.socket, whose users need no header: want another path`}, true},
		{eth0 + "console: {listen: \":9479\", tls: {cert: /a, key: /b}}", []string{`2:28: console.tls: it needs cert, key and client_ca`}, true},
		{eth0 + "api: {tls: {cert: /a}}", []string{`2:7: api.tls: it is for listen, which is missing`}, true},
		{eth0 + "trackers: [{key: src/129, threshold: 0/s}, {key: ip, threshold: 5}, {key: dst, threshold: 0%}]", []string{
			`2:18: trackers[0].key: invalid key "src/129": want a prefix length from 1 to 32, or to 128 for IPv6 alone`,
			`2:38: trackers[0].threshold: threshold "0/s": want more than 0`,
			`2:50: trackers[1].key: unknown key "ip": want src, dst, flow, or a prefix as in src/24`,
			`2:65: trackers[1].threshold: invalid threshold "5": want a rate, as in 50kpps, 10Mbit/s or 10k/s, or a share, as in 0.1%`,
			`2:91: trackers[2].threshold: threshold "0%": want more than 0`}, false},
		{eth0 + "trackers:\n  - {key: src, threshold: 1%, action: limit}\n  - {key: src, threshold: 2/s, limit: 1/s}\n  - {key: dst, threshold: 0.5/s, interval: 1ms, duration: 0s}", []string{
			`3:5: trackers[0]: action limit needs a limit, as in 1kpps: the threshold has no rate`,
			`4:5: trackers[1]: the same as trackers[0]`,
			`4:5: trackers[1]: limit and burst go with action limit, not report`,
			`5:27: trackers[2].threshold: 0.5/s is less than one of the packets in an interval of 1ms`,
			`5:44: trackers[2].interval: 1ms is not between 100ms and 1m`,
			`5:59: trackers[2].duration: 0s is not between 1s and 30d`}, true},
		{eth0 + "trackers:\n  - {key: src, threshold: 1kpps, action: limit, limit: 0.5/s}\n  - {key: dst, threshold: 10Mbit/s, unit: packets, interval: 5m}\n  - {key: flow, threshold: 1kpps, limit: 1MB/s, action: limit, memory: 1KiB}\n  - {key: src/24, threshold: 0.00001%}", []string{
			`3:56: trackers[0].limit: a limit of 0.5/s is not between 1/s and 128G/s`,
			`4:27: trackers[1].threshold: 10Mbit/s counts bits, but the tracker counts packets`,
			`4:62: trackers[1].interval: 5m is not between 100ms and 1m`,
			`5:42: trackers[2].limit: 1MB/s counts bytes, but the tracker counts packets`,
			`5:72: trackers[2].memory: 1KiB is not between 4KiB and 1GiB`}, true},
		{eth0 + "fleet: {enroll: /etc/weir/node, max_rate: 5kpps, max_age: 0.5s}\n", []string{
			`2:43: fleet.max_rate: 5kpps: want bits or bytes, as in 2Mbit/s`, `2:59: fleet.max_age: 500ms is not between 1s and 30d`}, true},
		{eth0 + "digest: {rate: 0/s}", []string{`2:16: digest.rate: want more than 0`}, true},
		{eth0 + "digest: {rate: 1MB/s}", []string{`2:16: digest.rate: 1MB/s: digests are of packets, as in 100kpps`}, true},
		{eth0 + "pins: weir", []string{`2:7: pins: "weir": want an absolute path`}, true},
		{"interfaces: [{name: eth0, reject: true}]\n", []string{`1:35: interfaces[0].reject: it is of outgoing packets, which are not filtered here: set egress: true`}, true},
		{eth0 + "replies: yes\n", []string{`2:10: replies: unknown action "yes": want pass or drop`}, false},
		{eth0 + "replies: {action: pass, connections: 1, tcp_timeout: 40d, udp_timeout: 10ms}\n", []string{
			`2:38: replies.connections: 1 is not between 1024 and 16777216`, `2:54: replies.tcp_timeout: 40d is not between 1s and 30d`,
			`2:72: replies.udp_timeout: 10ms is not between 1s and 1h`,
		}, false},
		{eth0 + "collateral: {sources: 1000}\n", []string{`2:23: collateral.sources: 1k is not between 1024 and 1048576`}, false},
		{eth0 + "first_seen: {window: 1s}\n", []string{`2:1: first_seen: key is missing`}, false},
		{eth0 + "first_seen: {key: flow, filter: cuckoo}\n", []string{`2:33: first_seen.filter: unknown filter "cuckoo": want bloom, stable, ibf-2c or ibf-mc`}, false},
		{eth0 + "first_seen: {key: flow, filter: ibf-mc}\n", []string{
			`2:33: first_seen.filter: ibf-mc remembers important flows longer, and importance and ports are missing, which say what is important`}, true},
		{eth0 + "first_seen: port\n", []string{`2:13: first_seen: unknown key "port": want src, dst, flow, or a prefix as in src/24`}, false},
		{eth0 + "first_seen: {key: flow, window: 2h, memory: 1KiB, events: 10001}\n", []string{
			`2:33: first_seen.window: 2h is not between 1s and 1h`, `2:45: first_seen.memory: 1KiB is not between 4KiB and 1GiB`,
			`2:59: first_seen.events: 10001 is not between 0 and 10000`,
		}, false},
		{eth0 + "first_seen: {key: flow, importance: [size, age], ports: [tcp/22, 22/tcp]}\n", []string{
			`2:44: first_seen.importance[1]: unknown importance "age": want size or list`, `2:66: first_seen.ports[1]: the same as ports[0]`}, false},
		{eth0 + "first_seen: {key: flow, importance: [size, size], ports: [tcp/22, 22/tcp]}\n", []string{
			`2:44: first_seen.importance[1]: the same as importance[0]`, `2:67: first_seen.ports[1]: the same as ports[0]`}, true},
		{"interfaces:\n- {name: a, police: 5}\n- {name: b, police: {rate: 10k/s}}\n- {name: c, police: {key: src, depth: 1ms}}\n" +
			"- {name: d, police: {rate: 1kbit/s, controller: red}}\n- {name: e, police: {rate: 99pps, rehash: 1ms, key: x}}", []string{
			`2:21: interfaces[0].police: invalid rate "5": want a number a second, as in 50kpps, 10Mbit/s, 125MB/s or 10k/s: did you mean 5/s?`,
			`3:28: interfaces[1].police.rate: 10k/s: want bits, bytes or packets, as in 950Mbit/s or 100kpps`,
			`4:13: interfaces[2].police: rate is missing`,
			`5:28: interfaces[3].police.rate: 1kbit/s is not between 1Mbit/s and 100Gbit/s`,
			`5:49: interfaces[3].police.controller: unknown controller "red": want fair, blue or bucket`,
			`6:28: interfaces[4].police.rate: 99pps is not between 100pps and 1Gpps`,
			`6:43: interfaces[4].police.rehash: 1ms is not between 1s and 1d`,
			`6:53: interfaces[4].police.key: unknown key "x": want src, dst, flow, or a prefix as in src/24`,
		}, false},
		{eth0 + "trackers: [" + strings.Repeat("{key: src, threshold: 1/s}, ", 5) + "]", []string{
			`2:1: trackers: there are 5: the maximum is 4`, `2:40: trackers[1]: the same as trackers[0]`, `2:68: trackers[2]: the same as trackers[0]`,
			`2:96: trackers[3]: the same as trackers[0]`, `2:124: trackers[4]: the same as trackers[0]`}, true},
		{eth0 + "multicast: {max_groups: 0, interfaces: [{name: eth1, groups: [192.0.2.1, 224.0.0.5, 'ff02::1', x]}]}", []string{
			`2:25: multicast.max_groups: 0 is not between 1 and 65536`,
			`2:63: multicast.interfaces[0].groups[0]: "192.0.2.1": not a multicast group (224.0.0.0/4 or ff00::/8)`,
			`2:74: multicast.interfaces[0].groups[1]: "224.0.0.5": a link-local group, which no router forwards (224.0.0.0/24, IPv6 scopes up to 2)`,
			`2:85: multicast.interfaces[0].groups[2]: "ff02::1": a link-local group, which no router forwards (224.0.0.0/24, IPv6 scopes up to 2)`,
			`2:96: multicast.interfaces[0].groups[3]: "x": want a multicast group, as in 239.1.2.3 or ff0e::1`}, false},
		{"interfaces: [eth0, {name: eth1, xdp: generic}, {name: eth2, netns: lab}]\nmulticast:\n  max_groups: 1\n  interfaces:\n" +
			"    - 'eth*'\n    - {name: eth1, groups: [239.1.1.1, 239.1.1.1]}\n    - {name: eth1, groups: [239.1.1.2]}", []string{
			`1:20: interfaces[1]: multicast is forwarded in native mode only, not generic: elsewhere the copies of a packet may share their bytes`,
			`1:48: interfaces[2]: multicast is forwarded within one network namespace: all interfaces must be in the same`,
			`3:15: multicast.max_groups: 2 groups are wanted, more than 1`,
			`5:7: multicast.interfaces[0]: "eth*" is a pattern, but each interface has groups of its own: name them one by one`,
			`6:40: multicast.interfaces[1].groups[1]: the same as multicast.interfaces[1].groups[0]`,
			`7:7: multicast.interfaces[2]: the same as multicast.interfaces[1]`}, true},
		{"interfaces: [{name: wg0, hook: tcx}, {name: wg1, hook: tc, xdp: generic}, {name: wg2, hook: tc, police: 1Mbit/s}, {name: wg3, hook: tc}]\n" +
			"loop: {node: 1, key_file: /nowhere}\nmulticast: {interfaces: [eth1]}", []string{
			`1:32: interfaces[0].hook: unknown hook "tcx": did you mean tc?`,
			`1:38: interfaces[1]: multicast is forwarded in native mode only, not tc: elsewhere the copies of a packet may share their bytes`,
			`1:56: interfaces[1].hook: tc: xdp: generic is a mode of hook xdp: leave one of the two out`,
			`1:75: interfaces[2]: multicast is forwarded in native mode only, not tc: elsewhere the copies of a packet may share their bytes`,
			`1:93: interfaces[2].hook: tc: the interface is policed, which marks packets: that takes hook xdp`,
			`1:115: interfaces[3]: multicast is forwarded in native mode only, not tc: elsewhere the copies of a packet may share their bytes`,
			`1:133: interfaces[3].hook: tc: loops are detected, which changes packets: that takes hook xdp`}, false},
		{"interfaces: [{name: eth0, attach: dispatcher, xdp: generic}, {name: eth1, attach: dispatcher, hook: tc},\n" +
			"  {name: eth2}, {name: eth3, xdp: dispatcher}]", []string{
			`1:83: interfaces[1].attach: dispatcher: libxdp's dispatcher runs at XDP: leave out hook: tc`,
			`2:35: interfaces[3].xdp: dispatcher is not an XDP mode: want native or generic`}, false},
		{"interfaces: [{name: eth0, attach: freplace}]", []string{
			`1:35: interfaces[0].attach: unknown way to attach "freplace": want link or dispatcher`}, false},
		{"interfaces: [{name: wg0, hook: tc}]\ndigest: {rate: 1000pps}", []string{
			`1:32: interfaces[0].hook: tc: packets are recorded by their digests, but may have been joined before they come here: that takes hook xdp`}, true},
		{eth0 + "lists:\n  a b: {}\n  .x: {}\n  " + strings.Repeat("x", 65) + ": {}", []string{
			`3:3: lists.a b: the name "a b": want up to 64 letters, digits, "_", "-" and inner dots`,
			`4:3: lists.".x": the name ".x": want up to 64 letters, digits, "_", "-" and inner dots`,
			`5:3: lists.` + strings.Repeat("x", 65) + `: the name "` + strings.Repeat("x", 65) + `": want up to 64 letters, digits, "_", "-" and inner dots`}, false},
		{eth0 + "lists:\n  a:\n    interval: 0s\n    jitter: 1000h\n  b:\n    ttl: 30m\n    sources: [{file: /x}]", []string{
			`4:15: lists.a.interval: 0s is not between 1s and 30d`, `5:13: lists.a.jitter: 41d16h is not between 0s and 30d`,
			`7:10: lists.b.ttl: 30m is less than interval and jitter: entries would expire between two fetches`}, true},
		{eth0 + "lists:\n  b:\n    interval: 20m\n    jitter: 15m\n    ttl: 30m\n    sources: [{file: /x}]", []string{
			`6:10: lists.b.ttl: 30m is less than interval and jitter: entries would expire between two fetches`}, true},
		{eth0 + "lists:\n  a: {format: csv}\n  b: {format: {kind: json, path: x}}\n  c: {format: plane}\n  d: {format: {column: 1}}", []string{
			`3:15: lists.a.format: format csv needs column, as in {kind: csv, column: ip}`,
			`4:7: lists.b.format: path "x": want something like ".data[].ip"`,
			`5:15: lists.c.format: unknown format "plane": want plain, csv, json, jsonl, spamhaus, crowdsec, nftables, ipset, p2p, dat, hosts, deny, iptables, geo, mmdb, names, asns, stix or taxii`,
			`6:7: lists.d.format: column goes with format csv only`}, false},
		{eth0 + "lists:\n  a:\n    sources:\n      - {file: /x, url: \"http://x\"}\n      - {}\n      - {file: /x, sha256: 12}\n      - {url: \"ftp://x\"}\n      - {url: \"http:///x\"}", []string{
			`5:9: lists.a.sources[0]: want one of file, directory and URL`,
			`6:9: lists.a.sources[1]: want one of file, directory and URL`,
			`7:28: lists.a.sources[2].sha256: "12": want 64 hexadecimal digits`,
			`8:15: lists.a.sources[3].url: want a URL that begins with http:// or https://`,
			`9:15: lists.a.sources[4].url: URL without a host`}, false},
		{eth0 + "lists:\n  a:\n    sources:\n      - {file: /x}\n      - {file: /x, max_bytes: 0}\n      - {file: /y, max_bytes: 1.5}\n      - {file: /z, max_bytes: 1 TB}", []string{
			`6:9: lists.a.sources[1]: max_bytes or timeout is 0: nothing could be read`,
			`6:9: lists.a.sources[1]: the same as sources[0]`,
			`7:31: lists.a.sources[2].max_bytes: invalid size "1.5": want a whole number of bytes up to 2^53, as in 65536, 64MiB or 10GB`,
			`8:31: lists.a.sources[3].max_bytes: invalid size "1 TB": want bytes up to 2^53, as in 65536, 64MiB or 10GB`}, false},
		{eth0 + "lists:\n  a:\n    sources:\n      - {file: /x}\n      - {file: /x, max_bytes: 0}", []string{
			`6:9: lists.a.sources[1]: max_bytes or timeout is 0: nothing could be read`,
			`6:9: lists.a.sources[1]: the same as sources[0]`}, true},
		{eth0 + "state_dir: \"\"\ndigest: {rate: 1k/s, archive: {size: 1GiB}}", []string{
			`3:22: digest.archive: it is kept below state_dir, which is empty`}, true},
		{eth0 + "lists:\n  a:\n    sources: [https://example.com/x, /etc/weir/x, x, {file: /y}]", []string{
			`4:15: lists.a.sources[0]: want a mapping, as in {url: "https://example.com/x"}`,
			`4:38: lists.a.sources[1]: want a mapping, as in {file: "/etc/weir/x"}`,
			`4:51: lists.a.sources[2]: want a mapping, as in {file: "/DIRECTORY/x"} or {url: "https://HOST/FILE"}`}, false},
		{eth0 + "lists:\n  drop:\n  sources: [{file: /x}]\n  interval: 1h", []string{
			`4:3: lists.sources: a key of one of the lists: indent it further`,
			`5:3: lists.interval: a key of one of the lists: indent it further`}, false},
		{eth0 + "lists:\n  a: {format: json}\n  b: {format: {kind: p2p, path: .x}}", []string{
			`3:15: lists.a.format: format json needs path, as in {kind: json, path: ".data[].ip"}`,
			`4:7: lists.b.format: path goes with format json or jsonl only`}, true},
		{eth0 + "scans:\n  - {key: flow}\n  - {key: src, threshold: 1, window: 1ms}\n  - {key: dst, action: limit}\n  - {key: src, distinct: addresses, limit: 1kpps, memory: 1KiB}\n  - {key: src}", []string{
			`2:1: scans: there are 5, and 0 trackers: the maximum of both is 4`,
			`3:11: scans[0].key: a flow has one port: want src, dst, or a prefix as in src/24`,
			`4:27: scans[1].threshold: 1 is not between 2 and 1048576`,
			`4:38: scans[1].window: 1ms is not between 1s and 1m`,
			`5:5: scans[2].limit: want packets a second, as in 10pps`,
			`6:44: scans[3].limit: it goes with action limit, not report`,
			`6:59: scans[3].memory: 1KiB is not between 16KiB and 1GiB`,
			`7:5: scans[4]: the same as scans[1]`}, true},
		// What editors do to a file.
		{"\ufeff" + eth0 + "mode: exakt", []string{`2:7: mode: unknown mode "exakt": want exact or approx`}, false},
		{"\xff\xfei\x00n\x00", []string{`1:1: not UTF-8: save it in this encoding`}, false},
		{eth0 + "lists:\ndrop:\n  feed: spamhaus_drop", []string{`3:1: drop: unknown key "drop": indent it further if it belongs to lists`}, false},
		// Known feeds.
		{eth0 + "lists:\n  a: {feed: nosuch}\n  b: {feed: aws}\n  c: {feed: doh}\n  d: {feed: dshield, interval: 10m}", []string{
			"3:13: lists.a.feed: unknown feed \"nosuch\": `weir feeds` prints the known ones; for another one, set sources instead of feed",
			`4:3: lists.b.action: say block or allow: the feed aws has the addresses of a provider, which some block and others must let in`,
			`5:3: lists.c.direction: outgoing packets are filtered on no interface: set egress: true on one`,
			`6:32: lists.d.interval: 10m is less than the 1h that feed dshield asks for`}, false},
		// Lists of commands.
		{eth0 + "lists:\n  manual: {action: allow, entries: [192.0.2.1]}\n  manual-allow: {entries: [192.0.2.1]}", []string{
			`3:20: lists.manual.action: want block: the commands without --list change this list`,
			`4:3: lists.manual-allow.action: want allow: the commands without --list change this list`}, true},
		// Names.
		{eth0 + "lists:\n  a: {format: names, entries: [home.example.org]}\n  b: {format: names, action: allow, entries: [home]}", []string{
			`3:15: lists.a.format: names are for allow lists and for lists with direction out: the owner of a name chooses its addresses, and could have others blocked`,
			`4:47: lists.b.entries[0]: "home": want a name with a dot, as in home.example.org, or an address`}, true},
		// YAML.
		{eth0 + "\tmode: exact", []string{`2:1: not YAML: a tab: indent with spaces`}, false},
		{"interfaces: [eth0", []string{`1:13: not YAML: sequence end token ']' not found`}, false},
		{"a: b: c", []string{`1:4: not YAML: mapping value is not allowed in this context`}, false},
		{eth0 + "---\n" + eth0, []string{`3:1: a second document: want only one`}, true},
		{eth0 + "api: &x {group: adm}", []string{`2:1: api: anchors, aliases and tags are not supported: write the value out`}, true},
		{eth0 + "api: {group: !!str adm}", []string{`2:7: api.group: anchors, aliases and tags are not supported: write the value out`}, true},
		{eth0 + "<<: {mode: exact}", []string{`2:1: <<: merging is not supported: write the values out`}, true},
	} {
		_, err := Parse("weir.yaml", []byte(c.text))
		if _, ok := errors.AsType[Errors](err); !ok {
			t.Errorf("%s\n%v", c.text, err)
			continue
		}
		var got []string
		for line := range strings.Lines(err.Error()) {
			got = append(got, strings.TrimSpace(strings.TrimPrefix(line, "weir.yaml:")))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s\n got %s\nwant %s", c.text, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
		if seen := validate(t, []byte(c.text)) != nil; seen == c.unseen {
			t.Errorf("%s\nthe schema says that it is wrong: %v", c.text, seen)
		}
	}
}

// TestKnownFeeds checks what naming a feed of the catalog sets, and that what is printed is
// read again as the same.
func TestKnownFeeds(t *testing.T) {
	c := parse(t, `
interfaces: [{name: eth0, egress: true}]
lists:
  a: {feed: firehol_level1}
  b: {feed: firehol_level1, exclude_private: false, interval: 2h}
  c: {feed: aws_cloudfront, action: allow}
  d: {feed: doh}
  e: {feed: doh, direction: src, sources: [{file: /etc/doh.txt}]}
  f: {sources: [{file: /etc/own.txt}, {url: https://a.example/list.txt}]}
  g: {exclude_private: false, sources: [{url: https://a.example/list.txt}]}`)
	for i, want := range []string{
		"block src private=false 1h0m0s https://iplists.firehol.org/files/firehol_level1.netset",
		"block src private=true 2h0m0s https://iplists.firehol.org/files/firehol_level1.netset",
		"allow src private=false 1h0m0s https://ip-ranges.amazonaws.com/ip-ranges.json",
		"block out private=false 24h0m0s https://raw.githubusercontent.com/dibdot/DoH-IP-blocklists/master/doh-ipv4.txt",
		"block src private=true 24h0m0s /etc/doh.txt",
		"block src private=false 1h0m0s /etc/own.txt",
		"block src private=true 1h0m0s https://a.example/list.txt",
	} {
		l := c.Lists[i]
		if got := fmt.Sprintf("%v %v private=%v %v %v", l.Action, l.Direction, !l.ExcludePrivate, time.Duration(l.Interval), l.Sources[0]); got != want {
			t.Errorf("list %s: %s, want %s", l.Name, got, want)
		}
	}
	var printed strings.Builder
	if err := c.Print(&printed); err != nil {
		t.Fatal(err)
	}
	if again := parse(t, printed.String()); !reflect.DeepEqual(again, c) {
		t.Errorf("printed and read again:\n%+v\nwant\n%+v", again.Lists, c.Lists)
	}
}

// TestTrackers checks that a configuration accepts the trackers that the command
// line does, and refuses the others with the same message.
func TestTrackers(t *testing.T) {
	for _, fields := range [][]string{
		{"key=src"},
		{"key=src", "threshold=50kpps"},
		{"key=src", "threshold=0.00001%"},
		{"key=src", "threshold=10Mbit/s+1%", "action=limit", "limit=1MB/s", "burst=64k"},
		{"key=dst/48", "interval=5m"},
		{"key=src", "interval=10"},
		{"key=src", "threshold=0%"},
		{"key=src", "threshold=1kpps", "action=limit", "limit=0.5/s"},
		{"key=src", "action=limit"},
		{"key=src", "limit=5/s"},
		{"key=src", "unit=packets", "threshold=1MB/s"},
		{"key=src", "unit=bits"},
		{"key=flow/3"},
		{"key=src", "action=block", "duration=31d"},
		{"key=src", "memory=1TiB"},
		{"unit=bytes"},
	} {
		spec, onLine := tracker.Parse(strings.Join(fields, ","))
		text := "interfaces: [eth0]\ntrackers: [{" + strings.ReplaceAll(strings.Join(fields, ", "), "=", ": ") + "}]"
		c, inFile := Parse("weir.yaml", []byte(text))
		var errs Errors
		switch errors.As(inFile, &errs); {
		case onLine == nil && (inFile != nil || c.Trackers[0] != spec):
			t.Errorf("%q is %v on the command line, in a file %v: %v", fields, spec, c, inFile)
		case onLine != nil && (len(errs) != 1 || !strings.HasSuffix(onLine.Error(), ": "+errs[0].Err.Error())):
			t.Errorf("%q is refused on the command line: %v\nand in a file: %v", fields, onLine, inFile)
		}
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "weir.yaml")
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		old, new string
		want     []string
	}{
		{"interfaces: [eth0, eth1]", "interfaces: [eth1, {name: eth0, xdp: generic}, {name: eth0, netns: lab}]\nmonitor: true", []string{
			"interfaces[eth0].xdp: native → generic", "interfaces[eth0 in namespace lab]: added",
			"interfaces: in another order", "monitor: false → true"}},
		{"interfaces: [eth0]\nfailsafe: {ports: [tcp/22]}", "interfaces: [eth0]\nfailsafe: {ports: [tcp/22, udp/53]}\nmetrics: {listen: \":1\"}", []string{
			"failsafe.ports: tcp/22 → tcp/22, udp/53", "metrics.listen: none → :1"}},
		{"interfaces: [eth0]\nlists: {a: {sources: [{file: /a}, {file: /b}]}, b: , x.y: }",
			"interfaces: [eth0]\nlists: {b: {ttl: 1h, format: ipset}, a: {interval: 2h, sources: [{file: /b, max_bytes: 1KiB}]}, c: {action: allow}}", []string{
				"lists.b.ttl: none → 1h", "lists.b.format.kind: plain → ipset",
				"lists.a.sources[/b].max_bytes: 256MiB → 1KiB", "lists.a.sources[/a]: removed", "lists.a.interval: 1h → 2h",
				"lists.c: added", `lists."x.y": removed`, "lists: in another order"}},
		{"interfaces: [eth0]\nlists: {a: {sources: [{url: \"http://u:secret@h/x?k=secret\", headers: {K: secret}}, {url: \"http://h/x?k=other\"}]}}",
			"interfaces: [eth0]\nlists: {a: {sources: [{url: \"http://u:hidden@h/x?k=hidden\", headers: {K: hidden}, sha256_url: \"http://h/y?hidden\"}]}}", []string{
				"lists.a.sources[http://h/x].url: changed", "lists.a.sources[http://h/x].headers: changed",
				"lists.a.sources[http://h/x].sha256_url: none → http://h/y", "lists.a.sources[http://h/x#2]: removed"}},
		{"interfaces: [eth0]\ntrackers: [{key: src, threshold: 1k/s}]", "interfaces: [eth0]\ntrackers: [{key: src, threshold: 1%, action: limit, limit: 5/s}, {key: src, unit: bytes, threshold: 1/s}]", []string{
			"trackers[src packets].threshold: 1k/s → 1%", "trackers[src packets].action: report → limit",
			"trackers[src packets].limit: none → 5/s", "trackers[src bytes]: added"}},
		{"interfaces: [eth0]\nmulticast: {interfaces: [{name: eth1, groups: [239.1.1.1]}]}",
			"interfaces: [eth0]\nmulticast: {max_groups: 9, interfaces: [eth2, {name: eth1, groups: [239.1.1.1, 'ff0e::1']}]}", []string{
				"multicast.interfaces[eth2]: added", "multicast.interfaces[eth1].groups: 239.1.1.1 → 239.1.1.1, ff0e::1", "multicast.max_groups: 1024 → 9"}},
		{"interfaces: [eth0]\nmulticast: {interfaces: [eth1]}", "interfaces: [eth0]\ndigest: {rate: 1k/s}", []string{"digest: added", "multicast: removed"}},
	} {
		if got := Diff(parse(t, c.old), parse(t, c.new)); !slices.Equal(got, c.want) {
			t.Errorf("%s\n%s\n got %s\nwant %s", c.old, c.new, strings.Join(got, "\n     "), strings.Join(c.want, "\n     "))
		}
	}
	for a, old := range good {
		for b, new := range good {
			if d := Diff(parse(t, old), parse(t, new)); (len(d) == 0) != (a == b) {
				t.Errorf("from %s to %s: %q", a, b, d)
			}
		}
	}
}

// FuzzParse checks that what is read is printed as the same, and that errors
// point into the file.
func FuzzParse(f *testing.F) {
	for _, text := range good {
		f.Add([]byte(text))
	}
	f.Add([]byte("interfaces: [a]\n? [x]\n: y\n- z: *x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("weir.yaml", text)
		if errs, ok := errors.AsType[Errors](err); ok {
			lines := strings.Count(string(text), "\n") + strings.Count(string(text), "\r") + 1
			for _, e := range errs {
				if e.Line < 1 || e.Line > lines+1 || e.Column < 0 {
					t.Errorf("%v, of %d lines", e, lines)
				}
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		again := parse(t, print(t, c))
		if d := Diff(c, again); len(d) > 0 || !reflect.DeepEqual(c, again) {
			t.Errorf("%q\n%s", d, print(t, c))
		}
	})
}

// TestValidate checks that a configuration without a file gets the errors of one
// with a file, but for the place.
func TestValidate(t *testing.T) {
	c := Default()
	c.Interfaces = []Interface{{Name: "a/b"}}
	c.MaxCoverage, c.BitsPerEntry, c.Learning.Elements = 0, 0.5, 2e6
	var errs Errors
	if err := c.Validate(); !errors.As(err, &errs) || len(errs) != 4 {
		t.Fatalf("got %v", err)
	}
	_, err := Parse("x", []byte("bits_per_entry: 0.5\nlearning: {elements: 2M}\ninterfaces: [a/b]\nmax_coverage: 0"))
	var fromFile Errors
	if !errors.As(err, &fromFile) || len(fromFile) != len(errs) {
		t.Fatalf("from a file: %v", err)
	}
	for i, e := range errs {
		if got, want := e.Error(), fromFile[i].Path+": "+fromFile[i].Err.Error(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	c = Default()
	c.Interfaces = []Interface{{Name: "eth0"}}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

// Numbers of things may be written with a prefix, as everywhere.
func TestCounts(t *testing.T) {
	const text = `interfaces: [eth0]
lists: {a: {sources: [{url: https://192.0.2.1/a, max_entries: 8M}]}}
learning: {elements: 64k}
replies: {action: pass, connections: 1M}
multicast: {max_groups: 2k, interfaces: [eth1]}
`
	c, err := Parse("weir.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Lists[0].Sources[0].MaxEntries; n != 8e6 || c.Learning.Elements != 64000 || c.Replies.Connections != 1e6 || c.Multicast.MaxGroups != 2000 {
		t.Errorf("%v, %v, %v, %v", n, c.Learning.Elements, c.Replies.Connections, c.Multicast.MaxGroups)
	}
	if err := validate(t, []byte(text)); err != nil {
		t.Errorf("the schema: %v", err)
	}
	var b bytes.Buffer
	if err := c.Print(&b); err != nil {
		t.Fatal(err)
	}
	if again, err := Parse("weir.yaml", b.Bytes()); err != nil || again.Lists[0].Sources[0].MaxEntries != 8e6 {
		t.Errorf("printed and read again: %v\n%s", err, &b)
	}
}

// There may be thousands of lists, and not any number.
func TestMaxLists(t *testing.T) {
	long.Seconds(t)
	text := func(n int) string {
		var b strings.Builder
		b.WriteString("interfaces: [{name: eth0}]\nlists:\n")
		for i := range n {
			fmt.Fprintf(&b, "  list-%d: {sources: [{file: /f}]}\n", i)
		}
		return b.String()
	}
	if c, err := Parse("weir.yaml", []byte(text(MaxLists))); err != nil || len(c.Lists) != MaxLists {
		t.Fatal(err)
	}
	if _, err := Parse("weir.yaml", []byte(text(MaxLists+1))); err == nil || !strings.Contains(err.Error(), "lists: there are 10001: the maximum is 10000") {
		t.Errorf("one more: %v", err)
	}
}
