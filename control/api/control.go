package api

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The actions of lists on packets that match.
const (
	Block = "block"
	Allow = "allow"
)

// Change is a request to add or remove entries: POST or DELETE /v1/entries.
type Change struct {
	Remove bool `json:"-"` // DELETE

	Action string `json:"action"`         // of the list: Block or Allow
	List   string `json:"list,omitempty"` // "": the list for manual entries

	// Entries are in the format of lists, one line each.
	Entries []string `json:"entries"`

	TTL    float64 `json:"ttl_seconds,omitempty"` // after which they expire; 0: never
	Reason string  `json:"reason,omitempty"`      // shown by explain

	// Force makes a change that would cut off this host, or the caller.
	Force bool `json:"force,omitempty"`

	// SSH is the caller's variable SSH_CONNECTION: the entries must not cut that off.
	SSH string `json:"ssh_connection,omitempty"`

	// Await has a hub answer when the nodes that report enforce the change, or after seconds.
	Await bool `json:"await,omitempty"`

	// Import marks a change whose entries come from a file, for the audit log.
	Import bool `json:"import,omitempty"`

	// The caller, set by the server: a user of this host, or over TCP, where UID
	// is NoUID, the subject of the client's certificate.
	UID    uint32 `json:"-"`
	Client string `json:"-"`

	// Connection is the caller's over TCP, in the form of SSH, set by the server.
	Connection string `json:"-"`

	// Given is when the change was asked for, where it had to wait for the daemon. The zero
	// time: now.
	Given time.Time `json:"-"`
}

// Changed is the result of a change, as numbers of entries.
type Changed struct {
	List      string `json:"list"`
	Added     int    `json:"added"`
	Removed   int    `json:"removed"`
	Unchanged int    `json:"unchanged"` // added but already listed, or removed but not listed

	// Queued says that the change waits for the daemon, durably: nothing has changed yet. The
	// daemon makes it when it starts, or refuses it then, which its log and audit show.
	Queued bool `json:"queued,omitempty"`

	// Monitor says that the entries block nothing, since monitor mode is on.
	Monitor bool `json:"monitor,omitempty"`
}

// Lists are the active lists: GET /v1/lists.
type Lists struct {
	Lists []List    `json:"lists"`
	At    time.Time `json:"at"` // when they were so: before the question, where the daemon was busy
}

// List is an active list.
type List struct {
	Name      string       `json:"name"`
	Action    string       `json:"action"`    // Block or Allow
	Direction string       `json:"direction"` // src, dst or both
	Priority  int          `json:"priority"`
	Entries   int          `json:"entries"`                 // from sources and manual
	Manual    int          `json:"manual_entries"`          // the manual ones
	Derived   int          `json:"derived_entries"`         // prefixes around its addresses, besides
	Packets   *uint64      `json:"total_packets,omitempty"` // matched since counting began; nil: unknown
	Feeds     []FeedSource `json:"feeds"`

	LeftOut []LeftOut `json:"left_out"`        // of its sources
	Private int       `json:"private_entries"` // of private, loopback and similar networks, in its sources

	FirstPrivate   []string `json:"first_private,omitempty"`   // the first of these
	PrivateBlocked bool     `json:"private_blocked,omitempty"` // they are not left out

	Spare []SpareShape `json:"left_out_shapes"` // among the entries of its sources

	For   string `json:"for,omitempty"`   // the packets for which the list is; "": all
	Trial *Trial `json:"trial,omitempty"` // nil: it is enforced, as the configuration says

	Collateral *ListCollateral `json:"collateral,omitempty"` // nil: it is not recorded; three addresses are named
}

// LeftOut is an entry that is not blocked because of whom it would cut off, or because it
// covers what always passes.
type LeftOut struct {
	Entry    string `json:"entry"`
	CutOff   string `json:"would_cut_off,omitempty"`
	Failsafe string `json:"failsafe,omitempty"` // the prefix
	Allowed  string `json:"allowed,omitempty"`  // of a prefix around an address: what it would block, too
}

// Why returns why the entry is left out, as a sentence without its end.
func (l LeftOut) Why() string {
	if l.Failsafe != "" {
		return "it covers the failsafe prefix " + l.Failsafe
	}
	if l.Allowed != "" {
		return "it covers " + l.Allowed
	}
	return "it would cut off " + l.CutOff
}

// SpareShape is a combination of fields and prefix lengths whose flows are left out,
// because flows have more combinations than there is room for, and others are more
// frequent.
type SpareShape struct {
	Shape   string `json:"shape"` // as in "src/24+dport+proto"
	Entries int    `json:"entries"`
	First   string `json:"first"` // of the entries
}

func (s SpareShape) String() string {
	return fmt.Sprintf("%d × %s, as in %q: too many combinations of fields and prefix lengths", s.Entries, s.Shape, s.First)
}

// Refreshed is the outcome of reading sources: POST /v1/refresh, or
// /v1/lists/{list}/refresh for those of one list.
type Refreshed struct {
	Sources []FetchOutcome `json:"sources"`
}

// FetchOutcome is the outcome of reading a source.
type FetchOutcome struct {
	List    string `json:"list"`
	Source  string `json:"source"`
	Outcome string `json:"outcome"` // as in FeedSource
	Failure string `json:"failure,omitempty"`
	Error   string `json:"error,omitempty"`
	Entries int    `json:"entries"` // active
	Changed bool   `json:"changed"` // the active entries have changed
	Unsaved bool   `json:"unsaved"`

	BadLines int      `json:"bad_lines,omitempty"`       // left out
	FirstBad []string `json:"first_bad_lines,omitempty"` // of those, with their places

	// The source has what an operator has returned from, or the like: the outcome is unchanged.
	Rejected bool `json:"rejected,omitempty"`
}

// Reloaded lists what has changed in the configuration: POST /v1/reload.
type Reloaded struct {
	Changes    []string `json:"changes"`    // a line for each
	Unfiltered []string `json:"unfiltered"` // a line for each interface that is not filtered
}

// Confirmed is the result of POST /v1/confirm.
type Confirmed struct {
	Confirmed bool `json:"confirmed"`
}

// MaxChange bounds the entries of a [Change]: more than a request has addresses, but a range is
// many.
const MaxChange = 1_000_000

// ErrMaxChange is the error of a change with more.
var ErrMaxChange = fmt.Errorf("the ranges make more than %d entries: put them into a file, and name it in the configuration as a source of the list", MaxChange)

// BadRequest is an error of the caller. Nothing was changed.
type BadRequest struct {
	Entry *int   // index in Change.Entries that the error is about; nil: the request as a whole
	Text  string // that entry
	Err   error
}

func (e *BadRequest) Error() string {
	if e.Text == "" {
		return e.Err.Error()
	}
	return strconv.Quote(e.Text) + ": " + e.Err.Error()
}

func (e *BadRequest) Unwrap() error { return e.Err }

// ErrNoList is wrapped by errors for the name of a list that does not exist.
var ErrNoList error = AbsentError("no such list")

// NoList is an [ErrNoList] that names the lists that exist, unless they are too many
// for a line.
func NoList(name string, exist []string) error {
	const most = 12
	switch {
	case len(exist) == 0:
		return fmt.Errorf("%w: %q", ErrNoList, name)
	case len(exist) > most:
		return fmt.Errorf("%w: %q: there are %d, such as %s", ErrNoList, name, len(exist), strings.Join(exist[:most], ", "))
	}
	return fmt.Errorf("%w: %q: there are %s", ErrNoList, name, strings.Join(exist, ", "))
}

// Failure is the JSON form of an error.
type Failure struct {
	Error string `json:"error"`
	Entry *int   `json:"entry,omitempty"` // index of the entry that it is about

	Starting *Starting `json:"starting,omitempty"` // the daemon, which cannot answer yet
}

// PrivateNetworks says what becomes of private networks that the sources of a list have, and
// how to change that.
func PrivateNetworks(n int, first []string, blocked bool) string {
	done, other := "left out", "exclude_private: false keeps them"
	if blocked {
		done, other = "blocked", "exclude_private: true leaves them out"
	}
	names := strings.Join(first, ", ")
	if n > len(first) {
		names += " and more"
	}
	return fmt.Sprintf("private, loopback or similar networks are %s: %d, %s (%s)", done, n, names, other)
}
