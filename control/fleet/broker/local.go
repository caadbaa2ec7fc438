package broker

import (
	"io"
	"net"
	"os"
	"syscall"

	"github.com/nats-io/nats-server/v2/server"
)

// local connects within the process. The server's own connections within the process have no
// buffer: a client that writes and does not read, as all do while they connect, and a server
// that writes to it wait for each other. local's are pairs of sockets, whose buffers the
// kernel has.
type local struct{ server *server.Server }

// InProcessConn implements [nats.InProcessConnProvider].
func (l local) InProcessConn() (net.Conn, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	c, err := l.server.InProcessConn()
	if err != nil {
		ours.Close()
		theirs.Close()
		return nil, err
	}
	pump := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // its error is the end of the connection, which both sides see
		to.Close()
		from.Close()
	}
	go pump(theirs, c)
	go pump(c, theirs)
	return ours, nil
}

// socketPair returns two connected sockets.
func socketPair() (a, b net.Conn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		defer f.Close() // FileConn duplicates it
		c, e := net.FileConn(f)
		if e != nil {
			err = e
			continue
		}
		conns[i] = c
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				c.Close()
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}
