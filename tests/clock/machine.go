package clock

import (
	"sync"
	"testing"
	"time"

	"weir/control/clock"
)

// Machine has clocks that tests set, and that pass as fast as tests like. It is safe for concurrent use.
type Machine struct {
	t testing.TB

	mu            sync.Mutex
	begin         time.Time
	passed, ahead time.Duration
	booted        time.Duration // since begin
	boot          string
	synchronized  bool
}

// NewMachine returns a machine whose clock is right, and synchronized.
func NewMachine(t testing.TB) *Machine {
	return &Machine{t: t, begin: time.Now(), boot: "1", synchronized: true}
}

// host has the clocks of a machine since a boot.
type host struct {
	*Machine
	boot string
}

// Host returns the clocks of the machine as it has booted last.
func (m *Machine) Host() clock.Host { return host{m, m.boot} }

func (h host) Boot() string { return h.boot }

func (h host) Wall() time.Time { return h.Now() }

func (h host) Ran() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Since(h.begin) + h.passed - h.booted
}

func (h host) Synchronized() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.synchronized
}

// Now returns what [time.Now] would.
func (m *Machine) Now() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Set(m.t, time.Now().Add(m.passed), m.ahead)
}

// Pass lets time pass.
func (m *Machine) Pass(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passed += d
}

// Set sets the wall clock ahead of the right time by whole seconds, or back.
func (m *Machine) Set(ahead time.Duration, synchronized bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ahead, m.synchronized = ahead, synchronized
}

// Reboot has the machine off for a time. Its clock is not synchronized then.
func (m *Machine) Reboot(off time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.passed += off
	m.booted = time.Since(m.begin) + m.passed
	m.boot += "1"
	m.synchronized = false
}
