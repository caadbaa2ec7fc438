package config

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weir/control/feed"
	"weir/loader/hooks"
)

// Path is an absolute path, or "".
type Path = feed.Path

// Source is where entries come from.
type Source = feed.Source

// Address is where a server listens, as in 127.0.0.1:9477, or "".
type Address string

// UnmarshalText reads host:port.
func (a *Address) UnmarshalText(text []byte) error {
	_, port, err := net.SplitHostPort(string(text))
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 {
		return fmt.Errorf("%q: want host:port, as in 127.0.0.1:9477 or [::1]:9477", text)
	}
	*a = Address(text)
	return nil
}

// MarshalText returns the address.
func (a Address) MarshalText() ([]byte, error) { return []byte(a), nil }

// loopback reports whether only this host reaches the address.
func (a Address) loopback() bool {
	to, err := netip.ParseAddrPort(string(a))
	return err == nil && to.Addr().Unmap().IsLoopback()
}

// Warning returns what others learn who reach the address, "" for nothing.
func (m Metrics) Warning() string {
	if m.Listen == "" || m.Listen.loopback() {
		return ""
	}
	return "metrics.listen: " + string(m.Listen) + " is no address of a loopback interface: who can reach it learns names, versions and sizes of lists, and what is dropped"
}

// LogLevel is the least severe level that is logged.
type LogLevel slog.Level

// UnmarshalText sets the level by its name.
func (l *LogLevel) UnmarshalText(text []byte) error {
	for _, level := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if LogLevel(level).String() == string(text) {
			*l = LogLevel(level)
			return nil
		}
	}
	return fmt.Errorf("unknown level %q: want debug, info, warn or error", text)
}

// MarshalText returns the level's name.
func (l LogLevel) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

func (l LogLevel) String() string { return strings.ToLower(slog.Level(l).String()) }

// Action is the effect of a list on the packets that it contains.
type Action string

// The actions of lists.
const (
	Block Action = "block"
	Allow Action = "allow"
)

// UnmarshalText sets the action by its name.
func (a *Action) UnmarshalText(text []byte) error {
	return oneOf(a, "action", text, Block, Allow)
}

// Hook is where incoming packets are filtered.
type Hook string

// The hooks; none is XDP.
const (
	HookXDP Hook = "xdp"
	HookTC  Hook = "tc"
)

// UnmarshalText sets the hook by its name.
func (h *Hook) UnmarshalText(text []byte) error { return oneOf(h, "hook", text, HookXDP, HookTC) }

// Attach is how the program is attached.
type Attach string

// The ways to attach; none is by a link.
const (
	AttachLink       Attach = "link"
	AttachDispatcher Attach = "dispatcher"
)

// UnmarshalText sets the way to attach by its name.
func (a *Attach) UnmarshalText(text []byte) error {
	return oneOf(a, "way to attach", text, AttachLink, AttachDispatcher)
}

// Place returns where the program for incoming packets runs.
func (i Interface) Place() hooks.Hook {
	if i.Hook == HookTC {
		return hooks.TC
	}
	if i.Attach == AttachDispatcher {
		return i.XDP.Dispatched()
	}
	return i.XDP
}

// LogFormat is the format of the log.
type LogFormat string

// The formats of the log.
const (
	LogText LogFormat = "text"
	LogJSON LogFormat = "json"
)

// UnmarshalText sets the format by its name.
func (f *LogFormat) UnmarshalText(text []byte) error {
	return oneOf(f, "format", text, LogText, LogJSON)
}

// FloodApply says who decides that a flood is dropped.
type FloodApply string

// The deciders.
const (
	FloodAsk  FloodApply = "ask"
	FloodAuto FloodApply = "auto"
)

// UnmarshalText sets the decider by its name.
func (f *FloodApply) UnmarshalText(text []byte) error {
	return oneOf(f, "apply", text, FloodAsk, FloodAuto)
}

// TLSFirst says whether nodes begin with TLS, before the server says anything.
type TLSFirst string

// The modes of TLSFirst; "" is a server that speaks first.
const (
	TLSFirstAccept  TLSFirst = "accept"
	TLSFirstRequire TLSFirst = "require"
)

// UnmarshalText sets the mode by its name.
func (f *TLSFirst) UnmarshalText(text []byte) error {
	return oneOf(f, "tls_first", text, TLSFirstAccept, TLSFirstRequire)
}

// oneOf sets a name that is one of two.
func oneOf[T ~string](to *T, what string, text []byte, a, b T) error {
	if !slices.Contains([]T{a, b}, T(text)) {
		return fmt.Errorf("unknown %s %w", what, wanted(string(text), []string{string(a), string(b)}))
	}
	*to = T(text)
	return nil
}
