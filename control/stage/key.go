package stage

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"weir/filter/key"
)

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

// FlowName returns a flow in the format of lists, but a destination alone without its ">": the
// key under which it is counted distinguishes it from a source.
func FlowName(k key.Key) string { return strings.TrimPrefix(k.String(), "> ") }
