package broker

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"weir/tests/must"
	"weir/tests/wait"
)

// A client that is gone at once has not waited for the processor; one that is gone after it had to wait for its turn has.
func TestGateGone(t *testing.T) {
	l := must.Have(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { l.Close() })
	g := newGate()
	left := func() *tls.ClientHelloInfo {
		t.Helper()
		must.Have(net.Dial("tcp", l.Addr().String())).Close()
		c := must.Have(l.Accept())
		t.Cleanup(func() { c.Close() })
		wait.For(t, "the client is gone", func() bool { return gone(c) })
		return &tls.ClientHelloInfo{Conn: c}
	}
	for range 3 {
		if _, err := g.admit(left()); err == nil {
			t.Error("the handshake of a client that is gone goes on")
		}
	}
	if g.late != 0 || g.problem() != "" {
		t.Errorf("%d are late: %s", g.late, g.problem())
	}
	free := g.free
	g.free = 0
	time.AfterFunc(2*shareTimeout, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.free = free
		g.next()
	})
	if _, err := g.admit(left()); err == nil || g.late != 1 || g.problem() == "" {
		t.Errorf("%v, %d are late: %s", err, g.late, g.problem())
	}
}
