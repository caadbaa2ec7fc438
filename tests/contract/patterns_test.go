package contract

import (
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/quantity"
	"weir/control/stage/police"
	"weir/filter/flood"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
)

// frameOfFields returns a frame in the small world whose fields differ, also behind extension headers and
// in fragments.
func (r random) frameOfFields() []byte {
	f := packet.Frame(r.tuple())
	if f[12] == 0x86 {
		f[14+7] = byte(r.pick(1, 64, 255))
	} else {
		f[14+8] = byte(r.pick(1, 64, 255))
		if r.IntN(4) == 0 {
			f[14+6] |= byte(r.pick(0x20, 0, 0x1f))
		}
	}
	f = append(f, make([]byte, r.pick(0, 1, 4, 20, 200))...)
	for i := range 30 {
		if at := 14 + 20 + i; r.IntN(3) == 0 && at < len(f) && i >= 4 {
			f[at] = byte(r.pick(0, 2, 16, 0x50, 255))
		}
	}
	switch r.IntN(3) {
	case 0:
		return r.extend(f)
	case 1:
		return r.mutate(f)
	}
	return f
}

// pattern draws a pattern that some packets of the small world match, and often the given one.
func (r random) pattern(like []byte) (p police.Pattern) {
	of, ok := flood.Of(like, len(like))
	var u flood.Rule
	for u.Conditions == nil {
		for f := range flood.Field(flood.DestinationPrefix + 1) {
			if r.IntN(4) > 0 {
				continue
			}
			c := flood.Condition{Field: f}
			switch f {
			case flood.SourcePrefix, flood.DestinationPrefix:
				a := of.Destination()
				if f == flood.SourcePrefix {
					a = of.Source()
				}
				if !ok {
					continue
				}
				c.Prefix = netip.PrefixFrom(a, r.pick(0, 8, a.BitLen()-9, a.BitLen()-5, a.BitLen())).Masked()
			default:
				c.Lo = of.Value(f)
				if c.Lo > 1<<16 && f != flood.Payload || c.Lo == 0 {
					continue
				}
				c.Hi = c.Lo
				if f == flood.Flags && r.IntN(2) == 0 {
					if mask := uint8(r.IntN(255)); mask != 0 {
						c.Mask, c.Lo = mask, c.Lo&uint32(mask)
						c.Hi = c.Lo
					}
				}
				if f == flood.Length || f == flood.TTL || f == flood.SourcePort {
					c.Lo, c.Hi = c.Lo/2, c.Hi+uint32(r.IntN(20))
				}
			}
			u.Conditions = append(u.Conditions, c)
		}
		if !ok && u.Conditions == nil {
			u.Conditions = []flood.Condition{{Field: flood.Protocol, Lo: 6, Hi: 6}}
		}
	}
	p = police.Pattern{Rule: u, Rate: quantity.Rate{Unit: quantity.Packets}, Trial: r.IntN(4) == 0}
	if r.IntN(3) == 0 {
		p.Rate = quantity.Rate{Value: 1e-3, Unit: quantity.Unit(r.pick(int(quantity.Packets), int(quantity.Bytes)))}
		p.Rule.Per = r.per(r.IntN(4))
	}
	if r.IntN(8) == 0 {
		p.Until = time.Now().Add(-time.Second)
	}
	return p
}

// per returns who shares a rate.
func (r random) per(by int) flood.Per {
	return []flood.Per{{}, {Sharing: flood.SharedBySource, Bits: r.pick(8, 20, 24, 31, 32)}, {Sharing: flood.SharedByDestination}, {Sharing: flood.SharedByFlow}}[by]
}

// Programs drop the packets of patterns as the twin does, beside all else, by XDP and by TC, on the lean
// path and beside it, wherever the first buffer of a frame ends, and count the same of each pattern.
func TestPatterns(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	seen, matched, dropped := make(map[verdict.Reason]int), 0, 0
	shared := make(map[flood.Sharing]int) // packets dropped
	for i := range long.Or(12, 120) {
		lists := []engine.List{{Name: "block", Contents: r.entries(100 * (i % 2)).Set()}, {Name: "allow", Allow: true, Contents: r.entries(50 * (i / 2 % 2)).Set()}}
		c := r.config(i)
		c.Policy.Monitor = c.Policy.Monitor && i%2 == 1
		if i%3 == 0 {
			lists = r.leanLists(c.Mode, engine.Source, engine.Source, engine.Destination, engine.Both)
		}
		var frames [][]byte
		for range 1500 {
			f := r.frameOfFields()
			if i%3 == 0 && r.IntN(2) == 0 {
				f = r.packetOnLeanPath()
			}
			frames = append(frames, f[:min(len(f), tcPage)])
		}
		var patterns []police.Pattern
		// More packets of some flows than a rate has room for, with each sort of sharing.
		patterns = append(patterns, police.Pattern{
			Rule: flood.Rule{Conditions: []flood.Condition{{Field: flood.Protocol, Lo: 17, Hi: 17}}, Per: r.per((i + i/4) % 4)},
			Rate: quantity.Rate{Value: 1e-3, Unit: quantity.Packets},
		})
		for n := range 16 {
			flow := r.tuple()
			if n%2 == 0 { // in no list
				flow.Src, flow.Dst = netip.AddrFrom4([4]byte{250, byte(n), 7, byte(r.IntN(2))}), netip.AddrFrom4([4]byte{251, 1, 1, byte(n)})
			}
			flow.Proto, flow.HasPorts, flow.SrcPort, flow.DstPort = 17, true, uint16(40_000+r.IntN(4)), uint16(30_000+n)
			frames = append(frames, slices.Repeat([][]byte{packet.Frame(flow)}, 15)...)
		}
		r.Shuffle(len(frames), func(a, b int) { frames[a], frames[b] = frames[b], frames[a] })
		if i%4 == 2 { // a field that the first buffer of a frame may not have
			patterns = append(patterns, police.Pattern{Rule: flood.Rule{Conditions: []flood.Condition{{Field: flood.Payload, Lo: 1, Hi: math.MaxUint32 - 1}}}, Trial: true})
		}
		for n := r.pick(1, 3, flood.MaxPatterns); len(patterns) < n; {
			p := r.pattern(frames[r.IntN(len(frames))])
			if !slices.ContainsFunc(patterns, func(o police.Pattern) bool { return o.Rule.String() == p.Rule.String() }) {
				patterns = append(patterns, p)
			}
		}
		part := police.NewPatterns(patterns)
		c.Parts = []engine.Part{part}
		round := newRound(t)
		g, k := engines(round, lists, c)
		if i%4 == 3 {
			e := tcEntries(round, lists, c, "in")
			g, k = e[0].Generation, e[0].Kernel
		}
		compare := func(frame []byte) (verdict.Outcome, error) { return agree(g, k, frame) }
		if i%4 == 2 && canSplit(k) == nil {
			compare = func(frame []byte) (verdict.Outcome, error) {
				return agreeSplit(g, k, frame, r.IntN(min(len(frame), 80)+1))
			}
		}
		for _, frame := range frames {
			o, err := compare(frame)
			if err != nil {
				t.Fatalf("%v: % x; %v", err, frame, patterns)
			}
			seen[o.Reason]++
		}
		twin := g.Patterns
		for n, p := range patterns {
			counts, ok := part.Counts(g.Kernel(), p)
			if !ok || counts.Matched.Packets != twin.Matched[n] || counts.Dropped.Packets != twin.Dropped[n] {
				t.Errorf("of %v, trial %v, %d are counted as matched and %d as dropped, %v; the twin has %d and %d",
					&p.Rule, p.Trial, counts.Matched.Packets, counts.Dropped.Packets, ok, twin.Matched[n], twin.Dropped[n])
			}
			matched, dropped = matched+int(counts.Matched.Packets), dropped+int(counts.Dropped.Packets)
			shared[p.Rule.Per.Sharing] += int(counts.Dropped.Packets)
		}
		round.end()
	}
	t.Log(seen, matched, dropped, shared)
	for of := range flood.SharedByFlow + 1 {
		if shared[of] == 0 {
			t.Errorf("no packet is dropped of a rate that is shared as %d: the test is too narrow", of)
		}
	}
	for _, of := range []verdict.Reason{verdict.Clean, verdict.Pattern, verdict.Blocked, verdict.Allowed, verdict.WouldBlock, verdict.Failsafe} {
		if seen[of] == 0 {
			t.Errorf("no packet left as %v: the test is too narrow", of)
		}
	}
}
