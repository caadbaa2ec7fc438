package lab

import (
	"net"
	"sync"
	"testing"
)

// givenPorts are those that FreePort has returned.
var givenPorts sync.Map

// FreePort returns a port of 127.0.0.1 that is unused, by TCP and by UDP, and that it has
// not returned before.
func FreePort(t testing.TB) int {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.ListenPacket("udp", l.Addr().String())
		l.Close()
		if err != nil {
			continue // another process has it
		}
		c.Close()
		port := l.Addr().(*net.TCPAddr).Port
		if _, given := givenPorts.LoadOrStore(port, true); !given {
			return port
		}
	}
}
