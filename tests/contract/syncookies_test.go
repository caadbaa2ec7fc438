package contract

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/stage"
	"weir/control/stage/syncookies"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/lab"
)

// answering is a host with a listening socket, and a program that answers its SYNs.
type answering struct {
	*loader.Program
	part *syncookies.Part
	g    *engine.Generation
	port uint16
	t    *testing.T
}

// pass passes a frame, by the addresses that the host has now. answered says that an answer is sent.
func (a *answering) pass(frame []byte) (got []byte, answered bool) {
	a.t.Helper()
	const pass, drop, tx = 2, 1, 3
	action, got, err := a.Pass(frame)
	if err != nil || action != pass && action != drop && action != tx {
		a.t.Fatalf("action %d, %v", action, err)
	}
	return got, action == tx
}

func (a *answering) tick(t time.Duration) {
	a.part.Tick(t, a.g.Kernel(), []stage.Interface{{Target: netif.Target{Iface: "lo"}}})
}

// answeringSYNs calls fn with a program that answers SYNs in a namespace where the kernel has a setting, for a
// socket with addresses 203.0.113.1 and fd00:5::1.
func answeringSYNs(t *testing.T, mode syncookies.Mode, kernel string, c engine.Config, lists []engine.List, fn func(*answering)) {
	t.Helper()
	h := lab.NewHost(t, "cookies")
	h.In(t, func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/tcp_syncookies", []byte(kernel), 0); err != nil {
			t.Fatal(err)
		}
		for _, a := range []string{"203.0.113.1/32", "fd00:5::1/128"} {
			lab.AddAddress(t, "lo", a)
		}
		l, err := net.Listen("tcp", ":0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		a := &answering{t: t, port: uint16(l.Addr().(*net.TCPAddr).Port)}
		a.part = &syncookies.Part{Interfaces: []stage.At[syncookies.Mode]{{Target: netif.Target{Iface: "lo"}, Is: mode}}}
		c.Parts = append(c.Parts, a.part)
		if a.g, err = engine.Build(lists, c); err != nil {
			t.Fatal(err)
		}
		defer a.g.Close()
		stats := newStats(t, len(lists))
		stats.For(netif.Target{Iface: "lo"})
		if a.Program, err = a.g.Load(stats); err != nil {
			t.Fatal(err)
		}
		defer a.Program.Close()
		fn(a)
	})
}

// syn returns a SYN with options, and others for what it is changed to.
func (a *answering) syn(src, dst string, change ...func(tcp []byte) []byte) []byte {
	f := packet.Frame(key.Tuple{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Proto: 6, HasPorts: true, SrcPort: 40000, DstPort: a.port})
	copy(f, []byte{2, 0, 0, 0, 0, 7, 2, 0, 0, 0, 0, 1})
	at := len(f) - 20
	tcp := f[at:]
	binary.BigEndian.PutUint32(tcp[4:], 0xffffffff)
	tcp[12], tcp[13] = 5<<4, 0x02
	for _, fn := range change {
		tcp = fn(tcp)
	}
	f = append(f[:at:at], tcp...)
	if netip.MustParseAddr(src).Is4() {
		binary.BigEndian.PutUint16(f[16:], uint16(20+len(tcp)))
	} else {
		binary.BigEndian.PutUint16(f[18:], uint16(len(tcp)))
	}
	return f
}

// options adds options to a TCP header, of which none changes what is answered but those that sign.
func options(b ...byte) func([]byte) []byte {
	return func(tcp []byte) []byte {
		for len(b)%4 != 0 {
			b = append(b, 1)
		}
		tcp = append(bytes.Clone(tcp), b...)
		tcp[12] = byte(len(tcp)/4) << 4
		return tcp
	}
}

func flags(b byte) func([]byte) []byte {
	return func(tcp []byte) []byte { tcp[13] = b; return tcp }
}

// The answer to a SYN is a SYN-ACK with a cookie, as any other implementation reads it; what is not
// to be answered stays as it is.
func TestSYNCookies(t *testing.T) {
	mss, all := options(2, 4, 5, 180), options(2, 4, 2, 24, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7)
	var e list.Entries
	e.V4 = append(e.V4, list.V4Of(netip.MustParsePrefix("192.0.2.0/24")))
	var allowed list.Entries
	allowed.V4 = append(allowed.V4, list.V4Of(netip.MustParsePrefix("192.0.2.128/25")), list.V4Of(netip.MustParsePrefix("198.51.100.9/32")))
	lists := []engine.List{{Name: "block", Contents: e.Set()}, {Name: "allow", Allow: true, Contents: allowed.Set()}}
	for name, c := range map[string]engine.Config{"lean": {}, "general": {NoLean: true}} {
		t.Run(name, func(t *testing.T) {
			answeringSYNs(t, syncookies.On, "2", c, lists, func(a *answering) {
				now := loader.Monotonic()
				sources := map[string]string{"198.51.100.1": "203.0.113.1", "2001:db8::7": "fd00:5::1"}
				for src, dst := range sources {
					if _, answered := a.pass(a.syn(src, dst)); answered {
						t.Error("answered without knowing that the address is of this host")
					}
				}
				a.tick(now)
				for src, dst := range sources {
					for _, f := range [][]byte{a.syn(src, dst), a.syn(src, dst, mss), a.syn(src, dst, all), a.syn(src, dst, flags(0xc2)), tagged(a.syn(src, dst, mss))} {
						if got, answered := a.pass(f); answered {
							a.check(f, got)
						} else {
							t.Errorf("%s: not answered: % x", src, f)
						}
					}
					for what, f := range map[string][]byte{
						"a SYN-ACK": a.syn(src, dst, flags(0x12)), "an ACK": a.syn(src, dst, flags(0x10)), "a RST": a.syn(src, dst, flags(0x06)), "a FIN": a.syn(src, dst, flags(0x03)),
						"signed by MD5": a.syn(src, dst, options(append([]byte{1, 1, 19, 18}, make([]byte, 16)...)...)),
						"signed by AO":  a.syn(src, dst, options(append([]byte{2, 4, 5, 180, 29, 16}, make([]byte, 14)...)...)),
						"to a group":    append([]byte{1}, a.syn(src, dst)[1:]...),
						"cut off":       a.syn(src, dst, all)[:len(a.syn(src, dst))+4],
						"another port":  a.syn(src, dst, func(tcp []byte) []byte { tcp[2] ^= 0x80; return tcp }),
					} {
						if got, answered := a.pass(f); answered || !bytes.Equal(got, f) {
							t.Errorf("%s: %s is answered, or changed", src, what)
						}
					}
				}
				for what, f := range map[string][]byte{
					"forwarded": a.syn("198.51.100.1", "203.0.113.2"), "listed": a.syn("192.0.2.1", "203.0.113.1"),
					"from the loopback": a.syn("127.0.0.2", "203.0.113.1"), "from a group": a.syn("224.0.0.5", "203.0.113.1"), "from all hosts": a.syn("ff02::1", "fd00:5::1"), "from itself": a.syn("::1", "fd00:5::1"),
					"listed and allowed": a.syn("192.0.2.200", "203.0.113.1"), "allowed": a.syn("198.51.100.9", "203.0.113.1"),
				} {
					if got, answered := a.pass(f); answered || !bytes.Equal(got, f) {
						t.Errorf("one that is %s is answered, or changed", what)
					}
				}
				// Without the daemon, the addresses are soon no longer relied on.
				a.tick(now - 11*time.Second)
				if _, answered := a.pass(a.syn("198.51.100.1", "203.0.113.1")); answered {
					t.Error("answered 11 seconds after the addresses were read")
				}
			})
		})
	}
	for name, of := range map[string]struct {
		mode   syncookies.Mode
		kernel string
		engine.Config
	}{
		"a queue with room":  {mode: syncookies.Auto, kernel: "1"},
		"no cookies at all":  {mode: syncookies.On, kernel: "0"},
		"off":                {mode: syncookies.Off, kernel: "2"},
		"monitor mode":       {mode: syncookies.On, kernel: "2", Config: engine.Config{Policy: verdict.Policy{Monitor: true}}},
		"a failsafe address": {mode: syncookies.On, kernel: "2", Config: engine.Config{Policy: verdict.Policy{FailsafePrefixes: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}}},
	} {
		t.Run(name, func(t *testing.T) {
			answeringSYNs(t, of.mode, of.kernel, of.Config, nil, func(a *answering) {
				a.tick(loader.Monotonic())
				for range 2 {
					f := a.syn("198.51.100.1", "203.0.113.1")
					if got, answered := a.pass(f); answered || !bytes.Equal(got, f) {
						t.Error("answered, or changed")
					}
				}
			})
		})
	}
}

// tagged adds a VLAN tag.
func tagged(f []byte) []byte {
	return bytes.Join([][]byte{f[:12], {0x81, 0, 0, 100}, f[12:]}, nil)
}

// check compares an answer with the SYN. The MTU of the loopback is 65535, as far as programs know.
func (a *answering) check(syn, got []byte) {
	a.t.Helper()
	sent, answer := gopacket.NewPacket(syn, layers.LayerTypeEthernet, gopacket.Default), gopacket.NewPacket(got, layers.LayerTypeEthernet, gopacket.Default)
	if len(got) < 60 || answer.ErrorLayer() != nil || len(answer.Layers()) != len(sent.Layers()) {
		a.t.Fatalf("%d bytes: %v", len(got), answer)
	}
	if sent.TransportLayer() == nil || answer.TransportLayer() == nil {
		a.t.Fatalf("%v answers %v", answer, sent)
	}
	if answer.LinkLayer().LinkFlow() != sent.LinkLayer().LinkFlow().Reverse() || answer.NetworkLayer().NetworkFlow() != sent.NetworkLayer().NetworkFlow().Reverse() ||
		answer.TransportLayer().TransportFlow() != sent.TransportLayer().TransportFlow().Reverse() {
		a.t.Errorf("%v answers %v", answer, sent)
	}
	network := answer.NetworkLayer()
	s, tcp := sent.TransportLayer().(*layers.TCP), answer.TransportLayer().(*layers.TCP)
	if !tcp.SYN || !tcp.ACK || tcp.RST || tcp.FIN || tcp.ECE || tcp.CWR || tcp.Ack != s.Seq+1 || tcp.Window == 0 || len(tcp.Options) != 1 ||
		tcp.Options[0].OptionType != layers.TCPOptionKindMSS || int(binary.BigEndian.Uint16(tcp.Options[0].OptionData)) != 65535-20-len(network.LayerContents()) || len(tcp.Payload) > 6 {
		a.t.Errorf("%+v answers %+v", tcp, s)
	}
	length := []byte{0, 6, 0, 24}
	flow := network.NetworkFlow()
	if sum := ones(flow.Src().Raw(), flow.Dst().Raw(), length, tcp.Contents); sum != 0xffff {
		a.t.Errorf("the checksum of TCP is wrong by %#x", sum^0xffff)
	}
	switch ip := network.(type) {
	case *layers.IPv4:
		if ones(ip.Contents) != 0xffff || ip.Length != 44 || ip.TTL != 64 {
			a.t.Errorf("%+v", ip)
		}
	case *layers.IPv6:
		if ip.Length != 24 || ip.HopLimit != 64 {
			a.t.Errorf("%+v", ip)
		}
	}
}
