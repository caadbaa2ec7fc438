package verdict

import (
	"weir/filter/blocked"
	"weir/filter/hash"
	"weir/filter/key"
	"weir/filter/packet"
)

// ScanDetector makes a tracker count distinct pairs of source and destination instead of
// packets. A Bloom filter remembers the pairs of the interval, and only a packet whose
// pair is new is counted: a tracker of sources then finds those that reach many
// addresses or ports, which are scans, and one of destinations finds those that many
// sources reach.
//
// Of n pairs in a filter of m bits, a new one is taken for a known one with a
// probability of about (1 − e^(−4n/m))⁴. bpf/scan.h is its twin.
type ScanDetector struct {
	V4, V6    key.Shape // of pairs, of the tuple form
	Secret    *hash.Secret
	Ephemeral uint16          // the port from which on hosts connect
	Sources   bool            // the tracker watches sources: answers of servers do not count
	Pairs     *blocked.Filter // of PairBits bits
}

// PairBits is the number of bits that a pair sets in its line.
const PairBits = 4

// Limits of a scan detector: of its threshold in pairs, and of its memory of a window in bytes.
const (
	MinScanThreshold = 2
	MaxScanThreshold = 1 << 20
	MinScanMemory    = 16 << 10
	MaxScanMemory    = 1 << 30
)

// DivideScanMemory divides a scan detector's memory of a window, in bytes: three quarters are lines of
// the filter that remembers pairs, the rest is the bank that counts, which each CPU has.
func DivideScanMemory(memory int) (lines uint32, bank int) {
	bank = memory / 4
	return max(1, uint32(3*bank/lineBytes)), bank
}

const (
	lineBytes = 64
	fullPairs = 154 // a line: 0.7 of its bits are set then, and a new pair is missed with 0.7⁴
)

// ScanPairs returns the number of pairs with which a filter of the given number of lines is
// full, so that a window ends early. Those that were missed do not count.
func ScanPairs(lines uint32) uint64 { return fullPairs * uint64(lines) }

const (
	tcpFlags = 13 // offset in the header
	tcpSYN   = 0x02
	tcpACK   = 0x10

	icmpEchoRequest  = 8
	icmp6EchoRequest = 128
)

// isNew remembers a packet's pair, and reports whether it was new. Only packets that
// may begin a conversation have pairs.
func (g *ScanDetector) isNew(frame []byte, p packet.Packet) bool {
	if !g.mayBegin(frame, p) {
		return false
	}
	t, s := p.Tuple, g.V4
	if t.Src.Is6() {
		s = g.V6
	}
	if !t.HasPorts {
		t.HasPorts, t.SrcPort, t.DstPort = true, 0, 0
	}
	k, _ := s.Of(t) // the family is the shape's, and there are ports
	return !g.Pairs.Observe(k.Hash(g.Secret))
}

// privileged is the port below which servers answer that everybody asks, as of names.
const privileged = 1024

// mayBegin reports whether a packet may begin a conversation. Replies to a host that
// connects to many others would look like a scan of its ports, and so would the answers of
// a name server to a resolver that asks from any port.
func (g *ScanDetector) mayBegin(frame []byte, p packet.Packet) bool {
	switch p.Proto {
	case protoUDP:
		answers := p.SrcPort < privileged && p.DstPort >= privileged
		return p.HasPorts && p.DstPort < g.Ephemeral && !(answers && g.Sources)
	case protoTCP:
		if !p.HasPorts || !p.Plain {
			return p.HasPorts
		}
	case protoICMP, protoICMPv6:
		if !p.Plain {
			return false
		}
	default:
		return false
	}
	header, echo := frame[p.Network:], byte(icmp6EchoRequest)
	length := 40
	if p.Src.Is4() {
		length, echo = int(header[0]&15)*4, icmpEchoRequest
	}
	switch {
	case len(header) <= length+tcpFlags:
		return true
	case p.Proto == protoTCP:
		return header[length+tcpFlags]&(tcpSYN|tcpACK) == tcpSYN
	}
	return header[length] == echo
}
