package receive

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"
)

// Neighbor is a BGP speaker that may connect.
type Neighbor struct {
	Address  netip.Addr
	AS       uint32
	Password string // of TCP MD5 (RFC 2385); "": none
}

const (
	holdTime      = 90 * time.Second // RFC 4271, section 10
	leastHoldTime = 3 * time.Second
	openTime      = 10 * time.Second // for OPEN and the first KEEPALIVE
	asTrans       = 23456            // RFC 6793

	mostConnections = 4 // of a neighbor: one that lives, one that is to replace it, and some that never say a word
)

// families of which routes are taken.
var families = []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC, bgp.RF_FS_IPv4_UC, bgp.RF_FS_IPv6_UC}

// event is something that a session has received, or its begin or end.
type event struct {
	of     *session
	up     bool
	down   error // why it has ended
	ended  bool  // an End-of-RIB marker: all routes of a family were sent
	family bgp.Family
	update *update
}

// update is an UPDATE message.
type update struct {
	announced, withdrawn []nlri
	attributes           attributes
}

// nlri is a route as a message has it.
type nlri struct {
	family bgp.Family
	bgp.NLRI
}

// speaker waits for neighbors. It announces nothing.
type speaker struct {
	*Spec
	events chan event

	mu          sync.Mutex
	sessions    map[netip.Addr]*session // the last one of each neighbor
	connections map[netip.Addr]int
}

// session is a connection of a neighbor.
type session struct {
	Neighbor
	conn     net.Conn
	hold     time.Duration
	families []bgp.Family // that both sides have
	twoBytes bool         // AS numbers have two bytes
	writing  sync.Mutex
	ended    chan struct{}
}

// listen opens the port of BGP.
func (s *Spec) listen(ctx context.Context) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) {
			for _, n := range s.Neighbors {
				if n.Password != "" && err == nil {
					err = signMD5(int(fd), n)
				}
			}
		})
		return errors.Join(failed, err)
	}}
	config.SetMultipathTCP(false) // which has no MD5
	return config.Listen(ctx, "tcp", s.Listen.String())
}

// signMD5 has the kernel sign and check segments of a neighbor.
func signMD5(fd int, n Neighbor) error {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	var sig unix.TCPMD5Sig
	sig.Addr.Family = uint16(domain)
	if v6 := n.Address.As16(); domain == unix.AF_INET6 {
		copy(sig.Addr.Data[6:], v6[:]) // struct sockaddr_in6, behind the family
	} else {
		copy(sig.Addr.Data[2:], v6[12:]) // struct sockaddr_in
	}
	sig.Keylen = uint16(copy(sig.Key[:], n.Password))
	if err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, &sig); err != nil {
		return fmt.Errorf("the password of %v: %w", n.Address, err)
	}
	return nil
}

// serve accepts connections until the listener is closed.
func (s *speaker) serve(ctx context.Context, l net.Listener) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		from := netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr().Unmap()
		at := slices.IndexFunc(s.Neighbors, func(n Neighbor) bool { return n.Address == from })
		if at < 0 || !s.counts(from, 1) {
			conn.Close()
			continue
		}
		all.Go(func() {
			defer s.counts(from, -1)
			s.run(ctx, &session{Neighbor: s.Neighbors[at], conn: conn, ended: make(chan struct{})})
		})
	}
}

// counts counts the connections of a neighbor, and reports whether there is room for one more.
func (s *speaker) counts(from netip.Addr, more int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if more > 0 && s.connections[from] >= mostConnections {
		return false
	}
	s.connections[from] += more
	return true
}

// run is the life of a session.
func (s *speaker) run(ctx context.Context, of *session) {
	defer close(of.ended)
	defer of.conn.Close()
	stop := context.AfterFunc(ctx, func() {
		of.notify(bgp.NewBGPNotificationMessage(bgp.BGP_ERROR_CEASE, bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN, nil))
		of.conn.Close()
	})
	defer stop()
	if err := of.open(s.Spec); err != nil {
		of.refuse(err)
		s.send(ctx, event{of: of, down: err})
		return
	}
	// A neighbor that has restarted connects while its former session seems to live.
	s.mu.Lock()
	former := s.sessions[of.Address]
	s.sessions[of.Address] = of
	s.mu.Unlock()
	if former != nil {
		former.conn.Close()
		<-former.ended
	}
	s.send(ctx, event{of: of, up: true})
	go of.keepAlive()
	err := of.receive(func(e event) { s.send(ctx, e) })
	of.refuse(err)
	s.send(ctx, event{of: of, down: err})
}

func (s *speaker) send(ctx context.Context, e event) {
	select {
	case s.events <- e:
	case <-ctx.Done():
	}
}

// open exchanges OPEN and KEEPALIVE messages.
func (of *session) open(s *Spec) error {
	of.conn.SetDeadline(time.Now().Add(openTime))
	capabilities := []bgp.ParameterCapabilityInterface{
		bgp.NewCapFourOctetASNumber(s.AS),
		bgp.NewCapGracefulRestart(false, false, 0, nil), // for End-of-RIB markers
	}
	for _, f := range families {
		capabilities = append(capabilities, bgp.NewCapMultiProtocol(f))
	}
	as := uint16(asTrans)
	if s.AS < 1<<16 {
		as = uint16(s.AS)
	}
	m, err := bgp.NewBGPOpenMessage(as, uint16(holdTime/time.Second), s.RouterID,
		[]bgp.OptionParameterInterface{bgp.NewOptionParameterCapability(capabilities)})
	if err != nil {
		return err
	}
	if err := of.write(m); err != nil {
		return err
	}
	m, err = of.read()
	if err != nil {
		return err
	}
	its, ok := m.Body.(*bgp.BGPOpen)
	if !ok {
		return unexpected(m, bgp.BGP_ERROR_SUB_RECEIVE_UNEXPECTED_MESSAGE_IN_OPENSENT_STATE)
	}
	if err := of.take(its); err != nil {
		return err
	}
	if err := of.write(bgp.NewBGPKeepAliveMessage()); err != nil {
		return err
	}
	if m, err = of.read(); err != nil {
		return err
	}
	if _, ok := m.Body.(*bgp.BGPKeepAlive); !ok {
		return unexpected(m, bgp.BGP_ERROR_SUB_RECEIVE_UNEXPECTED_MESSAGE_IN_OPENCONFIRM_STATE)
	}
	return of.conn.SetDeadline(time.Time{})
}

// take checks an OPEN message and settles what both sides have.
func (of *session) take(m *bgp.BGPOpen) error {
	as := uint32(m.MyAS)
	of.twoBytes = true
	for _, o := range m.OptParams {
		all, ok := o.(*bgp.OptionParameterCapability)
		if !ok {
			continue
		}
		for _, c := range all.Capability {
			switch c := c.(type) {
			case *bgp.CapFourOctetASNumber:
				as, of.twoBytes = c.CapValue, false
			case *bgp.CapMultiProtocol:
				if slices.Contains(families, c.CapValue) {
					of.families = append(of.families, c.CapValue)
				}
			}
		}
	}
	const open = bgp.BGP_ERROR_OPEN_MESSAGE_ERROR
	of.hold = min(time.Duration(m.HoldTime)*time.Second, holdTime)
	switch {
	case m.Version != 4:
		return bgp.NewMessageError(open, bgp.BGP_ERROR_SUB_UNSUPPORTED_VERSION_NUMBER, []byte{0, 4}, "it speaks another version of BGP")
	case as != of.AS:
		return bgp.NewMessageError(open, bgp.BGP_ERROR_SUB_BAD_PEER_AS, nil, fmt.Sprintf("its AS is %d, not %d", as, of.AS))
	case of.hold < leastHoldTime: // 0 would mean never: routes of a dead neighbor would stay for good
		return bgp.NewMessageError(open, bgp.BGP_ERROR_SUB_UNACCEPTABLE_HOLD_TIME, nil, fmt.Sprintf("its hold time is %v: want %v or more", of.hold, leastHoldTime))
	case len(of.families) == 0: // the only family of RFC 4271
		of.families = []bgp.Family{bgp.RF_IPv4_UC}
	}
	return nil
}

// receive reads messages until the session ends, and returns why.
func (of *session) receive(send func(event)) error {
	for {
		of.conn.SetReadDeadline(time.Now().Add(of.hold))
		m, err := of.read()
		var bad *bgp.MessageError
		if errors.As(err, &bad) && m != nil && bad.ErrorHandling == bgp.ERROR_HANDLING_ATTRIBUTE_DISCARD {
			err = nil // RFC 7606: of an attribute that has no say in what a route means
		}
		if err != nil {
			return err
		}
		switch body := m.Body.(type) {
		case *bgp.BGPKeepAlive, *bgp.BGPRouteRefresh:
		case *bgp.BGPUpdate:
			if end, family := body.IsEndOfRib(); end {
				send(event{of: of, ended: true, family: family})
				continue
			}
			send(event{of: of, update: of.update(body)})
		default:
			return unexpected(m, bgp.BGP_ERROR_SUB_RECEIVE_UNEXPECTED_MESSAGE_IN_ESTABLISHED_STATE)
		}
	}
}

// update returns the routes of a message, of the session's families.
func (of *session) update(m *bgp.BGPUpdate) *update {
	u := &update{attributes: attributesOf(m.PathAttributes)}
	add := func(to *[]nlri, f bgp.Family, all []bgp.PathNLRI) {
		for _, n := range all {
			if slices.Contains(of.families, f) {
				*to = append(*to, nlri{f, n.NLRI})
			}
		}
	}
	add(&u.withdrawn, bgp.RF_IPv4_UC, m.WithdrawnRoutes)
	add(&u.announced, bgp.RF_IPv4_UC, m.NLRI)
	for _, a := range m.PathAttributes {
		switch a := a.(type) {
		case *bgp.PathAttributeMpUnreachNLRI:
			add(&u.withdrawn, bgp.NewFamily(a.AFI, a.SAFI), a.Value)
		case *bgp.PathAttributeMpReachNLRI:
			add(&u.announced, bgp.NewFamily(a.AFI, a.SAFI), a.Value)
		}
	}
	return u
}

func unexpected(m *bgp.BGPMessage, sub uint8) error {
	if n, ok := m.Body.(*bgp.BGPNotification); ok {
		return fmt.Errorf("it has ended the session: notification %d/%d", n.ErrorCode, n.ErrorSubcode)
	}
	return bgp.NewMessageError(bgp.BGP_ERROR_FSM_ERROR, sub, nil, fmt.Sprintf("message of type %d", m.Header.Type))
}

// read reads a message. With an error that ends no session, it returns both.
func (of *session) read() (m *bgp.BGPMessage, err error) {
	// The library's checks of lengths are many.
	defer func() {
		if p := recover(); p != nil {
			m, err = nil, bgp.NewMessageError(bgp.BGP_ERROR_UPDATE_MESSAGE_ERROR, bgp.BGP_ERROR_SUB_MALFORMED_ATTRIBUTE_LIST, nil, fmt.Sprintf("a message that cannot be read: %v", p))
		}
	}()
	var header [bgp.BGP_HEADER_LENGTH]byte
	if _, err := io.ReadFull(of.conn, header[:]); err != nil {
		return nil, err
	}
	var h bgp.BGPHeader
	if err := h.DecodeFromBytes(header[:]); err != nil {
		return nil, err
	}
	if h.Len > bgp.BGP_MAX_MESSAGE_LENGTH {
		return nil, bgp.NewMessageError(bgp.BGP_ERROR_MESSAGE_HEADER_ERROR, bgp.BGP_ERROR_SUB_BAD_MESSAGE_LENGTH, binary.BigEndian.AppendUint16(nil, h.Len), "a message that is too long")
	}
	body := make([]byte, h.Len-bgp.BGP_HEADER_LENGTH)
	if _, err := io.ReadFull(of.conn, body); err != nil {
		return nil, err
	}
	return bgp.ParseBGPBody(&h, body, &bgp.MarshallingOption{Use2ByteAS: of.twoBytes})
}

func (of *session) write(m *bgp.BGPMessage) error {
	b, err := m.Serialize()
	if err != nil {
		return err
	}
	of.writing.Lock()
	defer of.writing.Unlock()
	_, err = of.conn.Write(b)
	return err
}

// keepAlive says that this end lives until the session ends.
func (of *session) keepAlive() {
	tick := time.NewTicker(of.hold / 3)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			of.conn.SetWriteDeadline(time.Now().Add(of.hold))
			if of.write(bgp.NewBGPKeepAliveMessage()) != nil {
				of.conn.Close()
				return
			}
		case <-of.ended:
			return
		}
	}
}

// refuse notifies the neighbor why the session ends, if this end ends it.
func (of *session) refuse(err error) {
	var bad *bgp.MessageError
	var late net.Error
	switch {
	case errors.As(err, &bad):
		of.notify(bgp.NewBGPNotificationMessage(bad.TypeCode, bad.SubTypeCode, bad.Data))
	case errors.As(err, &late) && late.Timeout():
		of.notify(bgp.NewBGPNotificationMessage(bgp.BGP_ERROR_HOLD_TIMER_EXPIRED, 0, nil))
	}
}

func (of *session) notify(m *bgp.BGPMessage) {
	of.conn.SetWriteDeadline(time.Now().Add(time.Second))
	_ = of.write(m) // the connection may be gone
}
