package notify

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// Version is the version of the form of events. It grows when a field is removed, or gets
// another meaning; new fields and kinds do not change it.
const Version = 1

// Kind is a kind of event.
type Kind string

// The kinds of events.
const (
	Heavy     Kind = "heavy"     // a heavy hitter that is reported
	Penalty   Kind = "penalty"   // a heavy hitter that is rate-limited or blocked
	Feed      Kind = "feed"      // a source of a list that cannot be read, or is refused
	Interface Kind = "interface" // an interface that is not filtered
	Refused   Kind = "refused"   // a change that was refused
	Surge     Kind = "surge"     // a surge of drops
	Test      Kind = "test"      // of `weir notify test`
)

// kinds are those that a target can be limited to.
var kinds = []Kind{Heavy, Penalty, Feed, Interface, Refused, Surge}

// UnmarshalText sets the kind by its name.
func (k *Kind) UnmarshalText(text []byte) error {
	if !slices.Contains(kinds, Kind(text)) {
		names := make([]string, len(kinds))
		for i, kind := range kinds {
			names[i] = string(kind)
		}
		last := len(names) - 1
		return fmt.Errorf("unknown kind of event %q: want %s or %s", text, strings.Join(names[:last], ", "), names[last])
	}
	*k = Kind(text)
	return nil
}

// State says whether what an event is about has begun or ended. Changes and tests
// have none.
type State string

// The states of events.
const (
	Begin State = "begin"
	End   State = "end"
)

// Event is something that an operator wants to know. Exactly one of the last fields
// is set, by the kind; a test has none. The comments are part of
// docs/notifications.md.
type Event struct {
	Version  int       `json:"version"`
	ID       string    `json:"id"` // the same when the delivery is repeated
	Time     time.Time `json:"time"`
	Host     string    `json:"host"`
	Kind     Kind      `json:"kind"`
	State    State     `json:"state,omitempty"`
	Severity string    `json:"severity"`         // error, warning or info
	Text     string    `json:"text"`             // one line for people
	More     int       `json:"more,omitempty"`   // earlier events of this kind that were left out, because there were too many
	Missed   int       `json:"missed,omitempty"` // earlier events that this receiver did not get, because it did not keep up, or they were given up

	Flow      *FlowEvent      `json:"flow,omitempty"` // heavy and penalty
	Feed      *FeedEvent      `json:"feed,omitempty"`
	Interface *InterfaceEvent `json:"interface,omitempty"`
	Change    *ChangeEvent    `json:"change,omitempty"` // refused
	Drops     *DropsEvent     `json:"drops,omitempty"`  // surge
}

// The severities of events.
const (
	Error   = "error"
	Warning = "warning"
	Info    = "info"
)

// FlowEvent is a heavy hitter.
type FlowEvent struct {
	Flow     string  `json:"flow"`    // an address, a prefix or a flow
	Tracker  string  `json:"tracker"` // its key, as in src
	Action   string  `json:"action"`  // report, limit or block
	Packets  uint64  `json:"packets"` // in the interval so far, or in the last one
	Bytes    uint64  `json:"bytes"`
	Interval float64 `json:"interval_seconds"`        // the time that they were counted over
	Unmet    bool    `json:"unmet,omitempty"`         // there was no room for the penalty
	CutsOff  string  `json:"would_cut_off,omitempty"` // what a penalty would cut off, so that there is none, or a milder one
}

// FeedEvent is a source of a list.
type FeedEvent struct {
	List    string `json:"list"`
	Source  string `json:"source"`
	Failure string `json:"failure,omitempty"` // its kind, as in GET /v1/lists
	Error   string `json:"error,omitempty"`
	Entries int    `json:"entries"` // active
}

// InterfaceEvent is an interface that is to be filtered.
type InterfaceEvent struct {
	Interface string `json:"interface"`
	Netns     string `json:"netns,omitempty"`
	State     string `json:"state"` // filtered, unpinned, absent, gone, unfiltered or detached, as in GET /v1/status
	Problem   string `json:"problem,omitempty"`
}

// ChangeEvent is a change that was refused.
type ChangeEvent struct {
	Change  string  `json:"change"` // block, allow, unblock, unallow, import, reload or list
	List    string  `json:"list,omitempty"`
	Error   string  `json:"error"`
	Entries int     `json:"entries,omitempty"` // that were named
	UID     *uint32 `json:"uid,omitempty"`
	User    string  `json:"user,omitempty"`
	Source  string  `json:"source,omitempty"` // socket, signal, or the subject of a client's certificate
}

// DropsEvent is the rate of dropped packets, in packets a second.
type DropsEvent struct {
	Rate      float64  `json:"rate"`
	Average   float64  `json:"average"`      // before the surge
	Threshold float64  `json:"threshold"`    // that the rate has exceeded
	Monitor   bool     `json:"monitor"`      // they are counted only, not dropped
	Is        []string `json:"is,omitempty"` // what the packets of the flood that arrives are, if it is known
	Do        string   `json:"do,omitempty"` // what to do about it
	Arriving  bool     `json:"arriving"`     // the rates are of all packets that arrive, not of those that are dropped
}

// maxText bounds a text in an event, in bytes.
const maxText = 1024

// bounded shortens the texts of an event that others have chosen, and shows characters that
// would give orders to a terminal.
func (e Event) bounded() Event {
	e.Text = cut(e.Text)
	if e.Feed != nil {
		f := *e.Feed
		f.Error, f.Source = cut(f.Error), cut(f.Source)
		e.Feed = &f
	}
	if e.Interface != nil {
		i := *e.Interface
		i.Interface, i.Netns, i.Problem = cut(i.Interface), cut(i.Netns), cut(i.Problem)
		e.Interface = &i
	}
	if e.Change != nil {
		c := *e.Change
		c.Error, c.Source = cut(c.Error), cut(c.Source)
		e.Change = &c
	}
	return e
}

func cut(s string) string {
	s = visible(strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

// visible writes characters that are not printable as JSON does, but for the ends of lines.
func visible(s string) string {
	hidden := func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' && r != '\t' }
	if strings.IndexFunc(s, hidden) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if hidden(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// body returns the event as JSON.
func (e Event) body() []byte {
	text, err := json.Marshal(e.bounded())
	if err != nil {
		panic(err) // rates are finite
	}
	return text
}
