package api

import "time"

// FeedSource is a source of a list. Outcome and Failure are named as in package feed.
type FeedSource struct {
	Source   string     `json:"source"`
	Outcome  string     `json:"outcome"`           // of the last attempt: none, loaded, new, unchanged or failed
	Failure  string     `json:"failure,omitempty"` // kind of the failure
	Error    string     `json:"error,omitempty"`   // the failure in words
	Entries  int        `json:"entries"`           // active
	Read     *time.Time `json:"read,omitempty"`    // when the source was last known to contain them
	Next     *time.Time `json:"next,omitempty"`    // the next attempt
	Failures int        `json:"failures"`          // failed attempts since the last successful one
	Unsaved  bool       `json:"unsaved"`           // the entries could not be saved: a restart would not find them
	Version  string     `json:"version,omitempty"` // active, of a fleet's list: its epoch and number

	BadLines int      `json:"bad_lines"`       // left out
	FirstBad []string `json:"first_bad_lines"` // of those, with their places
}

// Failed is the outcome of a failed attempt: the old contents stay.
const Failed = "failed"

// Inactive is the failure of a source that was read, but whose entries are not
// active: they were refused, or could not be activated yet.
const Inactive = "inactive"
