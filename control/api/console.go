package api

import (
	"time"
)

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
var ErrNoConsole error = AbsentError("there is no console")
