package api

import (
	"errors"
	"fmt"
	"time"
)

// PoliceChange is a request to limit what an interface receives to a rate, whatever the
// configuration says, or what a source sends, or packets that a pattern matches, or to end that:
// POST /v1/police.
type PoliceChange struct {
	Interface string `json:"interface,omitempty"` // that is filtered, or a pattern of the configuration
	Netns     string `json:"netns,omitempty"`     // as in the configuration
	Source    string `json:"source,omitempty"`    // or an address or a prefix
	Pattern   string `json:"pattern,omitempty"`   // or conditions, as in udp length 468 sport 123

	Rate string  `json:"rate,omitempty"`        // as in 3kpps
	Off  bool    `json:"off,omitempty"`         // the configuration decides again
	For  float64 `json:"for_seconds,omitempty"` // after which the limit ends by itself; 0: never

	// Trial is for how many seconds a pattern only counts what it matches, at least. Once it has matched a
	// packet it is enforced, or ended if more of its packets than MostConversing are in conversations of
	// this host. As long as For, it is never enforced.
	Trial float64 `json:"trial_seconds,omitempty"`

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

// MaxPattern bounds a pattern, in bytes, and MaxTrial its trial, in seconds.
const (
	MaxPattern = 512
	MaxTrial   = 3600
)

// MostConversing is the share of the packets of a pattern which may be in conversations of this host.
const MostConversing = 0.008

// Check returns what is wrong with a change, as far as that does not depend on the configuration.
func (c *PoliceChange) Check() error {
	of := 0
	for _, text := range []string{c.Interface, c.Source, c.Pattern} {
		if text != "" {
			of++
		}
	}
	switch {
	case of != 1:
		return &BadRequest{Err: errors.New("want an interface, a source or a pattern")}
	case c.Interface == "" && c.Netns != "":
		return &BadRequest{Err: errors.New("netns goes with an interface: all else is limited on all")}
	case len(c.Pattern) > MaxPattern:
		return &BadRequest{Err: fmt.Errorf("a pattern of %d bytes: the most is %d", len(c.Pattern), MaxPattern)}
	case c.Trial != 0 && (c.Pattern == "" || c.Off || !(c.Trial >= 1 && c.Trial <= MaxTrial)):
		return &BadRequest{Err: fmt.Errorf("trial_seconds goes with a pattern, from 1 to %d", MaxTrial)}
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
	Pattern   string          `json:"pattern,omitempty"`         // with its conditions in order
	Changed   bool            `json:"changed"`                   // false: no command had set a limit that could end
	Override  *PoliceOverride `json:"police_override,omitempty"` // nil: the configuration decides
	Unsaved   string          `json:"unsaved,omitempty"`         // why a restart would forget the change
}

// PoliceOverride is a limit of an interface's incoming packets, of a source, or of packets that a
// pattern matches, that a command has set.
type PoliceOverride struct {
	Interface string     `json:"interface,omitempty"`
	Netns     string     `json:"netns,omitempty"`
	Source    string     `json:"source,omitempty"` // an address or a prefix
	Pattern   string     `json:"pattern,omitempty"`
	Rate      string     `json:"rate"` // 0pps: packets of a pattern are dropped
	Since     time.Time  `json:"since"`
	Until     *time.Time `json:"until,omitempty"` // none: until a command ends it
	By        string     `json:"by"`              // who gave the command
	Reason    string     `json:"reason,omitempty"`
	Fleet     string     `json:"fleet,omitempty"` // which decision of the hub of a fleet it is; none: of this host

	// Held are the packets of a source or a pattern above the rate, since the limit was set or the
	// daemon began.
	Held uint64 `json:"held_packets,omitempty"`

	Trial    *time.Time      `json:"trial_until,omitempty"`   // of a pattern that only counts until then
	TrialFor float64         `json:"trial_seconds,omitempty"` // of a pattern that is or was on trial, and ends if it matches conversations
	Hits     *PatternPackets `json:"hits,omitempty"`          // of a pattern
}

// PatternPackets are the packets that a pattern has matched, on trial and later, since it was set or
// the daemon began.
type PatternPackets struct {
	Packets    uint64 `json:"packets"`
	Conversing uint64 `json:"conversing"` // in conversations of this host
	Unknown    uint64 `json:"unknown"`    // of which that is not known
}

// Dropping reports whether no packet of the pattern passes.
func (o *PoliceOverride) Dropping() bool { return o.Pattern != "" && o.Rate == "0pps" }

// Place names the interface, the source, or the pattern.
func (o *PoliceOverride) Place() string {
	place := o.Interface + o.Source + o.Pattern
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
	if o.Pattern != "" {
		off = "weir limit '" + o.Pattern + "' --off"
	}
	if o.Netns != "" {
		off += " --netns " + o.Netns
	}
	return off
}
