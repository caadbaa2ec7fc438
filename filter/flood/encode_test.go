package flood

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func TestEncoding(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 58))
	d := quiet(r)
	b, err := d.AppendBinary([]byte("before"))
	if err != nil {
		t.Fatal(err)
	}
	b = b[len("before"):]
	var again Detector
	if err := again.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	if twice, _ := again.AppendBinary(nil); !bytes.Equal(twice, b) {
		t.Error("the encoding has changed")
	}
	flooded := many(3000, func() Record {
		p := packetTo(r, protoUDP, 123, 443)
		p.Length = 468
		return p
	})
	want, got := d.Second(flooded, 3000), again.Second(flooded, 3000)
	if want == nil || got == nil || len(want.Rules) != len(got.Rules) || want.Rules[0].String() != got.Rules[0].String() || want.Usual != got.Usual {
		t.Errorf("%+v, want %+v", got, want)
	}
	for range 200 {
		bad := bytes.Clone(b)
		if i := r.IntN(len(bad)); r.IntN(2) == 0 {
			bad = bad[:i]
		} else {
			bad[i] ^= 1 << r.IntN(8)
		}
		d := Detector{age: 7}
		if err := d.UnmarshalBinary(bad); err == nil || d.age != 7 || d.Quiet() != 0 {
			t.Fatalf("a damaged encoding: %v, %+v", err, d)
		}
	}
}

func TestEntry(t *testing.T) {
	number := func(f Field, lo, hi uint32) Condition { return Condition{Field: f, Lo: lo, Hi: hi} }
	prefix := func(f Field, p string) Condition { return Condition{Field: f, Prefix: netip.MustParsePrefix(p)} }
	for _, c := range []struct {
		of         []Condition
		text, name string
		conditions int
	}{
		{[]Condition{number(Protocol, 17, 17), number(Length, 468, 468), number(SourcePort, 123, 123), prefix(DestinationPrefix, "203.0.113.2/32")}, "udp *:123 > 203.0.113.2:*", "NTP answers", 3},
		{[]Condition{number(Protocol, 6, 6), number(Flags, 2, 2), number(DestinationPort, 400, 500), prefix(SourcePrefix, "2001:db8::/32")}, "tcp [2001:db8::/32]:* > *:400-500", "SYNs", 3},
		{[]Condition{number(Protocol, 17, 17), number(FragmentPart, 2, 2)}, "udp *:* > *:*", "later fragments", 1},
		{[]Condition{number(Protocol, 1, 1), number(SourcePort, 8, 8), prefix(DestinationPrefix, "203.0.113.0/24")}, "icmp *:* > 203.0.113.0/24:*", "pings", 2},
		{[]Condition{number(Protocol, 47, 47), prefix(SourcePrefix, "192.0.2.0/24")}, "47 192.0.2.0/24:* > *:*", "", 2},
		{[]Condition{number(DestinationPort, 1, 60000), prefix(DestinationPrefix, "203.0.113.2/32")}, "any *:* > 203.0.113.2:*", "", 1},
		{[]Condition{number(Length, 60, 60)}, "any *:* > *:*", "", 0},
	} {
		u := Rule{Conditions: c.of}
		part, text, ok := u.Entry()
		if text != c.text || len(part.Conditions) != c.conditions || ok != (c.conditions > 0) || u.Name() != c.name {
			t.Errorf("%v: %q, %v, %v, %q", &u, text, part, ok, u.Name())
		}
	}
}
