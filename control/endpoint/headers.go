package endpoint

import (
	"maps"
	"net/textproto"
	"slices"
	"strings"

	"weir/control/quantity"
)

// ownHeaders belong to the connection, or come from the URL of a request.
var ownHeaders = []string{"Connection", "Content-Length", "Host", "Trailer", "Transfer-Encoding"}

// ValidateHeaders returns what is wrong with headers of requests, as [quantity.FieldErrors].
// These do not contain values, which may be secret. others are names that have a value already.
func ValidateHeaders(headers map[string]string, others ...string) error {
	var errs quantity.FieldErrors
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case name == "" || strings.ContainsFunc(name, isNoToken):
			errs.Failf("headers", "%.60q: want a name of letters, digits and dashes", name)
		case slices.Contains(ownHeaders, canonical) || slices.Contains(others, canonical):
			errs.Failf("headers", "%s: weir sets this one itself", name)
		case strings.ContainsFunc(headers[name], isControl):
			errs.Failf("headers", "%s: the value has a control character, such as a line end: write it on one line, in quotes", name)
		}
	}
	return errs.Err()
}

// isNoToken reports whether a name of a header must not contain a character (RFC 9110, 5.6.2).
func isNoToken(r rune) bool {
	isAlphanumeric := '0' <= r && r <= '9' || 'A' <= r && r <= 'Z' || 'a' <= r && r <= 'z'
	return !isAlphanumeric && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// isControl reports whether a value of a header must not contain a character (RFC 9110, 5.5).
func isControl(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
