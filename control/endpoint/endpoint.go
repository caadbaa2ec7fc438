// Package endpoint connects to the servers that weir sends records and messages to:
// over UDP, TCP or TLS.
package endpoint

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/quantity"
)

// URL is where a server is, as in udp://192.0.2.5:4739, or "".
type URL string

var schemes = []string{"udp", "tcp", "tls"}

// UnmarshalText reads a URL.
func (u *URL) UnmarshalText(text []byte) error {
	parsed, err := url.Parse(string(text))
	if err != nil || !slices.Contains(schemes, parsed.Scheme) || parsed.Hostname() == "" || parsed.User != nil ||
		parsed.Host != string(text[len(parsed.Scheme)+len("://"):]) {
		return fmt.Errorf("%.100q: want udp://HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT", text)
	}
	if n, err := strconv.ParseUint(parsed.Port(), 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%.100q: want a port, as in udp://192.0.2.5:4739", text)
	}
	*u = URL(text)
	return nil
}

// MarshalText returns the URL.
func (u URL) MarshalText() ([]byte, error) { return []byte(u), nil }

// Scheme returns udp, tcp or tls.
func (u URL) Scheme() string {
	parsed, err := url.Parse(string(u))
	if err != nil {
		return ""
	}
	return parsed.Scheme
}

// Validate returns what is wrong with a server's address beside its files, as
// [quantity.FieldErrors].
func (u URL) Validate(files TLS) error {
	var errs quantity.FieldErrors
	switch {
	case files != TLS{} && u.Scheme() != "tls":
		errs.Failf("tls", "it goes with tls://")
	case (files.Cert == "") != (files.Key == ""):
		errs.Failf("tls", "want both cert and key, or neither")
	}
	return errs.Err()
}

// ValidateFiles returns what is wrong with the files that connections need. A file that
// may not be read is not wrong: the process that checks may have fewer rights than the
// daemon.
func (t TLS) ValidateFiles() error {
	if _, _, err := t.Config(); err != nil && !errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("tls: %w", err)
	}
	return nil
}

// Dial connects to a server. The files are read each time, so that certificates can be
// renewed.
func (u URL) Dial(ctx context.Context, files TLS) (net.Conn, error) {
	parsed, err := url.Parse(string(u))
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Control: boundUnacknowledged}
	if parsed.Scheme != "tls" {
		return dialer.DialContext(ctx, parsed.Scheme, parsed.Host)
	}
	c, _, err := files.Config()
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	c.MinVersion = tls.VersionTLS12
	return (&tls.Dialer{NetDialer: dialer, Config: c}).DialContext(ctx, "tcp", parsed.Host)
}

// unacknowledged is how long a connection over TCP lasts without acknowledgment of the data that was
// sent. By default the kernel waits a quarter of an hour, and takes what is written into its buffer.
const unacknowledged = 15 * time.Second

func boundUnacknowledged(network, _ string, c syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unacknowledged.Milliseconds()))
	})
	return cmp.Or(err, failed)
}

// Server returns the address of a connection's other end, for one over TCP, whose
// answers the host needs.
func Server(c net.Conn) (netip.Addr, bool) {
	to, err := netip.ParseAddrPort(c.RemoteAddr().String())
	return to.Addr().Unmap(), err == nil && c.RemoteAddr().Network() == "tcp"
}
