package contract

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/stages"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader/netif"
	"weir/tests/lab"
)

// ones is the sum of bytes that checksums are made of: 0xffff over what has the right one.
func ones(b ...[]byte) uint16 {
	all := bytes.Join(b, nil)
	if len(all)%2 == 1 {
		all = append(all, 0)
	}
	sum := uint32(0)
	for ; len(all) > 0; all = all[2:] {
		sum += uint32(binary.BigEndian.Uint16(all))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

// A TCP packet that is refused becomes the RST that its receiver would send (RFC 9293,
// section 3.5.2), with the right checksums; what no RST answers is dropped.
func TestRefused(t *testing.T) {
	lab.Root(t)
	var e list.Entries
	for _, s := range []string{"192.0.2.0/24", "2001:db8::/32"} {
		if p := netip.MustParsePrefix(s); p.Addr().Is4() {
			e.V4 = append(e.V4, list.V4Of(p))
		} else {
			e.V6 = append(e.V6, p)
		}
	}
	out := tcEntries(t, []engine.List{{Name: "c2", Direction: engine.Out, Contents: e.Set()}}, engine.Config{
		Parts: []engine.Part{&stages.Reject{Interfaces: []netif.Target{{Out: true}}}},
	}, "out")[0]
	stats := newStats(t, 1)
	stats.For(netif.Target{Out: true})
	program := load(t, out.Generation, stats)
	const shot, redirect = 2, 7 // TC_ACT_SHOT, TC_ACT_REDIRECT
	for _, addrs := range [][2]string{{"198.51.100.1", "192.0.2.77"}, {"fd00::1", "2001:db8::77"}} {
		tuple := key.Tuple{Src: netip.MustParseAddr(addrs[0]), Dst: netip.MustParseAddr(addrs[1]), Proto: 6, HasPorts: true, SrcPort: 40000, DstPort: 443}
		frame := func(flags byte, change ...func([]byte)) []byte {
			f := packet.Frame(tuple)
			copy(f, []byte{2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 1})
			tcp := f[len(f)-20:]
			binary.BigEndian.PutUint32(tcp[4:], 0xfffffffe)
			binary.BigEndian.PutUint32(tcp[8:], 0x12345678)
			tcp[12], tcp[13] = 5<<4, flags
			for _, fn := range change {
				fn(f)
			}
			return append(f, "data that follows the header"...)
		}
		for flags, want := range map[byte]struct {
			seq, ack uint32
			flags    byte
		}{
			0x02: {0, 0xffffffff, 0x14},
			0x18: {0x12345678, 0, 0x04},
			0x12: {0x12345678, 0, 0x04},
		} {
			action, got, err := program.Pass(frame(flags))
			if err != nil || action != redirect {
				t.Fatalf("action %d, %v", action, err)
			}
			p, result := packet.Parse(got)
			back := key.Tuple{Src: tuple.Dst, Dst: tuple.Src, Proto: 6, HasPorts: true, SrcPort: 443, DstPort: 40000}
			if result != packet.OK || p.Tuple != back {
				t.Errorf("%v %+v, want %+v", result, p.Tuple, back)
			}
			if !bytes.Equal(got[:12], []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 7}) {
				t.Errorf("addresses on the link % x", got[:12])
			}
			tcp := got[len(got)-20:]
			if seq, ack := binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:]); seq != want.seq || ack != want.ack || tcp[13] != want.flags {
				t.Errorf("flags %#x: answered by seq %#x, ack %#x, flags %#x; want %+v", flags, seq, ack, tcp[13], want)
			}
			if tuple.Src.Is4() && ones(got[14:34]) != 0xffff {
				t.Errorf("checksum of the IP header: % x", got[14:34])
			}
			if sum := ones(back.Src.AsSlice(), back.Dst.AsSlice(), []byte{0, 6, 0, 20}, tcp); sum != 0xffff {
				t.Errorf("checksum of TCP is wrong by %#x: % x", sum^0xffff, got)
			}
		}
		for name, f := range map[string][]byte{
			"a RST": frame(0x14),
			"UDP": packet.Frame(key.Tuple{
				Src: tuple.Src, Dst: tuple.Dst, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 2,
			}),
		} {
			if action, got, err := program.Pass(f); err != nil || action != shot || !bytes.Equal(got, f) {
				t.Errorf("%s: action %d, %v", name, action, err)
			}
		}
	}
}
