package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"weir/control/api"
)

// largeBody is the bytes from which changes are taken one after the other.
const largeBody = 1 << 20

// readChange reads a request for a change, and sets its caller.
func readChange(w http.ResponseWriter, q *http.Request) (api.Change, error) {
	var c api.Change
	if err := api.ReadBody(w, q, api.MaxBody, &c); err != nil {
		return c, err
	}
	c.Remove = q.Method == http.MethodDelete
	c.UID, c.Client = caller(q)
	c.Connection = Connection(q)
	return c, c.Check()
}

// readLimit reads how many rows an answer may have at most.
func readLimit(value string, most int) (int, error) {
	limit, err := strconv.Atoi(value)
	if err != nil || limit < 1 || limit > most {
		return 0, &api.BadRequest{Err: fmt.Errorf("limit=%.60q: want 1 to %d", value, most)}
	}
	return limit, nil
}

// onlyLimit reads a query that may have a limit, and nothing else.
func onlyLimit(query url.Values, otherwise, most int) (limit int, err error) {
	limit = otherwise
	for name, values := range query {
		if name != api.LimitParameter {
			return 0, &api.BadRequest{Err: fmt.Errorf("unknown parameter %.60q: want limit", name)}
		}
		if limit, err = readLimit(values[len(values)-1], most); err != nil {
			return 0, err
		}
	}
	return limit, nil
}
