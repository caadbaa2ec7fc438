package api

import (
	"fmt"
	"strings"
	"time"
)

// Floods says whether what comes in is as usual, by a sample of the packets of each second:
// GET /v1/floods.
type Floods struct {
	Time    time.Time `json:"time"`
	Sampled bool      `json:"sampled"` // false: nothing is known, without samples
	Quiet   int       `json:"quiet"`   // usual seconds with which one is compared; below 3 with none
	Rate    float64   `json:"rate"`    // packets in the last second
	Usual   float64   `json:"usual"`   // packets a second, the mean of these seconds
	Varies  float64   `json:"varies"`  // standard deviation of that
	Now     *Flood    `json:"now,omitempty"`
	Past    []Flood   `json:"past"` // the latest first, 100 at most
}

// Flood is a time in which more came in than usual. Shares are from 0 to 1.
type Flood struct {
	Begin time.Time  `json:"begin"`
	End   *time.Time `json:"end,omitempty"` // nil: it goes on
	Kind  FloodKind  `json:"kind"`
	Of    string     `json:"of"`    // what was above the usual first: packets, bits, or a class of traffic
	Rate  float64    `json:"rate"`  // packets in the last second
	Peak  float64    `json:"peak"`  // in the largest second
	Usual float64    `json:"usual"` // packets a second before

	Destination      string  `json:"destination"` // the most frequent one of the flood's packets
	DestinationShare float64 `json:"destination_share"`
	Sources          float64 `json:"sources"`         // how many send the flood's packets in a second, at least: an estimate
	LargestSources   float64 `json:"largest_sources"` // share of the 100 largest of these
	Dropped          float64 `json:"dropped"`         // share of the flood's packets that weir drops
	Conversing       float64 `json:"conversing"`      // share of the flood's packets in conversations of this host

	Rules []FloodRule `json:"rules"` // the smallest sets of conditions that match it
}

// FloodKind says what can be done about a flood.
type FloodKind string

// The kinds.
const (
	FloodRuled   FloodKind = "rules"      // rules match it
	FloodUsers   FloodKind = "users"      // it is in conversations
	FloodNothing FloodKind = "like-users" // nothing in its headers distinguishes it from users
)

// FloodRule is a set of conditions that packets of a flood meet, with its evidence.
type FloodRule struct {
	Pattern       string     `json:"pattern"`
	Name          string     `json:"name,omitempty"`      // what such packets are, if they have a name
	Share         float64    `json:"share"`               // of the packets of the last second
	Rate          float64    `json:"rate"`                // packets a second, when it was found
	Covered       float64    `json:"covered"`             // of the excess over the usual rate then
	Sources       int        `json:"sources"`             // distinct ones among the sampled packets
	Packets       FloodShare `json:"packets"`             // of usual seconds that it matches
	Conversations FloodShare `json:"conversations"`       // of usual seconds of which it matches a packet
	Addresses     []string   `json:"addresses,omitempty"` // the only sources that the rule matches
	// Proposed rules are less sure: too few usual seconds are known, or something else has changed
	// during a flood.
	Proposed bool `json:"proposed"`
}

// FloodShare is how many there are of a number of sampled ones, and the bounds of the share, 95 %.
type FloodShare struct {
	Hits int     `json:"hits"`
	Of   int     `json:"of"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`

	Node string `json:"node,omitempty"` // of a fleet, where it is this
}

// String says it as in "2 of 612".
func (s FloodShare) String() string {
	return fmt.Sprintf("%d of %d", s.Hits, s.Of)
}

// Estimate returns the share of those that are known, 0 of none.
func (s FloodShare) Estimate() float64 { return float64(s.Hits) / float64(max(1, s.Of)) }

// For how long, and on trial, a flood is dropped by default.
const (
	FloodTTL   = 10 * time.Minute
	FloodTrial = 2 * time.Second
)

// Sure returns the rules that are not only proposed.
func (f *Flood) Sure() (all []*FloodRule) {
	for i := range f.Rules {
		if r := &f.Rules[i]; !r.Proposed {
			all = append(all, r)
		}
	}
	return all
}

// Commands returns commands that drop the flood, as far as that is sure.
func (f *Flood) Commands() (all []string) {
	const addresses = 100 // in a line
	for _, r := range f.Sure() {
		if len(r.Addresses) == 0 {
			all = append(all, fmt.Sprintf("weir limit --ttl 10m --trial 2s '%s' 0pps", r.Pattern))
		}
		for of := r.Addresses; len(of) > 0; of = of[min(len(of), addresses):] {
			all = append(all, "weir block --ttl 10m "+strings.Join(of[:min(len(of), addresses)], " "))
		}
	}
	return all
}

// Headline returns the words with which a report of such a flood begins.
func (k FloodKind) Headline() string {
	if k == FloodUsers {
		return "MORE THAN USUAL"
	}
	return "FLOOD"
}

// Head returns the flood in a few words, as in "FLOOD of NTP answers to 203.0.113.10".
func (f *Flood) Head() string {
	head := f.Kind.Headline()
	if len(f.Rules) > 0 && f.Rules[0].Name != "" {
		head += " of " + f.Rules[0].Name
	}
	if f.Destination != "" {
		head += " to " + f.Destination
	}
	return head
}

// Is returns what the flood consists of, a line for each rule and one for the rest.
func (f *Flood) Is() (lines []string) {
	rest := 1.0
	for i := range f.Rules {
		r := &f.Rules[i]
		text := fmt.Sprintf("%s, %.0f %%", r.Pattern, 100*r.Share)
		if r.Name != "" {
			text += ": " + r.Name
		}
		if r.Proposed {
			text += " (not sure)"
		}
		lines = append(lines, text)
		rest -= r.Share
	}
	if len(lines) == 0 {
		return []string{fmt.Sprintf("%s, %.0f %% of them in conversations", f.Of, 100*f.Conversing)}
	}
	return append(lines, fmt.Sprintf("everything else, %.0f %%", 100*max(0, rest)))
}

// limitEach says how to limit each source of the flood.
func (f *Flood) limitEach() string {
	if f.Destination == "" {
		return "A tracker can limit each source"
	}
	return fmt.Sprintf("To limit each source: weir limit 'dst %s' RATE --per src --ttl 1h", f.Destination)
}

// drops is the share of a flood of which weir drops all that matters.
const drops = 0.95

// Do says what to do about the flood, in a sentence or a command.
func (f *Flood) Do() string {
	switch {
	case f.End != nil:
		return "nothing: it is over"
	case f.Kind == FloodUsers:
		return "nothing here stops only attackers: these are users. " + f.limitEach()
	case f.Kind == FloodNothing && f.Of == "SYN":
		return "no rule separates them from users: sysctl net.ipv4.tcp_syncookies=1 lets the host answer them all; with syncookies: auto in weir.yaml, weir does so in XDP"
	case f.Kind == FloodNothing:
		return "no rule separates them from users. " + f.limitEach()
	case f.Dropped >= drops:
		return "nothing: weir drops it"
	case len(f.Sure()) > 0:
		return "weir flood --apply all"
	}
	return "not sure yet: few usual seconds are known, or another flood is under way. Look at the packets that it would hit"
}
