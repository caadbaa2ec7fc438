package export

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Flow is a number of packets with something in common.
type Flow struct {
	Begin, End       time.Time
	Src, Dst         netip.Prefix // invalid: any
	Proto            uint8
	SrcPort, DstPort uint16
	Packets, Bytes   uint64
	Dropped          bool
	Reason, List     string // of packets of the first domain
	Tracker, Action  string // of heavy hitters
}

// Batch is the data that is exported at the end of an interval as IPFIX, or of a shorter one as
// sFlow.
type Batch struct {
	Time    time.Time
	All     []Flow   // every packet is in exactly one
	Heavy   []Flow   // heavy hitters
	Samples *Samples // not nil: the batch is of sFlow
}

// The enterprise-specific elements, all of them strings.
const (
	elementReason = iota + 1
	elementList
	elementTracker
	elementAction
)

var elementNames = map[uint16]string{
	elementReason: "weirReason", elementList: "weirList", elementTracker: "weirTracker", elementAction: "weirAction",
}

// field is an information element of a template, by its number at IANA.
type field struct {
	element    uint16
	length     uint16 // variable, or in bytes
	enterprise bool
}

const variable = 0xffff

// The elements that records consist of.
var (
	flowStart  = field{152, 8, false} // flowStartMilliseconds
	flowEnd    = field{153, 8, false} // flowEndMilliseconds
	packets    = field{2, 8, false}   // packetDeltaCount
	octets     = field{1, 8, false}   // octetDeltaCount
	forwarding = field{89, 1, false}  // forwardingStatus
	proto      = field{4, 1, false}   // protocolIdentifier
	srcPort    = field{7, 2, false}   // sourceTransportPort
	dstPort    = field{11, 2, false}  // destinationTransportPort
	src4       = field{8, 4, false}   // sourceIPv4Address
	dst4       = field{12, 4, false}  // destinationIPv4Address
	src4Len    = field{9, 1, false}   // sourceIPv4PrefixLength
	dst4Len    = field{13, 1, false}  // destinationIPv4PrefixLength
	src6       = field{27, 16, false} // sourceIPv6Address
	dst6       = field{28, 16, false} // destinationIPv6Address
	src6Len    = field{29, 1, false}  // sourceIPv6PrefixLength
	dst6Len    = field{30, 1, false}  // destinationIPv6PrefixLength
	reason     = field{elementReason, variable, true}
	list       = field{elementList, variable, true}
	tracker    = field{elementTracker, variable, true}
	action     = field{elementAction, variable, true}
)

// template is a template of data records.
type template struct {
	id     uint16
	fields []field
}

// The templates. A record of packets that have no address in common is of the family
// IPv4, with the address 0.0.0.0/0, since collectors ignore records without addresses.
var (
	all4   = template{256, []field{flowStart, flowEnd, src4, src4Len, dst4, dst4Len, packets, octets, forwarding, reason, list}}
	all6   = template{257, []field{flowStart, flowEnd, src6, src6Len, dst6, dst6Len, packets, octets, forwarding, reason, list}}
	heavy4 = template{258, []field{flowStart, flowEnd, src4, src4Len, dst4, dst4Len, proto, srcPort, dstPort, packets, octets, tracker, action}}
	heavy6 = template{259, []field{flowStart, flowEnd, src6, src6Len, dst6, dst6Len, proto, srcPort, dstPort, packets, octets, tracker, action}}
)

// The templates of options: how packets are sampled, which they are not, and the types
// of weir's own elements (RFC 5610).
const (
	samplingTemplate = 260
	typesTemplate    = 261
)

// The numbers of sets that contain templates, and the length of headers.
const (
	templateSet        = 2
	optionsTemplateSet = 3
	messageHeader      = 16
	setHeader          = 4
)

// The most bytes of a message. Over UDP it is not to be fragmented.
const (
	maxDatagram = 1400
	maxMessage  = 16 << 10
)

// message is an encoded message.
type message struct {
	bytes   []byte
	records int // data records of flows, or samples
}

// session is the state of a transport session with a collector.
type session struct {
	c        Collector
	most     int // bytes of a message
	sequence map[uint32]uint32
	taught   time.Time // when templates were last sent; zero: never
}

func newSession(c Collector) *session {
	s := &session{c: c, most: maxMessage, sequence: make(map[uint32]uint32)}
	if c.IPFIX.Scheme() == "udp" {
		s.most = maxDatagram
	}
	return s
}

// encode returns the messages of a batch, with templates before them where they are
// due: at the begin of a session, and over UDP again and again.
func (s *session) encode(b Batch, now time.Time) []message {
	teach := s.taught.IsZero() || s.most == maxDatagram && now.Sub(s.taught) >= time.Duration(s.c.Templates)
	if teach {
		s.taught = now
	}
	domain := uint32(s.c.Domain)
	return append(s.encodeDomain(domain, [2]template{all4, all6}, b.All, teach, now),
		s.encodeDomain(domain+1, [2]template{heavy4, heavy6}, b.Heavy, teach, now)...)
}

func (s *session) encodeDomain(domain uint32, families [2]template, flows []Flow, teach bool, now time.Time) (all []message) {
	m := s.begin(domain, now)
	options := 0
	end := func() {
		if len(m.bytes) > messageHeader {
			binary.BigEndian.PutUint16(m.bytes[2:], uint16(len(m.bytes)))
			all = append(all, m)
			s.sequence[domain] += uint32(m.records + options)
		}
		m, options = s.begin(domain, now), 0
	}
	if teach {
		m.bytes, options = s.appendTemplates(m.bytes, domain, families)
		end()
	}
	for i, t := range families {
		set := -1 // offset of the one under way
		for _, f := range flows {
			if f.v6() != (i == 1) {
				continue
			}
			record := t.encode(f)
			if set >= 0 && len(m.bytes)+len(record) > s.most {
				end()
				set = -1
			}
			if set < 0 {
				if len(m.bytes)+setHeader+len(record) > s.most {
					end()
				}
				set = len(m.bytes)
				m.bytes = append(m.bytes, byte(t.id>>8), byte(t.id), 0, 0)
			}
			m.bytes = append(m.bytes, record...)
			m.records++
			binary.BigEndian.PutUint16(m.bytes[set+2:], uint16(len(m.bytes)-set))
		}
	}
	end()
	return all
}

func (s *session) begin(domain uint32, now time.Time) message {
	b := make([]byte, 0, 512)
	b = binary.BigEndian.AppendUint16(b, 10) // version
	b = binary.BigEndian.AppendUint16(b, 0)  // length
	b = binary.BigEndian.AppendUint32(b, uint32(now.Unix()))
	b = binary.BigEndian.AppendUint32(b, s.sequence[domain])
	return message{bytes: binary.BigEndian.AppendUint32(b, domain)}
}

// appendTemplates appends the templates, and the records of options, of which it
// returns the number.
func (s *session) appendTemplates(b []byte, domain uint32, families [2]template) (_ []byte, records int) {
	set := func(id uint16, body ...byte) {
		b = binary.BigEndian.AppendUint16(b, id)
		b = binary.BigEndian.AppendUint16(b, uint16(setHeader+len(body)))
		b = append(b, body...)
	}
	var body []byte
	for _, t := range families {
		body = binary.BigEndian.AppendUint16(body, t.id)
		body = binary.BigEndian.AppendUint16(body, uint16(len(t.fields)))
		for _, f := range t.fields {
			body = s.appendField(body, f)
		}
	}
	set(templateSet, body...)

	options := func(id uint16, scopes int, fields ...field) (body []byte) {
		body = binary.BigEndian.AppendUint16(body, id)
		body = binary.BigEndian.AppendUint16(body, uint16(len(fields)))
		body = binary.BigEndian.AppendUint16(body, uint16(scopes))
		for _, f := range fields {
			body = s.appendField(body, f)
		}
		return body
	}
	set(optionsTemplateSet, options(samplingTemplate, 1,
		field{149, 4, false},     // observationDomainId
		field{304, 2, false},     // selectorAlgorithm
		field{305, 4, false},     // samplingPacketInterval
		field{306, 4, false})...) // samplingPacketSpace
	// In another set, since pmacct reads only the first template of one.
	set(optionsTemplateSet, options(typesTemplate, 2,
		field{346, 4, false},            // privateEnterpriseNumber
		field{303, 2, false},            // informationElementId
		field{339, 1, false},            // informationElementDataType
		field{344, 1, false},            // informationElementSemantics
		field{341, variable, false})...) // informationElementName

	// Systematic count-based sampling, of every packet.
	body = binary.BigEndian.AppendUint32(nil, domain)
	body = binary.BigEndian.AppendUint16(body, 1)
	body = binary.BigEndian.AppendUint32(body, 1)
	body = binary.BigEndian.AppendUint32(body, 0)
	set(samplingTemplate, body...)
	body = nil
	for _, f := range families[0].fields {
		if f.enterprise {
			const text, semantics = 13, 0
			body = binary.BigEndian.AppendUint32(body, uint32(s.c.Enterprise))
			body = binary.BigEndian.AppendUint16(body, f.element)
			body = appendText(append(body, text, semantics), elementNames[f.element])
			records++
		}
	}
	set(typesTemplate, body...)
	return b, records + 1
}

func (s *session) appendField(b []byte, f field) []byte {
	const enterprise = 1 << 15
	if f.enterprise {
		b = binary.BigEndian.AppendUint16(b, f.element|enterprise)
		b = binary.BigEndian.AppendUint16(b, f.length)
		return binary.BigEndian.AppendUint32(b, uint32(s.c.Enterprise))
	}
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, f.element), f.length)
}

// The values of forwardingStatus.
const (
	forwarded = 0b01 << 6   // for an unknown reason
	dropped   = 0b10<<6 | 1 // by an access list
)

// encode returns a record.
func (t template) encode(f Flow) (b []byte) {
	for _, e := range t.fields {
		switch e {
		case flowStart:
			b = binary.BigEndian.AppendUint64(b, uint64(f.Begin.UnixMilli()))
		case flowEnd:
			b = binary.BigEndian.AppendUint64(b, uint64(f.End.UnixMilli()))
		case packets:
			b = binary.BigEndian.AppendUint64(b, f.Packets)
		case octets:
			b = binary.BigEndian.AppendUint64(b, f.Bytes)
		case forwarding:
			status := byte(forwarded)
			if f.Dropped {
				status = dropped
			}
			b = append(b, status)
		case proto:
			b = append(b, f.Proto)
		case srcPort:
			b = binary.BigEndian.AppendUint16(b, f.SrcPort)
		case dstPort:
			b = binary.BigEndian.AppendUint16(b, f.DstPort)
		case src4, src6:
			b = appendAddress(b, f.Src, e.length)
		case dst4, dst6:
			b = appendAddress(b, f.Dst, e.length)
		case src4Len, src6Len:
			b = append(b, byte(max(f.Src.Bits(), 0)))
		case dst4Len, dst6Len:
			b = append(b, byte(max(f.Dst.Bits(), 0)))
		case reason:
			b = appendText(b, f.Reason)
		case list:
			b = appendText(b, f.List)
		case tracker:
			b = appendText(b, f.Tracker)
		case action:
			b = appendText(b, f.Action)
		}
	}
	return b
}

func (f *Flow) v6() bool {
	return f.Src.IsValid() && f.Src.Addr().Is6() || f.Dst.IsValid() && f.Dst.Addr().Is6()
}

func appendAddress(b []byte, p netip.Prefix, length uint16) []byte {
	if !p.IsValid() {
		return append(b, make([]byte, length)...)
	}
	return append(b, p.Addr().AsSlice()...)
}

// appendText appends a string of variable length, the beginning of a long one.
func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), 254)]
	return append(append(b, byte(len(s))), s...)
}
