package api

import "time"

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

// MonthPackets are the packets that a list has matched in a month.
type MonthPackets struct {
	Month   string `json:"month"` // as in 2026-11
	Packets uint64 `json:"packets"`
}

// EntryAges are numbers of entries by how long they are listed.
type EntryAges struct {
	Day     int `json:"day"`   // up to a day
	Week    int `json:"week"`  // longer, up to a week
	Month   int `json:"month"` // longer, up to 30 days
	Older   int `json:"older"`
	Unknown int `json:"unknown"`
}

// Overlap says how many addresses and prefixes of a list another list covers.
type Overlap struct {
	List    string `json:"list"`
	Entries int    `json:"entries"`
}
