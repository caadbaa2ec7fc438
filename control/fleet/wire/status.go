package wire

import (
	"encoding/json"
	"fmt"
	"time"
)

// MaxStatus bounds the status of a node, in bytes, and MaxLists its lists.
const (
	MaxStatus = 64 << 10
	MaxLists  = 256
)

// maxCount bounds a count of packets: a billion a second for 36 years.
const maxCount = 1 << 60

// StatusInterval is how often nodes report when nothing has changed.
const StatusInterval = 10 * time.Second

// Status is what a node reports about itself, every ten seconds and when a list
// becomes active. It is not signed: only the node may publish to its subject.
type Status struct {
	Time     time.Time    `json:"time"`
	Version  string       `json:"version"`                // of weir
	Catalog  Place        `json:"catalog"`                // that the node obeys
	Seal     string       `json:"catalog_seal,omitempty"` // of Catalog, by the hub
	Stale    bool         `json:"stale,omitempty"`
	Lists    []ListStatus `json:"lists"`
	Problems []string     `json:"problems,omitempty"` // a line each

	// Packets since counting began.
	Passed  uint64 `json:"passed_packets"`
	Dropped uint64 `json:"dropped_packets"`
}

// ListStatus is the state of a list on a node.
type ListStatus struct {
	Name      string     `json:"name"`
	Active    Place      `json:"active"`         // the version that filters; the zero Place: none
	ID        string     `json:"id,omitempty"`   // of Active; "": unknown
	Seal      string     `json:"seal,omitempty"` // of Active, by the hub
	Sum       string     `json:"sum"`            // of its entries
	Entries   int        `json:"entries"`
	Wanted    Place      `json:"wanted"`
	Rehearsal *Rehearsal `json:"rehearsal,omitempty"`
	Error     string     `json:"error,omitempty"`   // why Wanted is not active
	Refused   bool       `json:"refused,omitempty"` // the error is that the node refuses it
}

// Rehearsal is what a version would drop of what passes. Where more packets pass than a
// node can look at, they are samples, and the counts estimates.
type Rehearsal struct {
	Place
	Since     time.Time  `json:"since"`
	Looked    uint64     `json:"looked_at_packets"`
	Passed    uint64     `json:"passed_packets"`     // those looked at stand for
	WouldDrop uint64     `json:"would_drop_packets"` // of those, the ones that the version would drop
	Top       []Affected `json:"top,omitempty"`      // the sources with most of them
	Error     string     `json:"error,omitempty"`    // why the version would not become active
}

// Share returns the share of the packets that pass which the version would drop.
func (r Rehearsal) Share() float64 {
	if r.Passed == 0 {
		return 0
	}
	return float64(r.WouldDrop) / float64(r.Passed)
}

// Affected is a source of packets that a version would drop.
type Affected struct {
	Source  string `json:"source"`
	Packet  string `json:"packet"` // one of them
	Entry   string `json:"entry"`  // that it matches; of an allow list, that would be missing
	Packets uint64 `json:"packets"`
}

// MaxTop bounds the sources in a report.
const MaxTop = 5

// MarshalStatus returns the text of a status.
func MarshalStatus(s Status) ([]byte, error) {
	text, err := json.Marshal(s)
	if err == nil && len(text) > MaxStatus {
		err = fmt.Errorf("status of %d bytes, want at most %d", len(text), MaxStatus)
	}
	return text, err
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
	absurd := s.Passed > maxCount || s.Dropped > maxCount
	for i := range s.Lists {
		if r := s.Lists[i].Rehearsal; r != nil {
			absurd = absurd || r.Looked > maxCount || r.Passed > maxCount || r.WouldDrop > maxCount
			r.Top = r.Top[:min(len(r.Top), MaxTop)]
		}
	}
	if absurd {
		return Status{}, fmt.Errorf("status with a count of more than %d packets", uint64(maxCount))
	}
	return s, nil
}
