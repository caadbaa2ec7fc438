package receive

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"weir/tests/wait"
)

// peer is the other end of a session, on the loopback.
type peer struct {
	t *testing.T
	net.Conn
}

// receiving runs a Receiver with a daemon that is not asked for anything, and returns where it waits, and its log.
func receiving(t *testing.T, change func(*Receiver)) (address string, log func() string) {
	t.Helper()
	lines := make(chan string, 1000)
	r := &Receiver{Spec: testSpec(), Dry: true, Log: slog.New(slog.NewTextHandler(writer(lines), nil))}
	r.Listen = netip.MustParseAddrPort("127.0.0.1:0")
	r.Neighbors = []Neighbor{{Address: netip.MustParseAddr("127.0.0.1"), AS: 64500}}
	if change != nil {
		change(r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	all := <-lines
	_, address, _ = strings.Cut(strings.TrimSpace(all), "at=")
	return address, func() string {
		for {
			select {
			case line := <-lines:
				all += line
			default:
				return all
			}
		}
	}
}

type writer chan string

func (w writer) Write(b []byte) (int, error) {
	select {
	case w <- string(b):
	default:
	}
	return len(b), nil
}

func connect(t *testing.T, address string) *peer {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &peer{t, c}
}

func (p *peer) send(m *bgp.BGPMessage) {
	p.t.Helper()
	b, err := m.Serialize()
	if err == nil {
		_, err = p.Write(b)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// receive returns the next message.
func (p *peer) receive() *bgp.BGPMessage {
	p.t.Helper()
	p.SetReadDeadline(wait.Deadline())
	header := make([]byte, bgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(p, header); err != nil {
		p.t.Fatal(err)
	}
	body := make([]byte, binary.BigEndian.Uint16(header[16:])-bgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(p, body); err != nil {
		p.t.Fatal(err)
	}
	m, err := bgp.ParseBGPMessage(append(header, body...))
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

func openOf(as uint16, hold uint16) *bgp.BGPMessage {
	m, err := bgp.NewBGPOpenMessage(as, hold, netip.MustParseAddr("192.0.2.1"), []bgp.OptionParameterInterface{
		bgp.NewOptionParameterCapability([]bgp.ParameterCapabilityInterface{bgp.NewCapMultiProtocol(bgp.RF_IPv4_UC)}),
	})
	if err != nil {
		panic(err)
	}
	return m
}

// established opens a session.
func established(t *testing.T, address string) *peer {
	t.Helper()
	p := connect(t, address)
	if _, ok := p.receive().Body.(*bgp.BGPOpen); !ok {
		t.Fatal("the first message is no OPEN")
	}
	p.send(openOf(64500, 3))
	if _, ok := p.receive().Body.(*bgp.BGPKeepAlive); !ok {
		t.Fatal("the second message is no KEEPALIVE")
	}
	p.send(bgp.NewBGPKeepAliveMessage())
	return p
}

// refusal waits for a notification.
func (p *peer) refusal(code, sub uint8) {
	p.t.Helper()
	for {
		switch m := p.receive().Body.(type) {
		case *bgp.BGPNotification:
			if m.ErrorCode != code || m.ErrorSubcode != sub {
				p.t.Errorf("notification %d/%d, want %d/%d", m.ErrorCode, m.ErrorSubcode, code, sub)
			}
			return
		case *bgp.BGPUpdate:
			p.t.Error("something is announced")
		}
	}
}

// A neighbor that does not speak as it should hears why, and no one else is heard.
func TestSessions(t *testing.T) {
	header := func(length uint16, kind byte, body ...byte) []byte {
		b := make([]byte, 16, 4096)
		for i := range b {
			b[i] = 0xff
		}
		return append(append(binary.BigEndian.AppendUint16(b, length), kind), body...)
	}
	for _, c := range []struct {
		name      string
		open      *bgp.BGPMessage // nil: as it should
		raw       []byte          // behind it
		code, sub uint8
	}{
		{"another AS", openOf(64499, 90), nil, bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_BAD_PEER_AS},
		{"hold time 2", openOf(64500, 2), nil, bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME},
		{"no hold time", openOf(64500, 0), nil, bgp.BGP_ERROR_OPEN_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME},
		{"no OPEN", bgp.NewBGPKeepAliveMessage(), nil, bgp.BGP_ERROR_FSM_ERROR, bgp.BGP_ERROR_SUB_RECEIVE_UNEXPECTED_MESSAGE_IN_OPENSENT_STATE},
		{"a long message", nil, header(5000, 2), bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_BAD_MESSAGE_LENGTH},
		{"a short message", nil, header(18, 2), bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_BAD_MESSAGE_LENGTH},
		{"no marker", nil, make([]byte, 19), bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_CONNECTION_NOT_SYNCHRONIZED},
		{"another type", nil, header(19, 9), bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_BAD_MESSAGE_TYPE},
		{"a bad UPDATE", nil, header(23, 2, 0, 99, 0, 0), bgp.BGP_ERROR_UPDATE_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_MALFORMED_ATTRIBUTE_LIST},
		{"nothing for the hold time", nil, []byte{}, bgp.BGP_ERROR_HOLD_TIMER_EXPIRED, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			address, _ := receiving(t, nil)
			var p *peer
			if c.open != nil {
				p = connect(t, address)
				p.send(c.open)
			} else {
				p = established(t, address)
				if _, err := p.Write(c.raw); err != nil {
					t.Fatal(err)
				}
			}
			p.refusal(c.code, c.sub)
		})
	}
	address, _ := receiving(t, func(r *Receiver) { r.Neighbors[0].Address = netip.MustParseAddr("127.0.0.9") })
	p := connect(t, address)
	p.SetReadDeadline(wait.Deadline())
	if _, err := p.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("a stranger's connection: %v", err)
	}
}

// A session lives by keepalives, a new one replaces the former, and all end with the Receiver.
func TestSessionLives(t *testing.T) {
	address, log := receiving(t, nil)
	p := established(t, address)
	for began := time.Now(); time.Since(began) < 4*time.Second; {
		if _, ok := p.receive().Body.(*bgp.BGPKeepAlive); !ok {
			t.Fatal("no KEEPALIVE")
		}
		p.send(bgp.NewBGPKeepAliveMessage())
	}
	p.send(bgp.NewBGPUpdateMessage(nil, []bgp.PathAttributeInterface{
		bgp.NewPathAttributeOrigin(0), bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{bgp.NewAsPathParam(2, []uint16{64500})}),
		bgp.NewPathAttributeCommunities([]uint32{65535<<16 | 666}),
	}, []bgp.PathNLRI{{NLRI: unicast("203.0.113.7/32").NLRI}}))
	wait.For(t, "the route", func() bool { return strings.Contains(log(), "taken") })
	next := established(t, address)
	wait.For(t, "the end of the first session", func() bool { return strings.Contains(log(), "a session has ended") })
	for range mostConnections { // that never say a word
		connect(t, address)
	}
	more := connect(t, address)
	more.SetReadDeadline(wait.Deadline())
	if _, err := more.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one more connection: %v", err)
	}
	next.send(bgp.NewBGPKeepAliveMessage())
	if _, ok := next.receive().Body.(*bgp.BGPKeepAlive); !ok {
		t.Fatal("no KEEPALIVE")
	}
}

// No message, however it is made, ends the process or yields what is not within the limits.
func FuzzMessage(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 32, 203, 0, 113, 7})
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > bgp.BGP_MAX_MESSAGE_LENGTH-bgp.BGP_HEADER_LENGTH {
			return
		}
		near, far := net.Pipe()
		defer near.Close()
		go func() {
			defer far.Close()
			b := make([]byte, 16)
			for i := range b {
				b[i] = 0xff
			}
			_, _ = far.Write(append(append(binary.BigEndian.AppendUint16(b, uint16(len(body)+bgp.BGP_HEADER_LENGTH)), bgp.BGP_MSG_UPDATE), body...))
		}()
		s := testSpec()
		of := &session{Neighbor: s.Neighbors[0], conn: near, families: families, hold: holdTime}
		_ = of.receive(func(e event) {
			if e.update == nil {
				return
			}
			for _, n := range append(e.update.withdrawn, e.update.announced...) {
				n.identify()
				if r := s.route(n, of.Neighbor, &e.update.attributes); r != nil && (len(r.text) > maxText+8 || len(r.items) > mostParts) {
					t.Fatalf("%d bytes, %d items", len(r.text), len(r.items))
				}
			}
		})
	})
}
