package api

import (
	"context"
	"math"
	"net"
	"net/http"

	"golang.org/x/sys/unix"
)

// NoUID stands for the user of a caller who has none on this host: one who
// came over TCP.
const NoUID = math.MaxUint32 // (uid_t)-1, which no user has

type uidKey struct{}

// identify tells who is at the other end of a connection.
func identify(ctx context.Context, c net.Conn) context.Context {
	local, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	raw, err := local.SyscallConn()
	if err != nil {
		return ctx
	}
	var peer *unix.Ucred
	if bad := raw.Control(func(fd uintptr) { peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); bad != nil || err != nil {
		return ctx
	}
	return context.WithValue(ctx, uidKey{}, peer.Uid)
}

// caller is who has sent a request: the user, or over TLS the subject of the
// client's certificate.
func caller(q *http.Request) (uid uint32, client string) {
	if uid, ok := q.Context().Value(uidKey{}).(uint32); ok {
		return uid, ""
	}
	if q.TLS != nil && len(q.TLS.PeerCertificates) > 0 {
		client = q.TLS.PeerCertificates[0].Subject.String()
	}
	return NoUID, client
}
