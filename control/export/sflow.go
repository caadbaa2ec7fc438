package export

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"weir/filter/verdict"
)

// Samples is the data that is exported as sFlow.
type Samples struct {
	Packets    []Sample
	Lost       uint64 // samples that are missing
	Interfaces []Interface
}

// Sample is a dropped packet.
type Sample struct {
	Interface uint32 // its index
	Out       bool   // it was sent there, otherwise received
	Reason    verdict.Reason
	List      string // that blocks it, "" if none does or it is unknown
	Length    uint32 // of the frame, without its checksum
	Frame     []byte // the first bytes
	OneIn     uint32 // the number of packets that the sample stands for, a power of two
}

// Interface has the counts of an interface.
type Interface struct {
	Index   uint32
	Name    string
	In, Out *Traffic // nil: that direction is not filtered
}

// Traffic has the counts of a direction.
type Traffic struct {
	Bytes           uint64 // of all packets
	Passed, Dropped uint64 // packets
}

func (s *Samples) records() uint64 { return uint64(len(s.Packets) + len(s.Interfaces)) }

// The formats of samples and records (https://sflow.org/sflow_version_5.txt, and
// https://sflow.org/sflow_drops.txt for those of discarded packets).
const (
	flowSample      = 3 // with whole indexes of interfaces, as the next one
	counterSample   = 4
	discardedPacket = 5

	rawHeader   = 1
	extendedACL = 1037

	genericCounters = 1
	portName        = 1005
)

// The values of fields.
const (
	ethernet         = 1 // header protocol
	ethernetCsmacd   = 6 // type of an interface
	bothUp           = 3 // administrative and operational status
	discarded        = 1 // format of an interface: the value is a reason
	checksum         = 4 // bytes of a frame that are received, and not sampled
	headerBytes      = 128
	largestSample    = 512 // bytes, with a header and a list's name
	directionIngress = 1
	directionEgress  = 2
)

// unknown is the value of counters that are not known.
const unknown = 1<<32 - 1

// dropReason returns the reason for which a packet was discarded, in sFlow's terms.
func dropReason(r verdict.Reason) uint32 {
	switch r {
	case verdict.Blocked, verdict.Heavy, verdict.Pattern:
		return 258 // acl
	case verdict.RateLimited, verdict.Policed:
		return 261 // traffic_shaping
	case verdict.NotIP:
		return 270 // non_ip
	case verdict.Malformed:
		return 275 // ip_header_corrupted
	case verdict.Overtagged:
		return 309 // vlan_parsing
	case verdict.Unparsed:
		return 323 // unknown_parsing
	case verdict.Truncated:
		return 324 // pkt_too_small
	}
	return 256 // unknown
}

// sflowSession is the state of an agent towards a collector.
type sflowSession struct {
	c        Collector
	agent    netip.Addr
	began    time.Time
	sequence uint32 // of datagrams
	sources  map[uint32]*dataSource
}

// dataSource is the state of an interface.
type dataSource struct {
	packets, notifications, counters uint32 // samples sent
	pool                             uint64 // packets that could have been sampled
	skipped                          uint64 // of these, those that were not
	used                             bool   // since counters were last sent
}

func newSFlow(c Collector) *sflowSession {
	return &sflowSession{c: c, began: time.Now(), sources: make(map[uint32]*dataSource)}
}

// connected sets the agent's address to that of a connection.
func (s *sflowSession) connected(conn net.Conn) {
	if own, err := netip.ParseAddrPort(conn.LocalAddr().String()); err == nil {
		s.agent = own.Addr().Unmap().WithZone("")
	}
}

func (s *sflowSession) source(index uint32) *dataSource {
	d := s.sources[index]
	if d == nil {
		d = new(dataSource)
		s.sources[index] = d
	}
	d.used = true
	return d
}

// forget removes the interfaces of which nothing was sent since it was last called: they are gone,
// and others may come at any rate.
func (s *sflowSession) forget() {
	maps.DeleteFunc(s.sources, func(_ uint32, d *dataSource) bool { return !d.used })
	for _, d := range s.sources {
		d.used = false
	}
}

// encode returns the datagrams of samples. lost is how many were lost since the session
// began.
func (s *sflowSession) encode(b *Samples, lost uint64, now time.Time) (all []message) {
	var m message
	var header int // bytes before the first sample
	end := func() {
		if m.records > 0 {
			binary.BigEndian.PutUint32(m.bytes[header-4:], uint32(m.records))
			all = append(all, m)
		}
		m = message{}
	}
	put := func(sample []byte) {
		if len(m.bytes)+len(sample) > maxDatagram {
			end()
		}
		if m.records == 0 {
			m.bytes = s.begin(now)
			header = len(m.bytes)
		}
		m.bytes = append(m.bytes, sample...)
		m.records++
	}
	for i := range b.Packets {
		if sample := s.encodePacket(&b.Packets[i], lost); sample != nil {
			put(sample)
		}
	}
	for i := range b.Interfaces {
		put(s.encodeCounters(&b.Interfaces[i]))
	}
	end()
	if len(b.Interfaces) > 0 {
		s.forget()
	}
	return all
}

// begin returns the beginning of a datagram, up to the number of samples.
func (s *sflowSession) begin(now time.Time) []byte {
	const version = 5
	b := u32s(make([]byte, 0, maxDatagram), version)
	if s.agent.Is6() {
		b = u32s(b, 2)
	} else {
		b = u32s(b, 1)
	}
	b = append(b, s.agent.AsSlice()...)
	s.sequence++
	return u32s(b, uint32(s.c.Domain), s.sequence, uint32(now.Sub(s.began).Milliseconds()), 0)
}

// encodePacket returns the sample of a packet, nil if it is not among those that the
// collector is to get.
func (s *sflowSession) encodePacket(p *Sample, lost uint64) []byte {
	d := s.source(p.Interface)
	d.pool += uint64(p.OneIn)
	rate := max(p.OneIn, uint32(s.c.Sampling))
	if rand.Uint32N(rate/p.OneIn) != 0 {
		d.skipped += uint64(p.OneIn)
		return nil
	}
	d.skipped += uint64(p.OneIn) - 1
	in, out, direction := p.Interface, uint32(0), uint32(directionIngress)
	if p.Out {
		in, out, direction = 0, p.Interface, directionEgress
	}

	b := make([]byte, 0, largestSample)
	if s.c.Drops == Notifications {
		d.notifications++
		b = u32s(b, discardedPacket, 0, d.notifications, 0, p.Interface, uint32(d.skipped+lost), in, out, dropReason(p.Reason))
	} else {
		// There is no interface that it leaves by, also if it is dropped there.
		d.packets++
		b = u32s(b, flowSample, 0, d.packets, 0, p.Interface, rate, uint32(d.pool), uint32(lost), 0, in, discarded, dropReason(p.Reason))
	}
	records := uint32(1)
	if p.List != "" {
		records = 2
	}
	b = u32s(b, records)

	header := p.Frame[:min(len(p.Frame), headerBytes)]
	at := len(b)
	b = u32s(b, rawHeader, 0, ethernet, p.Length+checksum, checksum)
	b = endRecord(appendOpaque(b, header), at)
	if p.List != "" {
		at = len(b)
		b = u32s(b, extendedACL, 0, 0)
		b = appendOpaque(b, []byte(p.List[:min(len(p.List), 128)]))
		b = endRecord(u32s(b, direction), at)
	}
	return endRecord(b, 0)
}

// encodeCounters returns the sample of an interface's counters.
func (s *sflowSession) encodeCounters(i *Interface) []byte {
	d := s.source(i.Index)
	d.counters++
	b := u32s(make([]byte, 0, largestSample), counterSample, 0, d.counters, 0, i.Index, 2)

	at := len(b)
	b = u32s(b, genericCounters, 0, i.Index, ethernetCsmacd, 0, 0, 0, bothUp)
	count := func(t *Traffic, more ...uint32) {
		if t == nil {
			b = binary.BigEndian.AppendUint64(b, 1<<64-1)
			b = u32s(b, unknown, unknown, unknown, unknown)
		} else {
			b = binary.BigEndian.AppendUint64(b, t.Bytes)
			b = u32s(b, uint32(t.Passed), unknown, unknown, uint32(t.Dropped))
		}
		b = u32s(b, more...)
	}
	count(i.In, unknown, unknown)  // errors, unknown protocols
	count(i.Out, unknown, unknown) // errors, promiscuous mode
	b = endRecord(b, at)

	at = len(b)
	b = endRecord(appendOpaque(u32s(b, portName, 0), []byte(i.Name)), at)
	return endRecord(b, 0)
}

// endRecord sets the length of a sample or record, which follows its format.
func endRecord(b []byte, at int) []byte {
	binary.BigEndian.PutUint32(b[at+4:], uint32(len(b)-at-8))
	return b
}

func u32s(b []byte, all ...uint32) []byte {
	for _, n := range all {
		b = binary.BigEndian.AppendUint32(b, n)
	}
	return b
}

// appendOpaque appends bytes of variable length.
func appendOpaque(b, value []byte) []byte {
	b = append(u32s(b, uint32(len(value))), value...)
	return append(b, make([]byte, -len(value)&3)...)
}
