package api

import (
	"fmt"
	"time"
)

// EnforceChange is a request to end the trial of a list, or to begin one, whatever the
// configuration says: POST /v1/lists/{list}/enforce.
type EnforceChange struct {
	Off   bool    `json:"off,omitempty"`           // the list is on trial from now on
	After float64 `json:"after_seconds,omitempty"` // it is enforced so much later; 0: at once, or with Off never

	// Force enforces a list that would cut off this host, the caller, or others with whom this
	// host has conversed.
	Force bool `json:"force,omitempty"`

	// SSH is the caller's variable SSH_CONNECTION, which the list must not cut off.
	SSH string `json:"ssh_connection,omitempty"`

	// The caller, set by the server, as of a Change.
	UID        uint32 `json:"-"`
	Client     string `json:"-"`
	Connection string `json:"-"`
}

// Check returns what is wrong with a change, as far as that does not depend on the lists.
func (c *EnforceChange) Check() error {
	if c.After != 0 && !(c.After >= MinTTL && c.After <= MaxTTL) {
		return &BadRequest{Err: fmt.Errorf("after_seconds %v: want %v up to %d, a hundred years, or leave it out", c.After, MinTTL, MaxTTL)}
	}
	return CheckSSH(c.SSH)
}

// Enforced is the result of an EnforceChange.
type Enforced struct {
	List    string `json:"list"`
	Changed bool   `json:"changed"`         // false: it was so before
	Trial   *Trial `json:"trial,omitempty"` // nil: the list is enforced, as the configuration says
}

// String says what the list is now, as a sentence without its end.
func (e *Enforced) String() string {
	text := "list " + e.List + " is enforced"
	if e.Trial != nil {
		text = "list " + e.List + " " + e.Trial.String()
	}
	if !e.Changed {
		text += ", as it was before"
	}
	return text
}

// Trial says of a list whether what it would drop passes, where the configuration or a
// command has put it on trial, or a command has ended that.
type Trial struct {
	Enforced   bool       `json:"enforced"`              // packets are dropped: the trial is over
	Configured bool       `json:"configured"`            // the configuration has put the list on trial
	Since      *time.Time `json:"since,omitempty"`       // when a command decided; nil: none has
	EnforcedAt *time.Time `json:"enforced_at,omitempty"` // when the trial ends by itself; nil: it does not
	By         string     `json:"by,omitempty"`          // who gave the command
}

// String says whether the list is on trial, until when, and who wanted that: what follows its
// name in a sentence.
func (t Trial) String() string {
	text := "is on trial, and drops nothing"
	if t.Enforced {
		text = "is enforced"
	}
	if t.Since != nil {
		text += ", since " + t.Since.Local().Format(time.DateTime)
		if t.By != "" {
			text += " by " + t.By
		}
	}
	switch {
	case t.EnforcedAt != nil:
		text += ", until " + t.EnforcedAt.Local().Format(time.DateTime)
	case t.Enforced:
		text += ", though the configuration says enforce: false"
	case t.Configured && t.Since == nil:
		text += ", as configured"
	}
	return text
}

// TrialList is the trial of a list.
type TrialList struct {
	List string `json:"list"`
	Trial
}
