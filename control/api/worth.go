package api

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// ListsWorth says what lists are worth: GET /v1/worth. Which packets other lists would have
// caught, too, is known of those whose remote addresses are: of the largest senders of dropped
// packets in the last hour.
type ListsWorth struct {
	Since   time.Time   `json:"since"`   // of the dropped packets whose addresses are known
	Tracked bool        `json:"tracked"` // false: none are, without track_drops
	Lists   []ListWorth `json:"worth"`
}

// ListWorth is the worth of a list. Packets of remote addresses are estimates.
type ListWorth struct {
	Name    string  `json:"name"`
	Action  string  `json:"action"` // Block or Allow
	Entries int     `json:"entries"`
	Packets *uint64 `json:"total_packets,omitempty"` // matched since counting began; nil: unknown

	Months []MonthPackets `json:"months"` // in the history, which has 30 days, the latest first

	Addresses      int    `json:"addresses"`       // dropped ones that the list has
	AddressPackets uint64 `json:"address_packets"` // of these addresses
	Alone          int    `json:"alone_addresses"` // addresses that no other list would have dropped
	AlonePackets   uint64 `json:"alone_packets"`   // of these
	Seen           int    `json:"entries_seen"`    // entries that dropped addresses are in; of the others it is not known

	Collateral *int `json:"collateral_addresses,omitempty"` // with which this host has conversed; nil: unknown

	Ages     EntryAges `json:"ages"`
	Overlaps []Overlap `json:"overlaps"` // the largest first
}

// MonthPackets are the packets that a list has matched in a month, and what else the history has of it.
type MonthPackets struct {
	Month     string `json:"month"` // as in 2026-11
	Packets   uint64 `json:"packets"`
	Alone     uint64 `json:"alone_packets"` // that no other list would have dropped, as far as their addresses are known
	Conversed int    `json:"addresses_day"` // with how many of its addresses this host had conversed in 24 hours, at most
}

// EntryAges are numbers of entries by how long they are listed.
type EntryAges struct {
	Day     int `json:"day"`   // up to a day
	Week    int `json:"week"`  // longer, up to a week
	Month   int `json:"month"` // longer, up to 30 days
	Older   int `json:"older"`
	Unknown int `json:"unknown"`
}

// Half returns an age that half of the entries whose age is known have at most, in words, and its rank, 0
// if none is known.
func (a EntryAges) Half() (says string, rank int) {
	known := a.Day + a.Week + a.Month + a.Older
	switch {
	case known == 0:
		return "-", 0
	case 2*a.Day >= known:
		return "1d or less", 1
	case 2*(a.Day+a.Week) >= known:
		return "up to 7d", 2
	case 2*(a.Day+a.Week+a.Month) >= known:
		return "up to 30d", 3
	}
	return "over 30d", 4
}

// String is Half without the rank.
func (a EntryAges) String() string { says, _ := a.Half(); return says }

// Share is the part of a list's entries that another list covers, 0 to 1.
func (l *ListWorth) Share(o Overlap) float64 { return float64(o.Entries) / float64(max(1, l.Entries)) }

// AlsoIn returns which other lists cover the most entries of a list, most lists at most.
func (l *ListWorth) AlsoIn(most int) string {
	var all []string
	for _, o := range l.Overlaps[:min(len(l.Overlaps), most)] {
		all = append(all, fmt.Sprintf("%s %.0f%%", o.List, 100*l.Share(o)))
	}
	if more := len(l.Overlaps) - len(all); more > 0 {
		all = append(all, fmt.Sprintf("%d more", more))
	}
	return cmp.Or(strings.Join(all, ", "), "-")
}

// Overlap says how many addresses and prefixes of a list another list covers.
type Overlap struct {
	List    string `json:"list"`
	Entries int    `json:"entries"`
}
