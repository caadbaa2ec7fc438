package feed

import (
	"fmt"
	"net/url"
	"unicode/utf8"

	"weir/control/quantity"
)

// Path is an absolute path, or "".
type Path = quantity.Path

// URL is a URL of HTTP or HTTPS, or "". Its user, password and query may be secret:
// errors are without them.
type URL string

// UnmarshalText reads a URL with a host.
func (u *URL) UnmarshalText(text []byte) error {
	if err := quantity.CheckURL(string(text)); err != nil {
		return err
	}
	*u = URL(text)
	return nil
}

// MarshalText returns the URL, with what is secret in it.
func (u URL) MarshalText() ([]byte, error) { return []byte(u), nil }

// Redacted returns the URL without user, password and query.
func (u URL) Redacted() string {
	parsed, err := url.Parse(string(u))
	if err != nil {
		return "a malformed URL"
	}
	parsed.User, parsed.RawQuery, parsed.Fragment = nil, "", ""
	return parsed.String()
}

func (u URL) check() error { return quantity.CheckURL(string(u)) }

// SHA256 is a checksum in hexadecimal, or "".
type SHA256 string

// UnmarshalText reads 64 hexadecimal digits.
func (s *SHA256) UnmarshalText(text []byte) error {
	if !isSHA256(string(text)) {
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
	if string(text) == `\t` { // as a shell hands it on
		text = []byte("\t")
	}
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
