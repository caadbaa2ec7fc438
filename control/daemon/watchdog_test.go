package daemon

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weir/control/serve"
	"weir/tests/lab"
)

// The service manager hears of a daemon that takes turns, and not of one whose loop
// is stuck.
func TestWatchdog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	alive := func(within time.Duration) bool {
		t.Helper()
		buffer := make([]byte, 1<<12)
		for end := time.Now().Add(within); ; {
			if err := manager.SetReadDeadline(end); err != nil {
				t.Fatal(err)
			}
			n, err := manager.Read(buffer)
			if err != nil {
				return false
			}
			if strings.Contains(string(buffer[:n]), "WATCHDOG=1") {
				return true
			}
		}
	}
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "2000000")
	if m, err := serve.DialManager(); err != nil || m.Watchdog() != 2*time.Second {
		t.Fatalf("watchdog %v, %v", m.Watchdog(), err)
	}
	d := begin(t, configure(t, lab.New(t).B))
	for range 3 {
		if !alive(20 * time.Second) {
			t.Fatal("not reported alive")
		}
	}
	stuck, free := make(chan struct{}), make(chan struct{})
	go func() {
		_ = d.loop.Do(t.Context(), func() error { close(stuck); <-free; return nil })
	}()
	<-stuck
	alive(2 * time.Second)      // for the turns before
	if alive(2 * time.Second) { // after which it would be killed
		t.Error("reported alive while its loop is stuck")
	}
	close(free)
	if !alive(20 * time.Second) {
		t.Error("not reported alive after that")
	}
}
