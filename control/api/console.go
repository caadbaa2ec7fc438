package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const consolePath = "/v1/console"

// ConsoleRequest asks for a URL of the console: POST /v1/console.
type ConsoleRequest struct {
	ReadOnly bool `json:"read_only"` // the session may not change anything

	// SSH is the caller's variable SSH_CONNECTION: changes must not cut that off.
	SSH string `json:"ssh_connection,omitempty"`

	// The caller, set by the server, as of a Change.
	UID     uint32  `json:"-"`
	Client  string  `json:"-"`
	Process Process `json:"-"`
}

// ConsoleOpened is a URL that opens the console once.
type ConsoleOpened struct {
	URL      string    `json:"url"`
	Expires  time.Time `json:"expires"` // unless it was opened
	ReadOnly bool      `json:"read_only"`
}

// ConsoleEnded is the result of DELETE /v1/console: all sessions have ended.
type ConsoleEnded struct {
	Sessions int `json:"sessions"` // and URLs that were not opened
}

// ErrNoConsole is wrapped by errors of a daemon that serves no console.
var ErrNoConsole = errors.New("there is no console")

// Consoles opens sessions of a console, and ends them.
type Consoles interface {
	// OpenConsole returns a URL that opens the console once.
	OpenConsole(context.Context, ConsoleRequest) (ConsoleOpened, error)
	// EndConsole ends all sessions of the console.
	EndConsole(context.Context) (ConsoleEnded, error)
}

func consoleRoutes(d Consoles) []route {
	return []route{
		{http.MethodPost, consolePath, func(w http.ResponseWriter, q *http.Request) (any, error) {
			var r ConsoleRequest
			if err := readBody(w, q, 1<<20, &r); err != nil {
				return nil, err
			}
			if len(r.SSH) > maxConnection || strings.ContainsFunc(r.SSH, notPrintable) {
				return nil, &BadRequest{Err: fmt.Errorf("ssh_connection %.60q: want two addresses with ports", r.SSH)}
			}
			by, _ := CallerOf(q.Context())
			r.UID, r.Client, r.Process = by.UID, by.Client, by.Process
			return d.OpenConsole(q.Context(), r)
		}},
		{http.MethodDelete, consolePath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			return d.EndConsole(q.Context())
		}},
	}
}

// OpenConsole asks for a URL that opens the console once.
func (c *Client) OpenConsole(ctx context.Context, r ConsoleRequest) (*ConsoleOpened, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return ask[ConsoleOpened](ctx, c, http.MethodPost, consolePath, body)
}

// EndConsole ends all sessions of the console.
func (c *Client) EndConsole(ctx context.Context) (*ConsoleEnded, error) {
	return ask[ConsoleEnded](ctx, c, http.MethodDelete, consolePath, nil)
}
