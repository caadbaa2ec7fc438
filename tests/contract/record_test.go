package contract

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"weir/bpf"
	"weir/control/api"
	"weir/control/capture"
	"weir/control/endpoint"
	"weir/control/engine"
	"weir/control/explain"
	"weir/control/export"
	"weir/control/history"
	"weir/control/observe"
	"weir/control/observe/events"
	"weir/control/observe/traffic"
	"weir/control/quantity"
	"weir/control/replay"
	"weir/control/stage"
	"weir/control/stage/connections"
	"weir/control/stage/first"
	"weir/control/stage/loop"
	"weir/control/stage/police"
	"weir/control/stage/tracker"
	"weir/filter/conntrack"
	"weir/filter/flood"
	"weir/filter/icarus"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/penalty"
	"weir/filter/sfb"
	"weir/filter/sketch"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/ipfix"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/sflow"
	"weir/tests/wait"
)

// configurationsVariable has the number of configurations of TestOneRecord; packetsVariable has
// that of its packets.
const configurationsVariable = "WEIR_CONFIGURATIONS"

// drawn are the optional stages of a configuration, beside those of engine.Config.
type drawn struct {
	polices, punishes, looks, loops, replies bool

	limits   *police.Sources  // nil: none
	patterns *police.Patterns // nil: none
}

func (s drawn) String() string {
	var all []string
	for name, on := range map[string]bool{"policing": s.polices, "penalties": s.punishes, "first seen": s.looks, "loops": s.loops, "replies": s.replies, "limits": s.limits != nil, "patterns": s.patterns != nil} {
		if on {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// records is a program of whose packets everything is compared that names a list.
type records struct {
	*engine.Generation
	*replay.Kernel
	drawn
	at        netif.Target
	lists     []engine.List
	truth     byEntries
	iface     events.Interface
	open      *conntrack.Replies
	penalties []verdict.Penalty
	known     []key.Tuple // of packets that come in by open connections
	levels    []uint64    // importance of lists, by number
	now       uint64      // of the policer

	counted map[string]uint64              // packets by list, as events name them
	drops   map[observe.DroppedFlow]uint64 // as events name them
	reasons map[verdict.Reason]int         // that packets left for
	sampled export.Samples                 // the first packets that were dropped
	samples map[string]uint64              // of these, by the list that has counted the packet
	others  *loader.Stats                  // of a program with the same tracker of dropped packets
}

// records draws the stages, rules and penalties of a program. Packets of one direction are judged by
// it, on the lean path or the general one, at XDP or TC.
func (r random) records(t testing.TB, i int) (all []*records) {
	t.Helper()
	lists := r.ruledLists(engine.Source, engine.Destination, engine.Both, engine.Out)
	c := r.config(i)
	c.Mode, c.FailsafePorts, c.FailsafePrefixes = membership.Exact, nil, nil
	c.DHCPServer, c.NoLean, c.Inner = false, r.IntN(3) == 0, r.IntN(3) == 0
	c.TC, c.Outgoing = true, true
	c.Seed = randomSeed(r)
	for n := range lists {
		lists[n].Priority = r.IntN(4)
		if i%4 == 1 { // approximate, in which lists have no numbers and no rules
			c.Mode, c.BitsPerKey, lists[n].Rule = membership.Approximate, 64, nil
		}
	}
	if i%2 == 0 { // an allow list for all packets
		lists = append(lists, engine.List{Name: "allowed", Allow: true, Direction: engine.Direction(r.IntN(3)), Contents: r.entries(30).Set()})
	}
	s := drawn{polices: r.IntN(2) == 0, punishes: r.IntN(2) == 0, looks: r.IntN(2) == 0, loops: r.IntN(4) == 0, replies: r.IntN(3) == 0}
	wide := sketch.Geometry{Lines: 1 << 12, Buckets: 1 << 10}
	small := sketch.Geometry{Lines: 100, Buckets: 9}
	v6 := key.FieldV6
	dropped := tracker.Counting{Tracker: sketch.Tracker{V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: v6, SrcBits: 128}, Geometry: wide, Dropped: true}}
	out := dropped
	out.V4, out.V6 = key.Shape{DstBits: 32}, key.Shape{Fields: v6, DstBits: 128}
	in := []tracker.Counting{dropped}
	if s.punishes {
		in = []tracker.Counting{{Punishes: true, Tracker: sketch.Tracker{V4: key.Shape{SrcBits: 32}, V6: key.Shape{Fields: v6, SrcBits: 128}, Geometry: small}}, dropped}
	}
	c.Parts = append(c.Parts, &tracker.Part{In: in, Out: []tracker.Counting{out}})
	var levels []uint64
	if s.looks {
		part := &first.Part{Lines: 64, Events: 1000, ByList: true, Stopped: true}
		part.V4, part.V6 = fiveTuple()
		c.Parts = append(c.Parts, part)
		levels = part.Words(lists)[bpf.WeirMapFirstLevels]
	}
	if s.polices {
		c.Parts = append(c.Parts, anywhere(limits(t, []sfb.Controller{sfb.Fair, sfb.Bucket}[r.IntN(2)], sfb.MinPacketRate, true, r.IntN(2) == 0)))
	}
	if r.IntN(3) == 0 {
		s.limits = police.NewSources(r.limits(4))
		c.Parts = append(c.Parts, s.limits)
	}
	if r.IntN(3) == 0 {
		s.patterns = police.NewPatterns([]police.Pattern{r.pattern(r.packetOnLeanPath()), r.pattern(r.packetOnLeanPath())})
		c.Parts = append(c.Parts, s.patterns)
	}
	if s.loops {
		c.Parts = append(c.Parts, &loop.Part{Node: mustNode(t, 1, icarus.Geometry{Size: 128, K: 6, Confirm: 1}), Drop: r.IntN(2) == 0})
	}
	twin := &conntrack.Replies{
		Opening: time.Hour, Established: 3 * time.Hour, UDP: 2 * time.Hour, Ephemeral: 32768, Now: loader.Monotonic,
		Open: make(map[conntrack.Connection]conntrack.ConnectionState),
	}
	var fromOutside []key.Tuple
	if s.replies {
		known, err := connections.NewKnown(1 << 14)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { known.Close() })
		c.Shared, c.Parts = known.Shared, append(c.Parts, &connections.RepliesPart{Replies: twin})
		for len(fromOutside) < 100 {
			f := r.tuple()
			if f.Proto != 6 && f.Proto != 17 || !f.HasPorts {
				continue
			}
			fromOutside = append(fromOutside, f)
			to := conntrack.Connection{Local: netip.AddrPortFrom(f.Dst, f.DstPort), Remote: netip.AddrPortFrom(f.Src, f.SrcPort), Proto: f.Proto}
			state := conntrack.ConnectionState{Until: loader.Monotonic() + time.Hour}
			if err := known.Put(connectionIn(to), connections.State{Until: uint64(state.Until)}); err != nil {
				t.Fatal(err)
			}
			twin.Open[to] = state
		}
	}
	whole := built(t, lists, c)
	names := make([]string, len(lists))
	for n, l := range lists {
		names[n] = l.Name
	}
	entries := []string{"XDP", "TC, in", "TC, out"}
	for _, entry := range entries {
		at := netif.Target{Iface: []string{"eth0", "wan1", "lo"}[r.IntN(3)], Out: entry == "TC, out"}
		g := whole.For(at)
		n := &records{Generation: g, at: at, lists: lists, levels: levels, now: 1e9, counted: make(map[string]uint64),
			drops: make(map[observe.DroppedFlow]uint64), reasons: make(map[verdict.Reason]int), samples: make(map[string]uint64)}
		var err error
		switch entry {
		case "XDP":
			n.drawn = s
			n.Kernel, err = replay.NewKernelOn(g, len(lists), at)
		case "TC, in":
			n.drawn = s
			n.polices, n.loops, n.at.Iface = false, false, "" // it is the program of any interface
			n.Kernel, err = replay.NewTCKernel(g, len(lists), true)
		default:
			n.Kernel, err = replay.NewKernelOn(g, len(lists), at)
		}
		if err != nil {
			t.Fatalf("%s: %+v", entry, err)
		}
		t.Cleanup(func() { n.Kernel.Close() })
		n.truth = newByEntries(lists, &g.Policy, n.at.Iface, nil)
		n.open, n.known = twin, fromOutside
		n.iface = events.Interface{Target: at, Stats: n.Stats(), Lists: names, Policy: &g.Policy}
		n.iface.Patterns = s.patterns.Names(g.Kernel())
		n.Stats().Sample(everythingAndNew())
		if entry == "TC, in" { // all programs of a direction count in the same memory, with the same penalties
			n.drops, n.penalties, n.others = all[0].drops, all[0].penalties, all[0].Stats()
		}
		if n.punishes {
			n.punish(t, r)
		}
		all = append(all, n)
	}
	return all
}

// anywhere is policing by limits on each interface.
func anywhere(l *police.Limits) *police.Part {
	return &police.Part{Interfaces: []stage.At[*police.Limits]{{Target: netif.Target{Iface: "*"}, Is: l}}}
}

func everythingAndNew() loader.Sampling {
	s := everything(1)
	s.First = true
	return s
}

// punish has some sources blocked or limited.
func (n *records) punish(t testing.TB, r random) {
	t.Helper()
	m, table := penalties(t, n.Generation, n.Stats())
	of := tracker.Of(n.Generation)[0]
	for len(n.penalties) < 50 {
		k := of.Key(r.tuple())
		p := penalty.Penalty{Until: loader.Monotonic() + time.Hour}
		if r.IntN(2) == 0 {
			p.Rate, p.Burst = 1e-9, 1
		}
		if table.Set(of.Hash(k), p) {
			n.penalties = append(n.penalties, verdict.Penalty{Flow: k, Penalty: p})
		}
	}
	m.SetPenalized(table.Len())
}

// nameOf returns the name of a list, "" for none.
func (n *records) nameOf(number int) string {
	if number < 1 || number > len(n.lists) {
		return ""
	}
	return n.lists[number-1].Name
}

// sum returns how many packets lists have, and the programs have in all.
func (n *records) sum() (lists, packets uint64) {
	for i, c := range n.Stats().Lists(nil) {
		if i > 0 {
			lists += c.Packets
		}
	}
	for _, c := range n.Stats().Reasons(nil) {
		packets += c.Packets
	}
	return lists, packets
}

// pass passes a frame, and compares what names the list of its packet.
func (n *records) pass(t *testing.T, r random, frame []byte) error {
	t.Helper()
	if n.polices {
		n.now += uint64(r.IntN(200_000))
		police.Memory(n.Stats(), func(s *police.Shared, _ []police.CPU) { s.Clock = n.now })
	}
	listsBefore, packetsBefore := n.sum()
	o, err := n.Decide(frame)
	if err != nil {
		return err
	}
	listsAfter, packetsAfter := n.sum()
	if packetsAfter == packetsBefore {
		return nil // the reference has decided: a test run does not take the frame
	}
	n.reasons[o.Reason]++
	named := listsAfter - listsBefore
	switch by := o.Reason == verdict.Blocked || o.Reason == verdict.WouldBlock; {
	case named > 1 || named == 1 && (!by || o.List == 0):
		return fmt.Errorf("%+v, and lists count %d packets more", o, named)
	case o.List != 0 && named == 0:
		return fmt.Errorf("%+v, and no list counts it", o)
	}
	sampled := 0
	for _, e := range drain(t, n.Stats()) {
		if verdict.Reason(e.Packet.Reason) != o.Reason {
			return fmt.Errorf("%+v, and an event of %v", o, verdict.Reason(e.Packet.Reason))
		}
		if e.First == 0 {
			sampled++
		}
		if err := n.compare(frame, o, &e); err != nil {
			return fmt.Errorf("%v, event %+v", err, e.Packet)
		}
	}
	if want := slices.Contains(events.Reasons(), o.Reason); want != (sampled == 1) || sampled > 1 {
		return fmt.Errorf("%+v, and %d events", o, sampled)
	}
	return n.judge(frame, o)
}

// compare compares an event, and what is made of it, with the counters and the lists' entries.
func (n *records) compare(frame []byte, o verdict.Outcome, e *loader.Event) error {
	event := n.iface.Event(e, time.Now())
	api := event.API()
	_, note := capture.Of(&api)
	_, inCapture, _ := strings.Cut(note.Comment, ", list ")
	if api.List != event.List || inCapture != event.List {
		return fmt.Errorf("list %q in the event, %q for clients, %q in a capture", event.List, api.List, inCapture)
	}
	listed := n.nameOf(o.List)
	where := n.truth
	where.where.VLAN = vlanOf(frame)
	var may []int // be named
	switch o.Reason {
	case verdict.Blocked, verdict.WouldBlock, verdict.Reply:
		may = where.matching(event.Tuple, func(l engine.List) bool { return !l.Allow })
		if p, result := packet.Parse(frame); result == packet.OK {
			if trial := n.Carried(frame, p).Trial; trial > 0 { // of a header in a tunnel; the packet is the outermost one
				may = append(may, trial)
			}
		}
	case verdict.Allowed:
		may = where.matching(event.Tuple, func(l engine.List) bool { return l.Allow })
	case verdict.Pattern:
		fields, _ := flood.Of(frame, len(frame))
		if u, err := flood.ParseRule(event.Pattern); err != nil || !u.Matches(&fields) || event.Pattern == "" {
			return fmt.Errorf("%v: the event names %q, %v", o.Reason, event.Pattern, err)
		}
	}
	if by := o.Reason == verdict.Blocked || o.Reason == verdict.WouldBlock; by && event.List != listed {
		return fmt.Errorf("%v: list %q counts it, and the event names %q", o.Reason, listed, event.List)
	}
	mustName := o.Reason == verdict.Allowed || n.Block.Mode == membership.Exact && (o.Reason == verdict.Reply || o.Reason == verdict.Blocked)
	ok := slices.ContainsFunc(may, func(number int) bool { return n.nameOf(number) == event.List })
	if event.List != "" && !ok || event.List == "" && mustName {
		return fmt.Errorf("%v: the event names list %q, and those with the packet are %v", o.Reason, event.List, may)
	}
	if n.looks && e.First > 0 {
		want := 1
		if o.List > 0 {
			want = int(n.levels[o.List])
		}
		if e.First != want {
			return fmt.Errorf("%v: a new flow of importance %d, want %d by list %q", o.Reason, e.First, want, listed)
		}
	}
	if e.First > 0 {
		return nil
	}
	if api.List != "" && o.Reason != verdict.Allowed && o.Reason != verdict.Reply {
		n.counted[api.List]++
	}
	if event.Dropped && len(n.sampled.Packets) < mostSamples {
		event.Frame = frame[:min(len(frame), events.FrameSize)]
		n.sampled.Packets = append(n.sampled.Packets, observe.SampleOf(&event))
		n.samples[listed]++
	}
	if !unwanted(&n.Policy, o.Reason) || e.Packet.Family == 0 {
		return nil
	}
	f := observe.DroppedFlow{Remote: event.Tuple.Src, Reason: o.Reason, List: listed, Out: n.at.Out}
	if n.at.Out {
		f.Remote = event.Tuple.Dst
	}
	if f.Monitor = n.Policy.Monitor; f.Monitor && o.Reason == verdict.WouldBlock {
		switch on := o.List > 0 && n.lists[o.List-1].Rule.On() && n.lists[o.List-1].Rule.Trial; {
		case on:
			f.Monitor = false
		case e.Packet.Punished != 0 && e.Packet.List < 0:
			f.Reason = verdict.Reason(e.Packet.Punished)
		default:
			f.Reason = verdict.Blocked
		}
	}
	n.drops[f]++
	return nil
}

// unwanted reports whether packets that leave for a reason are dropped, or would be if not for
// monitor mode.
func unwanted(p *verdict.Policy, r verdict.Reason) bool {
	enforced := *p
	enforced.Monitor = false
	return r == verdict.WouldBlock || enforced.Action(r) == verdict.Drop
}

// judge compares a decision with a search through all entries, and with the answer of explain.
func (n *records) judge(frame []byte, o verdict.Outcome) error {
	pkt, _ := packet.Parse(frame)
	punished := slices.ContainsFunc(n.penalties, func(p verdict.Penalty) bool {
		return pkt.HasAddresses && tracker.Of(n.Generation)[0].Key(pkt.Tuple) == p.Flow
	})
	penalties := slices.Concat(n.penalties, n.limits.Meeting(pkt.Tuple.Key()))
	punished = punished || len(penalties) > len(n.penalties)
	late := []verdict.Reason{verdict.Reply} // reasons of stages that lists do not know
	fields, readable := flood.Of(frame, len(frame))
	if !n.at.Out && len(n.patterns.Matching(func(p *police.Pattern) bool { return readable && p.Rule.Matches(&fields) })) > 0 {
		punished, late = true, append(late, verdict.Pattern)
	}
	if punished {
		late = append(late, verdict.Heavy, verdict.RateLimited)
	}
	if n.polices {
		late = append(late, verdict.Policed)
	}
	if n.loops {
		late = append(late, verdict.Looped)
	}
	reply := n.replies && !n.at.Out && n.open.IsReply(frame, pkt)
	want, by, ok := n.truth.decide(frame)
	switch {
	case !ok || o.Reason == verdict.Looped && n.loops:
	case want == verdict.Blocked && !reply:
		if o.Reason != want || n.Block.Mode == membership.Exact && !slices.Contains(by, o.List) {
			return fmt.Errorf("%v by list %q, want %v by one of %v", o.Reason, n.nameOf(o.List), want, by)
		}
	case want == verdict.Allowed:
		if o.Reason != want && (n.Block.Mode == membership.Exact || o.Reason == verdict.Blocked) {
			return fmt.Errorf("%v, want %v", o.Reason, want)
		}
	case o.List > 0 && !slices.Contains(by, o.List):
		return fmt.Errorf("%v by list %q, want %v by one of %v", o.Reason, n.nameOf(o.List), want, by)
	case o.Reason != want && !slices.Contains(late, o.Reason) && !(o.Reason == verdict.WouldBlock && n.Policy.Monitor) && !(o.Reason == verdict.Allowed && (punished || n.loops)):
		return fmt.Errorf("%v, want %v", o.Reason, want)
	}
	a := explain.Answers(n.Generation, explain.Question{Frame: frame}, penalties)[0]
	named := o.List > 0 || !slices.Contains(late, o.Reason) && o.Reason != verdict.WouldBlock && o.Reason != verdict.Allowed
	if limited := punished && o.Reason == verdict.WouldBlock; named && !limited && a.List != n.nameOf(o.List) {
		return fmt.Errorf("%v by list %q, and the answer names %q: %+v", o.Reason, n.nameOf(o.List), a.List, a)
	}
	return nil
}

// mostSamples is the number of samples that a socket has room for.
const mostSamples = 300

// exportSamples compares the lists in samples of sFlow.
func (n *records) exportSamples(t *testing.T) {
	t.Helper()
	sink, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	collector := export.Collector{Name: "samples"}
	collector.SetDefaults()
	collector.SFlow = endpoint.URL("udp://" + sink.LocalAddr().String())
	x := export.New(slog.New(slog.DiscardHandler))
	x.Configure([]export.Collector{collector})
	x.Send(export.Batch{Time: time.Now(), Samples: &n.sampled})
	go x.Close(wait.Patience)
	sink.SetReadDeadline(wait.Deadline())
	got, b := make(map[string]uint64), make([]byte, 1<<16)
	for all := uint64(0); all < uint64(len(n.sampled.Packets)); {
		size, err := sink.Read(b)
		if err != nil {
			t.Fatalf("%v: %d of %d samples have come", err, all, len(n.sampled.Packets))
		}
		for list, packets := range sflow.Lists(b[:size]) {
			got[list] += packets
			all += packets
		}
	}
	if !maps.Equal(got, n.samples) {
		t.Errorf("sFlow has %v, the lists have counted %v", got, n.samples)
	}
}

// record compares the lists in the history.
func (n *records) record(t *testing.T, hits map[string]loader.Counter) {
	t.Helper()
	now := time.Now()
	past := observe.TrafficHistory{Recorder: history.Open("", now, slog.New(slog.DiscardHandler))}
	defer past.Close()
	rates := traffic.Rates{Interval: time.Second}
	for i, c := range n.Stats().Reasons(nil)[:verdict.NumReasons] {
		rates.Grown[i] = c
	}
	past.Second(now, rates, func(r verdict.Reason) bool { return n.Policy.Action(r) == verdict.Drop }, hits, nil)
	h, err := past.History(t.Context(), api.HistoryQuestion{Since: time.Hour, Step: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]uint64)
	for _, l := range h.Total.Lists {
		got[l.List] += l.Packets
	}
	if !maps.Equal(got, n.counted) {
		t.Errorf("the history has %v, events name lists for %v", got, n.counted)
	}
}

// end compares what was counted of all packets: by lists, by the tracker of dropped packets, by
// the recorder of drops, in the history, and in records of IPFIX and sFlow.
func (n *records) end(t *testing.T, r random) {
	t.Helper()
	hits := make(map[string]loader.Counter)
	for i, c := range n.Stats().Lists(nil) {
		if name := n.nameOf(i); name != "" {
			if c.Packets != n.counted[name] {
				t.Errorf("list %q counts %d packets, events name it for %d", name, c.Packets, n.counted[name])
			}
			hits[name] = c
		}
	}
	n.record(t, hits)
	n.exportSamples(t)
	m, err := tracker.Open(n.Generation, n.Stats())
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	last := len(tracker.Of(n.Generation)) - 1
	banks := m.Banks(last, m.Active(last))
	report := observe.DropReport{Interval: time.Second, Flows: sketch.Merge(banks...)}
	for _, b := range banks {
		report.Packets += b.Packets()
		report.Bytes += b.Bytes()
	}
	var whole uint64
	for _, count := range n.drops {
		whole += count
	}
	if report.Packets != whole {
		t.Errorf("%d packets in the tracker, events of %d", report.Packets, whole)
	}
	trial := make(map[string]bool)
	for _, l := range n.lists {
		trial[l.Name] = l.Rule.On() && l.Rule.Trial
	}
	recorder := observe.NewDropRecorder(nil, slog.New(slog.DiscardHandler))
	tally := observe.Tally{Lists: hits}
	for i, c := range n.Stats().Reasons(nil)[:verdict.NumReasons] {
		if tally.In[i] = c; n.at.Out {
			tally.Out[i], tally.In[i] = c, loader.Counter{}
		}
	}
	now := time.Now()
	recorder.Follow(observe.Phase{Begin: now.Add(-time.Hour), Lists: n.iface.Lists, Policy: &n.Policy, Monitor: n.Policy.Monitor, Trial: trial}, true,
		func() observe.Tally { return observe.Tally{In: traffic.Counters{}} })
	recorder.Report(now, &report, n.at.Out, tally)
	all := recorder.Hour.Since(now.Add(-time.Hour), now)
	for f, count := range all.Flows {
		if is := n.drops[f]; count.Packets > is || is == 0 {
			t.Errorf("%d packets recorded of %+v, events of %d", count.Packets, f, is)
		}
	}
	for name, count := range all.Lists {
		if count != n.counted[name] {
			t.Errorf("%d packets recorded of list %q, events of %d", count, name, n.counted[name])
		}
	}
	if len(n.drops) > 0 && len(all.Flows) < min(len(n.drops), 20)/2 {
		t.Errorf("%d flows recorded, events of %d", len(all.Flows), len(n.drops))
	}
	if n.others != nil {
		plus := func(a, b loader.Counter) loader.Counter {
			return loader.Counter{Packets: a.Packets + b.Packets, Bytes: a.Bytes + b.Bytes}
		}
		for i, c := range n.others.Lists(nil) {
			if name := n.nameOf(i); name != "" {
				hits[name] = plus(hits[name], c)
			}
		}
		for i, c := range n.others.Reasons(nil)[:verdict.NumReasons] {
			tally.In[i] = plus(tally.In[i], c)
		}
	}
	if !n.at.Out { // IPFIX has records of incoming packets
		n.export(t, r, &report, recorder.ListNames(now), observe.ExportedLists{Hits: hits, Trial: trial}, tally.In)
	}
}

// export compares the records of IPFIX, in whatever order the report of the tracker comes.
func (n *records) export(t *testing.T, r random, dropped *observe.DropReport, names []string, lists observe.ExportedLists, grown traffic.Counters) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	log := slog.New(slog.DiscardHandler)
	x := observe.NewExports(nil, log)
	collector := export.Collector{Name: "records"}
	collector.SetDefaults()
	collector.IPFIX = endpoint.URL("tcp://" + l.Addr().String())
	now := time.Now()
	x.Configure(export.Spec{Collectors: []export.Collector{collector}, Interval: quantity.Duration(time.Second)}, now, nil)
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	report := &tracker.Report{Role: tracker.Drops, Interval: dropped.Interval}
	for _, f := range dropped.Flows {
		report.Flows = append(report.Flows, tracker.Flow{Flow: f})
	}
	drops := func(r verdict.Reason) bool { return n.Policy.Action(r) == verdict.Drop }
	half := func(c loader.Counter) loader.Counter {
		return loader.Counter{Packets: c.Packets / 2, Bytes: c.Bytes / 2}
	}
	begun := observe.ExportedLists{Hits: make(map[string]loader.Counter), Trial: lists.Trial}
	for name, c := range lists.Hits {
		// The daemon reads what lists have matched after the reasons.
		begun.Hits[name] = half(loader.Counter{Packets: c.Packets + 1, Bytes: c.Bytes + 1})
	}
	comes := r.IntN(4)
	for second := range 6 {
		if second == comes {
			x.Report(now, report, names, n.Policy.Monitor)
		}
		now = now.Add(time.Second)
		rates, hits := traffic.Rates{Monitor: n.Policy.Monitor}, begun
		for i, c := range grown {
			switch first := half(c); second {
			case 0:
				rates.Grown[i] = first
			case 2:
				rates.Grown[i] = loader.Counter{Packets: c.Packets - first.Packets, Bytes: c.Bytes - first.Bytes}
			}
		}
		if second >= 2 {
			hits = lists
		}
		x.Second(now, rates, true, drops, hits)
	}
	go x.Close(wait.Patience)
	read := ipfix.NewReader()
	for err == nil {
		err = read.Next(c)
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	type match struct {
		source netip.Addr
		list   string
	}
	matched := make(map[match]bool) // by the events
	for f := range n.drops {
		matched[match{f.Remote, f.List}] = true
	}
	byList, byReason := make(map[string]uint64), make(map[string]uint64)
	for _, record := range read.Records {
		if record.Domain != 1 || len(record.Texts) != 2 { // options have no reason and no list
			continue
		}
		reason, list := record.Texts[0], record.Texts[1]
		byReason[reason] += record.Packets
		if list == "" {
			continue
		}
		byList[list] += record.Packets
		if !record.Source.IsUnspecified() && !matched[match{record.Source, list}] {
			t.Errorf("IPFIX has %d packets of %v by list %q, and no event has", record.Packets, record.Source, list)
		}
	}
	for list, hits := range lists.Hits {
		if byList[list] != hits.Packets {
			t.Errorf("IPFIX has %d packets by list %q, which has matched %d (the report came in second %d)", byList[list], list, hits.Packets, comes)
		}
	}
	for reason, count := range grown {
		if name := verdict.Reason(reason).String(); byReason[name] != count.Packets {
			t.Errorf("IPFIX has %d packets that are %s, of %d", byReason[name], name, count.Packets)
		}
	}
}

// Everything that names the list of a packet names the same: the lists' counters, events, captures,
// new flows, the tracker and the recorder of dropped packets, the history, records of IPFIX, samples of sFlow,
// the answer of explain, and a search through all entries; for each reason, after any stage, on the lean path and
// the general one, at XDP and TC, of both directions and families. WEIR_CONFIGURATIONS and WEIR_PACKETS are how
// many there are.
func TestOneRecord(t *testing.T) {
	lab.Root(t)
	onOneCPU(t)
	number := func(variable string, otherwise int) int {
		text := os.Getenv(variable)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("%s is %q, want a number from 1", variable, text)
		}
		return n
	}
	configurations := number(configurationsVariable, long.Or(16, 32))
	packets := number(packetsVariable, long.Or(12_000, 160_000)) / configurations
	r := newRandom(t)
	seen, ways, passed := make(map[string]int), make(map[string]int), 0
	rare := func() (all []string) {
		for reason := range verdict.NumReasons {
			switch reason {
			case verdict.NotIP, verdict.ARP, verdict.Link, verdict.ND, verdict.DHCP, verdict.Failsafe, verdict.Overtagged, verdict.Unparsed:
				continue // without lists, and rare
			}
			if seen[reason.String()] == 0 {
				all = append(all, reason.String())
			}
		}
		for _, way := range []string{"XDP, lean", "XDP, general", "TC in, lean", "TC in, general", "TC out, lean", "TC out, general", "policed beside an allow list"} {
			if ways[way] == 0 {
				all = append(all, way)
			}
		}
		return all
	}
	for i := 0; i < configurations || i < 4*configurations && len(rare()) > 0; i++ {
		round := newRound(t)
		programs := r.records(round, i)
		for e, n := range programs {
			way := []string{"XDP", "TC in", "TC out"}[e] + map[bool]string{true: ", lean", false: ", general"}[len(n.General()) == 0]
			ways[way]++
			n.Generation.Interface = n.at.Iface // XDP and TC share one for incoming packets
			allows := slices.ContainsFunc(n.lists, func(l engine.List) bool { return l.Allow && l.Contents.Len() > 0 })
			for range packets / len(programs) {
				f := r.packetOnLeanPath()
				switch r.IntN(6) {
				case 0:
					f = r.mutate(packet.Frame(r.tuple()))
				case 1:
					f = r.tunnel(packet.Frame(r.tuple()))
				case 3:
					if len(n.known) > 0 {
						f = packet.Frame(n.known[r.IntN(len(n.known))])
					}
				case 2:
					if p, _ := packet.Parse(f); n.loops && p.HasAddresses && !p.Encapsulated {
						if pkt, did := n.Loop.Insert(bytes.Clone(f[p.Network:]), 1500); did == icarus.Inserted {
							f = slices.Concat(f[:p.Network], pkt)
						}
					}
				}
				if r.IntN(4) == 0 && len(f) > 14 {
					f = r.tagged(f)
				}
				f = f[:min(len(f), tcPage)]
				if err := n.pass(t, r, f); err != nil {
					t.Fatalf("configuration %d, %s, %v, %+v: %v: % x", i, way, n.drawn, n.Policy, err, f)
				}
				passed++
			}
			n.end(t, r)
			for reason, count := range n.reasons {
				if seen[reason.String()] += count; reason == verdict.Policed && allows {
					ways["policed beside an allow list"] += count
				}
			}
		}
		round.end()
		if t.Failed() {
			t.Fatalf("configuration %d: %v", i, programs[0].drawn)
		}
	}
	t.Log(passed, "packets", seen, ways)
	for _, what := range rare() {
		t.Errorf("no packet was %s: the test is too narrow", what)
	}
}
