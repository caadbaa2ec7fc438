package events

import (
	"bytes"
	"context"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/replay"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/netif"
	"weir/tests/lab"
	"weir/tests/wait"
)

func TestThin(t *testing.T) {
	type reasons = [verdict.NumReasons]float64
	type ones = [verdict.NumReasons]uint32
	const a, b = verdict.Blocked, verdict.Malformed
	for _, c := range []struct {
		name        string
		rate        []reasons
		least, want []ones
	}{
		{"no interface", nil, nil, nil},
		{"silence", []reasons{{}}, []ones{{a: 1}}, []ones{{a: 1}}},
		{"up to the limit", []reasons{{a: 1000}}, []ones{{a: 1}}, []ones{{a: 1}}},
		{"above it", []reasons{{a: 1001}}, []ones{{a: 1}}, []ones{{a: 2}}},
		{"a flood", []reasons{{a: 100e6}}, []ones{{a: 1}}, []ones{{a: 1 << 17}}},
		{"fewer requested", []reasons{{a: 2000}}, []ones{{a: 256}}, []ones{{a: 256}}},
		{"no subscriber", []reasons{{a: 2000, b: 3}}, []ones{{b: 1}}, []ones{{b: 1}}},
		{"rare events stay", []reasons{{a: 1e6, b: 100}}, []ones{{a: 1, b: 1}}, []ones{{a: 2048, b: 1}}},
		{"a flood elsewhere", []reasons{{a: 1e6}, {a: 100}}, []ones{{a: 1}, {a: 1}}, []ones{{a: 2048}, {a: 1}}},
		{"two floods", []reasons{{a: 1e6}, {b: 1e6}}, []ones{{a: 1}, {b: 1}}, []ones{{a: 2048}, {b: 2048}}},
	} {
		var all []*reader
		for i := range c.rate {
			all = append(all, &reader{rate: c.rate[i], oneIn: c.least[i]})
		}
		thin(all, 1000)
		for i, r := range all {
			if r.oneIn != c.want[i] {
				t.Errorf("%s: %v, want %v", c.name, r.oneIn, c.want[i])
			}
		}
	}
}

func TestParseReason(t *testing.T) {
	for _, r := range Reasons() {
		if got, err := ParseReason(r.String()); err != nil || got != r {
			t.Errorf("%v: %v, %v", r, got, err)
		}
	}
	for name, want := range map[string]string{
		"clean": "clean packets produce no events: use tcpdump",
		"all":   `unknown reason "all": want allowed, would-block, blocked, truncated, malformed, unparsed, rate-limited, heavy, looped, overtagged, policed, reply, pattern`,
	} {
		if _, err := ParseReason(name); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

var (
	listed = frame("192.0.2.1")
	ours   = frame("192.0.2.65")
)

func frame(src string) []byte {
	return packet.Frame(key.Tuple{
		Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 4000, DstPort: 53,
	})
}

// bench is a hub with an interface of synthetic packets.
type bench struct {
	*testing.T
	*Hub
	kernel *replay.Kernel
}

func newBench(t *testing.T) *bench {
	t.Helper()
	lab.Root(t)
	release, err := loader.StayOnCPU()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	var rules []engine.List
	var lists []string
	for _, l := range []struct {
		engine.List
		prefix string
	}{{engine.List{Name: "feed"}, "192.0.2.0/24"}, {engine.List{Name: "ours", Allow: true}, "192.0.2.64/26"}} {
		l.Contents = list.SetOf(key.Source(netip.MustParsePrefix(l.prefix)))
		rules = append(rules, l.List)
		lists = append(lists, l.Name)
	}
	g, err := engine.Build(rules, engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	k, err := replay.NewKernel(g, len(lists))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	h := NewHub(slog.New(slog.DiscardHandler))
	h.Follow([]Interface{{
		Target: netif.Target{Netns: "lab", Iface: "eth0"}, Stats: k.Stats(), Lists: lists, Policy: &verdict.Policy{},
	}})
	return &bench{t, h, k}
}

func (b *bench) send(frame []byte, n int) {
	b.Helper()
	for i := range n {
		if i%100 == 0 { // on a busy machine, many packets take longer than the programs may send events unasked
			b.mu.Lock()
			b.ask()
			b.mu.Unlock()
		}
		if _, err := b.kernel.Decide(frame); err != nil {
			b.Fatal(err)
		}
	}
}

// got returns the events that wait for a subscriber.
func (b *bench) got(events <-chan Event) (all []Event) {
	b.Helper()
	b.mu.Lock()
	b.poll()
	b.ask()
	b.mu.Unlock()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				b.Fatal("the subscription has ended")
			}
			all = append(all, e)
		default:
			return all
		}
	}
}

func TestSubscribe(t *testing.T) {
	b := newBench(t)
	b.send(listed, 1) // before anyone subscribes
	all, endAll := b.Subscribe(Want{Frames: true})
	before := time.Now()
	b.send(listed, 1)
	b.send(ours, 1)
	blocked, endBlocked := b.Subscribe(Want{Reasons: []verdict.Reason{verdict.Blocked}})
	got := b.got(all)
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	tuple := func(frame []byte) key.Tuple { p, _ := packet.Parse(frame); return p.Tuple }
	for i, want := range []Event{
		{Reason: verdict.Blocked, Dropped: true, List: "feed", Tuple: tuple(listed), Length: len(listed), OneIn: 1},
		{Reason: verdict.Allowed, List: "ours", Tuple: tuple(ours), Length: len(ours), OneIn: 1},
	} {
		e := got[i]
		want.Target, want.Time = netif.Target{Netns: "lab", Iface: "eth0"}, e.Time
		frame := e.Frame
		if e.Frame = nil; !bytes.Equal(frame, [][]byte{listed, ours}[i]) {
			t.Errorf("event %d has the frame % x", i, frame)
		}
		if e.Time.Before(before.Add(-time.Millisecond)) || e.Time.After(time.Now().Add(time.Millisecond)) {
			t.Errorf("event %d was at %v, not %v to %v", i, e.Time, before, time.Now())
		}
		if e.Time != want.Time || e.Target != want.Target || e.Reason != want.Reason || e.Dropped != want.Dropped ||
			e.List != want.List || e.Tuple != want.Tuple || e.Length != want.Length || e.OneIn != want.OneIn || e.Lost != 0 {
			t.Errorf("%+v, want %+v", e, want)
		}
	}
	b.send(listed, 1)
	if got := b.got(blocked); len(got) != 1 || got[0].Frame != nil {
		t.Errorf("%+v, want one event, without a frame", got)
	}
	if got := b.got(all); len(got) != 1 || got[0].Frame == nil {
		t.Errorf("%+v, want one event, with a frame", got)
	}

	endAll()
	endAll()
	if _, ok := <-all; ok {
		t.Error("an event after the subscription's end")
	}
	b.send(ours, 1)
	b.send(listed, 1)
	if got := b.got(blocked); len(got) != 1 {
		t.Errorf("%+v, want one event", got)
	}
	endBlocked()
	b.send(listed, 1)
	if err := b.kernel.Stats().Events(func(e *loader.Event) { t.Errorf("unwanted event %+v", e) }); err != nil {
		t.Error(err)
	}
}

// A subscriber gets at least what it asked for, and more while another one asks
// for more.
func TestShare(t *testing.T) {
	b := newBench(t)
	judge, _ := b.Subscribe(Want{OneIn: 256})
	const packets = 256 * 20
	b.send(listed, packets)
	if n := len(b.got(judge)); n == 0 || n > packets/8 {
		t.Errorf("%d events of %d packets, one in 256", n, packets)
	}
	b.Subscribe(Want{})
	b.interfaces[0].rate = [verdict.NumReasons]float64{} // end of the flood
	b.interfaces[0].seen = nil
	b.ask()
	b.send(listed, 10)
	got := b.got(judge)
	if len(got) != 10 || got[0].OneIn != 1 {
		t.Errorf("%d events, want 10", len(got))
	}
}

// A slow subscriber receives the number of missing events, and so do all if the
// kernel's buffer was full.
func TestLost(t *testing.T) {
	b := newBench(t)
	slow, _ := b.Subscribe(Want{Room: 2})
	fast, _ := b.Subscribe(Want{Room: 4000})
	b.send(listed, 5)
	if got := b.got(fast); len(got) != 5 {
		t.Errorf("%d events, want 5", len(got))
	}
	if got := b.got(slow); len(got) != 2 || got[0].Lost+got[1].Lost != 0 {
		t.Errorf("%+v, want two events", got)
	}
	if got := b.got(slow); len(got) != 1 || got[0].Lost != 3 || got[0].OneIn != 0 || got[0].Time.IsZero() {
		t.Errorf("%+v, want a report of 3 lost events", got)
	}
	if got := b.got(slow); len(got) != 0 {
		t.Errorf("%+v after everything was reported", got)
	}

	const packets = 2000
	b.send(listed, packets)
	got := b.got(fast)
	last := got[len(got)-1]
	if last.Lost == 0 || len(got)-1+int(last.Lost) != packets {
		t.Errorf("%d events and %d lost, of %d", len(got)-1, last.Lost, packets)
	}
}

// A flood is sampled, until some time after it.
func TestFlood(t *testing.T) {
	b := newBench(t)
	s, _ := b.Subscribe(Want{Room: 4000})
	r := b.interfaces[0]
	start := loader.Monotonic() + time.Hour
	r.measure(start)
	at := func(clock time.Duration, rate float64, oneIn uint32) {
		t.Helper()
		r.measure(start + clock)
		b.ask()
		if got := r.rate[verdict.Blocked]; math.Abs(got-rate) > 1 || r.oneIn[verdict.Blocked] != oneIn {
			t.Errorf("after %v: %.1f packets per second, sampled 1 of %d, want %.1f and %d",
				clock, got, r.oneIn[verdict.Blocked], rate, oneIn)
		}
	}
	b.send(listed, 10)
	at(time.Millisecond, 0, 1) // too soon
	b.send(listed, 1000)
	at(Period, 20_200, 4)
	at(2*Period, 18_180, 2)
	at(10*Period, 16_362, 2)
	b.send(listed, 400)
	got := b.got(s)
	if n := len(got); n < 1010+100 || n > 1010+300 || got[n-1].OneIn != 2 {
		t.Errorf("%d events, of one in 2 at last", n)
	}
}

// Events that are reported are for the subscribers of their reasons.
func TestReport(t *testing.T) {
	b := newBench(t)
	all, _ := b.Subscribe(Want{})
	looped, _ := b.Subscribe(Want{Reasons: []verdict.Reason{verdict.Looped}})
	blocked, _ := b.Subscribe(Want{Reasons: []verdict.Reason{verdict.Blocked}})
	frames, _ := b.Subscribe(Want{Frames: true})
	b.Report(Event{Reason: verdict.Looped, FirstTTL: 64, TTL: 60})
	for i, s := range []<-chan Event{all, looped} {
		if got := b.got(s); len(got) != 1 || got[0].Reason != verdict.Looped || got[0].FirstTTL != 64 {
			t.Errorf("subscriber %d: %+v", i, got)
		}
	}
	for i, s := range []<-chan Event{blocked, frames} {
		if got := b.got(s); len(got) != 0 {
			t.Errorf("subscriber %d wants none: %+v", i, got)
		}
	}
}

// An interface that is no longer followed is silent, until it is followed
// again.
func TestFollow(t *testing.T) {
	b := newBench(t)
	s, _ := b.Subscribe(Want{})
	i := b.interfaces[0].Interface
	b.Follow(nil)
	b.send(listed, 1)
	if err := i.Stats.Events(func(e *loader.Event) { t.Errorf("still reported: %+v", e) }); err != nil {
		t.Error(err)
	}
	i.Lists = []string{"renamed", "ours"}
	b.Follow([]Interface{i})
	b.send(listed, 1)
	if got := b.got(s); len(got) != 1 || got[0].List != "renamed" {
		t.Errorf("%+v", got)
	}
}

// What was reported before the lists changed has the names of the former ones.
func TestFollowOtherLists(t *testing.T) {
	b := newBench(t)
	s, _ := b.Subscribe(Want{})
	b.send(listed, 1)
	b.send(ours, 1)
	i := b.interfaces[0].Interface
	i.Lists = []string{"other", "feed"}
	b.Follow([]Interface{i})
	b.send(listed, 1)
	var lists []string
	for _, e := range b.got(s) {
		lists = append(lists, e.List)
	}
	if want := []string{"feed", "ours", "other"}; !slices.Equal(lists, want) {
		t.Errorf("events of %q, want %q", lists, want)
	}
}

func TestRun(t *testing.T) {
	b := newBench(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { b.Hub.Run(ctx); close(ended) }()
	s, end := b.Subscribe(Want{})
	for range 3 { // the programs go on reporting beyond a single lease
		for deadline, seen := wait.Deadline(), false; !seen; {
			b.send(listed, 1)
			select {
			case e := <-s:
				if seen = true; e.Reason != verdict.Blocked {
					t.Errorf("%+v", e)
				}
			case <-time.After(2 * lease): // on a busy machine, the lease ran out
				if time.Now().After(deadline) {
					t.Fatal("no event")
				}
			}
		}
		time.Sleep(lease / 2)
	}
	stop()
	<-ended
	if _, ok := <-s; ok {
		t.Error("the subscription goes on")
	}
	end()
	s, end = b.Subscribe(Want{})
	if _, ok := <-s; ok {
		t.Error("a subscription to a hub that has ended")
	}
	end()
}

// Clean packets have events only for those that ask for them.
func TestCleanPackets(t *testing.T) {
	for _, c := range []struct {
		reasons []Reason
		want    bool
	}{{nil, false}, {[]Reason{verdict.Blocked}, false}, {[]Reason{verdict.Blocked, verdict.Clean}, true}} {
		if s := (&subscription{Want: Want{Reasons: c.reasons}}); s.wants(verdict.Clean) != c.want || s.wants(verdict.Blocked) != true {
			t.Errorf("%v: %v", c.reasons, s.wants(verdict.Clean))
		}
	}
}
