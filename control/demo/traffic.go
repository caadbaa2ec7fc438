package demo

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"

	"weir/control/capture"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
)

// kind is the expected treatment of a packet.
type kind uint8

const (
	unlisted   kind = iota // it passes
	listed                 // it is dropped
	allowedToo             // listed, and it passes, because an allow list has it as well
	numKinds
)

// frame is a packet to send.
type frame struct {
	kind
	data []byte // an Ethernet frame
}

const (
	trafficFrames = 1 << 16 // different ones, sent over and over
	minFrame      = 60      // Ethernet without its checksum
	maxFrame      = 1514
)

// traffic is the frames that the demo sends.
type traffic struct {
	frames  []frame
	counts  [numKinds]int
	sources map[netip.Addr]bool // of unlisted frames
	longest int
}

func newTraffic() *traffic { return &traffic{sources: make(map[netip.Addr]bool)} }

func (t *traffic) add(k kind, data []byte) {
	t.frames = append(t.frames, frame{k, data})
	t.counts[k]++
	t.longest = max(t.longest, len(data))
}

func (t *traffic) addTuple(k kind, tuple key.Tuple) {
	data := packet.Frame(tuple)
	if short := minFrame - len(data); short > 0 {
		data = append(data, make([]byte, short)...)
	}
	if k == unlisted {
		t.sources[tuple.Src] = true
	}
	t.add(k, data)
}

// makeTraffic draws frames of all kinds, about two thirds of them listed. Among
// those that are not are near misses: neighbours of listed addresses,
// and listed flows turned round or with another port.
func makeTraffic(l *lists, r *rand.Rand) (*traffic, error) {
	t := newTraffic()
	for tries := 0; len(t.frames) < trafficFrames; tries++ {
		if tries > 20*trafficFrames {
			return nil, errors.New("the lists leave no room for unlisted traffic")
		}
		var tuple key.Tuple
		want := listed
		switch in := r.IntN(16); {
		case in < 11:
			tuple = l.listedTuple(r)
		case in < 13:
			tuple, want = l.nearMiss(r), unlisted
		case in < 14:
			tuple, want = anyTuple(random4(r), random4(r), r), unlisted
		case in < 15:
			tuple, want = anyTuple(random6(r), random6(r), r), unlisted
		case len(l.allow) > 0:
			tuple, want = anyTuple(l.allow[r.IntN(len(l.allow))], random4(r), r), allowedToo
		default:
			continue
		}
		// By chance a listed source may be allowed, an unlisted one listed, and
		// ports those of DHCP.
		if l.expect(tuple) == want {
			t.addTuple(want, tuple)
		}
	}
	return t, nil
}

// expect returns the expected outcome of a packet.
func (l *lists) expect(t key.Tuple) kind {
	if !l.blocked.listed(t) || passesFirst(packet.Frame(t)) {
		return unlisted
	}
	if slices.Contains(l.allow, t.Src) {
		return allowedToo
	}
	return listed
}

// passesFirst reports whether a frame passes before any list is consulted.
func passesFirst(frame []byte) bool {
	switch new(verdict.Program).Decide(frame).Reason {
	case verdict.ARP, verdict.ND, verdict.DHCP, verdict.NotIP, verdict.Link:
		return true
	}
	return false
}

// listedTuple returns a packet that an entry of the block lists matches.
func (l *lists) listedTuple(r *rand.Rand) key.Tuple {
	for {
		switch r.IntN(4) {
		case 0, 1:
			if n := len(l.block.V4); n > 0 {
				return anyTuple(inside4(l.block.V4[r.IntN(n)], r), random4(r), r)
			}
		case 2:
			if n := len(l.block.V6); n > 0 {
				return anyTuple(inside6(l.block.V6[r.IntN(n)], r), random6(r), r)
			}
		case 3:
			if n := len(l.block.Flows); n > 0 {
				return inFlow(l.block.Flows[r.IntN(n)], r)
			}
		}
	}
}

// nearMiss returns a packet that is nearly listed.
func (l *lists) nearMiss(r *rand.Rand) key.Tuple {
	t := l.listedTuple(r)
	switch r.IntN(4) {
	case 0:
		t.Src = t.Src.Next()
	case 1:
		t.Src = t.Src.Prev()
	case 2:
		t.Src, t.Dst, t.SrcPort, t.DstPort = t.Dst, t.Src, t.DstPort, t.SrcPort
	case 3:
		t.DstPort++
	}
	if !t.Src.IsValid() { // there is none after the last one
		t.Src = t.Dst
	}
	return t
}

func anyTuple(src, dst netip.Addr, r *rand.Rand) key.Tuple {
	proto := uint8(6)
	if r.IntN(2) == 0 {
		proto = 17
	}
	return key.Tuple{
		Src: src, Dst: dst, Proto: proto,
		HasPorts: true, SrcPort: uint16(1024 + r.IntN(60000)), DstPort: uint16(1 + r.IntN(1023)),
	}
}

// inFlow returns a packet that a flow matches.
func inFlow(k key.Key, r *rand.Rand) key.Tuple {
	var t key.Tuple
	if k.V6() {
		t = anyTuple(inside6(netip.PrefixFrom(k.Src, int(k.SrcBits)), r), inside6(netip.PrefixFrom(k.Dst, int(k.DstBits)), r), r)
	} else {
		t = anyTuple(within4(k.Src, k.SrcBits, r), within4(k.Dst, k.DstBits, r), r)
	}
	if k.Fields&key.FieldProto != 0 {
		t.Proto = k.Proto
		t.HasPorts = key.HasPorts(k.Proto)
	}
	if k.Fields&key.FieldSrcPort != 0 {
		t.SrcPort = k.SrcPort
	}
	if k.Fields&key.FieldDstPort != 0 {
		t.DstPort = k.DstPort
	}
	return t
}

func within4(a netip.Addr, bits uint8, r *rand.Rand) netip.Addr {
	b := a.As4()
	for i := int(bits); i < 32; i++ {
		b[i/8] |= byte(r.Uint32()&1) << (7 - i%8)
	}
	return netip.AddrFrom4(b)
}

// readTraffic reads up to trafficFrames frames of a capture. Frames longer than
// the wire's MTU are skipped.
func readTraffic(file string, l *lists) (*traffic, error) {
	c, err := capture.Open(file)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	t := newTraffic()
	for len(t.frames) < trafficFrames {
		p, err := c.Next()
		if err == io.EOF || errors.Is(err, capture.ErrTruncated) {
			break
		}
		if err != nil {
			return nil, err
		}
		if len(p.Data) < 14 || len(p.Data) > maxFrame {
			continue
		}
		k := unlisted
		if parsed, _ := packet.Parse(p.Data); parsed.HasAddresses && !passesFirst(p.Data) {
			k = l.expect(parsed.Tuple)
			t.sources[parsed.Src] = true
		}
		t.add(k, append([]byte(nil), p.Data...))
	}
	if len(t.frames) == 0 {
		return nil, fmt.Errorf("%s: no packet to send", file)
	}
	return t, nil
}
