package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"weir/control/attach"
	"weir/control/stage/connections"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// Addresses of the wire: of the host, of a peer that is listed, and of one that is not.
const (
	hostAddress     = "198.51.100.1"
	listedAddress   = "198.51.100.2"
	unlistedAddress = "198.51.100.3"
	host6           = "fd00:1::1"
	listed6         = "fd00:1::2"
)

// addresses gives both ends addresses.
func (h *host) addresses() {
	h.t.Helper()
	for _, of := range []struct {
		end lab.End
		all []string
	}{{h.B, []string{hostAddress, host6}}, {h.A, []string{listedAddress, unlistedAddress, listed6}}} {
		for _, a := range of.all {
			end := of.end
			bits := "/24"
			if strings.Contains(a, ":") {
				bits = "/64"
			}
			args := []string{"-n", end.Netns, "addr", "add", a + bits, "dev", end.Iface, "nodad"}
			if bits == "/24" {
				args = args[:len(args)-1]
			}
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				h.t.Fatalf("ip %v: %v: %s", args, err, out)
			}
		}
	}
}

// echo answers at an end until the test ends.
func echo(t testing.TB, e lab.End, address string, port string) {
	t.Helper()
	var l net.Listener
	var p net.PacketConn
	var err error
	e.In(t, func() {
		if l, err = net.Listen("tcp", net.JoinHostPort(address, port)); err == nil {
			p, err = net.ListenPacket("udp", net.JoinHostPort(address, port))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); p.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			p.WriteTo(b[:n], from)
		}
	}()
}

// soon is how long a test waits for what must not happen.
const soon = 150 * time.Millisecond

// dial connects from an end and an address.
func dial(t testing.TB, e lab.End, network, from, to string, within time.Duration) (c net.Conn, err error) {
	t.Helper()
	d := net.Dialer{Timeout: within}
	if from != "" {
		if network == "tcp" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		} else {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
		}
	}
	e.In(t, func() { c, err = d.Dial(network, to) })
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// answers reports whether what is written to a connection comes back.
func answers(c net.Conn, within time.Duration) bool {
	c.SetDeadline(time.Now().Add(within))
	b := make([]byte, 4)
	if _, err := c.Write([]byte("weir")); err != nil {
		return false
	}
	_, err := io.ReadFull(c, b)
	return err == nil
}

// With replies: pass, what the host asks of listed addresses is answered, by TCP and UDP, and
// through the death of the daemon; and nothing else that these send reaches it, whatever
// the host has answered them while it could.
func TestReplies(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h := newHost(t)
	h.addresses()
	h.write("listed.txt", []byte(listedAddress+"\n"+listed6+"\n"))
	configure := func(replies string) {
		h.configure(h.B.Iface, "replies: %s\nlists: {bad: {anti_lockout: false, sources: [{file: %s}]}}\n", replies, h.path("listed.txt"))
	}
	reload := func() {
		t.Helper()
		if _, err := h.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range []string{listedAddress, unlistedAddress, listed6} {
		echo(t, h.A, a, "7")
	}
	for _, a := range []string{hostAddress, host6} {
		echo(t, h.B, a, "7")
		echo(t, h.B, a, "50000") // a server at a port that hosts connect from
	}
	configure("drop")
	d := h.start(releases[0])
	if _, err := dial(t, h.B, "tcp", "", listedAddress+":7", soon); err == nil {
		t.Fatal("a listed address answers, without replies: pass")
	}
	configure("pass")
	reload()
	all, err := attach.ReadStatus(h.pins)
	if err != nil || len(all) != 2 || all[0].Replies == nil {
		t.Fatalf("%+v, %v: want the egress program that it implies", all, err)
	}
	if out, _ := h.status(); !strings.Contains(out, "replies") || !strings.Contains(out, "(out)") {
		t.Errorf("status says\n%s", out)
	}

	var open []net.Conn
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range []string{listedAddress + ":7", "[" + listed6 + "]:7"} {
			c, err := dial(t, h.B, network, "", to, wait.Patience)
			if err != nil || !answers(c, wait.Patience) {
				t.Fatalf("%s %s: no answer: %v", network, to, err)
			}
			open = append(open, c)
		}
	}

	// What is listed opens nothing, also where the host has answered somebody else, and while
	// all of it reached the host, and the host answered.
	closed := func(when string) {
		t.Helper()
		var all sync.WaitGroup
		for _, pair := range [][2]string{{listedAddress, hostAddress}, {listed6, "[" + host6 + "]"}} {
			for _, port := range []string{":7", ":50000", ":9"} {
				all.Go(func() {
					if _, err := dial(t, h.A, "tcp", pair[0], pair[1]+port, soon); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
						t.Errorf("%s: the listed %s reaches port %s: %v", when, pair[0], port, err)
					}
				})
			}
			all.Go(func() {
				if c, err := dial(t, h.A, "udp", pair[0], pair[1]+":7", soon); err != nil || answers(c, soon) {
					t.Errorf("%s: the listed %s is answered (%v)", when, pair[0], err)
				}
			})
		}
		all.Wait()
	}
	closed("at first")
	if c, err := dial(t, h.A, "tcp", unlistedAddress, hostAddress+":7", wait.Patience); err != nil || !answers(c, wait.Patience) {
		t.Fatalf("an unlisted peer cannot connect: %v", err)
	}
	closed("after an unlisted peer has connected")

	monitor := func(on bool) {
		t.Helper()
		if _, err := h.api.SetMonitor(t.Context(), on, 0); err != nil {
			t.Fatal(err)
		}
	}
	monitor(true)
	spoofed := h.A.Sender(t)
	for _, proto := range []uint8{6, 17} {
		for _, port := range []uint16{7, 9, 50000, 50001} { // open and closed ones
			frame := h.Numbered(packet.Frame(key.Tuple{
				Src: netip.MustParseAddr(listedAddress), Dst: netip.MustParseAddr(hostAddress), Proto: proto, HasPorts: true, SrcPort: 40001, DstPort: port,
			}), 0)
			for _, flags := range []byte{0x02, 0x12, 0x10, 0x04, 0x01} {
				if proto == 6 {
					frame[14+20+12], frame[14+20+13] = 5<<4, flags
				}
				if err := spoofed.Send(frame); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if c, err := dial(t, h.A, "tcp", listedAddress, hostAddress+":7", wait.Patience); err != nil || !answers(c, wait.Patience) {
		t.Fatalf("in monitor mode, the listed peer cannot connect: %v", err)
	}
	monitor(false)
	closed("after it could reach the host")
	maps, err := h.pins.OpenShared(connections.Maps(1 << 16))
	if err != nil {
		t.Fatal(err)
	}
	known := connections.Known{Shared: maps}
	defer known.Close()
	n := 0
	if err := known.All(func(c connections.Connection, _ connections.State) error { n++; return nil }); err != nil || n != len(open) {
		t.Errorf("%d connections are known, want the %d that the host has opened: %v", n, len(open), err)
	}

	// They live on, without the daemon and under the next.
	d.kill()
	for _, c := range open {
		if !answers(c, wait.Patience) {
			t.Errorf("%v is cut off when the daemon dies", c.RemoteAddr())
		}
	}
	if c, err := dial(t, h.B, "tcp", "", listedAddress+":7", wait.Patience); err != nil || !answers(c, wait.Patience) {
		t.Errorf("no answer while the daemon is dead: %v", err)
	}
	closed("while the daemon is dead")
	d = h.start(releases[1])
	for _, c := range open {
		if !answers(c, wait.Patience) {
			t.Errorf("%v is cut off when the daemon comes back", c.RemoteAddr())
		}
	}
	if e, err := h.api.Explain(t.Context(), "tcp "+listedAddress+":7 > "+hostAddress+":40000"); err != nil || len(e.Answers[0].Depends) != 1 || e.Answers[0].Depends[0].Reason != "reply" {
		t.Errorf("explain: %+v, %v", e, err)
	}

	// Other timeouts: what this host has not used since expires.
	configure("{action: pass, tcp_timeout: 1s, udp_timeout: 1s}")
	reload()
	for _, c := range open {
		if !answers(c, wait.Patience) {
			t.Errorf("%v is cut off by a reload", c.RemoteAddr())
		}
	}
	h.eventually("they expire", func() bool {
		time.Sleep(time.Second)
		return !answers(open[0], soon) && !answers(open[1], soon)
	})
	all, err = attach.ReadStatus(h.pins)
	if err != nil || all[0].Reasons["reply"].Packets == 0 || all[0].Reasons["blocked"].Packets == 0 {
		t.Errorf("%+v, %v", all, err)
	}
	configure("drop")
	reload()
	if _, err := os.Stat(string(h.pins) + "/connections"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the connections are left: %v", err)
	}
	closed("without replies: pass")
	d.stop()
}

// With reject, a TCP connection to what is listed with direction out is refused at once, also
// one that was open before; others are not, nor are forwarded packets or those from others.
func TestReject(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.addresses()
	for _, a := range []string{listedAddress, unlistedAddress, listed6} {
		echo(t, h.A, a, "7")
	}
	h.write("weir.yaml", fmt.Appendf(nil, `interfaces: [{name: %s, netns: %s, egress: true, reject: true}]
pins: %s
state_dir: %s
api: {socket: %s}
lists: {c2: {direction: out}}
`, h.B.Iface, h.B.Netns, h.pins, h.path("state"), h.path("weir.sock")))
	d := h.start(releases[0])
	targets := []string{listedAddress + ":7", "[" + listed6 + "]:7"}
	var open []net.Conn
	for _, to := range targets {
		c, err := dial(t, h.B, "tcp", "", to, wait.Patience)
		if err != nil || !answers(c, wait.Patience) {
			t.Fatalf("%s, which is not listed yet: %v", to, err)
		}
		open = append(open, c)
	}
	h.mustChange("c2", false, listedAddress, listed6)
	for i, to := range targets {
		began := time.Now()
		if c, err := dial(t, h.B, "tcp", "", to, wait.Patience); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, %v after %v, want it to be refused", to, c, err, time.Since(began))
		}
		open[i].SetDeadline(wait.Deadline())
		// What is large leaves as one buffer for the device to cut.
		_, err := open[i].Write(make([]byte, 1<<16))
		for err == nil {
			_, err = open[i].Read(make([]byte, 1<<16))
		}
		if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%s, which was connected: %v", to, err)
		}
	}
	if c, err := dial(t, h.B, "tcp", "", unlistedAddress+":7", wait.Patience); err != nil || !answers(c, wait.Patience) {
		t.Errorf("what is not listed: %v", err)
	}
	all, err := attach.ReadStatus(h.pins)
	if err != nil || len(all) != 2 || all[1].Reasons["blocked"].Packets < 4 || all[1].Dropped.Packets != all[1].Reasons["blocked"].Packets {
		t.Errorf("%+v, %v", all, err)
	}
	if out, code := h.command("explain", listedAddress, "--socket", h.path("weir.sock")); code != 0 && !strings.Contains(out, "c2") {
		t.Errorf("explain, exit code %d:\n%s", code, out)
	}
	d.stop()
}
