package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	// handshakeTimeout is how long a handshake waits for its turn and takes. Clients give up earlier.
	handshakeTimeout = 40 * time.Second

	// turnTimeout is how long a client has for its part, once the server has begun: after shareTimeout,
	// the next one begins, since one that is silent costs no time of the processor.
	turnTimeout  = 5 * time.Second
	shareTimeout = 500 * time.Millisecond
)

// errLate ends a handshake whose turn came too late.
var errLate = errors.New("too little CPU for the handshakes of all nodes that connect")

// gate has a few TLS handshakes under way at a time, and the others wait in the order in which they came.
// All at once, they share the processor, and where that takes longer than clients wait, none succeeds.
// It is safe for concurrent use.
type gate struct {
	mu      sync.Mutex
	free    int
	busy    map[string]int // handshakes under way, by address
	waiting []*turn
	late    uint64 // handshakes that were given up before their turn
	lateAt  time.Time
	recent  uint64 // those since a time without any
}

// turn is a handshake that waits.
type turn struct {
	address string
	comes   chan struct{} // closed when it does
}

func newGate() *gate {
	return &gate{free: 2 * runtime.GOMAXPROCS(0), busy: make(map[string]int)}
}

// admit waits for the turn of a handshake, as [tls.Config.GetConfigForClient].
func (g *gate) admit(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	address, _, err := net.SplitHostPort(hello.Conn.RemoteAddr().String())
	if err != nil {
		return nil, nil // within the process
	}
	t, came := &turn{address, make(chan struct{})}, time.Now()
	g.mu.Lock()
	g.waiting = append(g.waiting, t)
	g.next()
	g.mu.Unlock()
	in := time.NewTimer(handshakeTimeout - turnTimeout)
	defer in.Stop()
	select {
	case <-t.comes:
	case <-in.C:
		g.mu.Lock()
		defer g.mu.Unlock()
		if i := slices.Index(g.waiting, t); i >= 0 {
			g.waiting = slices.Delete(g.waiting, i, i+1)
		} else {
			g.leave(address)
		}
		g.tooLate()
		return nil, errLate
	}
	leave := sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.leave(address)
	})
	if gone(hello.Conn) {
		leave()
		g.mu.Lock()
		defer g.mu.Unlock()
		if time.Since(came) > shareTimeout { // else it has not waited, as one that has taken the port for another
			g.tooLate()
		}
		return nil, errLate
	}
	_ = hello.Conn.SetReadDeadline(time.Now().Add(turnTimeout)) // closed: the handshake says so
	time.AfterFunc(shareTimeout, leave)
	context.AfterFunc(hello.Context(), leave) // the handshake has ended
	return nil, nil
}

// next begins as many handshakes as may be under way, first those of addresses that have none: who
// opens many connections from one address holds up itself. g.mu is held.
func (g *gate) next() {
	for g.free > 0 && len(g.waiting) > 0 {
		i := max(0, slices.IndexFunc(g.waiting, func(t *turn) bool { return g.busy[t.address] == 0 }))
		t := g.waiting[i]
		g.waiting = slices.Delete(g.waiting, i, i+1)
		g.free--
		g.busy[t.address]++
		close(t.comes)
	}
}

// leave takes in that a handshake is not under way any more. g.mu is held.
func (g *gate) leave(address string) {
	g.free++
	if g.busy[address]--; g.busy[address] == 0 {
		delete(g.busy, address)
	}
	g.next()
}

// tooLate counts a handshake that was given up before its turn. g.mu is held.
func (g *gate) tooLate() {
	now := time.Now()
	if now.Sub(g.lateAt) > shownFor {
		g.recent = 0
	}
	g.late, g.recent, g.lateAt = g.late+1, g.recent+1, now
}

// problem returns that the server has too little time of the processor, "" if it has enough.
func (g *gate) problem() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.recent == 0 || time.Since(g.lateAt) > shownFor {
		return ""
	}
	return fmt.Sprintf("too little CPU: %d handshakes timed out, %d wait: nodes come back slowly until the hub has more", g.recent, len(g.waiting))
}

// Handshakes returns how many nodes wait to connect, and how many have given up waiting.
func (i *inside) Handshakes() (waiting int, late uint64) {
	i.gate.mu.Lock()
	defer i.gate.mu.Unlock()
	return len(i.gate.waiting), i.gate.late
}

// gone reports whether a client that waits for the server has closed its connection.
func gone(c net.Conn) (is bool) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		n, _, err := syscall.Recvfrom(int(fd), make([]byte, 1), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		is = n == 0 && err == nil || errors.Is(err, syscall.ECONNRESET)
	})
	return is || err != nil
}
