package serve

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/tests/wait"
)

// manager listens as a service manager does, and returns a function that receives a
// notification.
func manager(t *testing.T, name string) func() string {
	t.Helper()
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	return func() string {
		t.Helper()
		if err := l.SetReadDeadline(wait.Deadline()); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		n, err := l.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

func TestManager(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	for _, name := range []string{path, "@weir-notify-" + strconv.Itoa(os.Getpid())} {
		receive := manager(t, name)
		m, err := DialManager()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			err  error
			want string
		}{
			{m.Ready("filtering on eth0\nREADY=0"), "READY=1\nSTATUS=filtering on eth0 READY=0"},
			{m.Reloading(), "RELOADING=1"},
			{m.Alive("filtering"), "WATCHDOG=1\nSTATUS=filtering"},
			{m.Stopping(), "STOPPING=1"},
		} {
			if c.err != nil {
				t.Fatal(c.err)
			}
			if got := receive(); got != c.want {
				t.Errorf("%s: got %q, want %q", name, got, c.want)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := m.Alive("x"); err == nil {
			t.Error("nothing was received, and no error")
		}
	}
}

func TestNoManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "1000000") // a parent's
	m, err := DialManager()
	if err != nil {
		t.Fatal(err)
	}
	if m.Watchdog() != 0 {
		t.Errorf("watchdog %v without a manager", m.Watchdog())
	}
	for _, err := range []error{m.Ready("x"), m.Reloading(), m.Alive("x"), m.Stopping(), m.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestWatchdog(t *testing.T) {
	own, other := strconv.Itoa(os.Getpid()), strconv.Itoa(os.Getppid())
	manager(t, filepath.Join(t.TempDir(), "notify"))
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
		bad       string // part of the error
	}{
		{"", "", 0, ""},
		{"30000000", "", 30 * time.Second, ""},
		{"30000000", own, 30 * time.Second, ""},
		{"30000000", other, 0, ""},
		{"half", own, 0, "WATCHDOG_USEC=half"},
		{"0", own, 0, "out of range"},
		{"9223372036854775807", own, 0, "out of range"},
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		m, err := DialManager()
		if err != nil || c.bad != "" {
			if err == nil || c.bad == "" || !strings.Contains(err.Error(), c.bad) {
				t.Errorf("%+v: got error %v", c, err)
			}
			continue
		}
		if m.Watchdog() != c.want {
			t.Errorf("%+v: got %v", c, m.Watchdog())
		}
		m.Close()
	}
}

func TestBadSocket(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"vsock:2:1234", "NOTIFY_SOCKET=vsock:2:1234"},
		{filepath.Join(t.TempDir(), "none"), "connect to the service manager"},
	} {
		t.Setenv("NOTIFY_SOCKET", c.name)
		if _, err := DialManager(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v", c.name, err)
		}
	}
}
