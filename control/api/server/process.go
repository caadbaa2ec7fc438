package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"golang.org/x/sys/unix"

	"weir/control/api"
)

// peerProcess returns the process at the other end of a socket, whose number the kernel has
// noted when it connected. If the process has ended since, its number may be another's.
func peerProcess(fd, pid int) api.Process {
	if pid <= 0 {
		return api.Process{} // in another namespace
	}
	p, err := api.ProcessOf(pid)
	if err != nil || !peerLives(fd) {
		return api.Process{PID: pid}
	}
	return p
}

// peerLives reports whether the process that has connected to a socket has not ended.
func peerLives(fd int) bool {
	peer, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	switch {
	case err == nil:
		defer unix.Close(peer)
		return !happened(peer, unix.POLLIN)
	case errors.Is(err, unix.ENOPROTOOPT): // before Linux 6.5
		return connected(fd)
	default:
		return false
	}
}

// connected reports whether the other end of a socket is open: the end of a process closes
// it, unless another one has it, too.
func connected(fd int) bool { return !happened(fd, unix.POLLRDHUP) }

// happened reports whether one of some events has happened at a descriptor, or an error.
func happened(fd int, events int16) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
	return err != nil || n > 0
}

// claimed returns the process of a request of root's: what the kernel says of it, or else
// what it says itself.
func claimed(q *http.Request, known api.Process) api.Process {
	if known.Command != "" {
		return known
	}
	text := q.Header.Get(api.ProcessHeader)
	var p api.Process
	if text == "" || len(text) > api.MaxProcessHeader || json.Unmarshal([]byte(text), &p) != nil ||
		strings.ContainsFunc(p.Command+p.Terminal, api.NotPrintable) {
		return known
	}
	p.PID, p.Claimed = known.PID, true
	return p
}
