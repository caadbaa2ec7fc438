package run

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/control/metrics"
	"weir/control/observe/heavy"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
)

// counts are all counters of a snapshot, by names and labels.
func counts(s metrics.Snapshot) map[string]uint64 {
	all := map[string]uint64{"done": s.Reloads.Done, "refused": s.Reloads.Refused}
	for _, i := range s.Interfaces {
		for _, c := range i.Counts {
			name := fmt.Sprint(i.Target, " ", c.Reason, " ", c.Drops)
			all[name], all[name+" bytes"] = c.Packets, c.Bytes
		}
	}
	for name, c := range s.Hits {
		all["hits of "+name] = c.Packets
	}
	for _, t := range s.Trackers {
		all[fmt.Sprintf("tracker %d", t.Number)] = t.Packets
	}
	return all
}

// watched asks a filter for its metrics all the time, also while it changes, and
// fails where a counter goes back.
func watched(t *testing.T, f *Filter) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		last := counts(f.Metrics())
		for ctx.Err() == nil {
			now := counts(f.Metrics())
			for name, n := range last {
				if now[name] < n {
					t.Errorf("%s: %d after %d", name, now[name], n)
					return
				}
			}
			last = now
			time.Sleep(time.Millisecond)
		}
	})
	return func() { cancel(); all.Wait() }
}

// sources of packets.
const (
	firstSource  = "10.0.0.1" // as in options
	secondSource = "10.0.0.2"
	cleanSource  = "10.0.0.3"
)

// send sends packets of a source.
func send(t *testing.T, l *lab.Lab, n int, source string) {
	t.Helper()
	frame := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr(source), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 2,
	})
	sendFrame(t, l, n, frame)
}

func sendFrame(t *testing.T, l *lab.Lab, n int, frame []byte) {
	t.Helper()
	tx := l.A.Sender(t)
	for range n {
		if err := tx.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
}

// await waits until so many packets are counted.
func await(t *testing.T, what string, want uint64, counted func() uint64) {
	t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for counted() < want && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if got := counted(); got != want {
		t.Fatalf("%s: %d packets, want %d", what, got, want)
	}
}

func awaitHits(t *testing.T, f *Filter, list string, want uint64) {
	t.Helper()
	await(t, list, want, func() uint64 { return f.Metrics().Hits[list].Packets })
}

// left is how many packets have left with a reason and a verdict.
func left(f *Filter, reason string, drops bool) (n uint64) {
	for _, i := range f.Metrics().Interfaces {
		for _, c := range i.Counts {
			if c.Reason == reason && c.Drops == drops {
				n += c.Packets
			}
		}
	}
	return n
}

func blocked(f *Filter) uint64 { return left(f, "blocked", true) }

// write writes a file.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// deleteWire deletes the filter's interface, and the other end with it.
func deleteWire(t *testing.T, l *lab.Lab) {
	t.Helper()
	var err error
	l.B.In(t, func() {
		var wire netlink.Link
		if wire, err = netlink.LinkByName(l.B.Iface); err == nil {
			err = netlink.LinkDel(wire)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Counters go on through reloads that give lists other numbers, and through an
// interface that comes back.
func TestMetricsGoOn(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	o := options(t, &log, l.B)
	o.Tell = func(s *metrics.Snapshot) { s.Config = &metrics.Reloads{Done: 77} }
	first, second := o.Rules.Block[0], filepath.Join(t.TempDir(), "second.txt")
	write(t, second, secondSource+"\n")

	f := begin(t, o)
	stop := watched(t, f)
	send(t, l, 5, firstSource)
	awaitHits(t, f, "feed", 5)
	f.o.Rules.Block = []string{second, first} // the first list is number 2 now
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	if s := f.Metrics(); s.Config == nil || s.Config.Done != 77 || s.Hits["feed"].Packets != 5 || s.Hits["second"].Packets != 0 || s.Reloads.Done != 1 || s.Reloads.Failed {
		t.Errorf("after a reload: %+v", s)
	}
	send(t, l, 7, firstSource)
	awaitHits(t, f, "feed", 12)
	send(t, l, 3, secondSource)
	awaitHits(t, f, "second", 3)

	write(t, second, "")
	if err := f.Reload(); err == nil {
		t.Fatal("a list that lost its entries was taken")
	}
	if s := f.Metrics(); s.Reloads.Refused != 1 || !s.Reloads.Failed || s.Reloads.Last.Equal(s.Reloads.LastDone) || s.Generation != 2 {
		t.Errorf("after a refused reload: %+v", s)
	}

	for i := range uint64(2) {
		deleteWire(t, l)
		if err := f.follow(); err != nil {
			t.Fatal(err)
		}
		f.note()
		if s := f.Metrics(); len(s.Interfaces) != 1 || s.Interfaces[0].XDP != "" || blocked(f) != 15+i {
			t.Errorf("without the interface: %+v", s.Interfaces)
		}
		l.Wire(t)
		if err := f.follow(); err != nil {
			t.Fatal(err)
		}
		f.note()
		send(t, l, 1, firstSource)
		awaitHits(t, f, "feed", 13+i)
		if s := f.Metrics(); s.Interfaces[0].XDP != "native" || blocked(f) != 16+i {
			t.Errorf("with the interface again: %+v", s.Interfaces)
		}
	}
	stop()
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	if blocked(f) != 17 {
		t.Error("stopped, it has forgotten")
	}

}

// What a program has counted before it is adopted counts, by list too, unless
// the list's number was another's.
func TestMetricsAdopted(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	o := options(t, &log, l.B)
	o.Keep = true
	first, second := o.Rules.Block[0], filepath.Join(t.TempDir(), "second.txt")
	write(t, second, secondSource+"\n")
	for _, step := range []struct {
		lists                 []string
		blocked, feed, second uint64 // at first
	}{
		{[]string{second, first}, 0, 0, 0},
		{[]string{second, first}, 3, 2, 1},
		{[]string{first}, 6, 0, 0},
	} {
		o.Rules.Block = step.lists
		f := begin(t, o)
		if s := f.Metrics(); blocked(f) != step.blocked || s.Hits["feed"].Packets != step.feed || s.Hits["second"].Packets != step.second {
			t.Errorf("adopted with %+v: %d packets were blocked, %v", step, blocked(f), s.Hits)
		}
		send(t, l, 2, firstSource)
		awaitHits(t, f, "feed", step.feed+2)
		if len(step.lists) > 1 {
			send(t, l, 1, secondSource)
			awaitHits(t, f, "second", step.second+1)
		}
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// What an interface has counted last is not lost with it.
func TestMetricsLast(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	f := begin(t, options(t, &log, l.B))
	defer f.Stop()
	send(t, l, 3, firstSource)
	await(t, "blocked", 3, func() uint64 { c := f.Counters(); return c.Dropped() })
	deleteWire(t, l)
	f.note()
	if got := blocked(f); got != 3 {
		t.Errorf("%d packets were blocked, want 3", got)
	}
}

// Events that nobody reads are told to be lost.
func TestMetricsLost(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	f := begin(t, options(t, &log, l.B))
	defer f.Stop()
	asked := loader.Sampling{Until: loader.Monotonic() + time.Minute}
	asked.OneIn[verdict.Blocked] = 1
	f.holds[0].Stats().Sample(asked)
	for i := uint64(1); f.holds[0].Stats().EventsLost() == 0; i++ {
		if i > 100 {
			t.Fatal("the buffer does not fill")
		}
		send(t, l, 100, firstSource)
		await(t, "blocked", 100*i, func() uint64 { return blocked(f) })
	}
	if got, want := f.Metrics().Interfaces[0].Lost, f.holds[0].Stats().EventsLost(); got != want {
		t.Errorf("%d events were lost, want %d", got, want)
	}
}

// With another policy, what was dropped stays dropped.
func TestMetricsVerdict(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	o := options(t, &log, l.B)
	o.Rules.DropMalformed = true
	f := begin(t, o)
	defer f.Stop()
	frame := packet.Frame(key.Tuple{Src: netip.MustParseAddr(cleanSource), Dst: netip.MustParseAddr("203.0.113.1")})[:24]
	sendFrame(t, l, 4, frame)
	await(t, "dropped", 4, func() uint64 { return left(f, "truncated", true) })
	f.o.Rules.DropMalformed = false
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	sendFrame(t, l, 2, frame)
	await(t, "passed", 2, func() uint64 { return left(f, "truncated", false) })
	if got := left(f, "truncated", true); got != 4 {
		t.Errorf("%d packets were dropped, want 4", got)
	}
}

// What the trackers find is added up, and its penalties are told.
func TestMetricsTrackers(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	o := options(t, &log, l.B)
	spec, err := heavy.Parse("key=src,threshold=100pps,interval=100ms,action=block")
	if err != nil {
		t.Fatal(err)
	}
	o.Track = []heavy.Spec{spec}
	f := begin(t, o)
	defer f.Stop()
	f.tick()
	const packets = 200 // heavy in an interval of nearly two seconds, too
	send(t, l, packets, cleanSource)
	var s metrics.Snapshot
	for range 3 { // intervals
		time.Sleep(2 * heavy.Tick)
		f.tick()
		f.note()
		s = f.Metrics()
	}
	if p := s.Interfaces[0].Penalties; p == nil || *p != 1 {
		t.Errorf("penalties: %+v", s.Interfaces[0])
	}
	if len(s.Trackers) != 1 {
		t.Fatalf("trackers: %+v", s.Trackers)
	}
	if tr := s.Trackers[0]; tr.Number != 1 || tr.Key != "src" || tr.Action != "block" || tr.Packets < packets || tr.Packets > 2*packets {
		t.Errorf("%+v", tr)
	}
}

// What trackers report is added up, each by itself.
func TestWatched(t *testing.T) {
	spec, err := heavy.Parse("key=src,threshold=100pps,action=limit")
	if err != nil {
		t.Fatal(err)
	}
	report := func(packets uint64, heavies int) *heavy.Report {
		r := &heavy.Report{Spec: spec, Packets: packets, Bytes: 10 * packets, Denied: 1, Flows: make([]heavy.Flow, 3)}
		for i := range heavies {
			r.Flows[i].Heavy = true
		}
		return r
	}
	var r record
	first, second := report(5, 1), report(7, 2)
	r.watched([]*heavy.Report{first, nil}, []*heavy.Report{first}, []heavy.Event{{Unmet: true}, {}}, 1)
	r.watched([]*heavy.Report{first, second}, []*heavy.Report{second}, nil, 1)
	first = report(6, 0)
	r.watched([]*heavy.Report{first, second}, []*heavy.Report{first}, nil, 1)
	want := []metrics.Tracker{
		{Number: 1, Key: "src", Unit: "packets", Action: "limit", Counter: loader.Counter{Packets: 11, Bytes: 110}, Denied: 2, Flows: 3},
		{Number: 2, Key: "src", Unit: "packets", Action: "learn", Counter: loader.Counter{Packets: 7, Bytes: 70}, Denied: 1, Flows: 3, Heavy: 2},
	}
	if !slices.Equal(r.trackers, want) || r.refused != 1 {
		t.Errorf("%+v, %d refused; want %+v", r.trackers, r.refused, want)
	}
}

// Metrics are at their own address, and on the API's socket.
func TestMetricsServed(t *testing.T) {
	var log bytes.Buffer
	o := options(t, &log, lab.New(t).B)
	// An address of the loopback's at which nobody else is given the port meanwhile.
	free, err := net.Listen("tcp", "127.99.97.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.Metrics, o.Socket = free.Addr().String(), filepath.Join(t.TempDir(), "weir.sock")
	free.Close()
	o.Log = slog.New(slog.DiscardHandler)
	f := begin(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- f.Serve(ctx, nil, time.Minute, func(Rates) {}) }()
	defer func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := f.Stop(); err != nil {
			t.Error(err)
		}
	}()
	for network, address := range map[string]string{"tcp": o.Metrics, "unix": o.Socket} {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}}
		var r *http.Response
		for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if r, err = client.Get("http://weir" + metrics.Path); err == nil {
				break
			}
		}
		if err != nil {
			t.Errorf("%s: %v", network, err)
			continue
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		want := fmt.Sprintf("weir_interface_attached{interface=%q,netns=%q} 1\n", o.Places[0].Iface, o.Places[0].Netns)
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v, want %s in\n%s", network, r.Status, err, want, body)
		}
	}
}

// What is seen of a counter never goes back, also where that does for a moment.
func TestSince(t *testing.T) {
	var seen, total loader.Counter
	for i, step := range []struct{ now, want uint64 }{{5, 5}, {3, 5}, {5, 5}, {9, 9}} {
		total = sum(total, since(loader.Counter{Packets: step.now, Bytes: 10 * step.now}, &seen))
		if total != (loader.Counter{Packets: step.want, Bytes: 10 * step.want}) {
			t.Errorf("step %d: %+v", i, total)
		}
	}
}
