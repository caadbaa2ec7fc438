package api

import (
	"errors"
	"fmt"
	"time"
)

// PoliceChange is a request to limit what an interface receives to a rate, whatever the
// configuration says, or what a source sends, or to end that: POST /v1/police.
type PoliceChange struct {
	Interface string `json:"interface,omitempty"` // that is filtered, or a pattern of the configuration
	Netns     string `json:"netns,omitempty"`     // as in the configuration
	Source    string `json:"source,omitempty"`    // or an address or a prefix

	Rate string  `json:"rate,omitempty"`        // as in 3kpps
	Off  bool    `json:"off,omitempty"`         // the configuration decides again
	For  float64 `json:"for_seconds,omitempty"` // after which the limit ends by itself; 0: never

	// Force sets a limit that the caller has to share without an end, or that holds back a peer
	// that must not be cut off.
	Force bool `json:"force,omitempty"`

	Reason string `json:"reason,omitempty"` // of the limit

	// SSH is the caller's variable SSH_CONNECTION.
	SSH string `json:"ssh_connection,omitempty"`

	// The caller, set by the server, as of a Change.
	UID        uint32 `json:"-"`
	Client     string `json:"-"`
	Connection string `json:"-"`
}

// Check returns what is wrong with a change, as far as that does not depend on the configuration.
func (c *PoliceChange) Check() error {
	switch {
	case (c.Interface == "") == (c.Source == ""):
		return &BadRequest{Err: errors.New("want either an interface or a source")}
	case c.Source != "" && c.Netns != "":
		return &BadRequest{Err: errors.New("netns goes with an interface: sources are limited on all")}
	case c.Off == (c.Rate != ""):
		return &BadRequest{Err: errors.New("want either a rate, as in 3kpps, or off")}
	case c.Off && c.For != 0:
		return &BadRequest{Err: errors.New("for_seconds goes with a rate")}
	case c.For != 0 && !(c.For >= MinTTL && c.For <= MaxTTL):
		return &BadRequest{Err: fmt.Errorf("for_seconds %v: want %v up to %d, or 0 for ever", c.For, MinTTL, MaxTTL)}
	}
	if err := checkReason(c.Reason); err != nil {
		return err
	}
	return CheckSSH(c.SSH)
}

// Policed is the result of a PoliceChange.
type Policed struct {
	Interface string          `json:"interface,omitempty"`
	Source    string          `json:"source,omitempty"`          // masked
	Changed   bool            `json:"changed"`                   // false: no command had set a limit that could end
	Override  *PoliceOverride `json:"police_override,omitempty"` // nil: the configuration decides
	Unsaved   string          `json:"unsaved,omitempty"`         // why a restart would forget the change
}

// PoliceOverride is a limit of an interface's incoming packets, or of a source, that a command has
// set.
type PoliceOverride struct {
	Interface string     `json:"interface,omitempty"`
	Netns     string     `json:"netns,omitempty"`
	Source    string     `json:"source,omitempty"` // an address or a prefix
	Rate      string     `json:"rate"`
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until,omitempty"` // none: until a command ends it
	By        string     `json:"by"`              // who gave the command
	Reason    string     `json:"reason,omitempty"`

	// Held are the packets of a source above the rate, since the limit was set or the daemon
	// began.
	Held uint64 `json:"held_packets,omitempty"`
}

// Place names the interface, or the source.
func (o *PoliceOverride) Place() string {
	place := o.Interface + o.Source
	if o.Netns != "" {
		place += " in namespace " + o.Netns
	}
	return place
}

// Undo returns the command that ends the limit.
func (o *PoliceOverride) Undo() string {
	off := "weir police " + o.Interface + " --off"
	if o.Source != "" {
		off = "weir limit " + o.Source + " --off"
	}
	if o.Netns != "" {
		off += " --netns " + o.Netns
	}
	return off
}
