package contract

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"

	"weir/control/engine"
	"weir/control/stage/sampler"
	"weir/filter/flood"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/seed"
)

// sampled returns the records of the packets since it was called last, and takes all from now on.
func sampled(p *sampler.Part) []sampler.Record {
	p.Exchange(1)
	return p.Read()
}

// sampledOf is the record of a frame that left for a reason.
func sampledOf(frame []byte, length int, reason verdict.Reason) (r sampler.Record) {
	r.Record, r.IP = flood.Of(frame, length)
	r.Weight, r.Frame, r.Reason = 1, uint32(length), uint8(reason)
	return r
}

// The records of random frames equal those that flood.Of reads from them, with the reason for which they
// leave: on the lean path and the general one, at TC, in split frames.
func TestSampledFrames(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	r := newRandom(t)
	ways := make(map[string]int)
	missing := func() (all []string) {
		for _, way := range []string{
			"lean clean", "lean blocked", "lean would-block", "lean leaves", "general", "tc", "split", "tunnel",
			"no IP", "TCP", "UDP", "ICMP", "other", "first fragment", "later fragment", "IPv6 fragment", "extension", "payload",
		} {
			if ways[way] == 0 {
				all = append(all, way)
			}
		}
		return all
	}
	for i := 0; i < 8 || i < 60 && missing() != nil; i++ {
		round := newRound(t)
		lists := r.leanLists(membership.Exact, engine.Source)
		c := r.config(2 * i)
		c.Monitor, c.NoLean, c.Inner = i%3 == 1, i%4 == 3, i%4 == 3
		if i%2 == 0 {
			lists = lists[:1] // what it matches is dropped at once
			lists[0].Allow = false
			c.FailsafePorts, c.FailsafePrefixes, c.FailsafeICMP = nil, nil, nil
		}
		part := new(sampler.Part)
		c.Parts = []engine.Part{part}
		var decide func([]byte) (verdict.Outcome, bool)
		lean := false
		if i%5 == 4 {
			e := tcEntries(round, lists, c, "in")[0]
			decide = func(frame []byte) (verdict.Outcome, bool) {
				ways["tc"]++
				return e.agree(t, frame)
			}
		} else {
			g, k := engines(round, lists, c)
			lean = len(g.General()) == 0
			decide = func(frame []byte) (o verdict.Outcome, ok bool) {
				var err error
				if first := r.IntN(len(frame) + 1); first < 60 && r.IntN(2) == 0 && len(frame) > 64 {
					if o, err = k.DecideSplit(frame, first); err == nil {
						ways["split"]++
						return o, true
					}
				}
				if o, err = agree(g, k, frame); err != nil {
					t.Fatalf("%v: % x", err, frame)
				}
				return o, true
			}
		}
		sampled(part)
		for range 1500 {
			frame := r.packetOnLeanPath()
			if r.IntN(3) == 0 {
				frame = r.mutate(packet.Frame(r.tuple()))
			}
			for at := range frame[min(34, len(frame)):] { // flags, windows, payloads
				if at > 3 && r.IntN(4) == 0 {
					frame[34+at] = byte(r.IntN(256))
				}
			}
			o, ok := decide(frame)
			got := sampled(part)
			if i%5 == 4 {
				frame = frame[:min(len(frame), tcPage)]
			}
			if len(got) == 0 && (!ok || len(frame) < 14 || i%5 == 4 && len(frame) < 14+40) {
				continue // the reference has answered
			}
			if len(got) != 1 {
				t.Fatalf("%d records of a packet of %d bytes: % x", len(got), len(frame), frame)
			}
			want := sampledOf(frame, len(frame), o.Reason)
			got[0].Interface = 0
			if got[0] != want {
				t.Fatalf("round %d, lean %t\nprogram   %+v\nreference %+v\n% x", i, lean, got[0], want, frame[:min(len(frame), 200)])
			}
			count(ways, &want, lean, o, frame)
		}
		round.end()
	}
	t.Log(ways)
	for _, way := range missing() {
		t.Errorf("no packet of %q: the test is too narrow", way)
	}
}

// count counts what a packet is.
func count(ways map[string]int, r *sampler.Record, lean bool, o verdict.Outcome, frame []byte) {
	p, _ := packet.Parse(frame)
	for way, is := range map[string]bool{
		"no IP": !r.IP, "general": !lean, "tunnel": !lean && p.Tunnel() != packet.NoTunnel,
		"TCP": r.Protocol == 6 && r.Flags != 0, "UDP": r.Protocol == 17, "ICMP": r.IP && (r.Protocol == 1 || r.Protocol == 58) && r.SrcPort != 0,
		"other": r.IP && r.Protocol == 47, "first fragment": r.Fragment == flood.FirstFragment, "later fragment": r.Fragment == flood.LaterFragment,
		"IPv6 fragment": !r.IPv4 && r.Fragment != flood.Whole, "payload": r.Payload != [4]byte{},
		"extension":                 r.IP && !r.IPv4 && p.Payload > p.Network+40,
		"lean " + o.Reason.String(): lean,
		"lean leaves":               lean && (o.Reason == verdict.Allowed || o.Reason == verdict.Failsafe),
	} {
		if is {
			ways[way]++
		}
	}
}

// Records stand for equally many packets, so that shares are right also where the traffic has
// grown a hundredfold since the last exchange, and the sum of weights is the number of packets.
// The bar: of 1,000 keys, those above 1.25 % are found, and none below 0.8 % is reported to have
// 1 %, in the records of ten seconds.
func TestSampledShares(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	seed.Secrets(t)
	part := new(sampler.Part)
	_, k := engines(t, nil, engine.Config{Parts: []engine.Part{part}})
	frame := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr("10.0.0.0"), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 53,
	})
	rng := rand.New(rand.NewPCG(5, 8))
	for name, of := range map[string]struct {
		n       uint32
		packets int
		flips   int
	}{"one in three": {3, 11_000, 9}, "full banks": {1, 16_000, 9}} {
		const keys = 1000
		var weights, squares float64
		var counted, sent [keys]float64
		part.Exchange(of.n)
		for range of.flips {
			for i := range of.packets {
				// 30 of the keys have 1.3 % each, 40 have 0.78 %. Those of the second half are others, of which
				// none must be favoured.
				sender := i / (of.packets / 2) * keys / 2
				switch u := rng.Float64(); {
				case u < 30*0.013:
					sender += rng.IntN(15)
				case u < 30*0.013+40*0.0078:
					sender += 15 + rng.IntN(20)
				default:
					sender += 35 + rng.IntN(keys/2-35)
				}
				binary.BigEndian.PutUint16(frame[28:], uint16(sender))
				if _, err := k.Decide(frame); err != nil {
					t.Fatal(err)
				}
				sent[sender]++
			}
			part.Exchange(of.n)
			for _, r := range part.Read() {
				weights += r.Weight
				squares += r.Weight * r.Weight
				counted[binary.BigEndian.Uint16(r.Src[14:])] += r.Weight
			}
		}
		all := float64(of.packets * of.flips)
		records := weights * weights / squares
		t.Logf("%s: %.0f records, weights %.0f of %.0f packets", name, records, weights, all)
		if math.Abs(weights/all-1) > 0.02 {
			t.Errorf("%s: the records stand for %.0f packets of %.0f", name, weights, all)
		}
		large, small := 0, 0
		for b, n := range sent {
			share, got := n/all, counted[b]/weights
			if bound := 4.5 * math.Sqrt(share*(1-share)/records); share > 0.005 && math.Abs(got-share) > bound {
				t.Errorf("%s: key %d has a share of %.4f, by its records %.4f ± %.4f", name, b, share, got, bound)
			}
			if share >= 0.0125 {
				large++
			} else if share <= 0.008 {
				small++
			}
			if share >= 0.0125 && got < 0.01 || share <= 0.008 && got >= 0.01 {
				t.Errorf("%s: key %d has a share of %.4f, by its records %.4f", name, b, share, got)
			}
		}
		if large < 15 || small < keys-50 {
			t.Errorf("%s: %d keys are large, %d small: the test is too narrow", name, large, small)
		}
	}
}
