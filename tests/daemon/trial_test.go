package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"weir/filter/key"
)

// toPort is a packet like from's to a port, or of another protocol.
func toPort(t key.Tuple, proto uint8, port uint16) key.Tuple {
	t.Proto, t.DstPort, t.HasPorts = proto, port, key.HasPorts(proto)
	if !t.HasPorts {
		t.SrcPort, t.DstPort = 0, 0
	}
	return t
}

// Lists with ports, protocols and interfaces drop what they are for, and nothing else; one on
// trial drops nothing, and hides nothing; the example of docs/lists.md lets in who may.
func TestListsForCertainPackets(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const lists = `max_coverage: 100%%
lists:
  others: {entries: [0.0.0.0/0], ports: [tcp/22]%s}
  admins: {action: allow, entries: [192.0.2.0/24]}
  voip: {entries: [198.51.100.1], ports: [udp/5000-5010], protocols: [udp, icmp]}
  elsewhere: {entries: [198.51.100.2], interfaces: ['other*']}
  trial: {entries: [203.0.113.1, 203.0.113.2, 203.0.113.3], enforce: false}
  wide: {entries: [203.0.113.2/31], protocols: [udp]}
`
	configure := func(args ...any) {
		h.write("weir.yaml", fmt.Appendf(nil, "interfaces: [{name: %q, netns: %s}, {name: 'other*', netns: %[2]s}]\npins: %s\nstate_dir: %s\napi: {socket: %s}\n",
			h.B.Iface, h.B.Netns, h.pins, h.path("state"), h.path("weir.sock")))
		f, err := os.OpenFile(h.path("weir.yaml"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprintf(f, lists, args...)
	}
	configure("")
	load := startTraffic(h.t, h.Lab, nil, froms(netip.MustParseAddr("10.0.0.1")))
	d := h.start(releases[0])
	a := func(s string) key.Tuple { return from(netip.MustParseAddr(s)) }
	load.expect("SSH from others", false, toPort(a("198.51.100.9"), 6, 22), toPort(a("203.0.113.1"), 6, 22))
	load.expect("SSH from admins, and all else", true, toPort(a("192.0.2.9"), 6, 22), toPort(a("198.51.100.9"), 6, 23), toPort(a("198.51.100.9"), 17, 22))
	load.expect("VoIP and ICMP of the list", false, toPort(a("198.51.100.1"), 17, 5000), toPort(a("198.51.100.1"), 17, 5010), toPort(a("198.51.100.1"), 1, 0))
	load.expect("other packets of the list", true, toPort(a("198.51.100.1"), 17, 5011), toPort(a("198.51.100.1"), 17, 4999), toPort(a("198.51.100.1"), 6, 5000))
	load.expect("a list of another interface", true, a("198.51.100.2"))
	load.expect("a list on trial", true, toPort(a("203.0.113.1"), 17, 99), toPort(a("203.0.113.2"), 6, 99))
	load.expect("the network around it is enforced", false, toPort(a("203.0.113.2"), 17, 99), toPort(a("203.0.113.3"), 17, 99))
	if n := h.list("trial").Packets; n == nil || *n < 2 {
		t.Errorf("the list on trial has caught %v packets", n)
	}
	configure(", enforce: false")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	load.expect("SSH from others, on trial", true, toPort(a("198.51.100.9"), 6, 22))
	d.stop()
	load.expect("SSH from others, on trial, without a daemon", true, toPort(a("198.51.100.9"), 6, 22))
	load.expect("VoIP without a daemon", false, toPort(a("198.51.100.1"), 17, 5000))
}
