package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const monitorPath = "/v1/monitor"

// MonitorChange is a request to switch monitor mode on, whatever the configuration
// says, or to end that: POST /v1/monitor.
type MonitorChange struct {
	On  *bool   `json:"on"`
	For float64 `json:"for_seconds,omitempty"` // after which it ends by itself; 0: never

	// The caller, set by the server, as of a Change.
	UID    uint32 `json:"-"`
	Client string `json:"-"`
}

// Monitored is the result of a MonitorChange.
type Monitored struct {
	Monitor  bool             `json:"monitor"` // nothing is dropped
	Override *MonitorOverride `json:"monitor_override,omitempty"`
	Unsaved  string           `json:"unsaved,omitempty"` // why a restart would forget the change
}

// MonitorOverride is manual monitor mode, whatever the configuration says.
type MonitorOverride struct {
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until,omitempty"` // none: until it is switched off
	UID    *uint32    `json:"uid,omitempty"`   // of the user who switched it on; none: a client of another host did
	User   string     `json:"user,omitempty"`
	Client string     `json:"client,omitempty"` // the subject of its certificate
}

// Who returns who switched it on.
func (o *MonitorOverride) Who() string {
	switch {
	case o.User != "":
		return o.User
	case o.UID != nil:
		return fmt.Sprintf("uid %d", *o.UID)
	}
	return o.Client
}

func (c *MonitorChange) check() error {
	switch {
	case c.On == nil:
		return &BadRequest{Err: errors.New("on is missing: want true or false")}
	case !*c.On && c.For != 0:
		return &BadRequest{Err: errors.New("for_seconds is for monitor mode to be switched on")}
	case c.For != 0 && c.For < minTTL || c.For > maxTTL:
		return &BadRequest{Err: fmt.Errorf("for_seconds %v: want %v up to %d, or 0 for ever", c.For, minTTL, maxTTL)}
	}
	return nil
}

func monitorRoute(d Daemon) route {
	return route{http.MethodPost, monitorPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
		var c MonitorChange
		if err := readBody(w, q, 1<<20, &c); err != nil {
			return nil, err
		}
		c.UID, c.Client = caller(q)
		if err := c.check(); err != nil {
			return nil, err
		}
		return d.SetMonitor(q.Context(), c)
	}}
}

// SetMonitor switches monitor mode on for a time, 0 for ever, whatever the
// configuration says, or ends that.
func (c *Client) SetMonitor(ctx context.Context, on bool, during time.Duration) (*Monitored, error) {
	body, err := json.Marshal(MonitorChange{On: &on, For: during.Seconds()})
	if err != nil {
		return nil, err
	}
	return ask[Monitored](ctx, c, http.MethodPost, monitorPath, body)
}
