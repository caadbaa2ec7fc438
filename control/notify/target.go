package notify

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"weir/control/endpoint"
	"weir/control/quantity"
)

// Target is a receiver of events: a webhook, a command or a syslog server.
type Target struct {
	Name string `yaml:",key"`

	// URL of a webhook, to which each event is posted as JSON.
	URL URL `yaml:"url,omitempty"`

	// The secret that signs requests to the URL, of at least 16 characters.
	Secret Secret `yaml:"secret,omitempty"`

	// File with the secret, instead of secret. It is read again for each request.
	SecretFile quantity.Path `yaml:"secret_file,omitempty"`

	// Sent to the URL, as in Authorization.
	Headers map[string]string `yaml:"headers,omitempty"`

	// Path of an executable that is started for each event, one at a time, with JSON on
	// its standard input.
	Command quantity.Path `yaml:"command,omitempty"`

	// Arguments of the command.
	Arguments []string `yaml:"arguments,omitempty"`

	// A syslog server: udp://HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT.
	Syslog endpoint.URL `yaml:"syslog,omitempty"`

	// The form of messages to a syslog server: rfc5424, or cef.
	Format Format `yaml:"format"`

	// Files for a syslog server at tls://.
	TLS endpoint.TLS `yaml:"tls,omitempty"`

	// The kinds of events to send: heavy, penalty, feed, interface, refused, surge.
	// Default: all.
	Events []Kind `yaml:"events,omitempty"`

	// How long a request or the command may take, from 100ms to 5m.
	Timeout quantity.Duration `yaml:"timeout"`
}

// DefaultTimeout is the default of Target.Timeout.
const DefaultTimeout = 10 * time.Second

// SetDefaults sets the defaults.
func (t *Target) SetDefaults() { t.Timeout, t.Format = quantity.Duration(DefaultTimeout), RFC5424 }

// Label returns the name.
func (t Target) Label() string { return t.Name }

// wants reports whether the target is to get events of a kind.
func (t *Target) wants(k Kind) bool {
	return k == Test || len(t.Events) == 0 || slices.Contains(t.Events, k)
}

// The limits of a secret, in bytes.
const (
	minSecret = 16 // less could be guessed
	maxSecret = 4096
)

var matchesName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`).MatchString

// Validate returns what is wrong with a target, its files apart, as
// [quantity.FieldErrors].
func (t Target) Validate() error {
	var errs quantity.FieldErrors
	if !matchesName(t.Name) {
		errs.Failf("", `the name %q: want up to 64 letters, digits, "_", "-" and dots`, t.Name)
		return errs
	}
	switch {
	case t.URL == "" && t.Command == "" && t.Syslog == "":
		errs.Failf("", "want a url, a command or syslog")
	case t.URL != "" && t.Command != "":
		errs.Failf("command", "want either a url or a command: make two targets of them")
	case t.Syslog != "" && (t.URL != "" || t.Command != ""):
		errs.Failf("syslog", "want either that or a url or a command: make two targets of them")
	case t.Syslog == "" && (t.TLS != endpoint.TLS{} || t.Format == CEF):
		errs.Failf("", "format and tls go with syslog")
	case t.URL == "" && (t.Secret != "" || t.SecretFile != "" || len(t.Headers) > 0):
		errs.Failf("", "secret, secret_file and headers go with a url")
	case t.Command == "" && len(t.Arguments) > 0:
		errs.Failf("arguments", "they go with a command")
	case t.Secret != "" && t.SecretFile != "":
		errs.Failf("secret_file", "want either secret or secret_file")
	}
	if t.Syslog != "" {
		errs.Add("", t.Syslog.Validate(t.TLS))
	}
	errs.Add("", endpoint.ValidateHeaders(t.Headers, "Content-Type", SignatureHeader))
	for i, k := range t.Events {
		if slices.Contains(t.Events[:i], k) {
			errs.Failf(fmt.Sprintf("events[%d]", i), "%s is there twice", k)
		}
	}
	quantity.Between(&errs, "timeout", t.Timeout, quantity.Duration(100*time.Millisecond), quantity.Duration(5*time.Minute))
	return errs.Err()
}

// ValidateFiles returns what is wrong with a target's files, as
// [quantity.FieldErrors]. A file that may not be read is not wrong: the process that
// checks may have fewer rights than the daemon.
func (t Target) ValidateFiles() error {
	var errs quantity.FieldErrors
	if t.SecretFile != "" {
		if _, err := t.secret(); err != nil && !errors.Is(err, os.ErrPermission) {
			errs.Failf("secret_file", "%w", err)
		}
	}
	errs.Add("", t.TLS.ValidateFiles())
	if t.Command != "" {
		switch info, err := os.Stat(string(t.Command)); {
		case errors.Is(err, os.ErrPermission):
		case err != nil:
			errs.Failf("command", "%w", err)
		case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
			errs.Failf("command", "%s is not an executable file", t.Command)
		case info.Mode().Perm()&0o002 != 0:
			errs.Failf("command", "%s: mode %04o lets everybody change what the daemon runs: chmod o-w %[1]s", t.Command, info.Mode().Perm())
		}
	}
	return errs.Err()
}

// secret returns what signs requests, nil for nothing.
func (t *Target) secret() ([]byte, error) {
	if t.SecretFile == "" {
		return []byte(t.Secret), nil
	}
	f, err := os.Open(string(t.SecretFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return nil, fmt.Errorf("%s: mode %04o lets everybody read it, who could then forge notifications: chmod o= %[1]s", t.SecretFile, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return nil, err
	}
	text = bytes.TrimSpace(text)
	if len(text) < minSecret || len(text) > maxSecret {
		return nil, fmt.Errorf("%s: want a secret of %d to %d bytes, as `openssl rand -hex 32` prints", t.SecretFile, minSecret, maxSecret)
	}
	return text, nil
}

// Secret is a secret, or "".
type Secret string

// UnmarshalText reads a secret. Errors are without it.
func (s *Secret) UnmarshalText(text []byte) error {
	if len(text) < minSecret || len(text) > maxSecret {
		return fmt.Errorf("want %d to %d bytes, as `openssl rand -hex 32` prints", minSecret, maxSecret)
	}
	*s = Secret(text)
	return nil
}

// MarshalText returns the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s), nil }

// Redacted returns a text without the secret.
func (s Secret) Redacted() string { return "(not shown)" }

// URL is a URL of HTTP or HTTPS, or "". All but its host may be secret: errors are
// without it.
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

// Redacted returns the URL up to its host: many services take the path as a secret.
func (u URL) Redacted() string {
	parsed, err := url.Parse(string(u))
	if err != nil {
		return "a malformed URL"
	}
	if parsed.Path == "" || parsed.Path == "/" {
		return parsed.Scheme + "://" + parsed.Host
	}
	return parsed.Scheme + "://" + parsed.Host + "/…"
}

// place is where the target's events go, without secrets.
func (t *Target) place() string {
	switch {
	case t.URL != "":
		return t.URL.Redacted()
	case t.Syslog != "":
		return string(t.Syslog)
	}
	return filepath.Clean(string(t.Command))
}
