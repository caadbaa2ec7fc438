package endpoint

import (
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Headers that no request may have are refused, and values are in no error.
func TestValidateHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		value, want string
	}{
		"Authorization":  {"Bearer secret", ""},
		"X-API-Key":      {"secret", ""},
		"authorization":  {"Bearer secret\n", "control character"},
		"Two Words":      {"secret", "want a name"},
		"":               {"secret", "want a name"},
		"host":           {"secret", "sets this one itself"},
		"Content-Length": {"secret", "sets this one itself"},
		"content-type":   {"secret", "sets this one itself"},
	} {
		err := ValidateHeaders(map[string]string{name: c.value}, "Content-Type")
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%q: %v, want %q", name, err, c.want)
		}
	}
}

// A server that is gone without a word ends a connection soon.
func TestDialBoundsUnacknowledged(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := URL("tcp://"+l.Addr().String()).Dial(t.Context(), TLS{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if ms, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); err != nil || ms != int(unacknowledged.Milliseconds()) {
			t.Errorf("%d ms, %v", ms, err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	udp, err := URL("udp://"+l.Addr().String()).Dial(t.Context(), TLS{})
	if err != nil {
		t.Fatal(err)
	}
	udp.Close()
}
