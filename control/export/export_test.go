package export

import (
	"crypto/tls"
	"encoding/binary"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	"weir/control/endpoint"
	"weir/control/quantity"
	"weir/tests/certificate"
	"weir/tests/ipfix"
	"weir/tests/wait"
)

func batch(flows int) (b Batch) {
	b.Time = time.Now()
	for n := range flows {
		f := Flow{Begin: b.Time, End: b.Time, Packets: 1, Bytes: 60, Dropped: true, Reason: "blocked", List: strings.Repeat("x", n%300)}
		switch n % 3 {
		case 1:
			f.Src = netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), 32)
		case 2:
			f.Src, f.Dst = netip.MustParsePrefix("2001:db8::1/128"), netip.MustParsePrefix("2001:db8::/32")
		}
		b.All = append(b.All, f)
	}
	b.Heavy = []Flow{{Packets: 7, Src: netip.MustParsePrefix("192.0.2.0/24"), Tracker: "src/24", Action: "block"}}
	return b
}

func collector(url string) Collector {
	c := Collector{Name: "a", IPFIX: endpoint.URL(url)}
	c.SetDefaults()
	return c
}

func exporter(t *testing.T, c Collector) *Exporter {
	x := New(slog.New(slog.DiscardHandler))
	x.Configure([]Collector{c})
	t.Cleanup(func() { x.Configure(nil) })
	return x
}

// await waits until a collector has a count.
func await(t *testing.T, x *Exporter, is func(Count) bool) Count {
	t.Helper()
	for range 2000 {
		if c := x.Counts()[0]; is(c) {
			return c
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("%+v", x.Counts())
	return Count{}
}

// Messages are whole and in sequence, and of the size that the transport carries; what
// begins later reads them after the templates were repeated.
func TestMessages(t *testing.T) {
	for _, url := range []string{"udp://192.0.2.1:4739", "tcp://192.0.2.1:4739"} {
		s := newSession(collector(url))
		now, r := time.Now(), ipfix.NewReader()
		var late *ipfix.Reader
		for n := range 5 {
			for _, m := range s.encode(batch(1000), now.Add(time.Duration(n)*time.Minute/2)) {
				if len(m.bytes) > s.most {
					t.Fatalf("%s: a message of %d bytes", url, len(m.bytes))
				}
				if err := r.Read(m.bytes); err != nil {
					t.Fatalf("%s: %v", url, err)
				}
				if late != nil {
					domain := binary.BigEndian.Uint32(m.bytes[12:])
					if _, known := late.Sequence[domain]; !known {
						late.Sequence[domain] = binary.BigEndian.Uint32(m.bytes[8:])
					}
					if err := late.Read(m.bytes); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n == 1 && s.most == maxDatagram { // the next batch has templates
				late = ipfix.NewReader()
			}
		}
		if r.Packets[1] != 5000 || r.Packets[2] != 35 || !strings.Contains(strings.Join(r.Texts(), " "), "src/24 block") {
			t.Errorf("%s: %v", url, r.Packets)
		}
		if late != nil && late.Packets[1] != 3000 {
			t.Errorf("%s: %v later on", url, late.Packets)
		}
	}
}

func TestUDP(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	x := exporter(t, collector("udp://"+l.LocalAddr().String()))
	x.Send(batch(100))
	r, b := ipfix.NewReader(), make([]byte, 64<<10)
	for r.Packets[1] < 100 || r.Packets[2] < 7 {
		l.SetReadDeadline(wait.Deadline())
		n, _, err := l.ReadFrom(b)
		if err == nil {
			err = r.Read(b[:n])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	await(t, x, func(c Count) bool { return c == Count{Collector: "a", Sent: 101} })
}

// A collector over UDP whose name gets another address gets the records there, and a name that cannot
// be resolved changes nothing.
func TestResolvedAgain(t *testing.T) {
	var to [2]net.PacketConn
	for i := range to {
		l, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		to[i] = l
	}
	readers := [...]*ipfix.Reader{ipfix.NewReader(), ipfix.NewReader()}
	s := &sender{log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1)}
	defer s.hangUp()
	sends := func(url string, want int, age time.Duration) {
		t.Helper()
		s.Collector = collector(url)
		s.dialed = s.dialed.Add(-age)
		if !s.connect(t.Context()) {
			t.Fatal("not connected")
		}
		s.send(batch(1))
		to[want].SetReadDeadline(wait.Deadline())
		b := make([]byte, 64<<10)
		n, _, err := to[want].ReadFrom(b)
		if err == nil {
			err = readers[want].Read(b[:n])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	sends("udp://"+to[0].LocalAddr().String(), 0, 0)
	sends("udp://"+to[1].LocalAddr().String(), 0, 0) // not yet
	sends("udp://none.invalid:1", 0, 2*resolveAgain)
	sends("udp://"+to[0].LocalAddr().String(), 0, 2*resolveAgain)
	sends("udp://"+to[1].LocalAddr().String(), 1, 2*resolveAgain)
}

// A collector that refuses packets fails, without a moment of success whenever weir tries
// again, until it is back.
func TestRefusedUDP(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.LocalAddr().String()
	l.Close()
	c := collector("")
	c.SFlow = endpoint.URL("udp://" + address)
	x := exporter(t, c)
	until := func(is func(Count) bool) {
		t.Helper()
		for range 1000 {
			if x.Counts()[0].Waiting == 0 {
				x.Send(Batch{Samples: &Samples{Interfaces: []Interface{{Index: 1}}}})
			}
			time.Sleep(10 * time.Millisecond)
			if is(x.Counts()[0]) {
				return
			}
		}
		t.Fatalf("%+v", x.Counts())
	}
	until(func(c Count) bool { return c.Failing })
	before := x.Counts()[0].Sent
	until(func(c Count) bool {
		if !c.Failing {
			t.Fatalf("does not fail: %+v", c)
		}
		return c.Sent > before // it has connected again
	})
	if l, err = net.ListenPacket("udp", address); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	until(func(c Count) bool { return !c.Failing })
}

// readStream reads messages from a connection until a number of packets has come.
func readStream(t *testing.T, c net.Conn, packets uint64) {
	t.Helper()
	c.SetReadDeadline(wait.Deadline())
	for r := ipfix.NewReader(); r.Packets[1] < packets; {
		if err := r.Next(c); err != nil {
			t.Fatal(err)
		}
	}
}

// Over TCP and TLS, each connection begins with templates.
func TestStreams(t *testing.T) {
	cert, key := certificate.SelfSigned(t, "collector")
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"tcp", "tls"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		address := l.Addr().String()
		c := collector(scheme + "://" + address)
		if scheme == "tls" {
			l = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{own}})
			c.TLS.CA = quantity.Path(cert)
		}
		x := exporter(t, c)
		for round := range 2 {
			x.Send(batch(500))
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			readStream(t, conn, 500)
			await(t, x, func(c Count) bool { return c.Sent == uint64(round+1)*501 && c.Lost == 0 })
			if servers := x.Servers()["a"]; len(servers) != 1 || !servers[0].IsLoopback() {
				t.Errorf("servers %v", servers)
			}
			conn.Close()
			await(t, x, func(c Count) bool { return c.Failing })
		}
	}
}

// A server whose certificate is not signed by the authorities gets nothing.
func TestWrongCertificate(t *testing.T) {
	cert, key := certificate.SelfSigned(t, "collector")
	other, _ := certificate.SelfSigned(t, "collector")
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan int, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			n, _ := c.Read(make([]byte, 1))
			c.Close()
			got <- n
		}
	}()
	c := collector("tls://" + l.Addr().String())
	c.TLS.CA = quantity.Path(other)
	x := exporter(t, c)
	x.Send(batch(1))
	await(t, x, func(c Count) bool { return c.Failing && c.Sent == 0 })
	if n := <-got; n > 0 {
		t.Error("the server got records")
	}
}

// A collector that is dead, or takes nothing, costs a bounded queue, and what it loses is
// counted.
func TestDeadCollector(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	for _, url := range []string{"tcp://127.0.0.1:1", "tcp://" + deaf.Addr().String()} {
		x := exporter(t, collector(url))
		began := time.Now()
		const batches = 200
		b := batch(4000)
		for range batches {
			x.Send(b)
		}
		if took := time.Since(began); took > timeout {
			t.Errorf("%s: sending took %v", url, took)
		}
		c := await(t, x, func(c Count) bool { return c.Lost > 0 && c.Waiting <= maxQueue+1 })
		if c.Lost < (batches-maxQueue-30)*4001 {
			t.Errorf("%s: %+v", url, c)
		}
		began = time.Now()
		x.Close(10 * time.Millisecond)
		if c := x.Counts()[0]; c.Sent+c.Lost != batches*4001 || c.Waiting != 0 || time.Since(began) > timeout {
			t.Errorf("%s: %+v after %v", url, c, time.Since(began))
		}
	}
}

// A connection that has ended is not kept in memory.
func TestConnectionsAreForgotten(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	s := &sender{Collector: collector("tcp://" + l.Addr().String()), log: slog.New(slog.DiscardHandler)}
	const reconnects = 100
	var all []weak.Pointer[net.TCPConn]
	for range reconnects {
		if !s.connect(t.Context()) {
			t.Fatal("the test has ended")
		}
		all = append(all, weak.Make(s.conn.(*net.TCPConn)))
		<-s.broken
		s.hangUp()
	}
	runtime.GC()
	alive := 0
	for _, c := range all {
		if c.Value() != nil {
			alive++
		}
	}
	if alive > reconnects/10 { // some goroutine may have yet to return
		t.Errorf("%d of %d connections are in memory", alive, reconnects)
	}
}

// A record says whether its packets were dropped.
func TestForwardingStatus(t *testing.T) {
	for dropped, want := range map[bool]byte{false: 64, true: 129} { // forwarded for an unknown reason, dropped by a list
		for _, of := range []template{all4, all6} {
			f := Flow{Dropped: dropped}
			with, at := of.encode(f), slices.Index(of.fields, forwarding)
			before := template{of.id, of.fields[:at]}
			if got := with[len(before.encode(f))]; got != want {
				t.Errorf("template %d: dropped %t: status %d, want %d", of.id, dropped, got, want)
			}
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"udp://192.0.2.1:4739", ""}, {"tls://[::1]:4740", ""},
		{"192.0.2.1:4739", "want udp://"}, {"udp://192.0.2.1", "want a port"}, {"http://a:1", "want udp://"}, {"udp://a:1/x", "want udp://"}, {"udp://u@a:1", "want udp://"}, {"tcp://a:0", "want a port"},
	} {
		var u endpoint.URL
		err := u.UnmarshalText([]byte(c.url))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.url, err)
		}
	}
	drops := FlowSamples
	if err := drops.UnmarshalText([]byte("all")); err == nil || drops != FlowSamples {
		t.Errorf("drops reported as all: %q, %v", drops, err)
	}
	if err := drops.UnmarshalText([]byte("notifications")); err != nil || drops != Notifications {
		t.Errorf("%q, %v", drops, err)
	}
	s := Spec{}
	if s.SetDefaults(); s.Interval != quantity.Duration(10*time.Second) {
		t.Errorf("an interval of %v", s.Interval)
	}
	s.Collectors = []Collector{collector("udp://a:1"), collector("tls://a:1")}
	s.Collectors[0].TLS.CA, s.Collectors[1].TLS.Cert = "/ca", "/cert"
	s.Collectors[1].Templates, s.Interval = 0, quantity.Duration(time.Millisecond)
	for name, change := range map[string]func(*Collector){
		"neither": func(*Collector) {},
		"both":    func(c *Collector) { c.IPFIX, c.SFlow = "udp://a:1", "udp://a:1" },
		"stream":  func(c *Collector) { c.SFlow = "tcp://a:1" },
		"rate":    func(c *Collector) { c.SFlow, c.Sampling = "udp://a:1", 3 },
	} {
		c := collector("")
		c.Name = name
		change(&c)
		s.Collectors = append(s.Collectors, c)
	}
	err := s.Validate()
	for _, want := range []string{"interval", "goes with tls://", "both cert and key", "templates",
		"neither: want either", "both: want either", "stream.sflow: sFlow goes over UDP", "rate.sampling: 3: want a power of two"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}
