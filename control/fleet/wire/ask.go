package wire

import (
	"encoding/json"
	"fmt"
	"time"

	"weir/control/api"
)

// Limits on what is asked and answered, in bytes.
const (
	MaxQuestion = 256 << 10
	MaxAnswer   = 128 << 10
)

// AnswerTimeout is when a node gives up on a question. The broker lets it answer for
// 10 seconds.
const AnswerTimeout = 8 * time.Second

// What the hub asks a node. It asks each node on the node's own subject, and waits for
// the answer on a subject of its own for each: the broker lets no other node answer.
const (
	AskExplain = "explain" // an [ExplainQuestion]
	AskHeavy   = "heavy"   // a [HeavyQuestion]
	AskFloods  = "floods"  // no question: what a node knows of floods, and drops
	AskMeasure = "measure" // some patterns, for a [MeasuredRule] of each
	AskTrace   = "trace"   // one of package api
	AskSaved   = "saved"   // a [SavedQuestion]
	AskAssign  = "assign"  // an [AssignQuestion]
)

// QuestionsSubject matches all that a node is asked.
func QuestionsSubject(node string) string { return AskSubject(node, "*") }

// Answer is a node's answer: what was asked for, or an error.
type Answer struct {
	Error string          `json:"error,omitempty"`
	Body  json.RawMessage `json:"answer,omitempty"`
}

// MarshalAnswer returns the text of an answer. One that is too large is an error.
func MarshalAnswer(body any, err error) []byte {
	var a Answer
	if err == nil {
		a.Body, err = json.Marshal(body)
	}
	if n := len(a.Body); n > MaxAnswer-64 {
		err = fmt.Errorf("an answer of %d kB, want at most %d: ask for less", n/1000, MaxAnswer/1000)
	}
	if err != nil {
		text := err.Error()
		a = Answer{Error: text[:min(len(text), maxError)]}
	}
	text, _ := json.Marshal(a) // the body is JSON
	return text
}

// maxError bounds an error in an answer, in bytes.
const maxError = 500

// ParseAnswer returns the body of an answer, or its error.
func ParseAnswer(text []byte) (json.RawMessage, error) {
	if len(text) > MaxAnswer {
		return nil, fmt.Errorf("an answer of %d bytes, want at most %d", len(text), MaxAnswer)
	}
	var a Answer
	switch err := json.Unmarshal(text, &a); {
	case err != nil:
		return nil, fmt.Errorf("the answer cannot be read: %w", err)
	case a.Error != "":
		return nil, fmt.Errorf("%.*s", maxError, a.Error)
	case a.Body == nil:
		return nil, fmt.Errorf("the answer is empty")
	}
	return a.Body, nil
}

// ExplainQuestion asks for the verdict on packets, as [explain.ParseQuestion] reads
// them. The places of a fleet's own entries are left to the hub.
type ExplainQuestion struct {
	Packets string `json:"packets"`
}

// SavedQuestion asks for a part of the file in which a node has a list: the hub's own state is an older copy.
type SavedQuestion struct {
	List   string `json:"list"`
	Offset int64  `json:"offset"`
}

// SavedPart is a part of such a file, at most [MaxSavedPart]. The file may have been replaced since the part before.
type SavedPart struct {
	Part []byte `json:"part"`
	Size int64  `json:"size"` // of the whole file
}

// MaxSavedPart is as long as an answer can be, in which it is text.
const MaxSavedPart = MaxAnswer / 3 * 2

// OriginSubject returns the subject on which a node asks the hub where entries come
// from.
func OriginSubject(node string) string { return "weir.v1.up." + node + ".origin" }

// RenewSubject returns the subject on which a node asks the hub to renew its certificate.
func RenewSubject(node string) string { return "weir.v1.up." + node + ".renew" }

// MaxOrigins bounds the entries of an [OriginQuestion].
const MaxOrigins = 64

// OriginQuestion asks where entries of a list come from. Each is the serialised form of
// a key.
type OriginQuestion struct {
	List string   `json:"list"`
	Keys [][]byte `json:"keys"`
}

// Origins are the origins of entries, in the order of the question.
type Origins struct {
	Origins []Origin `json:"origins"`
}

// Origin is where an entry of a list comes from.
type Origin struct {
	Source string     `json:"source,omitempty"` // of a feed; "": it is manual, or the hub does not have it
	Line   int        `json:"line,omitempty"`   // there, from 1; 0: unknown
	Added  *time.Time `json:"added,omitempty"`  // of a manual entry
	Reason string     `json:"reason,omitempty"` // of a manual entry, or a decision of CrowdSec
	By     string     `json:"by,omitempty"`     // of a decision of CrowdSec: who has made it
}

// Limits on flows that nodes are asked for.
const (
	MaxHeavy     = 500     // the largest ones
	MaxEstimates = 1000    // by their keys
	maxUnits     = 1 << 53 // which a node may claim to have counted: what a float64 counts exactly
)

// HeavyQuestion asks a node for flows in the last interval of a tracker: the largest,
// or some by their keys.
type HeavyQuestion struct {
	Key  string   `json:"key"`            // of the tracker, as in weir.yaml
	Unit string   `json:"unit"`           // packets or bytes
	Most int      `json:"most,omitempty"` // how many of the largest
	Keys [][]byte `json:"keys,omitempty"` // serialised
}

// HeavyFlows are the flows that a node was asked for, in the unit of the question.
type HeavyFlows struct {
	Interval float64     `json:"interval_seconds"`
	Units    uint64      `json:"units"`  // of all flows
	Denied   uint64      `json:"denied"` // packets of flows that may be missing for lack of room
	Rest     uint64      `json:"rest"`   // units that none of the flows that are not here exceeds
	Flows    []HeavyFlow `json:"flows"`  // of keys, in their order
}

// HeavyFlow is a flow that a node has counted.
type HeavyFlow struct {
	Key   []byte `json:"key,omitempty"` // serialised; none: as asked
	Least uint64 `json:"least"`
	Most  uint64 `json:"most"`
}

// Check returns what cannot be true of a node's answer to a question.
func (h HeavyFlows) Check(q HeavyQuestion) error {
	if !(h.Interval > 0 && h.Interval < 1e6) || h.Units > maxUnits || h.Rest > maxUnits {
		return fmt.Errorf("%d units in %g seconds, and up to %d of each other flow", h.Units, h.Interval, h.Rest)
	}
	if n := len(h.Flows); n > q.Most+len(q.Keys) || q.Keys != nil && n != len(q.Keys) {
		return fmt.Errorf("%d flows, asked for %d", n, q.Most+len(q.Keys))
	}
	for _, f := range h.Flows {
		if f.Least > f.Most || f.Least > h.Units || f.Most > maxUnits {
			return fmt.Errorf("a flow of %d to %d units, of %d in all", f.Least, f.Most, h.Units)
		}
	}
	return nil
}

// MaxMeasured bounds the rules that a node is asked to measure: it takes some 4 ms for each.
const MaxMeasured = 32

// MeasuredRule has the packets that a rule matches, by the samples of a node.
type MeasuredRule struct {
	Flood         api.FloodShare `json:"flood"` // of its packets: those that rules of the node match, if it has some
	Packets       api.FloodShare `json:"packets"`
	Conversations api.FloodShare `json:"conversations"`
	For           []string       `json:"for,omitempty"` // rules that the node has found, of whose packets it matches 0.9
}

// Source stands for the hub where a node shows the sources of lists.
const Source = "fleet"
