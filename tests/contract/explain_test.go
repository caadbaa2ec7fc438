package contract

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/explain"
	"weir/control/replay"
	"weir/control/stage/loop"
	"weir/control/stage/tracker"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
)

// world is a generation in the kernel, its program, and penalties that both
// know.
type world struct {
	*engine.Generation
	kernel    *replay.Kernel
	penalties []verdict.Penalty
	rules     []engine.List // lists with rules
}

// world draws lists of all directions, some for certain packets, a policy, a loop domain and penalties.
func (r random) world(t testing.TB, i int) world {
	var lists, rules []engine.List
	for i := range 3 {
		lists = append(lists, engine.List{
			Name: fmt.Sprint(i), Allow: i == 2, Direction: engine.Direction(r.IntN(3)), Contents: r.entries(r.pick(0, 5, 100, 1000)).Set(),
		})
	}
	c := r.config(i)
	if c.Mode == membership.Exact && i%4 == 0 {
		for i := range lists {
			lists[i].Rule = r.rule(!lists[i].Allow)
		}
		rules = lists
	}
	flow := key.Shape{Fields: key.FieldSrcPort | key.FieldDstPort | key.FieldProto, SrcBits: 32, DstBits: 32}
	flow6 := key.Shape{Fields: flow.Fields | key.FieldV6, SrcBits: 128, DstBits: 128}
	small := sketch.Geometry{Lines: 100, Buckets: 9}
	c.Parts = []engine.Part{&tracker.Part{In: []tracker.Counting{
		{Punishes: true, Tracker: sketch.Tracker{V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: key.FieldV6, SrcBits: 64}, Geometry: small}},
		{Punishes: true, Tracker: sketch.Tracker{V4: flow, V6: flow6, Unit: sketch.Bytes, Geometry: small}},
	}}}
	c.Seed = randomSeed(r)
	if i%3 == 0 {
		n := mustNode(t, 1, icarus.Geometry{Size: 128, K: 6, Confirm: 1})
		c.Parts = append(c.Parts, &loop.Part{Node: n, Drop: i%2 == 0})
	}
	w := world{rules: rules}
	w.Generation, w.kernel = engines(t, lists, c)
	now := loader.Monotonic()
	n, table := penalties(t, w.Generation, w.kernel.Stats())
	for _, tr := range tracker.Of(w.Generation) {
		for range r.pick(0, 4, 10) {
			k := tr.Key(r.tuple())
			p := penalty.Penalty{Until: now + time.Hour}
			if r.IntN(3) == 0 {
				p.Rate, p.Burst = 1e-9, 1
			}
			known := slices.ContainsFunc(w.penalties, func(p verdict.Penalty) bool { return p.Flow == k })
			if !known && table.Set(tr.Hash(k), p) {
				w.penalties = append(w.penalties, verdict.Penalty{Flow: k, Penalty: p})
			}
		}
	}
	n.SetPenalized(table.Len())
	return w
}

// punishes reports whether a packet is of a flow that has a penalty.
func (w world) punishes(frame []byte) bool {
	p, _ := packet.Parse(frame)
	return p.HasAddresses && slices.ContainsFunc(w.penalties, func(x verdict.Penalty) bool {
		return slices.ContainsFunc(tracker.Of(w.Generation), func(tr tracker.Counting) bool { return tr.Key(p.Tuple) == x.Flow })
	})
}

// frame is a random frame; in a domain, some have been here before.
func (r random) frame(w world) []byte {
	if len(w.penalties) > 0 && r.IntN(6) == 0 {
		return r.completion(w, w.penalties[r.IntN(len(w.penalties))].Flow)
	}
	f := packet.Frame(r.tuple())
	if r.IntN(4) == 0 {
		return w.again(f)
	}
	if r.IntN(50) == 0 {
		binary.BigEndian.PutUint16(f[12:], uint16(r.pick(0x806, 0x8847)))
	}
	return r.mutate(f)
}

// again is a frame as the world's node has passed it on, if it is one of a domain.
func (w world) again(frame []byte) []byte {
	p, _ := packet.Parse(frame)
	if w.Loop == nil || !p.HasAddresses || p.Encapsulated {
		return frame
	}
	if pkt, did := w.Loop.Insert(slices.Clone(frame[p.Network:]), 1500); did == icarus.Inserted {
		return slices.Concat(frame[:p.Network], pkt)
	}
	return frame
}

// For every packet, Explain returns what the kernel does; for a part of a
// packet, what the kernel does with every packet to which none of the answer's
// dependencies applies.
func TestExplain(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	r := newRandom(t)
	whole, part := map[verdict.Reason]int{}, map[verdict.Reason]int{}
	// never returns the reasons under which no packet has left, although some should.
	never := func() (all []string) {
		for reason := range verdict.NumReasons {
			if whole[reason] == 0 && reason != verdict.Policed && reason != verdict.Reply && reason != verdict.Pattern { // which no list explains
				all = append(all, reason.String())
			}
			if part[reason] == 0 && partial[reason] {
				all = append(all, reason.String()+" in part")
			}
		}
		return all
	}
	for i := 0; i < long.Or(18, 36) || i < 144 && never() != nil; i++ {
		round := newRound(t)
		w := r.world(round, i)
		for range 500 {
			frame := r.frame(w)
			whole[explainFrame(t, w, frame)]++
		}
		for range 40 {
			q := explain.Question{Known: r.known(w)}
			a := explain.Answers(w.Generation, q, w.penalties)[0]
			for range 30 {
				if reason, ok := explainPart(t, w, q, a, r.completion(w, q.Known)); ok {
					part[reason]++
				}
			}
		}
		round.end()
	}
	t.Log("whole:", whole, "in part:", part)
	if all := never(); all != nil {
		t.Errorf("no packet left as %s: the test is too narrow", strings.Join(all, ", "))
	}
	sure := 0
	for _, n := range part {
		sure += n
	}
	if sure < 5000 {
		t.Errorf("only %d packets to which nothing applies: the answers depend on too much", sure)
	}
}

// partial are reasons that an answer in part may be sure of.
var partial = map[verdict.Reason]bool{
	verdict.Clean: true, verdict.Failsafe: true, verdict.DHCP: true, verdict.Allowed: true,
	verdict.WouldBlock: true, verdict.Blocked: true, verdict.Heavy: true,
}

// explainFrame compares the answer for a frame with what the kernel does:
// verdict, reason and list. Only for a rate limit does it depend.
func explainFrame(t *testing.T, w world, frame []byte) verdict.Reason {
	t.Helper()
	a := explain.Answers(w.Generation, explain.Question{Frame: frame}, w.penalties)[0]
	got, err := w.kernel.Decide(frame)
	if err != nil {
		t.Fatal(err)
	}
	if actionOf(a) == got.Action && a.Reason == got.Reason && a.List == listName(w, got.List) {
		checkStages(t, a)
		return got.Reason
	}
	// A rate limit drops packets above its rate, unless they are allowed.
	limited := func(d explain.Dependency) bool {
		return d.Stage == verdict.StagePenalty && d.Verdict == got.Action && d.Reason == got.Reason
	}
	rare := got.Reason == verdict.Allowed && actionOf(a) == verdict.Pass && w.punishes(frame)
	// In monitor mode, it counts a packet above its rate without a list, also where one on trial
	// has it.
	rare = rare || got.Reason == verdict.WouldBlock && got.List == 0 && a.Reason == got.Reason && w.punishes(frame)
	if !rare && !slices.ContainsFunc(a.Depends, limited) {
		t.Fatalf("%x: the kernel decides %+v, and the answer is %+v", frame, got, a)
	}
	return got.Reason
}

// explainPart compares the answer for a part of a packet with what the kernel
// does with a frame that has the part. It reports false if the answer depends
// on the rest.
func explainPart(t *testing.T, w world, q explain.Question, a explain.Answer, frame []byte) (verdict.Reason, bool) {
	t.Helper()
	p, _ := packet.Parse(frame)
	if !p.HasAddresses || !p.Plain && q.Known.Ports() || !matches(q.Known, p) || depends(w, a, p, frame) {
		return 0, false
	}
	got, err := w.kernel.Decide(frame)
	if err != nil {
		t.Fatal(err)
	}
	if w.Block.Mode == membership.Approximate && !w.Blocks(p.Tuple) && got.Verdict() == verdict.Blocked {
		return 0, false // a false positive, which is no condition
	}
	want := verdict.Outcome{Action: actionOf(a), Reason: a.Reason}
	if got.Action != want.Action || got.Verdict() != want.Verdict() {
		t.Fatalf("%v: the kernel decides %+v over %v (%x), and the answer is %+v; it matches %v",
			q, got, p.Tuple.Key(), frame, a, w.Find(p.Tuple))
	}
	return got.Reason, true
}

// actionOf is the action on packets to which none of the dependencies applies.
func actionOf(a explain.Answer) verdict.Action {
	if a.Verdict == explain.Drop {
		return verdict.Drop
	}
	return verdict.Pass
}

func listName(w world, number int) string {
	if number == 0 {
		return ""
	}
	return fmt.Sprint(number - 1)
}

// checkStages checks that the stages are in the order of the program, and that
// the reason is the one of a stage.
func checkStages(t *testing.T, a explain.Answer) {
	t.Helper()
	by := map[verdict.Reason]verdict.Stage{
		verdict.ARP: verdict.StageExempt, verdict.Link: verdict.StageExempt, verdict.ND: verdict.StageExempt, verdict.DHCP: verdict.StageExempt,
		verdict.Failsafe: verdict.StageFailsafe, verdict.Looped: verdict.StageLoop, verdict.Heavy: verdict.StagePenalty,
		verdict.Blocked: verdict.StageBlock, verdict.Allowed: verdict.StageAllow,
	}
	stage, ok := by[a.Reason]
	for i, s := range a.Stages {
		if i > 0 && a.Stages[i-1].Stage >= s.Stage {
			t.Fatalf("stages in disorder: %+v", a)
		}
		if s.Met && s.Stage == stage {
			ok = false
		}
	}
	if ok {
		t.Fatalf("no stage for the reason: %+v", a)
	}
}

// known is a random part of a packet, or a flow that has a penalty.
func (r random) known(w world) key.Key {
	if len(w.penalties) > 0 && r.IntN(5) == 0 {
		return w.penalties[r.IntN(len(w.penalties))].Flow
	}
	t := r.tuple()
	full := t.Key()
	s := full.Shape
	s.Fields &= key.FieldV6 | key.Fields(r.IntN(8)<<1)
	length := func(bits uint8) uint8 {
		lengths := []int{0, 20, 24, 28, 30, 32}
		if bits == 128 {
			lengths = []int{0, 20, 48, 64, 122, 126, 128}
		}
		return uint8(r.pick(append(lengths, int(bits), int(bits))...))
	}
	s.SrcBits, s.DstBits = length(s.SrcBits), length(s.DstBits)
	k, _ := s.Of(t)
	return k
}

// completion is a random frame that mostly matches a key.
func (r random) completion(w world, k key.Key) []byte {
	t := r.tuple()
	if k.Fields&key.FieldProto != 0 && !key.HasPorts(k.Proto) {
		k.Fields &^= key.FieldSrcPort | key.FieldDstPort // of a penalty: 0
	}
	for t.Src.Is6() != k.V6() || k.Fields&key.FieldProto != 0 && t.Proto != k.Proto || k.Ports() && !t.HasPorts {
		t = r.tuple()
		if k.Fields&key.FieldProto != 0 {
			t.Proto = k.Proto
			t.HasPorts = key.HasPorts(t.Proto) && (k.Ports() || t.HasPorts)
			if !t.HasPorts {
				t.SrcPort, t.DstPort = 0, 0
			}
		}
	}
	t.Src, t.Dst = merge(k.Src, k.SrcBits, t.Src), merge(k.Dst, k.DstBits, t.Dst)
	if k.Fields&key.FieldSrcPort != 0 {
		t.SrcPort = k.SrcPort
	}
	if k.Fields&key.FieldDstPort != 0 {
		t.DstPort = k.DstPort
	}
	switch f := packet.Frame(t); r.IntN(8) {
	case 0, 1:
		return r.mutate(f)
	case 2:
		return w.again(f)
	default:
		return f
	}
}

// merge is the first bits of one address, and the rest of another.
func merge(first netip.Addr, bits uint8, rest netip.Addr) netip.Addr {
	a, b := first.AsSlice(), rest.AsSlice()
	for i := range b {
		for bit := range 8 {
			if mask := byte(0x80 >> bit); i*8+bit < int(bits) {
				b[i] = b[i]&^mask | a[i]&mask
			}
		}
	}
	merged, _ := netip.AddrFromSlice(b)
	return merged
}

// matches reports whether a packet is of those that match a key.
func matches(k key.Key, p packet.Packet) bool {
	now, ok := k.Of(p.Tuple)
	return ok && now == k
}

// depends reports whether a packet meets a condition that the answer depends on.
func depends(w world, a explain.Answer, p packet.Packet, frame []byte) bool {
	_, parsed := packet.Parse(frame)
	sides := map[verdict.Stage][2]bool{} // lists of sources, of destinations
	for _, d := range a.Depends {
		applies := false
		switch d.Stage {
		case verdict.StageExempt:
			o := (&verdict.Program{Policy: verdict.Policy{DHCPServer: w.DHCPServer}}).Decide(frame)
			applies = o.Reason == d.Reason
		case verdict.StageFailsafe:
			applies = (&verdict.Program{Policy: w.Policy}).Decide(frame).Reason == verdict.Failsafe
		case verdict.StageLoop:
			applies = !p.Encapsulated && w.Loop.Check(frame[p.Network:]) == icarus.Looped
		case verdict.StagePenalty:
			applies = slices.ContainsFunc(w.penalties, func(x verdict.Penalty) bool {
				if strings.TrimSuffix(d.Packets, " above its rate") != x.Flow.String() {
					return false
				}
				return slices.ContainsFunc(tracker.Of(w.Generation), func(tr tracker.Counting) bool { return tr.Key(p.Tuple) == x.Flow })
			})
		case verdict.StageMalformed:
			o := (&verdict.Program{Policy: verdict.Policy{DropMalformed: true, Inner: w.Inner}}).Decide(frame)
			applies = parsed != packet.OK || o.Action == verdict.Drop
		default:
			if d.Match != nil {
				applies = matches(d.Match.Key, p)
				break
			}
			if strings.HasPrefix(d.Packets, "packets with a listed header") {
				applies = (&verdict.Program{Policy: w.Policy, Block: w.Block}).Carried(frame, p).Reason == verdict.Blocked
				break
			}
			if strings.HasPrefix(d.Packets, "packets of ") {
				applies = slices.ContainsFunc(w.rules, func(l engine.List) bool {
					return strings.HasSuffix(d.Packets, "for which list "+l.Name+" is") && l.Rule.MatchesPorts(p.Proto, p.HasPorts, p.DstPort)
				})
				break
			}
			s := sides[d.Stage]
			s[0], s[1] = s[0] || d.Packets[:4] == "from", s[1] || d.Packets[:2] == "to"
			sides[d.Stage] = s
		}
		if applies {
			return true
		}
	}
	// Look up what the answer omits, or gives only by list.
	for _, f := range w.Find(p.Tuple) {
		stage := verdict.StageBlock
		if f.List == 3 {
			stage = verdict.StageAllow
		}
		s := sides[stage]
		if !f.Key.Tuple() && (f.Key.DstBits == 0 && s[0] || f.Key.DstBits > 0 && s[1]) {
			return true
		}
		if a.DependsMore > 0 && !slices.ContainsFunc(a.Matches, func(m explain.Match) bool { return m.Number == f.List && m.Key == f.Key }) {
			return true
		}
	}
	return false
}
