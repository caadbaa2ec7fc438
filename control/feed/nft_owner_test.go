package feed_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// TestNFTOwner compares what weir reads from scripts of nft, as text and as JSON, with what the
// kernel has after nft has loaded them, and from what nft lists then, as text and as JSON.
func TestNFTOwner(t *testing.T) {
	t.Parallel()
	lab.Tool(t, "nft")
	r := seed.New(t)
	c := newTally()
	for _, form := range []struct {
		load string
		make func(*rand.Rand) script
	}{
		{"nft -f -", newNFTScript},
		{"nft -j -f -", newNFTJSON},
	} {
		scripts := make([]script, long.Rounds(30, 100, 10_000))
		for i := range scripts {
			scripts[i] = form.make(r)
		}
		probe := script{"probe", "table inet probe { set s { type ipv4_addr; flags interval; auto-merge; elements = { 192.0.2.0/24 }; }; }\n"}
		list := []string{"nft list ruleset", "nft -j list ruleset"}
		if load(t, []script{probe}, "nft -f -", list, "nft flush ruleset")[0] == nil {
			lacking(t, "sets of nftables in the kernel")
		}
		for i, printed := range load(t, scripts, form.load, list, "nft flush ruleset") {
			if printed == nil {
				continue
			}
			sets := listedSets(t, printed[1])
			for _, file := range []script{scripts[i], {"listed as text", printed[0]}, {"listed as JSON", printed[1]}} {
				for _, name := range sortedKeys(sets) {
					if len(sets[name]) > 0 {
						f := owned(t, "nftables", name)
						c.check(t, file.name, file.text, f, true, sets[name])
						c.check(t, file.name, file.text, f, false, sets[name])
					}
				}
				if only := slices.Collect(maps.Values(sets)); len(only) == 1 && len(only[0]) > 0 {
					c.check(t, file.name, file.text, owned(t, "nftables"), true, only[0])
				}
			}
		}
	}
	c.report(t, 0.05)
}

// listedSets reads the sets of addresses in the output of `nft -j list ruleset`.
func listedSets(t *testing.T, text string) map[string]spans {
	t.Helper()
	var listed struct {
		NFTables []struct {
			Set *struct {
				Name string
				Type any
				Elem []any
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &listed); err != nil {
		t.Fatalf("nft prints %s: %v", text, err)
	}
	var element func(any) string
	element = func(e any) string {
		switch e := e.(type) {
		case string:
			return e
		case map[string]any:
			if inner, ok := e["elem"].(map[string]any); ok {
				return element(inner["val"])
			}
			if p, ok := e["prefix"].(map[string]any); ok {
				return fmt.Sprintf("%s/%v", p["addr"], p["len"])
			}
			if ends, ok := e["range"].([]any); ok {
				return fmt.Sprintf("%s-%s", ends...)
			}
		}
		t.Fatalf("nft prints the element %v", e)
		return ""
	}
	sets := make(map[string]spans)
	for _, object := range listed.NFTables {
		if object.Set == nil || object.Set.Type != "ipv4_addr" && object.Set.Type != "ipv6_addr" {
			continue
		}
		var texts []string
		for _, e := range object.Set.Elem {
			texts = append(texts, element(e))
		}
		sets[object.Set.Name] = parsed(texts...)
	}
	return sets
}

// nftSet is a set of a script.
type nftSet struct {
	family, table, name                            string
	six, interval, merge, timeout, counter, typeof bool
	next                                           int // the network of the next element
}

// newNFTSet draws a set of addresses.
func newNFTSet(r *rand.Rand, family, table, name string) *nftSet {
	s := &nftSet{family: family, table: table, name: name, six: r.IntN(4) == 0, next: r.IntN(10000)}
	s.interval = r.IntN(3) > 0
	s.merge = s.interval && r.IntN(3) == 0
	s.timeout = r.IntN(5) == 0
	s.counter = r.IntN(10) == 0
	s.typeof = r.IntN(6) == 0
	return s
}

// element draws addresses that no other element of the set has: an address, or the base and length
// of a prefix, or the ends of a range.
func (s *nftSet) element(r *rand.Rand) (first, last string, bits int) {
	s.next += 1 + r.IntN(5)
	var net netip.Addr
	low, high := r.IntN(200), 0
	at := func(n int) string {
		if s.six {
			return netip.MustParsePrefix(fmt.Sprintf("2001:db8:%x::%x/128", s.next, n)).Addr().String()
		}
		return fmt.Sprintf("%d.%d.0.%d", 1+s.next/256%200, s.next%256, n)
	}
	net = netip.MustParseAddr(at(0))
	if s.interval {
		switch r.IntN(4) {
		case 0:
			high = low + 1 + r.IntN(50)
			return at(low), at(high), 0
		case 1:
			bits = 16 + r.IntN(17)
			if s.six {
				bits = 48 + r.IntN(80)
			}
			if r.IntN(8) == 0 {
				return at(low), "", bits // with host bits
			}
			return netip.PrefixFrom(net, bits).Masked().Addr().String(), "", bits
		}
	}
	return at(low), "", 0
}

// nftScript writes a script in nft's language.
type nftScript struct {
	r    *rand.Rand
	name string
	b    strings.Builder
	loud bool // with spaces and remarks in many places
}

// newNFTScript returns a script by the grammar of nft(8), most often one that people have.
func newNFTScript(r *rand.Rand) script {
	s := &nftScript{r: r, name: "script", loud: r.IntN(2) == 0}
	if r.IntN(3) == 0 {
		s.b.WriteString("#!/usr/sbin/nft -f\n\n")
	}
	if r.IntN(4) == 0 {
		s.b.WriteString("flush ruleset\n")
	}
	var define string
	if r.IntN(40) == 0 {
		s.name = "script with variables"
		define = "nets"
		s.b.WriteString("define nets = { 203.0.113.0/24, 198.51.100.7 }\ndefine one = 192.0.2.200\n")
	}
	var sets []*nftSet
	for t := range 1 + r.IntN(2) {
		table := fmt.Sprintf("%s%d", pick(r, "filter", "f", "fw-x_", "raw.y"), t)
		table = strings.ReplaceAll(table, ".", "_")
		family := pick(r, "inet", "inet", "ip", "ip6", "netdev", "")
		named := strings.TrimSpace(family + " " + table)
		if r.IntN(8) == 0 {
			fmt.Fprintf(&s.b, "table %s\ndelete table %s\n", named, named)
		}
		var own []*nftSet
		for i := range 1 + r.IntN(2) {
			own = append(own, newNFTSet(r, family, table, fmt.Sprintf("%s%d%d", pick(r, "block", "bad4_", "abuse-v4", "element"), t, i)))
		}
		sets = append(sets, own...)
		if r.IntN(5) == 0 {
			fmt.Fprintf(&s.b, "add table %s%s", named, pick(r, "\n", ";"))
			for _, set := range own {
				fmt.Fprintf(&s.b, "%s set %s %s { %s }\n", pick(r, "add", "add", "create"), named, set.name, strings.Join(s.properties(set), "; ")+" ;")
				s.addElements(set)
			}
			continue
		}
		fmt.Fprintf(&s.b, "%stable %s {%s", pick(r, "", "", "", "add "), named, "\n")
		for _, set := range own {
			s.other(family)
			s.set(set)
		}
		s.other(family)
		s.chain(family, own)
		s.b.WriteString("}\n")
	}
	set := pick(r, sets...)
	if define != "" && !set.six {
		// nft 1.0.6 does not end where a set has both.
		if set.interval && r.IntN(2) == 0 {
			fmt.Fprintf(&s.b, "add element %s $nets\n", set.path())
		} else {
			fmt.Fprintf(&s.b, "add element %s { %s }\n", set.path(), "$one")
		}
	}
	if r.IntN(6) == 0 {
		s.addElements(set)
	}
	switch r.IntN(200) {
	case 0, 1:
		s.name = "script with delete"
		first, _, _ := set.element(r)
		fmt.Fprintf(&s.b, "add element %s { %s }\ndelete element %s { %s }\n", set.path(), first, set.path(), first)
	case 2:
		s.name = "script with flush set"
		fmt.Fprintf(&s.b, "flush set %s\n", set.path())
		s.addElements(set)
	case 3:
		s.name = "script with delete table"
		fmt.Fprintf(&s.b, "delete table %s\n", strings.TrimSpace(set.family+" "+set.table))
	}
	return script{s.name, s.b.String()}
}

func (s *nftSet) path() string {
	return strings.TrimSpace(s.family + " " + s.table + " " + s.name)
}

func (s *nftScript) properties(x *nftSet) []string {
	r := s.r
	kind := map[bool]string{false: "ipv4_addr", true: "ipv6_addr"}[x.six]
	p := []string{"type " + kind}
	if x.typeof {
		p[0] = map[bool]string{false: "typeof ip saddr", true: "typeof ip6 daddr"}[x.six]
	}
	var flags []string
	if x.interval {
		flags = append(flags, "interval")
	}
	if x.timeout {
		flags = append(flags, "timeout")
	}
	if len(flags) > 0 {
		p = append(p, "flags "+strings.Join(flags, pick(r, ",", ", ")))
	}
	some := func(n int, property string) {
		if r.IntN(n) == 0 {
			p = append(p, property)
		}
	}
	if x.merge {
		p = append(p, "auto-merge")
	}
	if x.timeout {
		some(2, "timeout "+pick(r, "1d", "12h30m", "604800s", "1d2h3m4s"))
		some(4, "gc-interval 1h")
	}
	some(4, fmt.Sprintf("size %d", 1024+r.IntN(65536)))
	some(4, `comment "`+pick(r, "bad hosts", "type ipv6_addr; elements = { 192.0.2.99 }", "x # y")+`"`)
	if x.counter {
		p = append(p, "counter")
	}
	return p
}

// space returns white space where the grammar allows any.
func (s *nftScript) space(usual string) string {
	if s.loud && s.r.IntN(8) == 0 {
		return pick(s.r, "", " ", "  ", "\t")
	}
	return usual
}

// elements returns elements in braces.
func (s *nftScript) elements(x *nftSet, n int) string {
	r := s.r
	var b strings.Builder
	b.WriteString("{" + pick(r, " ", " ", "", "\n\t\t\t"))
	for i := range n {
		first, last, bits := x.element(r)
		b.WriteString(first)
		switch {
		case last != "":
			b.WriteString(s.space("") + "-" + s.space("") + last)
		case bits > 0:
			fmt.Fprintf(&b, "%s/%s%d", s.space(""), s.space(""), bits)
		}
		if x.counter && r.IntN(2) == 0 {
			b.WriteString(" counter" + pick(r, "", " packets 10 bytes 400"))
		}
		if x.timeout && r.IntN(2) == 0 {
			b.WriteString(" timeout " + pick(r, "1h", "2d", "86400s", "1d1h1m1s"))
			if r.IntN(3) == 0 {
				b.WriteString(" expires 59m")
			}
		}
		if r.IntN(12) == 0 {
			b.WriteString(` comment "` + pick(r, "scan", "a, b", "} ; {", "192.0.2.99", "# x", "timeout 1s") + `"`)
		}
		if i < n-1 || s.loud && r.IntN(4) == 0 {
			b.WriteString(s.space("") + "," + s.space(" "))
			if r.IntN(4) == 0 {
				if s.loud && r.IntN(4) == 0 {
					b.WriteString("# 192.0.2.98, gone")
				}
				b.WriteString("\n\t\t\t     ")
			}
		}
	}
	b.WriteString(pick(r, " ", " ", "", "\n\t\t") + "}")
	return b.String()
}

// set writes a set within a table.
func (s *nftScript) set(x *nftSet) {
	r := s.r
	p := s.properties(x)
	if n := r.IntN(30); n > 0 {
		p = append(p, "elements"+s.space(" ")+"="+s.space(" ")+s.elements(x, n))
	}
	if r.IntN(6) == 0 {
		fmt.Fprintf(&s.b, "\tset %s { %s; }%s\n", x.name, strings.Join(p, "; "), pick(r, "", ";"))
		return
	}
	remark := func() string {
		if s.loud && r.IntN(6) == 0 {
			return pick(r, " # elements = { 192.0.2.97 }", " # }")
		}
		return ""
	}
	fmt.Fprintf(&s.b, "\tset %s {%s\n", x.name, remark())
	for _, line := range p {
		fmt.Fprintf(&s.b, "\t\t%s%s%s\n", line, pick(r, "", "", ";"), remark())
	}
	s.b.WriteString("\t}\n\n")
}

// addElements writes a command that adds elements.
func (s *nftScript) addElements(x *nftSet) {
	if x.family == "" && s.r.IntN(2) == 0 {
		x = &nftSet{family: "ip", table: x.table, name: x.name, six: x.six, interval: x.interval, merge: x.merge, timeout: x.timeout, counter: x.counter, next: x.next + 5000}
	}
	fmt.Fprintf(&s.b, "add element %s %s\n", x.path(), s.elements(x, 1+s.r.IntN(10)))
}

// other writes an object that is no set of addresses, or nothing.
func (s *nftScript) other(family string) {
	r := s.r
	if r.IntN(2) == 0 {
		return
	}
	n := r.IntN(100000)
	s.b.WriteString(pick(r,
		fmt.Sprintf("\tset other%d {\n\t\ttype inet_service\n\t\tflags interval\n\t\telements = { 22, 80-90, 443 }\n\t}\n", n),
		fmt.Sprintf("\tset other%d {\n\t\ttype ipv4_addr . inet_service\n\t\telements = { 192.0.2.90 . 22, 192.0.2.91 . 80 }\n\t}\n", n),
		fmt.Sprintf("\tset other%d {\n\t\ttype ipv4_addr . inet_service\n\t\tflags interval\n\t\telements = { 192.0.2.0/24 . 22-30 }\n\t}\n", n),
		fmt.Sprintf("\tset other%d { type ether_addr; elements = { 00:11:22:33:44:55 }; }\n", n),
		fmt.Sprintf("\tset other%d { type ifname; elements = { \"eth0\", \"wlan1\" }; }\n", n),
		fmt.Sprintf("\tmap other%d {\n\t\ttype ipv4_addr : verdict\n\t\telements = { 192.0.2.92 : drop, 192.0.2.93 : accept }\n\t}\n", n),
		fmt.Sprintf("\tmap other%d {\n\t\ttype inet_service : ipv4_addr\n\t\telements = { 80 : 192.0.2.94 }\n\t}\n", n),
		fmt.Sprintf("\tcounter other%d {\n\t\tpackets 0 bytes 0\n\t}\n", n),
		fmt.Sprintf("\tquota other%d {\n\t\tover 10 mbytes\n\t}\n", n),
		fmt.Sprintf("\tchain other%d {\n\t}\n", n),
		"\t# set gone { type ipv4_addr; elements = { 192.0.2.95 } }\n",
	))
}

// chain writes a chain with rules.
func (s *nftScript) chain(family string, sets []*nftSet) {
	r := s.r
	if family == "netdev" || r.IntN(3) == 0 {
		return
	}
	s.b.WriteString("\tchain input {\n\t\ttype filter hook input priority " + pick(r, "0", "filter", "-10") + "; policy accept;\n")
	for range r.IntN(4) {
		s.b.WriteString("\t\t" + pick(r,
			"ct state established,related accept",
			"iif lo accept",
			"tcp dport { 22, 80, 443 } accept",
			"meta l4proto icmp limit rate 10/second accept",
			`counter comment "elements = { 192.0.2.96 }"`,
			`log prefix "set x { " drop`,
		) + "\n")
		if family != "ip6" {
			s.b.WriteString("\t\t" + pick(r, "ip saddr { 192.0.2.94, 198.51.100.0/25 } drop", "ip saddr 192.0.2.0/26 counter drop", "ip saddr vmap { 192.0.2.93 : drop, 192.0.2.94 : accept }") + "\n")
		}
	}
	for _, x := range sets {
		if x.six && family != "ip" && family != "" {
			fmt.Fprintf(&s.b, "\t\tip6 saddr @%s counter drop\n", x.name)
		}
		if !x.six && family != "ip6" {
			fmt.Fprintf(&s.b, "\t\tip saddr @%s drop\n", x.name)
		}
	}
	s.b.WriteString("\t}\n")
}

// object is JSON with its keys in a random order, which has no meaning.
func object(r *rand.Rand, pairs ...any) string {
	var fields []string
	for i := 0; i < len(pairs); i += 2 {
		value, ok := pairs[i+1].(json.RawMessage)
		if !ok {
			value, _ = json.Marshal(pairs[i+1])
		}
		fields = append(fields, fmt.Sprintf("%q: %s", pairs[i], value))
	}
	if r.IntN(500) == 0 {
		r.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	}
	return "{" + strings.Join(fields, pick(r, ", ", ",")) + "}"
}

// newNFTJSON returns a script by libnftables-json(5).
func newNFTJSON(r *rand.Rand) script {
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	name := "script in JSON"
	elements := func(x *nftSet, n int) json.RawMessage {
		var all []string
		for range n {
			first, last, bits := x.element(r)
			e := fmt.Sprintf("%q", first)
			switch {
			case last != "":
				e = object(r, "range", []string{first, last})
			case bits > 0:
				e = object(r, "prefix", raw(object(r, "addr", first, "len", bits)))
			}
			pairs := []any{"val", raw(e)}
			if x.timeout && r.IntN(2) == 0 {
				pairs = append(pairs, "timeout", 3600+r.IntN(86400))
			}
			if r.IntN(8) == 0 {
				pairs = append(pairs, "comment", pick(r, "scan", "192.0.2.99", `"elem"`[1:5]))
			}
			if len(pairs) > 2 {
				e = object(r, "elem", raw(object(r, pairs...)))
			}
			all = append(all, e)
		}
		if len(all) == 1 && strings.HasPrefix(all[0], `"`) && r.IntN(2) == 0 {
			return raw(all[0])
		}
		return raw("[" + strings.Join(all, pick(r, ", ", ",", ",\n  ")) + "]")
	}
	var commands []string
	add := func(kind string, what string) {
		command := pick(r, "add", "add", "add", "create")
		if strings.Contains(what, `"elem"`) {
			command = "add" // nft 1.0.6 loses the elements of some sets that are created
		}
		commands = append(commands, object(r, command, raw(object(r, kind, raw(what)))))
	}
	if r.IntN(3) == 0 {
		commands = append(commands, `{"metainfo": {"json_schema_version": 1}}`)
	}
	if r.IntN(6) == 0 {
		commands = append(commands, `{"flush": {"ruleset": null}}`)
	}
	var sets []*nftSet
	for t := range 1 + r.IntN(2) {
		family, table := pick(r, "inet", "ip", "ip6"), fmt.Sprint("t", t)
		add("table", object(r, "family", family, "name", table))
		for i := range 1 + r.IntN(3) {
			x := newNFTSet(r, family, table, fmt.Sprintf("block%d%d", t, i))
			sets = append(sets, x)
			pairs := []any{"family", family, "table", table, "name", x.name, "type", map[bool]string{false: "ipv4_addr", true: "ipv6_addr"}[x.six]}
			var flags []string
			if x.interval {
				flags = append(flags, "interval")
			}
			if x.timeout {
				flags = append(flags, "timeout")
			}
			if len(flags) > 0 {
				pairs = append(pairs, "flags", flags)
			}
			if x.merge {
				pairs = append(pairs, "auto-merge", true)
			}
			if r.IntN(2) == 0 {
				pairs = append(pairs, "elem", elements(x, 1+r.IntN(10)))
			}
			add("set", object(r, pairs...))
		}
		if r.IntN(4) == 0 {
			add("set", object(r, "family", family, "table", table, "name", fmt.Sprint("p", t), "type", "inet_service", "elem", []int{22, 80}))
		}
		if r.IntN(4) == 0 {
			add("map", object(r, "family", family, "table", table, "name", fmt.Sprint("m", t), "type", "ipv4_addr", "map", "verdict", "elem", raw(`[["192.0.2.92", {"drop": null}]]`)))
		}
	}
	element := func(x *nftSet, elem json.RawMessage) string {
		return object(r, "element", raw(object(r, "family", x.family, "table", x.table, "name", x.name, "elem", elem)))
	}
	for range r.IntN(3) {
		x := pick(r, sets...)
		commands = append(commands, object(r, "add", raw(element(x, elements(x, 1+r.IntN(10))))))
	}
	switch x := pick(r, sets...); r.IntN(100) {
	case 0:
		name = "script in JSON with delete"
		first, _, _ := x.element(r)
		elem := raw(fmt.Sprintf("[%q]", first))
		commands = append(commands, object(r, "add", raw(element(x, elem))), object(r, "delete", raw(element(x, elem))))
	case 1:
		name = "script in JSON with flush set"
		commands = append(commands, object(r, "flush", raw(object(r, "set", raw(object(r, "family", x.family, "table", x.table, "name", x.name))))))
	}
	return script{name, `{"nftables": [` + strings.Join(commands, pick(r, ", ", ",\n")) + "]}" + pick(r, "", "\n")}
}
