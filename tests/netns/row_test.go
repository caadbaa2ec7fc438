package netns

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/api"
	"weir/filter/packet"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/offload"
	"weir/tests/wait"
)

// kindsOfTraffic are protocols, each with its number.
var kindsOfTraffic = []struct {
	name  string
	proto func(v6 bool) uint8
}{
	{"UDP", func(bool) uint8 { return unix.IPPROTO_UDP }},
	{"TCP", func(bool) uint8 { return unix.IPPROTO_TCP }},
	{"ICMP", func(v6 bool) uint8 {
		if v6 {
			return unix.IPPROTO_ICMPV6
		}
		return unix.IPPROTO_ICMP
	}},
}

// leaveChecksums says whether what is sent on an interface leaves checksums to its hardware, which
// a veth does not have: they stay as they are until another interface fills them in.
func leaveChecksums(t *testing.T, e lab.End, on bool) {
	t.Helper()
	e.In(t, func() {
		if err := offload.Set(e.Iface, unix.ETHTOOL_STXCSUM, on); err != nil {
			t.Fatal(err)
		}
	})
}

// speak sends packets of a protocol from the host of an end: datagrams, SYNs or echo requests.
func speak(t *testing.T, e lab.End, to netip.Addr, proto uint8, packets int) {
	t.Helper()
	var err error
	e.In(t, func() {
		switch proto {
		case unix.IPPROTO_UDP:
			var c net.PacketConn
			if c, err = net.ListenPacket("udp", ""); err != nil {
				return
			}
			defer c.Close()
			for i := range packets {
				if _, err = c.WriteTo(fmt.Append(nil, i), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 8))); err != nil {
					return
				}
			}
		case unix.IPPROTO_TCP:
			for range packets {
				if err = knock(to); err != nil {
					return
				}
			}
		default:
			err = echo(to, proto, packets)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// knock sends one SYN.
func knock(to netip.Addr) error {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: 8, Addr: to.As16()})
	if to.Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: 8, Addr: to.As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd) // before it sends another one
	if err := unix.Connect(fd, address); !errors.Is(err, unix.EINPROGRESS) {
		return os.NewSyscallError("connect", err)
	}
	return nil
}

// echo sends echo requests.
func echo(to netip.Addr, proto uint8, packets int) error {
	network, kind := "ip4:icmp", byte(8)
	if proto == unix.IPPROTO_ICMPV6 {
		network, kind = "ip6:ipv6-icmp", 128
	}
	c, err := net.Dial(network, to.String())
	if err != nil {
		return err
	}
	defer c.Close()
	for i := range packets {
		m := []byte{kind, 0, 0, 0, 0, 7, 0, byte(i), 'w', 'e', 'i', 'r'}
		if proto == unix.IPPROTO_ICMP { // that of IPv6 is the kernel's
			high, low := checksum(m)
			m[2], m[3] = high, low
		}
		if _, err := c.Write(m); err != nil {
			return err
		}
	}
	return nil
}

// converse sends data by TCP in small segments, and returns when they have been read.
func converse(t *testing.T, from, to lab.End, address netip.Addr, segments int) {
	t.Helper()
	var l net.Listener
	var c net.Conn
	var err error
	to.In(t, func() { l, err = net.Listen("tcp", netip.AddrPortFrom(address, 0).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from.In(t, func() { c, err = net.DialTimeout("tcp", l.Addr().String(), wait.Patience) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	b := make([]byte, 100)
	for i := range segments {
		binary.BigEndian.PutUint32(b, uint32(i))
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < len(b); {
			k, err := in.Read(b[n:])
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}
}

// Each of three routers in a row knows each packet that has arrived behind them, of UDP, TCP and
// ICMP over both families, whether the sender fills in checksums, an interface on the way, or none at
// all.
func TestRowOfRecorders(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	lab.Root(t)
	const packets = 25
	for _, where := range []string{"sender", "nowhere", "second router"} {
		t.Run("checksums="+where, func(t *testing.T) {
			t.Parallel()
			up, down := newLine(t, 3, 1500)
			from, to := up[0], down[3]
			for i, e := range up {
				leaveChecksums(t, e, !(where == "sender" && i == 0 || where == "second router" && i == 2))
			}
			var nodes []*recorder
			for i := range 3 {
				nodes = append(nodes, startRecorder(t, digestsOf(1000, time.Second, 1e-5, time.Minute), netif.Target{Netns: down[i].Netns, Iface: down[i].Iface}))
			}
			for _, k := range kindsOfTraffic {
				for _, v6 := range []bool{false, true} {
					name, proto, src, dst := fmt.Sprintf("%s, IPv6 %t", k.name, v6), k.proto(v6), from.IPv4, to.IPv4
					if v6 {
						src, dst = from.IPv6, to.IPv6
					}
					rx := to.Receiver(t)
					began := time.Now()
					if proto == unix.IPPROTO_TCP {
						converse(t, from, to, dst, packets)
					}
					speak(t, from, dst, proto, packets)
					var asked []api.TraceAbout
					partial := 0
					for {
						frame, err := rx.Receive(500 * time.Millisecond)
						if errors.Is(err, os.ErrDeadlineExceeded) {
							break
						}
						if err != nil {
							t.Fatal(err)
						}
						p, _ := packet.Parse(frame)
						if p.Src != src || p.Dst != dst || p.Proto != proto {
							continue
						}
						asked = append(asked, api.TraceAbout{Data: bytes.Clone(frame[14:]), From: began.Add(-time.Second), To: time.Now()})
						if !checked(frame[14:], proto) {
							partial++
						}
					}
					if len(asked) < packets || len(asked) > api.MaxTraced {
						t.Fatalf("%s: %d packets have arrived, want %d", name, len(asked), packets)
					}
					for i, r := range nodes {
						answer, err := r.client.Trace(t.Context(), api.TraceQuestion{Packets: asked})
						if err != nil {
							t.Fatal(err)
						}
						missing := 0
						for _, p := range answer.Interfaces[0].Packets {
							if len(p.Slices) == 0 {
								missing++
							}
						}
						if missing > 0 {
							t.Errorf("%s: router %d does not know %d of %d packets", name, i+1, missing, len(asked))
						}
					}
					t.Logf("%s: all routers know %d packets, %d of which arrive without their checksum", name, len(asked), partial)
					if left := where == "nowhere" && proto != unix.IPPROTO_ICMP && proto != unix.IPPROTO_ICMPV6; left != (partial > 0) {
						t.Errorf("%s: %d packets without their checksum: the test is another one than it should be", name, partial)
					}
				}
			}
		})
	}
}

// checked reports whether the checksum behind an IP header is right.
func checked(ip []byte, proto uint8) bool {
	if ip[0]>>4 == 6 {
		high, low := checksum(append(binary.BigEndian.AppendUint32(bytes.Clone(ip[8:40]), uint32(len(ip)-40)), append([]byte{0, 0, 0, proto}, even(ip[40:])...)...))
		return high == 0 && low == 0
	}
	ip = ip[:binary.BigEndian.Uint16(ip[2:])]
	body := ip[int(ip[0]&15)*4:]
	if proto == unix.IPPROTO_ICMP {
		high, low := checksum(even(body))
		return high == 0 && low == 0
	}
	high, low := checksum(append(binary.BigEndian.AppendUint16(append(bytes.Clone(ip[12:20]), 0, proto), uint16(len(body))), even(body)...))
	return high == 0 && low == 0
}

// even pads to a whole number of 16-bit words.
func even(b []byte) []byte {
	if len(b)%2 == 1 {
		return append(bytes.Clone(b), 0)
	}
	return b
}
