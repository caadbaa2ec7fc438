package api

import "net/http"

// Route is a method and a path with what answers them.
type Route struct {
	Method, Path string // in a path, {name} matches any name
	answer       func(http.ResponseWriter, *http.Request) (any, error)
}

// NewRoute returns a route. What answer returns is sent as JSON. Its error says that the daemon failed,
// unless it is a [*Fault], or another that the server knows.
func NewRoute(method, path string, answer func(http.ResponseWriter, *http.Request) (any, error)) Route {
	return Route{method, path, answer}
}

// Answer answers a request.
func (r Route) Answer(w http.ResponseWriter, q *http.Request) (any, error) { return r.answer(w, q) }

// Fault is an error with its HTTP status.
type Fault struct {
	Status int
	error
}

// Fail returns a Fault.
func Fail(status int, err error) error { return &Fault{status, err} }

// NonNil replaces nil by an empty slice, which JSON does not encode as null.
func NonNil[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}
