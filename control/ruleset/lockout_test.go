package ruleset

import (
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/verdict"
	"weir/tests/must"
)

func engineLists(t *testing.T, allow string, block ...string) []engine.List {
	t.Helper()
	set := func(texts ...string) *list.Set {
		var all list.Entries
		for _, text := range texts {
			if text == "" {
				continue
			}
			e, err := listfile.ParseEntry(text)
			if err != nil {
				t.Fatal(err)
			}
			all.Append(e)
		}
		return all.Set()
	}
	return []engine.List{{Name: "block", Contents: set(block...)}, {Name: "allow", Allow: true, Contents: set(allow)}}
}

// What cuts off a peer is found, however it is written, and nothing else.
func TestObjections(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")}
	login, _ := ConnectionPeer("your SSH session", "203.0.113.9 50000 10.0.0.2 22")
	mapped, ok := ConnectionPeer("your SSH session", "::ffff:203.0.113.9 50000 ::ffff:10.0.0.2 22")
	if mapped != login || !ok {
		t.Errorf("%+v is not %+v", mapped, login)
	}
	peers := []Peer{
		{"own", key.Destination(netip.MustParsePrefix("10.0.0.2/32"))},
		{"network", key.Source(netip.MustParsePrefix("10.0.0.0/24"))},
		login,
	}
	file := filepath.Join(t.TempDir(), "resolv.conf")
	must.Write(t, file, "# a comment\nnameserver 127.0.0.53\noptions x\n")
	upstream := file + ".up"
	must.Write(t, upstream, "nameserver 192.0.2.53\nnameserver fe80::1%eth0\n")
	peers = append(peers, resolvers(file, upstream, own)...)
	peers = append(peers, serverPeers("list feed", []netip.Addr{netip.MustParseAddr("2001:db8:f::1"), netip.MustParseAddr("127.0.0.1")}, own)...)
	failsafe := &verdict.Policy{
		FailsafePorts:    []verdict.FailsafePort{{Proto: 6, Port: 22}},
		FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")},
	}
	for _, c := range []struct {
		policy *verdict.Policy
		allow  string
		block  string
		what   string // "": nothing
	}{
		{nil, "", "10.0.0.0/8", "network"},
		{nil, "", "10.0.0.0/24", "network"},
		{nil, "", "10.0.0.0/25", ""}, // a part of the neighbours
		{nil, "", "10.0.0.77", ""},   // one of them
		{nil, "", "> 10.0.0.2", "own"},
		{nil, "", "> 10.0.0.0/30", "own"},
		{nil, "", "any *:* > 10.0.0.2:*", "own"},
		{nil, "", "tcp *:* > 10.0.0.2:80", ""},
		{nil, "", "203.0.113.9", "your SSH session from 203.0.113.9"},
		{nil, "", "203.0.113.8/29", "your SSH session from 203.0.113.9"},
		{nil, "", "tcp *:* > *:22", "your SSH session from 203.0.113.9"},
		{nil, "", "tcp 203.0.113.9:* > 10.0.0.2:22", "your SSH session from 203.0.113.9"},
		{nil, "", "tcp 203.0.113.9:* > *:443", ""},
		{nil, "", "udp 203.0.113.9:* > *:*", ""},
		{nil, "", "192.0.2.53", "the resolver 192.0.2.53"},
		{nil, "", "udp *:53 > *:*", "the resolver 192.0.2.53"},
		{nil, "", "udp 192.0.2.53:* > 10.0.0.2:*", "the resolver 192.0.2.53"},
		{nil, "", "2001:db8:f::/48", "the server 2001:db8:f::1 of list feed"},
		{nil, "", "127.0.0.0/8", ""},
		{nil, "203.0.113.0/24", "203.0.113.9", ""},
		{nil, "tcp 203.0.113.9:* > *:22", "203.0.113.9", ""},
		{nil, "tcp 203.0.113.9:* > *:23", "203.0.113.9", "your SSH session from 203.0.113.9"},
		{failsafe, "", "203.0.113.9", ""},
		{failsafe, "", "10.0.0.0/8", ""},
		{failsafe, "", "> 10.0.0.2", "own"},
	} {
		p := c.policy
		if p == nil {
			p = &verdict.Policy{}
		}
		rules := engineLists(t, c.allow, c.block)
		got := Objections(rules, p, peers)
		what := ""
		if len(got) > 0 {
			what = got[0].Peer.What
		}
		if what != c.what {
			t.Errorf("%s, allowed %q: would cut off %q, want %q", c.block, c.allow, what, c.what)
		}
		rules[0].Contents = Without(rules[0].Contents, 1, got)
		if left := Objections(rules, p, peers); len(left) > 0 {
			t.Errorf("%s: %v are left", c.block, left)
		}
	}
}

func TestLogins(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"1": "UID=0\nREMOTE=1\nREMOTE_HOST=192.0.2.9\n", "2": "REMOTE_HOST=192.0.2.9\n", "3": "REMOTE=0\n", "4": "REMOTE_HOST=host.example\n",
	} {
		must.Write(t, filepath.Join(dir, name), text)
	}
	got := logins(dir, []netip.Addr{netip.MustParseAddr("10.0.0.2")})
	if len(got) != 1 || got[0].What != "the login from 192.0.2.9" || got[0].Key.String() != "tcp 192.0.2.9:* > 10.0.0.2:*" {
		t.Errorf("%+v", got)
	}
}

// A penalty of a flow is judged as an entry of a block list is, whatever other lists block.
func TestPenalties(t *testing.T) {
	own := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("2001:db8::2")}
	peers := []Peer{
		{"own", key.Destination(netip.MustParsePrefix("10.0.0.2/32"))},
		{"own", key.Source(netip.MustParsePrefix("10.0.0.2/32"))},
		{"network", key.Source(netip.MustParsePrefix("10.0.0.0/24"))},
	}
	for _, gateway := range []string{"10.0.0.1", "fe80::1", "203.0.113.1"} {
		peers = append(peers, toOwn("gateway "+gateway, key.Tuple{Src: netip.MustParseAddr(gateway)}, 0, own)...)
	}
	file := filepath.Join(t.TempDir(), "resolv.conf")
	must.Write(t, file, "nameserver 192.0.2.53\n")
	peers = append(peers, resolvers(file, file, own)...)
	policy := &verdict.Policy{FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/25")}}
	flow := key.Tuple{
		Src: netip.MustParseAddr("10.0.0.1"), Dst: own[0], Proto: 6, HasPorts: true, SrcPort: 1, DstPort: 2,
	}.Key()
	want := map[key.Key]string{
		key.Source(netip.MustParsePrefix("10.0.0.1/32")):        "gateway 10.0.0.1",
		key.Source(netip.MustParsePrefix("10.0.0.0/24")):        "own",
		key.Source(netip.MustParsePrefix("10.0.0.2/32")):        "own",
		key.Destination(netip.MustParsePrefix("10.0.0.2/32")):   "own",
		key.Source(netip.MustParsePrefix("fe80::1/128")):        "gateway fe80::1",
		key.Source(netip.MustParsePrefix("192.0.2.53/32")):      "the resolver 192.0.2.53",
		key.Source(netip.MustParsePrefix("198.51.100.7/32")):    "the failsafe prefix 198.51.100.0/25",
		key.Source(netip.MustParsePrefix("198.51.100.200/32")):  "",
		key.Source(netip.MustParsePrefix("10.0.0.77/32")):       "", // a neighbour
		key.Source(netip.MustParsePrefix("203.0.113.1/32")):     "", // allowed: it is spared anyway
		key.Destination(netip.MustParsePrefix("192.0.2.53/32")): "",
		flow: "",
	}
	got := Penalties(engineLists(t, "203.0.113.0/28", "10.0.0.0/8", "192.0.2.53"), policy, peers, slices.Collect(maps.Keys(want)))
	for k, what := range want {
		if got[k] != what {
			t.Errorf("a penalty of %v would cut off %q, want %q", k, got[k], what)
		}
	}
	if got := Penalties(nil, policy, peers, nil); len(got) > 0 {
		t.Errorf("no penalties would cut off %v", got)
	}
}
