package api

import (
	"time"
)

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
	Client string     `json:"client,omitempty"` // the subject of its certificate; "proxy": User is one of the console's reverse proxy
}

// Who returns who switched it on.
func (o *MonitorOverride) Who() string {
	switch {
	case o.UID != nil:
		return userOf(*o.UID, o.User)
	case o.User != "":
		return remote(o.User, o.Client)
	}
	return o.Client
}
