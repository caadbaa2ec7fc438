package conntrack_test

import (
	"fmt"
	"net/netip"
	"time"

	"weir/filter/conntrack"
	"weir/filter/key"
	"weir/filter/packet"
)

// frame returns a frame, and the packet in it.
func frame(src, dst string, from, to uint16) ([]byte, packet.Packet) {
	f := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: 17, HasPorts: true, SrcPort: from, DstPort: to,
	})
	p, _ := packet.Parse(f)
	return f, p
}

// The answer to a question that this host has asked is a reply, and nothing else is.
func ExampleReplies() {
	now := time.Duration(0)
	r := &conntrack.Replies{UDP: time.Minute, Ephemeral: 32768, Now: func() time.Duration { return now }}
	r.Remember(frameAndPacket("192.0.2.1", "198.51.100.53", 40000, 53))
	fmt.Println(r.IsReply(frame("198.51.100.53", "192.0.2.1", 53, 40000)))
	fmt.Println(r.IsReply(frame("198.51.100.53", "192.0.2.1", 53, 40001)))
	now = time.Minute
	fmt.Println(r.IsReply(frame("198.51.100.53", "192.0.2.1", 53, 40000)))
	// Output:
	// true
	// false
	// false
}

func frameAndPacket(src, dst string, from, to uint16) ([]byte, packet.Packet, *conntrack.Collateral) {
	f, p := frame(src, dst, from, to)
	return f, p, nil
}
