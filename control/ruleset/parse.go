package ruleset

import "weir/control/quantity"

// Share is a share of a file's lines, 0…1. As in list.Options, none at all is
// negative.
type Share float64

// UnmarshalText reads a share: "5%" or "0.05".
func (s *Share) UnmarshalText(text []byte) error {
	var q quantity.Share
	if err := q.UnmarshalText(text); err != nil {
		return err
	}
	if *s = Share(q); q == 0 {
		*s = -1
	}
	return nil
}

// MarshalText returns the share in percent.
func (s Share) MarshalText() ([]byte, error) { return quantity.Share(max(0, s)).MarshalText() }
