package lab

import (
	"fmt"
	"net"
	"os"
	"testing"
)

// While a test has a port, the kernel chooses it for no other server, and the test can listen on
// it.
func TestFreePortIsReserved(t *testing.T) {
	Root(t)
	h := NewHost(t, "ports")
	h.In(t, func() {
		const least, most = 40_000, 40_007
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "%d %d", least, most), 0); err != nil {
			t.Fatal(err)
		}
		given := make(map[int]bool)
		for range 2 {
			given[FreePort(t)] = true
		}
		var all []net.Listener
		for port := range given {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				t.Fatalf("the test cannot use its own port: %v", err)
			}
			l.Close()
		}
		for range most - least + 1 {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				break
			}
			defer l.Close()
			all = append(all, l)
			if port := l.Addr().(*net.TCPAddr).Port; given[port] {
				t.Errorf("port %d is given to another server", port)
			}
		}
		if len(all) != most-least+1-len(given) {
			t.Errorf("%d other servers have a port of the eight", len(all))
		}
	})
}
