package feed_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// TestIPSetOwner compares what weir reads from scripts of ipset with what the kernel has after
// ipset has loaded them, and from what ipset saves then.
func TestIPSetOwner(t *testing.T) {
	t.Parallel()
	lab.Tool(t, "ipset")
	r := seed.New(t)
	clear := "ipset flush; ipset destroy"
	if load(t, []script{{"probe", "create a hash:net\ncreate b hash:ip netmask 24\n"}}, "ipset restore", []string{"ipset save"}, clear)[0] == nil {
		lacking(t, "sets of ipset in the kernel")
	}
	scripts := make([]script, long.Rounds(40, 300, 10_000))
	for i := range scripts {
		scripts[i] = newIPSetScript(r)
	}
	c := newTally()
	for i, printed := range load(t, scripts, "ipset -exist restore", []string{"ipset save"}, clear) {
		if printed == nil {
			continue
		}
		sets := savedSets(t, printed[0])
		for _, file := range []script{scripts[i], {"saved", printed[0]}} {
			addresses := 0
			for _, name := range sortedKeys(sets) {
				s := sets[name]
				if !s.ofAddresses {
					continue
				}
				addresses++
				f := owned(t, "ipset", name)
				if s.entries > 0 && !s.masked { // a mask that is no prefix: to be refused
					c.check(t, file.name, file.text, f, true, s.has)
					c.check(t, file.name, file.text, f, false, s.has)
				}
			}
			if only := slices.Collect(maps.Values(sets)); addresses == 1 && len(only) == 1 && !only[0].masked && only[0].entries > 0 {
				c.check(t, file.name, file.text, owned(t, "ipset"), true, only[0].has)
			}
		}
	}
	c.report(t, 0.05)
}

// savedSet is a set as `ipset save` prints it.
type savedSet struct {
	ofAddresses bool
	masked      bool // by a mask that is no prefix
	entries     int
	has         spans
}

// savedSets reads the output of `ipset save`.
func savedSets(t *testing.T, text string) map[string]*savedSet {
	t.Helper()
	type entry struct {
		span
		bits    int
		nomatch bool
	}
	sets := make(map[string]*savedSet)
	netmask := make(map[string]int)
	entries := make(map[string][]entry)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		name := words[1]
		switch words[0] {
		case "create":
			sets[name] = &savedSet{ofAddresses: slices.Contains([]string{"hash:ip", "hash:net", "bitmap:ip"}, words[2])}
			if i := slices.Index(words, "netmask"); i > 0 {
				netmask[name], _ = strconv.Atoi(words[i+1])
			}
			sets[name].masked = slices.Contains(words, "bitmask")
		case "add":
			if !sets[name].ofAddresses {
				continue
			}
			s, err := parse(words[2])
			if err != nil {
				t.Fatalf("ipset prints %q: %v", line, err)
			}
			bits := s.first.BitLen()
			if _, length, ok := strings.Cut(words[2], "/"); ok {
				bits, _ = strconv.Atoi(length)
			}
			if n := netmask[name]; n > 0 {
				s, bits = of(netip.PrefixFrom(s.first, n)), n
			}
			before, _, _ := strings.Cut(line, `"`) // before a comment
			entries[name] = append(entries[name], entry{s, bits, slices.Contains(strings.Fields(before), "nomatch") || strings.HasSuffix(strings.TrimSpace(line), " nomatch")})
		default:
			t.Fatalf("ipset prints %q", line)
		}
	}
	for name, s := range sets {
		all := entries[name]
		s.entries = len(all)
		// The longest prefix decides.
		slices.SortStableFunc(all, func(a, b entry) int { return a.bits - b.bits })
		if !slices.ContainsFunc(all, func(e entry) bool { return e.nomatch }) {
			var plain []span
			for _, e := range all {
				plain = append(plain, e.span)
			}
			s.has = joined(plain)
			continue
		}
		for _, e := range all {
			if e.nomatch {
				s.has = s.has.without(spans{e.span})
			} else {
				s.has = s.has.and(spans{e.span})
			}
		}
	}
	return sets
}

// ipsetScript writes a script.
type ipsetScript struct {
	r    *rand.Rand
	b    strings.Builder
	name string
	old  bool // with the names of commands that ipset had first
	loud bool // with -exist, many spaces and remarks
}

// newIPSetScript returns a script by the grammar of ipset(8), most often one that people have.
func newIPSetScript(r *rand.Rand) script {
	s := &ipsetScript{r: r, name: "script"}
	s.loud = r.IntN(3) == 0
	if r.IntN(60) == 0 {
		s.old, s.name = true, "script, short commands"
	}
	if s.loud && r.IntN(4) == 0 {
		s.b.WriteString("# blocked\n\n")
	}
	var sets []*ipsetSet
	for i := range 1 + r.IntN(1+r.IntN(4)) {
		sets = append(sets, s.newSet(fmt.Sprintf("%s%d", pick(r, "block", "drop-v4_", "f2b-sshd.", "blacklist", "x"), i)))
	}
	ordered := r.IntN(3) > 0 // each set is created where its entries begin
	if !ordered {
		for _, set := range sets {
			s.create(set)
		}
	}
	for _, set := range sets {
		if ordered {
			s.create(set)
		}
		if r.IntN(6) == 0 {
			s.command("flush", set.name)
		}
		for range r.IntN(1 + r.IntN(40)) {
			s.add(set)
		}
	}
	switch r.IntN(300) {
	case 0, 1:
		s.name = "script with del"
		if set := pick(r, sets...); set.addresses {
			s.command("del", set.name, s.entry(set))
			if len(set.added) > 0 {
				s.command("del", set.name, pick(r, set.added...))
			}
		}
	case 2:
		s.name = "script with flush"
		s.command("flush", pick(r, sets...).name)
		s.add(pick(r, sets...))
	case 3, 4:
		s.name = "script with swap"
		set := *pick(r, sets...)
		set.name += "-new"
		if set.kind != "list:set" {
			s.create(&set)
			s.add(&set)
			s.command("swap", set.name, strings.TrimSuffix(set.name, "-new"))
			s.command("destroy", set.name)
		}
	case 5:
		s.name = "script with rename"
		s.command("rename", sets[0].name, "renamed")
	}
	if r.IntN(20) == 0 {
		s.b.WriteString("COMMIT\n")
	}
	text := s.b.String()
	if r.IntN(20) == 0 && !strings.HasSuffix(text, "COMMIT\n") {
		text = strings.TrimSuffix(text, "\n")
	}
	return script{s.name, text}
}

// command writes a line.
func (s *ipsetScript) command(command string, words ...string) {
	if s.old {
		command = pick(s.r, map[string][]string{
			"create": {"-N", "n", "create"}, "add": {"-A", "a", "add"}, "del": {"-D", "d", "del"},
			"flush": {"-F", "f", "flush"}, "swap": {"-W", "w", "swap"}, "rename": {"-E", "e", "rename"}, "destroy": {"-X", "x", "destroy"},
		}[command]...)
	}
	words = append([]string{command}, words...)
	if s.loud && s.r.IntN(3) == 0 {
		at := pick(s.r, 0, 1, len(words))
		words = slices.Insert(words, at, pick(s.r, "-exist", "-exist", "-!"))
	}
	space := " "
	if s.loud && s.r.IntN(10) == 0 {
		space = pick(s.r, "  ", "\t")
	}
	s.b.WriteString(strings.Join(words, space))
	if s.loud {
		s.b.WriteString(pick(s.r, "", "", "", "", " "))
	}
	s.b.WriteString("\n")
	if s.loud && s.r.IntN(30) == 0 {
		s.b.WriteString(pick(s.r, "\n", "# add x 192.0.2.1\n"))
	}
}

// ipsetSet is a set of a script.
type ipsetSet struct {
	name, kind                      string
	six, addresses                  bool
	timeout, counters, comment, skb bool
	base                            byte // of the range of a bitmap
	options, added                  []string
}

// newSet draws a set.
func (s *ipsetScript) newSet(name string) *ipsetSet {
	r := s.r
	x := &ipsetSet{name: name, addresses: true}
	switch n := r.IntN(20); {
	case n < 9:
		x.kind = "hash:net"
	case n < 17:
		x.kind = "hash:ip"
	case n < 18:
		x.kind = "bitmap:ip"
	default:
		x.addresses = false
		x.kind = pick(r, "hash:ip,port", "hash:net,port", "hash:ip,port,ip", "hash:ip,port,net", "hash:net,iface", "bitmap:ip,mac", "bitmap:port", "list:set")
	}
	hash := strings.HasPrefix(x.kind, "hash:")
	var options []string
	if hash && r.IntN(2) == 0 {
		x.six = r.IntN(3) == 0
		options = append(options, "family "+map[bool]string{true: "inet6", false: "inet"}[x.six])
	}
	some := func(n int, option string) bool {
		if r.IntN(n) > 0 {
			return false
		}
		options = append(options, option)
		return true
	}
	if hash {
		some(2, fmt.Sprintf("hashsize %d", 1<<(6+r.IntN(8))))
		some(2, fmt.Sprintf("maxelem %d", 8192<<r.IntN(5)))
		some(4, fmt.Sprintf("bucketsize %d", 2*(1+r.IntN(7))))
		some(4, fmt.Sprintf("initval 0x%08x", r.Uint32()))
		some(30, "forceadd")
	}
	switch {
	case x.kind == "hash:ip" && x.six:
		some(6, fmt.Sprintf("netmask %d", pick(r, 64, 48, 56, 127)))
	case x.kind == "hash:ip":
		if !some(6, fmt.Sprintf("netmask %d", pick(r, 24, 24, 16, 31, 23))) && some(300, "bitmask 255.255.0.255") {
			s.name = "script with bitmask"
		}
	case strings.HasPrefix(x.kind, "bitmap:ip"):
		x.base = byte(r.IntN(250))
		options = append(options, "range "+pick(r, fmt.Sprintf("198.18.%d.0/24", x.base), fmt.Sprintf("198.18.%d.0-198.18.%d.255", x.base, x.base)))
		if x.kind == "bitmap:ip" {
			some(4, fmt.Sprintf("netmask %d", pick(r, 28, 30, 31)))
		}
	case x.kind == "bitmap:port":
		options = append(options, "range 1-1024")
	}
	x.timeout = some(4, fmt.Sprintf("timeout %d", pick(r, 0, 86400, 1_000_000)))
	x.counters = some(6, "counters")
	x.comment = some(4, "comment")
	x.skb = some(12, "skbinfo")
	if r.IntN(4) == 0 {
		r.Shuffle(len(options), func(i, j int) { options[i], options[j] = options[j], options[i] })
	}
	x.options = options
	return x
}

func (s *ipsetScript) create(x *ipsetSet) {
	words := []string{x.name, x.kind}
	for _, o := range x.options {
		words = append(words, strings.Fields(o)...)
	}
	s.command("create", words...)
}

// add writes an entry of a set, with options that the set has.
func (s *ipsetScript) add(x *ipsetSet) {
	r := s.r
	entry := s.entry(x)
	if entry == "" {
		return
	}
	words := []string{x.name, entry}
	x.added = append(x.added, entry)
	some := func(has bool, option ...string) {
		if has && r.IntN(2) == 0 {
			words = append(words, option...)
		}
	}
	some(x.timeout, "timeout", fmt.Sprint(pick(r, 0, 50_000+r.IntN(1_000_000))))
	some(x.counters, "packets", fmt.Sprint(r.IntN(1000)))
	some(x.counters, "bytes", fmt.Sprint(r.IntN(1_000_000)))
	some(x.comment, "comment", `"`+pick(r, "scan", "from 192.0.2.1, twice", "nomatch", "# a -exist b", "Ünïcode { } ;", "add y 192.0.2.9", "a  b ")+`"`)
	some(x.skb, "skbmark", "0x1111/0xff00ffff")
	some(x.skb, "skbprio", "1:10")
	some(x.skb, "skbqueue", "10")
	if x.kind == "hash:net" && r.IntN(2500) == 0 {
		s.name = "script with nomatch"
		words = append(words, "nomatch")
	}
	s.command("add", words...)
}

// entry draws an entry that a set may have.
func (s *ipsetScript) entry(x *ipsetSet) string {
	r := s.r
	switch x.kind {
	case "hash:ip":
		a := address(r, x.six)
		switch n := r.IntN(20); {
		case x.six || n < 17:
			return a
		case n == 17:
			return a + fmt.Sprintf("/%d", 26+r.IntN(7))
		default:
			return shortRange(r)
		}
	case "hash:net":
		switch n := r.IntN(20); {
		case n < 8:
			return address(r, x.six)
		case n == 8 && !x.six:
			return shortRange(r)
		default:
			return network(r, x.six)
		}
	case "bitmap:ip":
		low := r.IntN(256)
		switch r.IntN(4) {
		case 0:
			// From an address within a network of the mask, the kernel adds network by network and
			// may miss the last one.
			low &^= 15
			return fmt.Sprintf("198.18.%d.%d-198.18.%d.%d", x.base, low, x.base, low+r.IntN(256-low))
		case 1:
			return fmt.Sprintf("198.18.%d.%d/%d", x.base, low, 25+r.IntN(8))
		}
		return fmt.Sprintf("198.18.%d.%d", x.base, low)
	case "hash:ip,port":
		return address(r, x.six) + "," + pick(r, "tcp:80", "udp:53", "443")
	case "hash:net,port":
		return network(r, x.six) + "," + pick(r, "tcp:80", "udp:53", "443")
	case "hash:ip,port,ip":
		return address(r, x.six) + ",tcp:80," + address(r, x.six)
	case "hash:ip,port,net":
		return address(r, x.six) + ",tcp:80," + network(r, x.six)
	case "hash:net,iface":
		return network(r, x.six) + ",eth0"
	case "bitmap:ip,mac":
		return fmt.Sprintf("198.18.%d.%d,00:11:22:33:44:%02x", x.base, r.IntN(256), r.IntN(256))
	case "bitmap:port":
		return fmt.Sprint(1 + r.IntN(1024))
	}
	return ""
}

// address draws an address.
func address(r *rand.Rand, six bool) string {
	if !six {
		return fmt.Sprintf("%d.%d.%d.%d", 1+r.IntN(223), r.IntN(256), r.IntN(256), r.IntN(256))
	}
	var b [16]byte
	b[0], b[1] = 0x20, 1
	for i := 2; i < 16; i++ {
		if r.IntN(2) == 0 {
			b[i] = byte(r.IntN(256))
		}
	}
	text := netip.AddrFrom16(b).String()
	if r.IntN(10) == 0 {
		text = netip.AddrFrom16(b).StringExpanded()
	}
	if r.IntN(10) == 0 {
		text = strings.ToUpper(text)
	}
	return text
}

// network draws a prefix, in one of eight cases with host bits.
func network(r *rand.Rand, six bool) string {
	a := netip.MustParseAddr(address(r, six))
	bits := 8 + r.IntN(25)
	if six {
		bits = 16 + r.IntN(113)
	}
	p := netip.PrefixFrom(a, bits)
	if r.IntN(8) > 0 {
		p = p.Masked()
	}
	return p.String()
}

// shortRange draws a range of few addresses of IPv4.
func shortRange(r *rand.Rand) string {
	low := r.IntN(256)
	net := fmt.Sprintf("%d.%d.%d.", 1+r.IntN(223), r.IntN(256), r.IntN(256))
	return fmt.Sprintf("%s%d-%s%d", net, low, net, low+r.IntN(256-low))
}
