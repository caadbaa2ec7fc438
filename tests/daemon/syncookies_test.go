package daemon

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/wait"
)

// sysctl sets a knob in the namespace of an end.
func sysctl(t *testing.T, e lab.End, name, value string) {
	t.Helper()
	var err error
	e.In(t, func() { err = os.WriteFile("/proc/sys/net/ipv4/"+name, []byte(value), 0) })
	if err != nil {
		t.Fatal(err)
	}
}

// netstat returns a counter of TCP in the namespace of an end, as nstat names it.
func netstat(t *testing.T, e lab.End, name string) int {
	t.Helper()
	var text []byte
	var err error
	e.In(t, func() { text, err = os.ReadFile("/proc/thread-self/net/netstat") })
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for n := range names {
			if names[n] == name {
				v, err := strconv.Atoi(values[n])
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
		}
	}
	t.Fatalf("no counter %s", name)
	return 0
}

// waiting returns how many connections wait for their ACK in the namespace of an end.
func waiting(t *testing.T, e lab.End) (n int) {
	t.Helper()
	for _, file := range []string{"tcp", "tcp6"} {
		var text []byte
		var err error
		e.In(t, func() { text, err = os.ReadFile("/proc/thread-self/net/" + file) })
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "03" { // SYN_RECV
				n++
			}
		}
	}
	return n
}

// synFlood sends forged SYNs at a rate until it is stopped.
type synFlood struct {
	sent atomic.Int64
	done atomic.Bool
	end  chan struct{}
}

func (h *host) synFlood(t *testing.T, port uint16, rate int) *synFlood {
	t.Helper()
	const batch = 64
	f, r, tx := &synFlood{end: make(chan struct{})}, seed.New(t), h.A.Sender(t)
	frames := make([][]byte, batch)
	for i := range frames {
		frames[i] = packet.Frame(key.Tuple{Src: netip.MustParseAddr("198.18.0.0"), Dst: netip.MustParseAddr(hostAddress), Proto: 6, HasPorts: true, DstPort: port})
		copy(frames[i], h.B.MAC)
		copy(frames[i][6:], h.A.MAC)
		tcp := frames[i][34:]
		tcp[12], tcp[13] = 5<<4, 2
	}
	go func() {
		defer close(f.end)
		for began := time.Now(); !f.done.Load(); {
			due := int64(time.Since(began).Seconds() * float64(rate))
			if f.sent.Load() >= due {
				time.Sleep(time.Millisecond)
				continue
			}
			for _, frame := range frames {
				binary.BigEndian.PutUint32(frame[26:], 198<<24|18<<16|r.Uint32N(1<<17)) // 198.18.0.0/15
				binary.BigEndian.PutUint16(frame[34:], uint16(1024+r.IntN(60000)))
				binary.BigEndian.PutUint32(frame[38:], r.Uint32())
				checksums(frame)
			}
			if err := tx.SendAll(frames...); err != nil {
				t.Error(err)
				return
			}
			f.sent.Add(batch)
		}
	}()
	t.Cleanup(f.stop)
	return f
}

func (f *synFlood) stop() {
	f.done.Store(true)
	<-f.end
}

// checksums sets those of a TCP packet over IPv4 without options of IP: the kernel drops others.
func checksums(f []byte) {
	sum := func(s uint32, b []byte) uint32 {
		for i := 0; i+1 < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		return s
	}
	fold := func(s uint32) uint16 {
		s = s&0xffff + s>>16
		return ^uint16(s&0xffff + s>>16)
	}
	ip, tcp := f[14:34], f[34:]
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], fold(sum(0, ip)))
	binary.BigEndian.PutUint16(tcp[16:], 0)
	binary.BigEndian.PutUint16(tcp[16:], fold(sum(sum(6+uint32(len(tcp)), ip[12:]), tcp)))
}

// connect makes connections of clients, one after the other, and returns how many had an answer.
func (h *host) connect(t *testing.T, port string, n int) (answered int) {
	t.Helper()
	for i := range n {
		to := net.JoinHostPort([]string{hostAddress, host6}[i%2], port)
		if c, err := dial(t, h.A, "tcp", "", to, wait.Patience); err == nil {
			if answers(c, wait.Patience) {
				answered++
			}
			c.Close()
		}
	}
	return answered
}

// In a flood of forged SYNs, all clients connect by cookies that weir sends, and none of the SYNs waits
// in the host's queue. With auto, the kernel answers as long as its queue has room.
func TestSYNCookies(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.addresses()
	h.A.ReceiveRedirected(t)
	// The kernel answers only where it has a route, and what is forged leads nowhere.
	h.ip("-n", h.B.Netns, "route", "add", "default", "via", unlistedAddress)
	h.ip("-n", h.A.Netns, "route", "add", "blackhole", "198.18.0.0/15")
	sysctl(t, h.B, "tcp_no_metrics_save", "1")
	sysctl(t, h.B, "tcp_synack_retries", "1") // so that the queue is soon empty
	echo(t, h.B, hostAddress, "7")
	echo(t, h.B, host6, "7")
	configure := func(mode string) {
		h.write("weir.yaml", fmt.Appendf(nil, "interfaces: [{name: %q, netns: %s, syncookies: %s}]\npins: %s\nstate_dir: %s\napi: {socket: %s}\nlists: {l: {entries: [192.0.2.0/24]}}\n",
			h.B.Iface, h.B.Netns, mode, h.pins, h.path("state"), h.path("weir.sock")))
	}
	answered := func() int { return int(h.attachment().AnsweredSYNs.Answered.Packets) }
	clients, rate := long.Or(10, 1000), long.Or(20_000, 200_000)

	// The kernel's cookies are for full queues: it answers, since there is no flood.
	sysctl(t, h.B, "tcp_syncookies", "1")
	configure("auto")
	d := h.start(releases[0])
	if n := h.connect(t, "7", clients); n != clients || answered() != 0 {
		t.Fatalf("auto, without a flood: %d of %d clients, and %d SYNs were answered", n, clients, answered())
	}
	flood := h.synFlood(t, 7, rate)
	wait.For(t, "SYNs are answered while the queue has no room", func() bool { return answered() > 1000 })
	if n := h.connect(t, "7", clients); n != clients {
		t.Errorf("auto, in a flood: %d of %d clients", n, clients)
	}
	flood.stop()

	// With on, the kernel sees no SYN, also without a daemon for some seconds, and with the next one.
	sysctl(t, h.B, "tcp_syncookies", "2")
	configure("on")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the queue is empty", func() bool { return waiting(t, h.B) == 0 })
	sent, before := netstat(t, h.B, "SyncookiesSent"), answered()
	flood = h.synFlood(t, 7, rate)
	began := time.Now()
	n, most := 0, 0
	for n < clients {
		n += h.connect(t, "7", 10)
		most = max(most, waiting(t, h.B))
	}
	took := time.Since(began)
	flood.stop()
	forged := int(flood.sent.Load())
	wait.For(t, "all SYNs are answered", func() bool { return answered()-before >= forged+clients })
	t.Logf("%d clients in %v beside %.0f forged SYNs a second", clients, took, float64(forged)/took.Seconds())
	if by := netstat(t, h.B, "SyncookiesSent") - sent; by > 0 || most > 0 || answered()-before != forged+clients {
		t.Errorf("%d SYNs were answered of %d forged and %d of clients; the kernel answered %d, and %d waited", answered()-before, forged, clients, by, most)
	}
	d.kill()
	if n := h.connect(t, "7", 4); n != 4 {
		t.Errorf("without a daemon: %d of 4 clients", n)
	}
	h.start(releases[0])
	before = answered()
	wait.For(t, "SYNs are answered again", func() bool {
		if n := h.connect(t, "7", 2); n != 2 {
			t.Errorf("with the next daemon: %d of 2 clients", n)
		}
		return answered() > before
	})
	if out, _ := h.status(); !strings.Contains(out, "SYN cookies") {
		t.Errorf("status says\n%s", out)
	}
}
