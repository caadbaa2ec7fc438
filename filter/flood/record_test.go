package flood

import (
	"encoding/hex"
	"net/netip"
	"testing"
)

const ethernet4, ethernet6 = "0200000000010200000000020800", "02000000000102000000000286dd"

// TestRecord reads records from frames as they are on the wire.
func TestRecord(t *testing.T) {
	v4 := func(s string) [16]byte { return netip.MustParseAddr(s).As16() }
	four := Record{Src: v4("192.0.2.1"), Dst: v4("203.0.113.10"), IPv4: true, TTL: 64, ID: 0x1234}
	six := Record{Src: v4("2001:db8::1"), Dst: v4("2001:db8::2"), TTL: 60}
	with := func(r Record, change func(*Record)) Record { change(&r); return r }
	addresses6 := "20010db800000000000000000000000120010db8000000000000000000000002"
	for name, c := range map[string]struct {
		frame  string
		length int
		want   Record
	}{
		"TCP": {ethernet4 + "45000030" + "12344000" + "40060000" + "c0000201cb00710a" + "303901bb0000000100000002" + "6012faf000000000020405b4" + "aabbccdd", 62,
			with(four, func(r *Record) {
				r.Length, r.Protocol, r.SrcPort, r.DstPort = 48, 6, 12345, 443
				r.Flags, r.HeaderLength, r.Window, r.Payload = 0x12, 6, 0xfaf0, [4]byte{0xaa, 0xbb, 0xcc, 0xdd}
			})},
		"UDP that is captured in part, and a first fragment": {ethernet4 + "450005dc" + "12342000" + "40110000" + "c0000201cb00710a" + "0035c00105c80000" + "3312", 1514,
			with(four, func(r *Record) {
				r.Length, r.Protocol, r.SrcPort, r.DstPort, r.Fragment, r.Payload = 1500, 17, 53, 49153, FirstFragment, [4]byte{0x33, 0x12}
			})},
		"later fragment": {ethernet4 + "45000020" + "123400b9" + "40110000" + "c0000201cb00710a" + "0035c00105c800003312", 46,
			with(four, func(r *Record) { r.Length, r.Protocol, r.Fragment = 32, 17, LaterFragment })},
		"ICMP": {ethernet4 + "45000020" + "12340000" + "40010000" + "c0000201cb00710a" + "030400000000000045000001", 46,
			with(four, func(r *Record) {
				r.Length, r.Protocol, r.SrcPort, r.DstPort, r.Payload = 32, 1, 3, 4, [4]byte{0x45, 0, 0, 1}
			})},
		"GRE, aggregated": {ethernet4 + "45000000" + "12340000" + "402f0000" + "c0000201cb00710a" + "0000080045", 9014,
			with(four, func(r *Record) { r.Length, r.Protocol, r.Payload = 9000, 47, [4]byte{0, 0, 8, 0} })},
		"UDP behind extension headers": {ethernet6 + "60000000" + "0020" + "003c" + addresses6 + "3c00010400000000" + "1100010400000000" + "007b0035001000000102030405060708", 86,
			with(six, func(r *Record) {
				r.Length, r.Protocol, r.SrcPort, r.DstPort, r.Payload = 72, 17, 123, 53, [4]byte{1, 2, 3, 4}
			})},
		"later fragment of IPv6": {ethernet6 + "60000000" + "0010" + "2c3c" + addresses6 + "110005c900000001" + "0102030405060708", 70,
			with(six, func(r *Record) { r.Length, r.Protocol, r.Fragment = 56, 17, LaterFragment })},
		"first fragment of IPv6": {ethernet6 + "60000000" + "0018" + "2c3c" + addresses6 + "1100000100000001" + "007b003500100000" + "0102030405060708", 78,
			with(six, func(r *Record) {
				r.Length, r.Protocol, r.SrcPort, r.DstPort, r.Fragment, r.Payload = 64, 17, 123, 53, FirstFragment, [4]byte{1, 2, 3, 4}
			})},
	} {
		frame, err := hex.DecodeString(c.frame)
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := Of(frame, c.length); !ok || r != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", name, r, c.want)
		}
		for n := range frame { // cut anywhere
			Of(frame[:n], c.length)
		}
	}
}
