package api

import (
	"net/netip"
	"time"
)

// Collateral says with which of the addresses that lists match this host has conversed: it
// opened the connection and was answered, or it answered a handshake that was completed.
// GET /v1/collateral.
type Collateral struct {
	At        time.Time        `json:"at"`         // of the record
	Recorded  bool             `json:"recorded"`   // false: not without the key collateral
	Addresses int              `json:"addresses"`  // that are recorded, of any list
	Room      int              `json:"room"`       // for as many
	Lists     []ListCollateral `json:"collateral"` // those that block
}

// Of returns what is recorded of a list, nil where nothing is.
func (c *Collateral) Of(list string) *ListCollateral {
	if c == nil {
		return nil
	}
	for i := range c.Lists {
		if c.Lists[i].List == list {
			return &c.Lists[i]
		}
	}
	return nil
}

// ListCollateral says with which of a list's addresses this host has conversed.
type ListCollateral struct {
	List      string    `json:"list"`
	Addresses int       `json:"addresses"`
	Day       int       `json:"addresses_day"` // of these, in the last 24 hours
	Latest    []Partner `json:"latest"`        // the latest first, at most MaxPartners
}

// MaxPartners bounds the addresses of a list that are named.
const MaxPartners = 1000

// Partner is an address with which this host has conversed.
type Partner struct {
	Addr      netip.Addr `json:"address"`
	Direction string     `json:"direction"` // in: the list matched what it sent; out: what was sent to it
	How       []string   `json:"how"`       // opened-tcp, opened-udp: by this host; accepted-tcp: by the other side
	First     time.Time  `json:"first"`     // packets that a list matched
	Last      time.Time  `json:"last"`
}
