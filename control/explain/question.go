package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"weir/control/list"
	"weir/control/list/listfile"
	"weir/filter/key"
	"weir/filter/packet"
)

// Question asks what becomes of packets: of those that match Known, or of a
// whole Ethernet frame.
type Question struct {
	Known key.Key
	Frame []byte // nil: the packets that match Known
}

// ErrQuestion says what a question may be.
var ErrQuestion = errors.New(`want an address, a prefix, "> ADDRESS", or a flow as in "tcp 192.0.2.1:1234 > 198.51.100.7:443", where * leaves a part open`)

// maxQuestion bounds the text of a question.
const maxQuestion = 1000

// ParseQuestion reads an entry of a list as a question. An address or a prefix
// makes two, for the packets from it and the packets to it.
func ParseQuestion(text string) ([]Question, error) {
	if len(text) > maxQuestion || strings.ContainsAny(text, "\r\n") {
		return nil, fmt.Errorf("a question of %d bytes: %w", len(text), ErrQuestion)
	}
	if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && p != p.Masked() {
		return nil, fmt.Errorf("%q has host bits: ask for %v or for %v", text, p.Addr(), p.Masked())
	}
	e, err := listfile.ParseEntry(text)
	var bad listfile.LineError
	switch {
	case errors.As(err, &bad):
		return nil, fmt.Errorf("%q: %w: %w", text, bad.Err, ErrQuestion)
	case err != nil:
		return nil, fmt.Errorf("%q: %w: %w", text, err, ErrQuestion)
	case len(e.V4)+len(e.V6) > 1:
		return nil, fmt.Errorf("%q is a range of %d prefixes: ask for them one by one, beginning with %v",
			text, len(e.V4)+len(e.V6), firstPrefix(e))
	case len(e.V4)+len(e.V6) == 1:
		p := firstPrefix(e)
		if p.Bits() == 0 { // from all is to all
			return []Question{{Known: key.Source(p)}}, nil
		}
		return []Question{{Known: key.Source(p)}, {Known: key.Destination(p)}}, nil
	}
	if len(e.Flows) > 2 { // of both families
		return nil, fmt.Errorf("%q is a range of ports, %d entries: ask for one of them, as in %v", text, len(e.Flows), e.Flows[0])
	}
	var asked []Question
	for _, k := range e.Flows { // one of each family, where there are no addresses
		asked = append(asked, Question{Known: k})
	}
	if asked == nil {
		return nil, fmt.Errorf("%q: %w", text, ErrQuestion)
	}
	return asked, nil
}

func firstPrefix(e list.Entries) netip.Prefix {
	if len(e.V4) > 0 {
		return e.V4[0].Prefix()
	}
	return e.V6[0]
}

// String says which packets are meant.
func (q Question) String() string {
	if q.Frame != nil {
		p, _ := packet.Parse(q.Frame)
		if !p.HasAddresses {
			return fmt.Sprintf("a frame of %d bytes", len(q.Frame))
		}
		return p.Tuple.Key().String()
	}
	k := q.Known
	switch {
	case k.Tuple():
		return k.String()
	case k.DstBits > 0:
		return "to " + strings.TrimPrefix(k.String(), "> ")
	}
	return "from " + k.String()
}

// prefix reports whether the question is about a prefix of more than one address.
func (q Question) prefix() bool {
	bits := int(max(q.Known.SrcBits, q.Known.DstBits))
	return q.Frame == nil && !q.Known.Tuple() && 0 < bits && bits < q.Known.MaxBits()
}
