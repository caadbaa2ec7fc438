package quantity

import (
	"slices"
	"strings"
)

// Unit is the unit that a [Rate] counts.
type Unit uint8

const (
	AnyUnit Unit = iota // not stated: packets or bytes, by the setting that has the rate
	Packets
	Bytes
	Bits
)

var perSecond = [...]string{AnyUnit: "/s", Packets: "pps", Bytes: "B/s", Bits: "bit/s"}

// Rate is a number of packets, bytes or bits a second, such as 50kpps, 125MB/s or
// 10Mbit/s. Where the unit is clear from elsewhere, 10k/s will do. The zero Rate
// is written 0/s.
type Rate struct {
	Value float64 // not negative
	Unit  Unit
}

// PerSecond returns the packets or bytes a second; eight bits are a byte.
func (r Rate) PerSecond() float64 {
	if r.Unit == Bits {
		return r.Value / 8
	}
	return r.Value
}

// String returns the rate with the largest SI prefix that leaves a short number.
func (r Rate) String() string {
	const digits = 2 // after the point
	for _, p := range slices.Backward(prefixes) {
		s := shifted(r.Value, p.exponent)
		_, fraction, _ := strings.Cut(s, ".")
		if s[0] != '0' && len(fraction) <= digits {
			return s + p.name + perSecond[r.Unit]
		}
	}
	return shifted(r.Value, 0) + perSecond[r.Unit]
}

// MarshalText returns the text of String.
func (r Rate) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// MaxRate bounds rates, in any unit: terabit Ethernet is far below.
const MaxRate = 1e15

// UnmarshalText reads a rate. It takes bps for bit/s, as the field does, and K
// for k.
func (r *Rate) UnmarshalText(text []byte) error {
	const want = "a number a second, as in 50kpps, 10Mbit/s, 125MB/s or 10k/s"
	digits, suffix, ok := split(text)
	if !ok {
		return invalid("rate", text, want)
	}
	for _, u := range []struct {
		suffix string
		unit   Unit
	}{{"pps", Packets}, {"bit/s", Bits}, {"bps", Bits}, {"B/s", Bytes}, {"/s", AnyUnit}} {
		prefix, ok := strings.CutSuffix(suffix, u.suffix)
		if !ok {
			continue
		}
		exponent, ok := exponentOf(prefix)
		if !ok {
			break
		}
		v, err := scaled(digits, exponent)
		if err != nil || v > MaxRate || v > 0 && v < least {
			return invalid("rate", text, "0, or from 1e-15 to 1e15")
		}
		*r = Rate{v, u.unit}
		return nil
	}
	if _, ok := exponentOf(suffix); ok {
		return invalid("rate", text, want+": did you mean "+string(text)+"/s?")
	}
	return invalid("rate", text, want)
}
