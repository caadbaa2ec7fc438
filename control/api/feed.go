package api

import "time"

// FeedSource is a source of a list. Outcome and Failure are named as in package feed.
type FeedSource struct {
	Source   string     `json:"source"`
	Outcome  string     `json:"outcome"`           // of the last attempt: none, loaded, new, unchanged or failed
	Failure  string     `json:"failure,omitempty"` // kind of the failure
	Error    string     `json:"error,omitempty"`   // the failure in words
	Entries  int        `json:"entries"`           // active
	Read     *time.Time `json:"read,omitempty"`    // when the source was last known to contain them; nil: never
	Next     *time.Time `json:"next,omitempty"`    // the next attempt
	Failures int        `json:"failures"`          // failed attempts since the last successful one
	Unsaved  bool       `json:"unsaved"`           // the entries could not be saved: a restart would not find them
	Version  string     `json:"version,omitempty"` // active, of a fleet's list: its epoch and number

	// When an operator has returned to these entries; what the source had then is refused.
	RolledBack *time.Time `json:"rolled_back,omitempty"`

	BadLines int      `json:"bad_lines"`          // left out
	FirstBad []string `json:"first_bad_lines"`    // of those, with their places
	LeftOut  []string `json:"left_out,omitempty"` // what is no entry by the grammar of the format, with numbers
	Wide     []string `json:"wide,omitempty"`     // lines that cover so much that they are probably a mistake
}

// None is the outcome of a source that was not read yet, and of which nothing is saved.
const None = "none"

// Failed is the outcome of a failed attempt: the old contents stay.
const Failed = "failed"

// Inactive is the failure of a source that was read, but whose entries are not
// active: they were refused, or could not be activated yet.
const Inactive = "inactive"

// ListVersions are the versions of a list's sources: GET /v1/lists/{list}/versions. Those of
// CrowdSec, of names, and of the configuration's own entries have none.
type ListVersions struct {
	List    string           `json:"list"`
	Sources []SourceVersions `json:"sources"`
}

// SourceVersions are the versions of a source.
type SourceVersions struct {
	Source   string        `json:"source"`
	Versions []FeedVersion `json:"versions"` // the active one first; then those before it, at most five

	// Contents that the source had, and that are refused: those that an operator has returned
	// from, the last one first, and the last ones that were not plausible. They are compared with
	// the active version, and are known until that changes.
	Refused []FeedVersion `json:"refused,omitempty"`
}

// FeedVersion is the contents of a source between two changes of it.
type FeedVersion struct {
	Since   time.Time `json:"since"` // when the source was first read with these contents
	Entries int       `json:"entries"`
	Added   int       `json:"added"` // since the version before it
	Removed int       `json:"removed"`
	SHA256  string    `json:"sha256"` // of the bytes that were fetched, as the publisher computes it

	Refusal string       `json:"refusal,omitempty"` // why it is refused
	Diff    *VersionDiff `json:"diff,omitempty"`    // where asked for
}

// VersionDiff is the difference between two versions, in entries as lists have them.
type VersionDiff struct {
	From    string   `json:"from"` // the SHA256 of the version that it is compared with
	Added   []string `json:"added"`
	Removed []string `json:"removed"`

	// How many entries there are beside the first MaxDiff of both.
	MoreAdded   int `json:"more_added,omitempty"`
	MoreRemoved int `json:"more_removed,omitempty"`
}

// MaxDiff bounds the entries that are named of a version's difference, for added and for removed ones.
const MaxDiff = 10_000
