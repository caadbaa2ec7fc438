package api

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Place is a version of a list. Epochs are the hub's: it begins a new one when its
// history is lost.
type Place struct {
	Epoch   uint64 `json:"epoch"`
	Version uint64 `json:"version"`
}

// Before reports whether p is an earlier version than q.
func (p Place) Before(q Place) bool {
	return p.Epoch < q.Epoch || p.Epoch == q.Epoch && p.Version < q.Version
}

func (p Place) String() string { return fmt.Sprintf("%d.%d", p.Epoch, p.Version) }

// Term says which start of a hub made a catalog, and when.
type Term struct {
	Instance string    `json:"instance,omitempty"` // random, of this start
	Claim    uint64    `json:"claim,omitempty"`    // of two hubs with the same keys, the one with the larger claim rules the nodes
	Issued   time.Time `json:"issued"`             // by the hub's clock
}

// NodeStatus is a node's report about itself, every ten seconds and when a list
// becomes active. It is not signed: only the node may publish to its subject.
type NodeStatus struct {
	Time     time.Time  `json:"time"`
	Version  string     `json:"version"`                // of weir
	Catalog  Place      `json:"catalog"`                // that the node obeys
	Term     Term       `json:"catalog_term,omitzero"`  // of the hub that made it
	Seal     string     `json:"catalog_seal,omitempty"` // of Catalog and Term, by the hub
	Stale    bool       `json:"stale,omitempty"`
	Lists    []NodeList `json:"lists"`
	Problems []string   `json:"problems,omitempty"` // a line each
	Address  string     `json:"address,omitempty"`  // from which it is connected, as its server sees it

	Settings *NodeSettings `json:"settings,omitempty"` // in use: of its file, or set by the hub

	// What the lists are enforced by, as in the status of the host.
	Mode       string `json:"mode"`
	Monitor    bool   `json:"monitor,omitempty"`   // nothing is dropped
	Interfaces int    `json:"interfaces"`          // configured, and matching a pattern; each direction counts
	Filtered   int    `json:"filtered_interfaces"` // of these

	// Packets since counting began.
	Passed  uint64 `json:"passed_packets"`
	Dropped uint64 `json:"dropped_packets"`
}

// NodeSettings are the settings of a node that the hub can change.
type NodeSettings struct {
	Labels  []string `json:"labels"`
	Servers []string `json:"servers"`
	CA      string   `json:"ca_sha256"` // of the certificates, as in its file
	Issuer  string   `json:"issuer"`    // the pin of that one of them which has issued its own, as in tokens
}

// Equal reports whether settings are the same. The order of labels says nothing.
func (s NodeSettings) Equal(t NodeSettings) bool {
	if s.CA != t.CA || !slices.Equal(s.Servers, t.Servers) {
		return false
	}
	sorted := func(labels []string) []string { return slices.Compact(slices.Sorted(slices.Values(labels))) }
	return slices.Equal(s.Labels, t.Labels) || slices.Equal(sorted(s.Labels), sorted(t.Labels))
}

// NotEnforcing says why the node does not drop what its lists have, "" if it does.
func (s *NodeStatus) NotEnforcing() string {
	switch {
	case s.Monitor:
		return "monitor mode"
	case s.Interfaces == 0 && s.Mode == "":
		return "it waits for its first lists"
	case s.Interfaces == 0:
		return "no interface is configured, or matches"
	case s.Filtered < s.Interfaces:
		return fmt.Sprintf("%d of %d interfaces are filtered", s.Filtered, s.Interfaces)
	}
	return ""
}

// DropsNothing reports whether the node drops nothing by any list.
func (s *NodeStatus) DropsNothing() bool { return s.Monitor || s.Filtered == 0 }

// NodeList is the state of a list on a node.
type NodeList struct {
	Name      string     `json:"name"`
	Active    Place      `json:"active"`         // the version that filters; the zero Place: none
	ID        string     `json:"id,omitempty"`   // of Active; "": unknown
	Seal      string     `json:"seal,omitempty"` // of Active, by the hub
	Sum       string     `json:"sum"`            // of its entries
	Entries   int        `json:"entries"`
	Wanted    Place      `json:"wanted"`
	Rehearsal *Rehearsal `json:"rehearsal,omitempty"`

	// Conversed counts all that the list would drop, Added the additions of Active while a wave
	// of a rollout enforces it. nil: not measured.
	Conversed *Conversed `json:"conversed,omitempty"`
	Added     *Conversed `json:"conversed_added,omitempty"`
	Error     string     `json:"error,omitempty"`   // why Wanted is not active
	Refused   bool       `json:"refused,omitempty"` // the error is that the node refuses it
}

// Rehearsal counts which passing packets a version would drop. Where more packets pass than a
// node can look at, it looks at samples, and the counts are estimates.
type Rehearsal struct {
	Place
	Since     time.Time  `json:"since"`
	Looked    uint64     `json:"looked_at_packets"`
	Passed    uint64     `json:"passed_packets"`     // those looked at stand for
	WouldDrop uint64     `json:"would_drop_packets"` // of those, the ones that the version would drop
	Top       []Affected `json:"top,omitempty"`      // the sources with most of them
	Error     string     `json:"error,omitempty"`    // why the version would not become active

	// Conversed counts what the version would drop in addition; nil: not measured.
	Conversed *Conversed `json:"conversed,omitempty"`
}

// Conversed says with how many addresses that a list would drop the node has conversed in the
// last 24 hours.
type Conversed struct {
	Addresses int      `json:"addresses"`
	Latest    []string `json:"latest,omitempty"` // of these, at most MaxConversed
}

// MaxConversed bounds the addresses that a node names of a list.
const MaxConversed = 3

// String returns the number, with some of the addresses.
func (c Conversed) String() string {
	text := strconv.Itoa(c.Addresses)
	if len(c.Latest) > 0 {
		text += ": " + c.Named()
	}
	return text
}

// Named returns the latest addresses as text, with the number of the others.
func (c Conversed) Named() string {
	texts := slices.Clone(c.Latest[:min(len(c.Latest), MaxConversed)])
	if more := c.Addresses - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(texts, ", ")
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
