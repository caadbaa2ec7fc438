package api

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// What a list does to the packets that it holds.
const (
	Block = "block"
	Allow = "allow"
)

// Change asks for entries to be added or removed: POST or DELETE /v1/entries.
type Change struct {
	Remove bool `json:"-"` // DELETE

	Action string `json:"action"`         // of the list: Block or Allow
	List   string `json:"list,omitempty"` // "": the one that commands fill

	// Entries are as they stand in lists, a line each.
	Entries []string `json:"entries"`

	TTL    float64 `json:"ttl_seconds,omitempty"` // after which they expire; 0: never
	Reason string  `json:"reason,omitempty"`      // for who asks later

	// Import says that the entries come from a file: the audit calls the change so.
	Import bool `json:"import,omitempty"`

	// Who asks, as the server found out: a user of this host, or over TCP, where
	// UID is NoUID, the subject of the client's certificate.
	UID    uint32 `json:"-"`
	Client string `json:"-"`
}

// Changed says what a change came to, in entries.
type Changed struct {
	List      string `json:"list"`
	Added     int    `json:"added"`
	Removed   int    `json:"removed"`
	Unchanged int    `json:"unchanged"` // there already, or not there to be removed
}

// Lists is what weir filters by: GET /v1/lists.
type Lists struct {
	Lists []List `json:"lists"`
}

// List is a list as it is in force.
type List struct {
	Name      string       `json:"name"`
	Action    string       `json:"action"`    // Block or Allow
	Direction string       `json:"direction"` // src, dst or both
	Priority  int          `json:"priority"`
	Entries   int          `json:"entries"`                 // by sources and by command
	ByCommand int          `json:"entries_by_command"`      // of those
	Packets   *uint64      `json:"total_packets,omitempty"` // that it caught since weir began to count; nil: not known of it
	Feeds     []FeedSource `json:"feeds"`
}

// FeedSource is a source of a list. Its strings are those of package feed.
type FeedSource struct {
	Source   string     `json:"source"`
	Outcome  string     `json:"outcome"`           // of the last attempt: none, loaded, new, unchanged or failed
	Failure  string     `json:"failure,omitempty"` // its kind, and in words:
	Error    string     `json:"error,omitempty"`
	Entries  int        `json:"entries"`        // in force
	Read     *time.Time `json:"read,omitempty"` // when the source was last known to hold them
	Next     *time.Time `json:"next,omitempty"` // the next attempt
	Failures int        `json:"failures"`       // attempts that have failed since one succeeded
	Unsaved  bool       `json:"unsaved"`        // a restart would not find them
}

// Failed is the outcome of an attempt after which the old contents stay.
const Failed = "failed"

// NotInForce is the failure of a source that was read all the same: its list's
// entries must not come into force, or could not yet.
const NotInForce = "not-in-force"

// Refreshed is what came of reading sources: POST /v1/refresh, or
// /v1/lists/{list}/refresh for those of one list.
type Refreshed struct {
	Sources []FetchOutcome `json:"sources"`
}

// FetchOutcome is what came of reading a source now.
type FetchOutcome struct {
	List    string `json:"list"`
	Source  string `json:"source"`
	Outcome string `json:"outcome"` // as in FeedSource
	Failure string `json:"failure,omitempty"`
	Error   string `json:"error,omitempty"`
	Entries int    `json:"entries"` // in force
	Changed bool   `json:"changed"` // others than before are
	Unsaved bool   `json:"unsaved"`
}

// Reloaded is what has changed in the configuration: POST /v1/reload.
type Reloaded struct {
	Changes []string `json:"changes"`
}

// BadRequest is an error of who asked. Nothing was changed.
type BadRequest struct {
	Entry *int   // index in Change.Entries of what it is about; nil: the request as a whole
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

// ErrNoList says that there is no list of a name.
var ErrNoList = errors.New("no such list")

// controlRoutes ask the daemon's loop, or change something.
func controlRoutes(c Daemon) []route {
	change := func(w http.ResponseWriter, q *http.Request) (any, error) {
		asked, err := readChange(w, q)
		if err != nil {
			return nil, err
		}
		return c.Change(q.Context(), asked)
	}
	refresh := func(_ http.ResponseWriter, q *http.Request) (any, error) {
		outcomes, err := c.Refresh(q.Context(), q.PathValue("list"))
		return Refreshed{list(outcomes)}, err
	}
	return append([]route{
		{http.MethodPost, entriesPath, change},
		{http.MethodDelete, entriesPath, change},
		{http.MethodGet, listsPath, func(http.ResponseWriter, *http.Request) (any, error) {
			lists := slices.Clone(list(c.Lists())) // the daemon's own must not change
			for i := range lists {
				lists[i].Feeds = list(lists[i].Feeds)
			}
			return Lists{lists}, nil
		}},
		{http.MethodPost, refreshPath, refresh},
		{http.MethodPost, refreshListPath, refresh},
		{http.MethodPost, reloadPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			changes, err := c.Reload(withCaller(q))
			return Reloaded{list(changes)}, err
		}},
		{http.MethodGet, explainPath, func(_ http.ResponseWriter, q *http.Request) (any, error) {
			return explain(q.Context(), c, q.URL.Query().Get("q"))
		}},
		{http.MethodPost, explainPath, func(w http.ResponseWriter, q *http.Request) (any, error) {
			return explainFrames(c, w, q)
		}},
	}, multicastRoutes(c)...)
}
