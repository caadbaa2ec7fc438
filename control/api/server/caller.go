package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"golang.org/x/sys/unix"

	"weir/control/api"
)

type peerKey struct{}

// peer is the other end of a connection.
type peer struct {
	uid     uint32
	process api.Process
}

// identify adds the user and the process at the other end of a connection to the context.
func identify(ctx context.Context, c net.Conn) context.Context {
	if l, ok := c.(*limitedConn); ok {
		c = l.Conn
	}
	local, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := local.SyscallConn()
	if err != nil {
		return ctx
	}
	var p peer
	if bad := raw.Control(func(fd uintptr) {
		var c *unix.Ucred
		if c, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			p = peer{c.Uid, peerProcess(int(fd), int(c.Pid))}
		}
	}); bad != nil || err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, p)
}

// withCaller returns a request whose context has its caller.
func withCaller(q *http.Request) *http.Request {
	var c api.Caller
	c.UID, c.Client = caller(q)
	if p, ok := q.Context().Value(peerKey{}).(peer); ok {
		if c.Process = p.process; p.uid == 0 {
			c.Process = claimed(q, c.Process)
		}
	}
	return q.WithContext(api.As(q.Context(), c))
}

type operatorKey struct{}

// AsOperator returns a request as one of an operator of a hub.
func AsOperator(q *http.Request, name string) *http.Request {
	return q.WithContext(context.WithValue(q.Context(), operatorKey{}, name))
}

// caller returns the user who sent a request, or over TLS the subject of the client's
// certificate.
func caller(q *http.Request) (uid uint32, client string) {
	if p, ok := q.Context().Value(peerKey{}).(peer); ok {
		return p.uid, ""
	}
	if name, ok := q.Context().Value(operatorKey{}).(string); ok {
		return api.NoUID, api.ByOperator(name)
	}
	if q.TLS != nil && len(q.TLS.PeerCertificates) > 0 {
		client = q.TLS.PeerCertificates[0].Subject.String()
	}
	return api.NoUID, client
}

// Connection returns the addresses and ports of a request over TCP, the caller's
// first, and "" for any other.
func Connection(q *http.Request) string {
	local, ok := q.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	remote, err := netip.ParseAddrPort(q.RemoteAddr)
	if !ok || err != nil {
		return ""
	}
	return fmt.Sprintf("%v %d %v %d", remote.Addr(), remote.Port(), local.AddrPort().Addr(), local.Port)
}
