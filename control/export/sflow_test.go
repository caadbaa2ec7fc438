package export

import (
	"encoding/binary"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"weir/filter/verdict"
)

func agent(c Collector) *sflowSession {
	c.IPFIX, c.SFlow = "", "udp://192.0.2.1:6343"
	s := newSFlow(c)
	s.agent = netip.MustParseAddr("192.0.2.9")
	return s
}

func samplesOf(n int, oneIn uint32) *Samples {
	b := new(Samples)
	for i := range n {
		b.Packets = append(b.Packets, Sample{
			Interface: 7, Reason: verdict.Blocked, List: strings.Repeat("x", i%140), Length: 1000 + uint32(i), OneIn: oneIn, Frame: make([]byte, i%(headerBytes+20)),
		})
	}
	return b
}

// decode returns the datagram of a message, as another decoder reads it.
func decode(t *testing.T, m message) layers.SFlowDatagram {
	t.Helper()
	var d layers.SFlowDatagram
	if err := d.DecodeFromBytes(m.bytes, gopacket.NilDecodeFeedback); err != nil {
		t.Fatalf("%v: %x", err, m.bytes)
	}
	return d
}

// Another decoder reads all samples, with the right rate, pool and losses.
func TestSFlowSamples(t *testing.T) {
	s := agent(collector(""))
	b := samplesOf(500, 8)
	for i := range b.Packets {
		b.Packets[i].List = "" // which the decoder does not know
	}
	var samples, datagrams int
	for _, m := range s.encode(b, 42, time.Now()) {
		if len(m.bytes) > maxDatagram {
			t.Fatalf("a datagram of %d bytes", len(m.bytes))
		}
		d := decode(t, m)
		if datagrams++; d.DatagramVersion != 5 || d.AgentAddress.String() != "192.0.2.9" || d.SubAgentID != 1 || int(d.SequenceNumber) != datagrams {
			t.Fatalf("%+v", d)
		}
		for _, f := range d.FlowSamples {
			if samples++; int(f.SequenceNumber) != samples || f.SourceIDIndex != 7 || f.SamplingRate != 8 || int(f.SamplePool) != 8*samples || f.Dropped != 42 ||
				f.InputInterface != 7 || f.OutputInterfaceFormat != discarded || f.OutputInterface != 258 {
				t.Fatalf("%+v", f)
			}
			r, ok := f.Records[0].(layers.SFlowRawPacketFlowRecord)
			if i := samples - 1; !ok || int(r.FrameLength) != 1000+i+checksum || r.PayloadRemoved != checksum || int(r.HeaderLength) != min(i%(headerBytes+20), headerBytes) {
				t.Fatalf("%d: %+v", i, f.Records)
			}
		}
	}
	if samples != 500 {
		t.Errorf("%d samples", samples)
	}
}

// A collector that wants fewer samples than there are gets a random share, whose
// rates add up to the number of packets; one that wants more gets what there is.
func TestSFlowSampling(t *testing.T) {
	const n, rate = 40_000, 16
	c := collector("")
	c.Sampling = rate
	s, got := agent(c), 0
	for range n / 100 {
		for _, m := range s.encode(samplesOf(100, 2), 0, time.Now()) {
			got += m.records
		}
	}
	// Each is kept with a probability of 1/8: six standard deviations.
	if want := n / 8.; math.Abs(float64(got)-want) > 6*math.Sqrt(want) {
		t.Errorf("%d samples of %d, want some %v", got, n, want)
	}
	if m := s.encode(samplesOf(3, 64), 0, time.Now()); len(m) != 1 || m[0].records != 3 {
		t.Errorf("%+v", m)
	} else if u32 := binary.BigEndian.Uint32; u32(m[0].bytes[28+20:]) != 64 {
		t.Errorf("the rate is %d", u32(m[0].bytes[28+20:]))
	}
}

// What is dropped for a reason of its own has a number of its own, by the registry of sFlow.
func TestDropReasons(t *testing.T) {
	const unknown, acl, shaping = 256, 258, 261
	same := map[verdict.Reason]uint32{
		verdict.Blocked: acl, verdict.Heavy: acl, verdict.Pattern: acl, verdict.RateLimited: shaping, verdict.Policed: shaping, verdict.Looped: unknown,
	}
	used := make(map[uint32]verdict.Reason)
	for r := range verdict.NumReasons {
		got := dropReason(r)
		if want, ok := same[r]; ok && got != want {
			t.Errorf("%v has the number %d, want %d", r, got, want)
		} else if other, twice := used[got]; !ok && got != unknown && twice {
			t.Errorf("%v and %v have the number %d", r, other, got)
		}
		used[got] = r
	}
}

// words reads a datagram behind its header as sflow_drops.txt describes it.
func words(b []byte) (all []uint32) {
	for ; len(b) >= 4; b = b[4:] {
		all = append(all, binary.BigEndian.Uint32(b))
	}
	return all
}

// A notification of a discarded packet has the number of those that were not reported,
// the reason and the list.
func TestSFlowNotifications(t *testing.T) {
	c := collector("")
	c.Drops = Notifications
	s := agent(c)
	b := &Samples{Packets: []Sample{
		{Interface: 7, Reason: verdict.RateLimited, Length: 60, OneIn: 4, Frame: []byte{1, 2, 3, 4, 5}},
		{Interface: 7, Out: true, Reason: verdict.Blocked, List: "spam!", Length: 60, OneIn: 1},
	}}
	all := s.encode(b, 10, time.Now())
	if len(all) != 1 || all[0].records != 2 {
		t.Fatalf("%+v", all)
	}
	got := words(all[0].bytes[28:])
	want := []uint32{
		5, 32 + 8 + 24, 1, 0, 7, 3 + 10, 7, 0, 261, 1, 1, 24, 1, 64, 4, 5, 0x01020304, 0x05000000,
		5, 32 + 8 + 16 + 8 + 20, 2, 0, 7, 3 + 10, 0, 7, 258, 2, 1, 16, 1, 64, 4, 0, 1037, 20, 0, 5, 0x7370616d, 0x21000000, 2,
	}
	if len(got) != len(want) {
		t.Fatalf("got  %v\nwant %v", got, want)
	}
	for i, n := range want {
		if got[i] != n {
			t.Fatalf("word %d is %d:\ngot  %v\nwant %v", i, got[i], got, want)
		}
	}
}

// Counters of a direction that is not filtered are unknown; others wrap at 2^32.
func TestSFlowCounters(t *testing.T) {
	b := &Samples{Interfaces: []Interface{{Index: 3, Name: "eth0", In: &Traffic{Bytes: 1 << 40, Passed: 1<<32 + 5, Dropped: 7}}}}
	all := agent(collector("")).encode(b, 0, time.Now())
	if len(all) != 1 {
		t.Fatal(all)
	}
	w := words(all[0].bytes[28:])
	if length := w[1]; w[0] != counterSample || int(length) != 4*(len(w)-2) || w[4] != 3 || w[5] != 2 {
		t.Fatalf("%v", w)
	}
	c := w[8:]
	if c[0] != 3 || c[6] != 1<<8 || c[7] != 0 || c[8] != 5 || c[9] != unknown || c[11] != 7 || c[14] != unknown || c[16] != unknown || c[19] != unknown {
		t.Errorf("%v", c)
	}
	if name := string(all[0].bytes[len(all[0].bytes)-4:]); name != "eth0" {
		t.Errorf("%q", name)
	}
}

// An interface that is gone is forgotten; one that is not counted, but drops packets, stays.
func TestSFlowForgetsInterfaces(t *testing.T) {
	s := agent(collector(""))
	for index := range uint32(1000) {
		for _, b := range []*Samples{
			{Interfaces: []Interface{{Index: 5000}, {Index: 10_000 + index}}},
			samplesOf(1, 1),
		} {
			if len(s.encode(b, 0, time.Now())) != 1 {
				t.Fatal("no datagram")
			}
		}
	}
	if len(s.sources) > 5 {
		t.Errorf("%d interfaces are kept", len(s.sources))
	}
	if n := s.source(7).packets; n != 1000 {
		t.Errorf("%d packets of an interface that is not counted", n)
	}
	if n := s.source(5000).counters; n != 1000 {
		t.Errorf("%d counters of an interface that stays", n)
	}
}
