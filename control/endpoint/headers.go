package endpoint

import (
	"maps"
	"net/textproto"
	"slices"

	"golang.org/x/net/http/httpguts"

	"weir/control/quantity"
)

// ownHeaders are those of the connection, and the host's, which requests take from their URL.
var ownHeaders = []string{"Connection", "Content-Length", "Host", "Trailer", "Transfer-Encoding"}

// ValidateHeaders returns what is wrong with headers of requests, as [quantity.FieldErrors].
// These do not contain values, which may be secret. others are names that have a value already.
func ValidateHeaders(headers map[string]string, others ...string) error {
	var errs quantity.FieldErrors
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		canonical := textproto.CanonicalMIMEHeaderKey(name)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			errs.Failf("headers", "%.60q: want a name of letters, digits and dashes", name)
		case slices.Contains(ownHeaders, canonical) || slices.Contains(others, canonical):
			errs.Failf("headers", "%s: weir sets this one itself", name)
		case !httpguts.ValidHeaderFieldValue(headers[name]):
			errs.Failf("headers", "%s: the value has a control character, such as a line end: write it on one line, in quotes", name)
		}
	}
	return errs.Err()
}
