package listfile

import (
	"io"
	"maps"
	"strings"
	"testing"

	"weir/control/list"
	"weir/filter/key"
)

func parsed(t *testing.T, text string) *list.Set {
	t.Helper()
	e, _, err := Parse("test", strings.NewReader(text), Options{MaxBad: -1})
	if err != nil {
		t.Fatal(err)
	}
	return e.Set()
}

func exported(t *testing.T, e Export) string {
	t.Helper()
	var b strings.Builder
	n, err := e.WriteTo(&b)
	if err != nil || n != int64(b.Len()) {
		t.Fatalf("%d bytes of %d, %v", n, b.Len(), err)
	}
	return b.String()
}

const mixed = `192.0.2.1
198.51.100.0/24
2001:db8::/32
2001:db8:1::1
> 203.0.113.7
> 192.0.2.1
tcp *:* > 198.51.100.7:443
udp [2001:db8::]:53 > [2001:db8:1::/48]:*
`

// What is exported in the format of lists is the same set again.
func TestExportPlain(t *testing.T) {
	for _, text := range []string{"", mixed, oneSide, "0.0.0.0/0\n::/0\n"} {
		s := parsed(t, text)
		again := parsed(t, exported(t, Plain(s)))
		if d := again.Diff(s); d.Len() > 0 || Plain(s).LeftOut() != 0 {
			t.Errorf("%q is exported as\n%s", text, exported(t, Plain(s)))
		}
	}
}

// oneSide has entries for one side, for the other one, and for both.
const oneSide = `192.0.2.9
any 192.0.2.1:* > *:*
any 192.0.2.2:* > *:*
any [2001:db8::/32]:* > *:*
any [2001:db8:1::2]:* > *:*
> 192.0.2.2
> 192.0.2.3
> 2001:db8:1::2
`

// matched returns what a list with these sides matches, as keys.
func matched(s *list.Set, src, dst bool) map[key.Key]bool {
	all := make(map[key.Key]bool)
	for p := range s.V4.Plain.All() {
		if src {
			all[key.Source(p.Prefix())] = true
		}
		if dst {
			all[key.Destination(p.Prefix())] = true
		}
	}
	for p := range s.V6.Plain.All() {
		if src {
			all[key.Source(p.Prefix())] = true
		}
		if dst {
			all[key.Destination(p.Prefix())] = true
		}
	}
	for p := range s.V4.Src.All() {
		all[key.Source(p.Prefix())] = true
	}
	for p := range s.V4.Dst.All() {
		all[key.Destination(p.Prefix())] = true
	}
	for p := range s.V6.Src.All() {
		all[key.Source(p.Prefix())] = true
	}
	for p := range s.V6.Dst.All() {
		all[key.Destination(p.Prefix())] = true
	}
	return all
}

// A list that imports what it has exported matches the same packets, and other programs get all
// entries but those that are said to be left out.
func TestExportSides(t *testing.T) {
	for _, d := range []struct{ src, dst bool }{{true, false}, {false, true}, {true, true}} {
		s := parsed(t, oneSide)
		text := exported(t, PlainFor(s, d.src, d.dst))
		if want, got := matched(s, d.src, d.dst), matched(parsed(t, text), d.src, d.dst); !maps.Equal(got, want) {
			t.Errorf("%+v: %d keys, want %d; exported as\n%s", d, len(got), len(want), text)
		}
		e := IPSet(s, "drop", d.src, d.dst)
		added := strings.Count(exported(t, e), "\nadd ")
		switch { // 192.0.2.2 and 2001:db8:1::2 are two entries each
		case d.src && d.dst && (added != 3 || e.LeftOut() != 3),
			!d.src && (added != 4 || e.LeftOut() != 4),
			!d.dst && (added != 5 || e.LeftOut() != 3):
			t.Errorf("%+v: %d entries, %d are left out\n%s", d, added, e.LeftOut(), exported(t, e))
		}
	}
	if got := exported(t, PlainFor(parsed(t, "any 192.0.2.1:* > *:*\n> 192.0.2.1\n"), true, true)); got != "192.0.2.1\n" {
		t.Errorf("both sides are exported as %q", got)
	}
}

func TestExportIPSet(t *testing.T) {
	got := exported(t, IPSet(parsed(t, mixed), "drop", true, false))
	const want = `create drop-4 hash:net family inet maxelem 65536
add drop-4 192.0.2.1
add drop-4 198.51.100.0/24
create drop-6 hash:net family inet6 maxelem 65536
add drop-6 2001:db8::/32
add drop-6 2001:db8:1::1
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
	got = exported(t, IPSet(parsed(t, ""), "0-a-list-with-a-name-that-is-long", true, false))
	if name, _, _ := strings.Cut(strings.TrimPrefix(got, "create "), " "); name != "list-0-a-list-with-a-name-tha-4" || len(name) != 31 {
		t.Errorf("the name is %s, of %d bytes", name, len(name))
	}
}

func TestExportNFT(t *testing.T) {
	got := exported(t, NFT(parsed(t, "192.0.2.1\n0.0.0.0/0\n198.51.100.0/24\n> 203.0.113.7\n"), "drop", false, true))
	const want = `table inet weir {
	set drop-4 {
		type ipv4_addr
		flags interval
		auto-merge
		elements = {
			192.0.2.1,
			198.51.100.0/24,
			0.0.0.0/0,
			203.0.113.7
		}
	}
	set drop-6 {
		type ipv6_addr
		flags interval
		auto-merge
	}
}
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
}

// What matches less than an address of the list does is left out, and counted.
func TestExportLeavesOut(t *testing.T) {
	src := list.SetOf(parsed(t, "192.0.2.9\n").V4.Plain.Slice()[0].Key(true))
	dst := parsed(t, "> 192.0.2.9\n")
	flow := parsed(t, "tcp *:* > 198.51.100.7:443\n")
	all := parsed(t, "0.0.0.0/0\n")
	plain := parsed(t, "192.0.2.9\n")
	for _, c := range []struct {
		name         string
		set          *list.Set
		src, dst     bool
		ipset, nft   int
		hasAddresses bool
	}{
		{"flow", flow, true, true, 1, 1, false},
		{"source of a list of sources", src, true, false, 0, 0, true},
		{"source of a list of destinations", src, false, true, 1, 1, false},
		{"source of a list of both", src, true, true, 1, 1, false},
		{"destination of a list of sources", dst, true, false, 1, 1, false},
		{"destination of a list of destinations", dst, false, true, 0, 0, true},
		{"both sides of a list of both", list.Union(src, dst), true, true, 0, 0, true},
		{"both sides of a list of sources", list.Union(src, dst), true, false, 1, 1, true},
		{"an address and one side", list.Union(plain, dst), true, true, 0, 0, true},
		{"all packets", all, false, true, 1, 0, false},
	} {
		ipset, nft := IPSet(c.set, "x", c.src, c.dst), NFT(c.set, "x", c.src, c.dst)
		if ipset.LeftOut() != c.ipset || nft.LeftOut() != c.nft {
			t.Errorf("%s: %d and %d left out, want %d and %d", c.name, ipset.LeftOut(), nft.LeftOut(), c.ipset, c.nft)
		}
		want := 0
		if c.hasAddresses {
			want = 1
		}
		if n := strings.Count(exported(t, ipset), "192.0.2.9"); n != want {
			t.Errorf("%s: the address is written %d times, want %d", c.name, n, want)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestExportFails(t *testing.T) {
	if _, err := Plain(parsed(t, mixed)).WriteTo(failing{}); err != io.ErrShortWrite {
		t.Errorf("got %v", err)
	}
}
