package wire

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"weir/control/api"
)

// MaxStatus bounds the status of a node, in bytes, and MaxLists its lists, and those of a catalog.
const (
	MaxStatus = 64 << 10
	MaxLists  = 256
)

// maxAddresses bounds a count of addresses: programs remember fewer.
const maxAddresses = 1 << 30

// maxCount bounds a count of packets: a billion a second for 36 years.
const maxCount = 1 << 60

// StatusInterval is how often nodes report when nothing has changed.
const StatusInterval = 10 * time.Second

// What the hub takes of a node's reports: a burst, and then one each ReportEvery on average.
// Nodes keep to less, since reports that are held up on the way arrive together, and a node
// that starts again does not know what it has used up.
const (
	ReportEvery = time.Second
	ReportBurst = 20
	NodeBurst   = ReportBurst / 2
	NodeEvery   = ReportEvery + ReportEvery/20
)

// What nodes report is also in the contract of the hub.
type (
	Status     = api.NodeStatus
	ListStatus = api.NodeList
	Rehearsal  = api.Rehearsal
	Affected   = api.Affected
	Conversed  = api.Conversed
)

// MaxTop bounds the sources in a report.
const MaxTop = 5

// MarshalStatus returns the text of a status. One that is too long is shortened, and says so: it
// leaves out of all lists what the hub needs least.
func MarshalStatus(s Status) ([]byte, error) {
	text, err := json.Marshal(s)
	for i, shorten := range shortenings {
		if err != nil || len(text) <= MaxStatus {
			break
		}
		if i == 0 {
			s.Problems = append(slices.Clip(s.Problems), fmt.Sprintf("the report is shortened, from %d bytes to at most %d", len(text), MaxStatus))
			s.Lists = slices.Clone(s.Lists)
		}
		for j := range s.Lists {
			shorten(&s.Lists[j])
		}
		text, err = json.Marshal(s)
	}
	if err == nil && len(text) > MaxStatus {
		err = fmt.Errorf("status of %d bytes, want at most %d", len(text), MaxStatus)
	}
	return text, err
}

// shortenings leave out parts of the status of a list, one after the other.
var shortenings = []func(*ListStatus){
	func(l *ListStatus) { // a seal matters where the hub has lost the version
		l.Seal, l.Conversed, l.Error = "", nil, l.Error[:min(len(l.Error), 20)]
	},
	func(l *ListStatus) {
		if l.Rehearsal != nil {
			r := *l.Rehearsal
			r.Top, r.Error = nil, r.Error[:min(len(r.Error), 20)]
			l.Rehearsal = &r
		}
	},
	func(l *ListStatus) { l.Rehearsal, l.Added = nil, nil }, // a rollout waits for them
	func(l *ListStatus) { l.ID, l.Error = "", "" },
}

// ParseStatus returns the status of a text.
func ParseStatus(text []byte) (s Status, err error) {
	if len(text) > MaxStatus {
		return Status{}, fmt.Errorf("status of %d bytes, want at most %d", len(text), MaxStatus)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		return Status{}, fmt.Errorf("status: %w", err)
	}
	if len(s.Lists) > MaxLists {
		return Status{}, fmt.Errorf("status of %d lists, want at most %d", len(s.Lists), MaxLists)
	}
	Printable(&s)
	if s.Filtered < 0 || s.Filtered > s.Interfaces {
		return Status{}, fmt.Errorf("status with %d of %d interfaces filtered", s.Filtered, s.Interfaces)
	}
	if err := checkSettings(s.Settings); err != nil {
		return Status{}, err
	}
	absurd := s.Passed > maxCount || s.Dropped > maxCount
	many := false
	bound := func(c *Conversed) {
		if c != nil {
			many = many || c.Addresses < 0 || c.Addresses > maxAddresses
			c.Latest = c.Latest[:min(len(c.Latest), api.MaxConversed)]
		}
	}
	for i := range s.Lists {
		l := &s.Lists[i]
		bound(l.Conversed)
		bound(l.Added)
		if r := l.Rehearsal; r != nil {
			bound(r.Conversed)
			absurd = absurd || r.Looked > maxCount || r.Passed > maxCount || r.WouldDrop > maxCount
			r.Top = r.Top[:min(len(r.Top), MaxTop)]
		}
	}
	if many {
		return Status{}, fmt.Errorf("status with a count of addresses that is not in 0 … %d", maxAddresses)
	}
	if absurd {
		return Status{}, fmt.Errorf("status with a count of more than %d packets", uint64(maxCount))
	}
	return s, nil
}
