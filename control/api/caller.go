package api

import (
	"context"
	"math"
	"strings"
)

// NoUID is the UID of a caller over TCP, who has none on this host.
const NoUID = math.MaxUint32 // (uid_t)-1, which no user has

// byProxy begins a Client that a reverse proxy has named. No subject of a certificate begins
// with it.
const byProxy = "proxy "

// ByProxy returns the Client of a user whom the reverse proxy of a console has named.
func ByProxy(user string) string { return byProxy + user }

// ProxyUser returns the user of ByProxy, and false for any other Client.
func ProxyUser(client string) (user string, ok bool) { return strings.CutPrefix(client, byProxy) }

// Caller identifies the client of a request: a user of this host, or over TCP, where
// UID is NoUID, the subject of the client's certificate, or what ByProxy returns.
type Caller struct {
	UID    uint32 `json:"uid"`
	Client string `json:"client,omitempty"`

	Process Process `json:"process,omitzero"` // of this host, as far as it is known

	// Of a session of the console: the variable SSH_CONNECTION of who has opened it, and the
	// browser's connection over TCP, in the same form.
	SSH        string `json:"-"`
	Connection string `json:"-"`
}

type callerKey struct{}

// CallerOf returns the client whose request ctx belongs to, and false if it belongs
// to none.
func CallerOf(ctx context.Context) (Caller, bool) {
	c, ok := ctx.Value(callerKey{}).(Caller)
	return c, ok
}

// As returns a context with a caller.
func As(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}
