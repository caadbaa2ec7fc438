package lab

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// givenPorts are those that FreePort has returned.
var givenPorts sync.Map

// FreePort returns a port of 127.0.0.1 that is unused, by TCP and by UDP, and that it has
// not returned before. Until the test ends, the kernel chooses it for no other socket of TCP, such
// as that of a test of another package; a server that sets SO_REUSEADDR can listen on it.
func FreePort(t testing.TB) int {
	t.Helper()
	for {
		port, hold, err := reservePort()
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			hold.Close()
			continue // another process has it
		}
		c.Close()
		if _, given := givenPorts.LoadOrStore(port, true); given {
			hold.Close()
			continue
		}
		t.Cleanup(func() { hold.Close() })
		return port
	}
}

// FreeAddress returns 127.0.0.1 with a port as FreePort returns it.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", FreePort(t))
}

// reservePort returns a port, and a socket that is bound to it and does not listen. Linux lets
// others bind to it by its number, and does not choose it for them.
func reservePort() (port int, hold *os.File, err error) {
	if hold, err = bind(0); err != nil {
		return 0, nil, err
	}
	of, err := unix.Getsockname(int(hold.Fd()))
	if err != nil {
		hold.Close()
		return 0, nil, os.NewSyscallError("getsockname", err)
	}
	return of.(*unix.SockaddrInet4).Port, hold, nil
}

// bind returns a socket of TCP that is bound to a port of 127.0.0.1, beside others; 0: the kernel chooses one.
func bind(port int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	hold := os.NewFile(uintptr(fd), "port")
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	}
	if err != nil {
		hold.Close()
		return nil, os.NewSyscallError("bind", err)
	}
	return hold, nil
}

// Hole has an address of FreeAddress neither take connections nor refuse them, as that of a host which is gone.
func Hole(t testing.TB, address string) {
	t.Helper()
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	hold, err := bind(int(at.Port()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hold.Close() })
	if err := unix.Listen(int(hold.Fd()), 0); err != nil {
		t.Fatal(os.NewSyscallError("listen", err))
	}
	filler, err := net.Dial("tcp", address) // the only one that there is room for
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { filler.Close() })
}
