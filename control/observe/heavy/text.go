package heavy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weir/control/quantity"
	"weir/filter/key"
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

// Key says which packets make a flow: src, dst, flow, or a prefix as in src/24.
type Key string

// MarshalText returns the key.
func (k Key) MarshalText() ([]byte, error) { return []byte(k), nil }

// UnmarshalText reads a key. A prefix of 32 or 128 bits is an address.
func (k *Key) UnmarshalText(text []byte) error {
	side, length, isPrefix := strings.Cut(string(text), "/")
	switch {
	case side != "src" && side != "dst" && string(text) != "flow":
		return fmt.Errorf("unknown key %q: want src, dst, flow, or a prefix as in src/24", text)
	case !isPrefix:
		*k = Key(side)
		return nil
	}
	n, err := strconv.ParseUint(length, 10, 8)
	if err != nil || n < 1 || n > 128 {
		return fmt.Errorf("invalid key %q: want a prefix length from 1 to 32, or to 128 for IPv6 alone", text)
	}
	if n != 32 && n != 128 {
		side += "/" + strconv.FormatUint(n, 10)
	}
	*k = Key(side)
	return nil
}

// Shapes returns the fields of packets that make a flow, for IPv4 and for IPv6. A
// prefix of up to 31 bits is one twice as long of IPv6: src/24 counts the networks
// that are as usual there, of 48 bits.
func (k Key) Shapes() (v4, v6 key.Shape) {
	if k == "flow" {
		const fields = key.FieldSrcPort | key.FieldDstPort | key.FieldProto
		return key.Shape{Fields: fields, SrcBits: 32, DstBits: 32},
			key.Shape{Fields: fields | key.FieldV6, SrcBits: 128, DstBits: 128}
	}
	side, length, isPrefix := strings.Cut(string(k), "/")
	bits4, bits6 := 32, 128
	if isPrefix {
		n, _ := strconv.Atoi(length) // UnmarshalText has read it
		bits4, bits6 = min(n, 32), n
		if n < 32 {
			bits6 = 2 * n
		}
	}
	of := key.Source
	if side == "dst" {
		of = key.Destination
	}
	return of(netip.PrefixFrom(netip.IPv4Unspecified(), bits4)).Shape, of(netip.PrefixFrom(netip.IPv6Unspecified(), bits6)).Shape
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
