package serve

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// Manager is the connection to the service manager, for notifications of the
// service's state: sd_notify(3), for units of Type=notify. If no service manager
// started the process, it does nothing. It is safe for concurrent use. No error of it
// is a reason for the service to end.
type Manager struct {
	conn     *net.UnixConn // nil: there is none
	watchdog time.Duration
}

// DialManager connects to the manager that the environment names, if there is one.
func DialManager() (*Manager, error) {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return &Manager{}, nil
	}
	if path[0] != '/' && path[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET=%s: it should be a path, or a name after @", path)
	}
	watchdog, err := watchdog()
	if err != nil {
		return nil, err
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("connect to the service manager: %w", err)
	}
	return &Manager{conn, watchdog}, nil
}

// watchdog is the time that the environment gives this process, or 0.
func watchdog() (time.Duration, error) {
	text, pid := os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	if text == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) { // meant for another
		return 0, nil
	}
	const most = 1<<63/1000 - 1 // microseconds that a Duration can hold
	usec, err := strconv.ParseInt(text, 10, 64)
	if err == nil && (usec < 1 || usec > most) {
		err = errors.New("out of range")
	}
	if err != nil {
		return 0, fmt.Errorf("WATCHDOG_USEC=%s: %w", text, err)
	}
	return time.Duration(usec) * time.Microsecond, nil
}

// Watchdog returns how long the manager waits for the next Alive before it kills the
// service: call Alive twice as often. 0 is for ever.
func (m *Manager) Watchdog() time.Duration { return m.watchdog }

// Ready reports that the service has started or reloaded, with a line for
// `systemctl status`.
func (m *Manager) Ready(status string) error { return m.send("READY=1", "STATUS="+status) }

// Reloading reports that the service reads its configuration again. Ready ends
// that, also where the old configuration stays active.
func (m *Manager) Reloading() error { return m.send("RELOADING=1") }

// Stopping reports that the service is about to end.
func (m *Manager) Stopping() error { return m.send("STOPPING=1") }

// Alive reports that the service is alive, with a line for `systemctl status`. Call it
// in the loop that must not stop.
func (m *Manager) Alive(status string) error { return m.send("WATCHDOG=1", "STATUS="+status) }

// Close closes the connection.
func (m *Manager) Close() error {
	if m.conn == nil {
		return nil
	}
	return m.conn.Close()
}

// send sends assignments. A line break within one would begin another.
func (m *Manager) send(assignments ...string) error {
	if m.conn == nil {
		return nil
	}
	for i, a := range assignments {
		assignments[i] = strings.ReplaceAll(a, "\n", " ")
	}
	if _, err := m.conn.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
