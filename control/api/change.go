package api

import (
	"fmt"
	"strings"
	"unicode"
)

// MaxReason bounds the reason of a change, in bytes.
const MaxReason = 512

// Limits on a change.
const (
	maxEntry      = 256  // bytes of an entry: a flow of IPv6 prefixes has 110
	MaxConnection = 256  // bytes
	MinTTL        = 1e-3 // seconds
	MaxTTL        = 100 * 365 * 24 * 60 * 60
)

// checkReason returns what is wrong with the reason of a change, which terminals show.
func checkReason(text string) error {
	switch {
	case len(text) > MaxReason:
		return &BadRequest{Err: fmt.Errorf("a reason of %d bytes: the most is %d", len(text), MaxReason)}
	case strings.ContainsFunc(text, NotPrintable):
		return &BadRequest{Err: fmt.Errorf("reason %q: want one line of printable text", text)}
	}
	return nil
}

// Check returns what is wrong with a change, as far as that does not depend on the
// lists.
func (c *Change) Check() error {
	bad := func(format string, args ...any) error { return &BadRequest{Err: fmt.Errorf(format, args...)} }
	switch {
	case c.Action != Block && c.Action != Allow:
		return bad("action %q: want %q or %q", c.Action, Block, Allow)
	case len(c.Entries) == 0:
		return bad("no entries")
	case c.Remove && (c.TTL != 0 || c.Reason != "" || c.Import):
		return bad("ttl_seconds, reason and import are for entries to be added")
	case c.TTL != 0 && c.TTL < MinTTL || c.TTL > MaxTTL: // less than a nanosecond would be for ever
		return bad("ttl_seconds %v: want %v up to %d, a hundred years, or 0 for ever", c.TTL, MinTTL, MaxTTL)
	case CheckSSH(c.SSH) != nil:
		return CheckSSH(c.SSH)
	}
	if err := checkReason(c.Reason); err != nil {
		return err
	}
	for i, e := range c.Entries {
		if len(e) > maxEntry {
			return &BadRequest{Entry: &i, Err: fmt.Errorf("entry %.40q… of %d bytes: the most is %d", e, len(e), maxEntry)}
		}
		if strings.TrimSpace(e) == "" || strings.ContainsAny(e, "\r\n") {
			return &BadRequest{Entry: &i, Err: fmt.Errorf("entry %q: want one line", e)}
		}
	}
	return nil
}

// FlushChange is a request to remove all manual entries of a list: POST
// /v1/lists/{list}/flush.
type FlushChange struct {
	// Force removes them even if that would cut off this host, or the caller.
	Force bool `json:"force,omitempty"`

	// SSH is the caller's variable SSH_CONNECTION, which that must not cut off.
	SSH string `json:"ssh_connection,omitempty"`

	// Connection is set by the server, as of a Change.
	Connection string `json:"-"`
}

// Check returns what is wrong with a change, as far as that does not depend on the list.
func (c *FlushChange) Check() error { return CheckSSH(c.SSH) }

// CheckSSH returns what is wrong with a caller's variable SSH_CONNECTION.
func CheckSSH(connection string) error {
	if len(connection) > MaxConnection || strings.ContainsFunc(connection, NotPrintable) {
		return &BadRequest{Err: fmt.Errorf("ssh_connection %.60q: want two addresses with ports", connection)}
	}
	return nil
}

// NotPrintable reports whether a character must not be shown on terminals.
func NotPrintable(r rune) bool { return !unicode.IsPrint(r) }
