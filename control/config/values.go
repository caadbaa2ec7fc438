package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"weir/control/feed"
	"weir/filter/multicast"
)

// Path is an absolute path, or "".
type Path string

// UnmarshalText reads an absolute path, or none.
func (p *Path) UnmarshalText(text []byte) error {
	if s := string(text); s != "" && !filepath.IsAbs(s) {
		return fmt.Errorf("%q: want an absolute path", text)
	}
	*p = Path(text)
	return nil
}

// MarshalText returns the path.
func (p Path) MarshalText() ([]byte, error) { return []byte(p), nil }

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

// URL is a URL of HTTP or HTTPS, or "". Its user, password and query may be secret:
// errors are without them.
type URL string

// UnmarshalText reads a URL with a host.
func (u *URL) UnmarshalText(text []byte) error {
	parsed, err := url.Parse(string(text))
	switch {
	case err != nil:
		return errors.New("malformed URL")
	case parsed.Scheme != "http" && parsed.Scheme != "https":
		return errors.New("want a URL that begins with http:// or https://")
	case parsed.Host == "":
		return errors.New("URL without a host")
	}
	*u = URL(text)
	return nil
}

// MarshalText returns the URL, with what is secret in it.
func (u URL) MarshalText() ([]byte, error) { return []byte(u), nil }

// Redacted returns the URL without user, password and query.
func (u URL) Redacted() string { return feed.Source{URL: string(u)}.String() }

// SHA256 is a checksum in hexadecimal, or "".
type SHA256 string

// UnmarshalText reads 64 hexadecimal digits.
func (s *SHA256) UnmarshalText(text []byte) error {
	if len(text) != 64 || strings.Trim(string(text), "0123456789abcdefABCDEF") != "" {
		return fmt.Errorf("%q: want 64 hexadecimal digits", text)
	}
	*s = SHA256(text)
	return nil
}

// MarshalText returns the digits.
func (s SHA256) MarshalText() ([]byte, error) { return []byte(s), nil }

// Separator separates the columns of CSV; 0 is the default.
type Separator rune

// UnmarshalText reads one character.
func (s *Separator) UnmarshalText(text []byte) error {
	r, n := utf8.DecodeRune(text)
	if n == 0 || n != len(text) || r == utf8.RuneError || r == '\r' || r == '\n' || r == '"' {
		return fmt.Errorf(`%q: want one character, as in ";" or "\t"`, text)
	}
	*s = Separator(r)
	return nil
}

// MarshalText returns the character.
func (s Separator) MarshalText() ([]byte, error) {
	if s == 0 {
		return nil, nil
	}
	return []byte(string(s)), nil
}

// Group is a multicast group that routers forward.
type Group netip.Addr

// UnmarshalText reads a group's address.
func (g *Group) UnmarshalText(text []byte) error {
	a, err := netip.ParseAddr(string(text))
	if err != nil {
		return fmt.Errorf("%q: want a multicast group, as in 239.1.2.3 or ff0e::1", text)
	}
	if err := multicast.Check(a); err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	*g = Group(a)
	return nil
}

// MarshalText returns the address.
func (g Group) MarshalText() ([]byte, error) { return netip.Addr(g).MarshalText() }

func (g Group) String() string { return netip.Addr(g).String() }

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

// Action is what a list does to the packets that it contains.
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

// LoopAction is what happens to packets in a loop.
type LoopAction string

// The actions on loops.
const (
	ReportLoops LoopAction = "report"
	DropLoops   LoopAction = "drop"
)

// UnmarshalText sets the action by its name.
func (a *LoopAction) UnmarshalText(text []byte) error {
	return oneOf(a, "action", text, ReportLoops, DropLoops)
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

// oneOf sets a name that is one of two.
func oneOf[T ~string](to *T, what string, text []byte, a, b T) error {
	if !slices.Contains([]T{a, b}, T(text)) {
		return fmt.Errorf("unknown %s %q: want %s or %s", what, text, a, b)
	}
	*to = T(text)
	return nil
}
