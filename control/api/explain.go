package api

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// MaxExplained bounds the frames of a request.
const MaxExplained = 256

// The verdicts, as far as they are known; what leaves more open comes later.
const (
	VerdictPass    = "pass"
	VerdictLimited = "limited" // the packets are of a flow that is rate-limited: what exceeds its rate is dropped
	VerdictDrop    = "drop"
)

var verdicts = []string{VerdictPass, VerdictLimited, VerdictDrop}

// ReasonWouldBlock is the reason of packets that a block list matches, in monitor mode.
const ReasonWouldBlock = "would-block"

// StageFailsafe is the stage of packets that always pass.
const StageFailsafe = "failsafe"

// Explanation is the verdict on the packets of a question, and its reasons: GET
// /v1/explain.
type Explanation struct {
	Question string   `json:"question"`
	Verdict  string   `json:"verdict"` // drop if any answer's is, otherwise limited if any is
	Answers  []Answer `json:"answers"` // for an address or a prefix: from it, to it
}

// Answer says what becomes of the packets of a question, and why.
type Answer struct {
	Packet string `json:"packet"`
	// Direction is out for outgoing packets, in for incoming ones. It is empty where only
	// those are filtered.
	Direction string `json:"direction,omitempty"`

	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
	Limit   *Limit `json:"limit,omitempty"` // of a flow that all of the packets are of, with VerdictLimited
	List    string `json:"list,omitempty"`  // that the packets are counted under, where it is known
	// Pattern drops them, for the reason pattern.
	Pattern string  `json:"pattern,omitempty"`
	Stages  []Stage `json:"stages"` // those that the packets reach, in their order
	// Matches are the entries that match all of the packets: those of block lists
	// first, the most specific of each side first.
	Matches []Match `json:"matches"`
	// Depends says what may change the verdict for some of the packets.
	Depends       []Dependency `json:"depends,omitempty"`
	DependsMore   int          `json:"depends_more,omitempty"`   // entries that Depends leaves out
	PenaltiesMore int          `json:"penalties_more,omitempty"` // penalties that it leaves out
	LastDrop      *LastDrop    `json:"last_drop,omitempty"`      // nil: none was dropped, or it is unknown
	Inside        *Inside      `json:"inside,omitempty"`         // of a question for a prefix
	// Spared says which heavy hitters among the packets would be rate-limited or blocked, if
	// that did not cut off something.
	Spared []string `json:"spared,omitempty"`
	// FalsePositive is true where the filter drops what no entry matches, as it
	// may in approximate mode.
	FalsePositive bool `json:"false_positive"`
	// Incomplete are the sources of lists that have nothing to filter by, what they
	// list is not in the answer, and the file of manual entries if it was damaged.
	Incomplete []NotReady `json:"incomplete,omitempty"`
}

// Limit is the rate limit of a flow. Rates are in units a second.
type Limit struct {
	Flow    string     `json:"flow"` // in the format of lists
	Rate    float64    `json:"rate"`
	Until   *time.Time `json:"until,omitempty"`
	Tracker string     `json:"tracker"` // its key, as in src; "" if a command has limited the flow's source
	Unit    string     `json:"unit"`    // packets or bytes

	// What the flow had in the tracker's last interval; nil: it is not known.
	Offered *float64 `json:"offered,omitempty"`
}

// LastDrop describes the drops of packets in the last hour, and those that would have been if not for
// monitor mode.
type LastDrop struct {
	Time    time.Time `json:"time"`              // of the last one, to ten seconds, or a minute if it is older
	Reason  string    `json:"reason"`            // for which most were dropped then
	List    string    `json:"list,omitempty"`    // that matched
	Monitor bool      `json:"monitor,omitempty"` // most would have been dropped then, and passed in monitor mode
	Packets uint64    `json:"packets"`           // in the last hour

	MonitorPackets uint64 `json:"monitor_packets,omitempty"` // of Packets those that passed in monitor mode
}

// Stage is a step of the program.
type Stage struct {
	Stage string     `json:"stage"`
	Met   bool       `json:"met"`             // by all of the packets
	By    string     `json:"by,omitempty"`    // what they met: a protocol, a port, a prefix, a flow, a list
	Until *time.Time `json:"until,omitempty"` // when a penalty ends
}

// Match is an entry that matches packets. Beginning with Source, its fields come
// from the list's source.
type Match struct {
	List   string `json:"list"`
	Action string `json:"action"` // block or allow
	Entry  string `json:"entry"`
	Trial  bool   `json:"trial,omitempty"` // the list is on trial
	For    string `json:"for,omitempty"`   // the packets for which the list is; "": all

	Derived    *Derived `json:"derived,omitempty"`     // nil: the entry is one of its own
	NotDerived string   `json:"not_derived,omitempty"` // why the prefix around the address is not listed

	Source  string     `json:"source,omitempty"` // "": the entry is manual
	Line    int        `json:"line,omitempty"`   // there, from 1; 0: unknown
	Added   *time.Time `json:"added,omitempty"`
	Listed  *time.Time `json:"listed,omitempty"`         // since when the source lists it; nil: unknown
	Earlier bool       `json:"listed_earlier,omitempty"` // it did so then, and since when before is not known
	Expires *time.Time `json:"expires,omitempty"`        // nil: never
	Reason  string     `json:"reason,omitempty"`
	Origin  string     `json:"origin,omitempty"`        // of a decision of CrowdSec, which has the scenario as its reason
	UID     *uint32    `json:"uid,omitempty"`           // of the user who added it
	Client  string     `json:"client,omitempty"`        // of another host, who did
	Packets *uint64    `json:"total_packets,omitempty"` // that the list has caught; nil: not counted
}

// Derived says for which addresses of a list a prefix is listed.
type Derived struct {
	By    string   `json:"by"`    // ByAggregate or ByPrefix6
	Of    int      `json:"of"`    // addresses, counted to 65536; with prefix6, an aggregate counts prefixes of that length
	First []string `json:"first"` // of the addresses, 3 at most
}

// Why a prefix is listed that neither a source nor a command has added.
const (
	ByAggregate = "aggregate"
	ByPrefix6   = "prefix6"
)

func (d *Derived) String() string {
	if d.By == ByPrefix6 {
		text := "prefix6 of " + strings.Join(d.First, ", ")
		if more := d.Of - len(d.First); more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		return text
	}
	return fmt.Sprintf("aggregate of %d entries", d.Of)
}

// Dependency is a condition that some of the packets meet, and the verdict on these.
type Dependency struct {
	Stage   string     `json:"stage"`
	Packets string     `json:"packets"` // which
	Verdict string     `json:"verdict"`
	Reason  string     `json:"reason"`
	Until   *time.Time `json:"until,omitempty"` // when a penalty ends
	Match   *Match     `json:"match,omitempty"` // the entry, of a list
	Lists   int        `json:"lists,omitempty"` // that Packets stands for, where they are not named
}

// Inside are the entries within a prefix, the prefix itself left out.
type Inside struct {
	Entries int     `json:"entries"` // all of them
	First   []Match `json:"first"`
}

// OnTrial reports whether the packets pass because their list is on trial.
func (a *Answer) OnTrial() bool {
	return a.Reason == ReasonWouldBlock && slices.ContainsFunc(a.Matches, func(m Match) bool { return m.Trial && m.List == a.List })
}

// Entries returns all entries that the answer names.
func (a *Answer) Entries() (all []*Match) {
	for i := range a.Matches {
		all = append(all, &a.Matches[i])
	}
	for _, d := range a.Depends {
		if d.Match != nil {
			all = append(all, d.Match)
		}
	}
	if a.Inside != nil {
		for i := range a.Inside.First {
			all = append(all, &a.Inside.First[i])
		}
	}
	return all
}

// NewExplanation returns the explanation that consists of answers.
func NewExplanation(question string, answers ...Answer) Explanation {
	e := Explanation{Question: question, Verdict: VerdictPass, Answers: answers}
	if answers == nil {
		e.Answers = []Answer{} // which JSON does not encode as null
	}
	for _, a := range answers {
		if slices.Index(verdicts, a.Verdict) > slices.Index(verdicts, e.Verdict) {
			e.Verdict = a.Verdict
		}
	}
	return e
}

// Check returns what is wrong with an explanation that comes from elsewhere: a verdict that
// there is not.
func (e *Explanation) Check() error {
	all := []string{e.Verdict}
	for _, a := range e.Answers {
		all = append(all, a.Verdict)
	}
	for _, v := range all {
		if !slices.Contains(verdicts, v) {
			return fmt.Errorf("unknown verdict %.20q", v)
		}
	}
	return nil
}

// Drops reports whether any of the packets is dropped, as far as they are known.
func (e *Explanation) Drops() bool { return e.Verdict == VerdictDrop }

// Passes reports whether all of the packets pass, whatever their number, as far as they are
// known.
func (e *Explanation) Passes() bool { return e.Verdict == VerdictPass }

// Frames are whole Ethernet frames to explain: POST /v1/explain.
type Frames struct {
	Frames [][]byte `json:"frames"` // in base64; at most MaxExplained
}

// Explanations are the explanations of frames, in the order of the request.
type Explanations struct {
	Explanations []Explanation `json:"explanations"`
}
