package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"weir/control/api"
)

// MaxConnections bounds the connections of a listener, and so the descriptors and the memory
// that clients take which send requests slowly, or not at all. A connection takes some 12 KB.
const MaxConnections = 512

// hurry is the time for a header, and between two requests, where half of the connections
// that there may be are there.
const hurry = 2 * time.Second

// limited is a listener with a number of connections at most. One more makes it close the
// oldest that has no request in progress, such as one that was sent in part, of the address
// that has most of these; so a new client is answered, however many hang. Where all are busy,
// the new one is closed. Streams do not count.
type limited struct {
	net.Listener
	most int

	mu  sync.Mutex
	all []*limitedConn // the oldest first
}

// LimitListener limits a listener to a number of connections, for [Serve].
func LimitListener(l net.Listener, most int) net.Listener { return &limited{Listener: l, most: most} }

// Accept implements [net.Listener].
func (l *limited) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.add(accepted); c != nil {
			return c, nil
		}
		_ = accepted.Close()
	}
}

// add returns the connection, nil if there is no room for it.
func (l *limited) add(accepted net.Conn) *limitedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) >= l.most {
		at := l.idle()
		if at < 0 {
			return nil
		}
		_ = l.all[at].Conn.Close()
		l.all = slices.Delete(l.all, at, at+1)
	}
	c := &limitedConn{Conn: accepted, of: l, peer: addressOf(accepted)}
	l.all = append(l.all, c)
	return c
}

// idle returns which connection to close, -1 for none. l.mu is held.
func (l *limited) idle() int {
	first, idle := make(map[string]int), make(map[string]int)
	most := -1
	for i, c := range l.all {
		if c.busy {
			continue
		}
		if _, had := first[c.peer]; !had {
			first[c.peer] = i
		}
		idle[c.peer]++
	}
	for peer, at := range first {
		if most < 0 || idle[peer] > idle[l.all[most].peer] || idle[peer] == idle[l.all[most].peer] && at < most {
			most = at
		}
	}
	return most
}

// addressOf returns the address of a connection's peer, without its port.
func addressOf(c net.Conn) string {
	if host, _, err := net.SplitHostPort(c.RemoteAddr().String()); err == nil {
		return host
	}
	return ""
}

// limitedConn is a connection of a limited listener, whose lock guards its fields.
type limitedConn struct {
	net.Conn
	of   *limited
	peer string
	busy bool // from the beginning of a request until its answer was sent
}

// NetConn returns the connection itself, as of [crypto/tls.Conn].
func (c *limitedConn) NetConn() net.Conn { return c.Conn }

// Close implements [net.Conn].
func (c *limitedConn) Close() error {
	c.of.mu.Lock()
	c.of.all = slices.DeleteFunc(c.of.all, func(one *limitedConn) bool { return one == c })
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// SetReadDeadline implements [net.Conn].
func (c *limitedConn) SetReadDeadline(t time.Time) error {
	c.of.mu.Lock()
	near := !c.busy && len(c.of.all) > c.of.most/2
	c.of.mu.Unlock()
	if soon := time.Now().Add(hurry); near && t.After(soon) {
		t = soon
	}
	return c.Conn.SetReadDeadline(t)
}

func (c *limitedConn) setBusy(busy bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.busy = busy
}

// Stream takes the connection of a request out of the limit of its listener, for an answer
// that has no end, and a limit of its own.
func Stream(ctx context.Context) {
	if c, ok := ctx.Value(limitedKey{}).(*limitedConn); ok {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.of.all = slices.DeleteFunc(c.of.all, func(one *limitedConn) bool { return one == c })
	}
}

// limitedOf returns the connection of a limited listener, nil if it is of another.
func limitedOf(c net.Conn) *limitedConn {
	for {
		switch one := c.(type) {
		case *limitedConn:
			return one
		case interface{ NetConn() net.Conn }:
			c = one.NetConn()
		default:
			return nil
		}
	}
}

type limitedKey struct{}

// withLimited adds the connection of a limited listener to the context.
func withLimited(ctx context.Context, c net.Conn) context.Context {
	if one := limitedOf(c); one != nil {
		return context.WithValue(ctx, limitedKey{}, one)
	}
	return ctx
}

// untilIdle makes connections busy while a handler works. They are again idle when the
// server says so to [noteIdle], since what the handler has written may not be sent yet.
//
// It bounds the time of a request's body, for which net/http waits before it answers, also where
// no handler reads it. A GET has none to read: it is answered at once, and its connection, which is
// closed then, is not busy.
func untilIdle(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, wait := q.ContentLength != 0, api.BodyTimeout
		unread := body && (q.Method == http.MethodGet || q.Method == http.MethodHead)
		if unread {
			w.Header().Set("Connection", "close")
			wait = headerTimeout
		}
		if body {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(wait)) // fails in tests only
		}
		if c, ok := q.Context().Value(limitedKey{}).(*limitedConn); ok && !unread {
			c.setBusy(true)
		}
		h.ServeHTTP(w, q)
	})
}

// noteIdle follows the states of connections.
func noteIdle(c net.Conn, state http.ConnState) {
	if one := limitedOf(c); one != nil && state == http.StateIdle {
		one.setBusy(false)
	}
}
