package tracker

import (
	"fmt"
	"slices"
	"strings"

	"weir/control/quantity"
)

// Action is the action against a heavy hitter.
type Action uint8

const (
	ReportOnly Action = iota
	Limit             // packets above a rate are dropped
	Block             // all packets are dropped
)

var actions = [...]string{"report", "limit", "block"}

func (a Action) String() string { return actions[a] }

// MarshalText returns the action's name.
func (a Action) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText sets the action by its name.
func (a *Action) UnmarshalText(text []byte) error {
	i := slices.Index(actions[:], string(text))
	if i < 0 {
		return fmt.Errorf("unknown action %q: want report, limit or block", text)
	}
	*a = Action(i)
	return nil
}

// Threshold is the size from which on a flow is heavy: a rate, a share of all that is counted, or
// both.
type Threshold struct {
	Rate  quantity.Rate
	Share quantity.Share
}

// String returns the rate or the share, or both joined by "+".
func (t Threshold) String() string {
	var parts []string
	if t.Rate.Value > 0 {
		parts = append(parts, t.Rate.String())
	}
	if t.Share > 0 {
		parts = append(parts, t.Share.String())
	}
	return strings.Join(parts, "+")
}

// MarshalText returns the text of String.
func (t Threshold) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads a rate, a share with its percent sign, or both joined by "+".
func (t *Threshold) UnmarshalText(text []byte) error {
	const want = "want a rate, as in 50kpps, 10Mbit/s or 10k/s, or a share, as in 0.1%"
	var next Threshold
	for part := range strings.SplitSeq(string(text), "+") {
		var err error
		var again, zero bool
		if strings.HasSuffix(part, "%") {
			again = next.Share > 0
			err = next.Share.UnmarshalText([]byte(part))
			zero = next.Share == 0
		} else {
			again = next.Rate.Value > 0
			err = next.Rate.UnmarshalText([]byte(part))
			zero = next.Rate.Value == 0
		}
		switch {
		case len(text) > 2*quantity.MaxText+1:
			return fmt.Errorf("threshold of %d bytes: %s", len(text), want)
		case err != nil && strings.Trim(part, "0123456789.") == "":
			return fmt.Errorf("invalid threshold %q: %s", text, want)
		case err != nil:
			return err
		case again:
			return fmt.Errorf("threshold %q: want one rate, one share, or one of each", text)
		case zero:
			return fmt.Errorf("threshold %q: want more than 0", text)
		}
	}
	*t = next
	return nil
}
