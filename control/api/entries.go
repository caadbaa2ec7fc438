package api

import (
	"io"
	"time"
)

// Limits of a page of entries.
const (
	DefaultPage = 1000
	MaxPage     = 10_000
)

// EntriesQuestion asks for manual entries: GET /v1/entries. They come in pages, in
// the order of their lists' names and keys.
type EntriesQuestion struct {
	List     string        // "": all lists
	Expiring time.Duration // only those that expire within it; 0: all
	Manual   bool          // without those that have left a feed, and stay for the list's TTL
	After    string        // the Next of the page before; "": from the first
	Limit    int           // of the page, at most MaxPage; 0: DefaultPage
}

// Entries is a page of manual entries.
type Entries struct {
	Entries []Entry `json:"entries"`
	Next    string  `json:"next,omitempty"` // the parameter "after" of the next page; "": this is the last one

	// Limits has the sources that commands have limited, on the first page of all lists.
	Limits []PoliceOverride `json:"limits,omitempty"`
}

// Entry is a manual entry of a list.
type Entry struct {
	List    string     `json:"list"`
	Action  string     `json:"action"`            // Block or Allow
	Entry   string     `json:"entry"`             // in the format of lists
	Manual  bool       `json:"manual"`            // false: it has left a feed, and stays for the list's TTL
	Added   time.Time  `json:"added"`             // or last changed
	Expires *time.Time `json:"expires,omitempty"` // none: never
	Reason  string     `json:"reason,omitempty"`
	Origin  string     `json:"origin,omitempty"` // of a decision of CrowdSec, which has the scenario as its reason
	UID     *uint32    `json:"uid,omitempty"`    // of the user who added it; none: a client of another host did
	User    string     `json:"user,omitempty"`
	Client  string     `json:"client,omitempty"` // of another host, who did, as in "operator alice"
}

// The formats of an export.
const (
	FormatPlain = "plain"
	FormatIPSet = "ipset"
	FormatNFT   = "nft"
)

// Export is the contents of a list.
type Export struct {
	Text    io.WriterTo
	LeftOut int // entries that the format cannot express
}
