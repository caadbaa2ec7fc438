package daemon

import (
	"context"
	"errors"
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

	"weir/control/api"
	"weir/control/attach"
	"weir/control/config"
	"weir/control/metrics"
	"weir/control/stage/tracker"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/wait"
)

// counts returns all counters of a snapshot, by names and labels.
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
	for i, n := range tracked(s) {
		all[fmt.Sprintf("tracker %d", i)] = n.packets
	}
	return all
}

// trackedPackets are the packets that a tracker has counted.
type trackedPackets struct {
	number, key, unit, action string
	packets                   uint64
}

// tracked returns what trackers have counted.
func tracked(s metrics.Snapshot) (all []trackedPackets) {
	for _, of := range s.Stages {
		if of.Name == "weir_tracker_packets_total" {
			all = append(all, trackedPackets{of.Values[0], of.Values[1], of.Values[2], of.Values[3], uint64(of.Value)})
		}
	}
	return all
}

// watched reads the metrics of a daemon all the time, also while it changes, and
// fails where a counter goes back.
func watched(t *testing.T, d *Daemon) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		last := counts(d.readings.Metrics())
		for ctx.Err() == nil {
			now := counts(d.readings.Metrics())
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
	firstSource  = "10.0.0.1" // as in configured
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

// await waits until want packets are counted.
func await(t *testing.T, what string, want uint64, counted func() uint64) {
	t.Helper()
	deadline := wait.Deadline()
	for counted() < want && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond) // asking takes CPU time, too
	}
	if got := counted(); got != want {
		t.Fatalf("%s: %d packets, want %d", what, got, want)
	}
}

func awaitHits(t *testing.T, d *Daemon, list string, want uint64) {
	t.Helper()
	await(t, list, want, func() uint64 { return d.readings.Metrics().Hits[list].Packets })
}

// left returns how many packets have left with a reason and a verdict.
func left(d *Daemon, reason string, drops bool) (n uint64) {
	for _, i := range d.readings.Metrics().Interfaces {
		for _, c := range i.Counts {
			if c.Reason == reason && c.Drops == drops {
				n += c.Packets
			}
		}
	}
	return n
}

func blocked(d *Daemon) uint64 { return left(d, "blocked", true) }

// deleteWire deletes the daemon's interface, and the other end with it.
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

// configured is a configuration that a test may change between reloads.
type configured struct {
	mu sync.Mutex
	c  config.Config
}

// Read implements [config.Reader].
func (r *configured) Read() (*config.Config, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.c
	c.Lists = slices.Clone(c.Lists)
	return &c, c.Validate()
}

// change changes the configuration.
func (r *configured) change(fn func(*config.Config)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn(&r.c)
}

// configure returns a configuration of one list on the far ends of wires, that
// keeps nothing.
func configure(t *testing.T, ends ...lab.End) *configured {
	t.Helper()
	dir, err := os.MkdirTemp("/sys/fs/bpf", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	pins := loader.Pins(dir)
	t.Cleanup(func() {
		if _, err := attach.DetachAll(pins); err != nil {
			t.Error(err)
		}
		os.RemoveAll(dir)
	})
	r := &configured{c: *config.Default()}
	r.c.Keep, r.c.StateDir, r.c.API.Socket, r.c.Pins = false, "", "", pins
	for _, e := range ends {
		r.c.Interfaces = append(r.c.Interfaces, config.Interface{Name: e.Iface, Netns: e.Netns})
	}
	r.lists(t, feedFile(t, "feed.txt", firstSource+"\n"))
	return r
}

// lists sets the lists to block, each in a file.
func (r *configured) lists(t *testing.T, files ...string) {
	t.Helper()
	r.change(func(c *config.Config) {
		c.Lists = nil
		for _, file := range files {
			if _, err := c.AddFile(file, config.Block); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func feedFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	write(t, path, text)
	return path
}

// running is a daemon that runs until stop.
type running struct {
	*Daemon
	stop func()
}

func begin(t *testing.T, r *configured) *running {
	t.Helper()
	d, err := Start(t.Context(), Options{Config: r, Version: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx, nil, time.Hour, nil) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, d.Stop()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return &running{d, stop}
}

// When a start is stopped, nothing is attached.
func TestStartStopped(t *testing.T) {
	r := configure(t, lab.New(t).B)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Start(ctx, Options{Config: r, Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, context.Canceled) {
		t.Errorf("started: %v", err)
	}
	if all, err := attach.ReadStatus(r.c.Pins); err != nil || len(all) != 0 {
		t.Errorf("attached: %+v, %v", all, err)
	}
}

// Counters go on through reloads that give lists other numbers, and through an
// interface that comes back.
func TestMetricsGoOn(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	first, second := string(r.c.Lists[0].Sources[0].File), feedFile(t, "second.txt", secondSource+"\n")

	d := begin(t, r)
	stop := watched(t, d.Daemon)
	send(t, l, 5, firstSource)
	awaitHits(t, d.Daemon, "feed", 5)
	r.lists(t, second, first) // the first list is number 2 now
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := d.readings.Metrics(); s.Config == nil || s.Config.Done != 2 || s.Hits["feed"].Packets != 5 || s.Hits["second"].Packets != 0 || s.Reloads.Done != 1 || s.Reloads.Failed {
		t.Errorf("after a reload: %+v", s)
	}
	send(t, l, 7, firstSource)
	awaitHits(t, d.Daemon, "feed", 12)
	send(t, l, 3, secondSource)
	awaitHits(t, d.Daemon, "second", 3)

	r.lists(t, second, first, filepath.Join(t.TempDir(), "absent"))
	if _, err := d.Reload(t.Context()); err == nil {
		t.Fatal("a list that is not there was taken")
	}
	if s := d.readings.Metrics(); s.Config.Refused != 1 || !s.Config.Failed || s.Config.Last.Equal(s.Config.LastDone) || s.Generation != 2 {
		t.Errorf("after a refused reload: %+v, generation %d", s.Config, s.Generation)
	}

	for i := range uint64(2) {
		deleteWire(t, l)
		awaitXDP(t, d.Daemon, "")
		if s := d.readings.Metrics(); len(s.Interfaces) != 1 || blocked(d.Daemon) != 15+i {
			t.Errorf("without the interface: %+v", s.Interfaces)
		}
		l.Wire(t)
		awaitXDP(t, d.Daemon, "native")
		send(t, l, 1, firstSource)
		awaitHits(t, d.Daemon, "feed", 13+i)
		if blocked(d.Daemon) != 16+i {
			t.Errorf("with the interface again: %+v", d.readings.Metrics().Interfaces)
		}
	}
	stop()
	d.stop()
	if blocked(d.Daemon) != 17 {
		t.Error("the counters are gone after the stop")
	}
}

// awaitXDP waits until the interface is filtered in a mode, "": not at all.
func awaitXDP(t *testing.T, d *Daemon, mode string) {
	t.Helper()
	await(t, "the interface is filtered: "+mode, 1, func() uint64 {
		if d.readings.Metrics().Interfaces[0].XDP == mode {
			return 1
		}
		return 0
	})
}

// What a program counted before it was adopted is included, by list too, unless
// the list's number was another's.
func TestMetricsAdopted(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.Keep = true
	first, second := string(r.c.Lists[0].Sources[0].File), feedFile(t, "second.txt", secondSource+"\n")
	for _, step := range []struct {
		lists                 []string
		blocked, feed, second uint64 // at first
	}{
		{[]string{second, first}, 0, 0, 0},
		{[]string{second, first}, 3, 2, 1},
		{[]string{first}, 6, 0, 0},
	} {
		r.lists(t, step.lists...)
		d := begin(t, r)
		if s := d.readings.Metrics(); blocked(d.Daemon) != step.blocked || s.Hits["feed"].Packets != step.feed || s.Hits["second"].Packets != step.second {
			t.Errorf("adopted with %+v: %d packets were blocked, %v", step, blocked(d.Daemon), s.Hits)
		}
		send(t, l, 2, firstSource)
		awaitHits(t, d.Daemon, "feed", step.feed+2)
		if len(step.lists) > 1 {
			send(t, l, 1, secondSource)
			awaitHits(t, d.Daemon, "second", step.second+1)
		}
		d.stop()
	}
}

// What an interface has counted last is not lost with it.
func TestMetricsLast(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	d := begin(t, configure(t, l.B))
	send(t, l, 3, firstSource)
	await(t, "blocked", 3, func() uint64 { c := d.readings.Counters(); return c.Blocked() })
	deleteWire(t, l)
	awaitXDP(t, d.Daemon, "")
	if got := blocked(d.Daemon); got != 3 {
		t.Errorf("%d packets were blocked, want 3", got)
	}
}

// Events that the buffer has no room for are counted as lost.
func TestMetricsLost(t *testing.T) {
	l := lab.New(t)
	d := begin(t, configure(t, l.B))
	var stats *loader.Stats
	if err := d.loop.Do(t.Context(), func() error { stats = d.active.attach.Stats(false)[0]; return nil }); err != nil {
		t.Fatal(err)
	}
	asked := loader.Sampling{Until: loader.Monotonic() + time.Minute}
	asked.OneIn[verdict.Blocked] = 1
	stats.Sample(asked)
	for i := uint64(1); stats.EventsLost() == 0; i++ {
		if i > 100 {
			t.Fatal("the buffer does not fill")
		}
		send(t, l, 100, firstSource)
		await(t, "blocked", 100*i, func() uint64 { return blocked(d.Daemon) })
	}
	if got, want := d.readings.Metrics().Interfaces[0].Lost, stats.EventsLost(); got != want {
		t.Errorf("%d events were lost, want %d", got, want)
	}
}

// With another policy, what was dropped stays dropped.
func TestMetricsVerdict(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.Malformed = verdict.Drop
	d := begin(t, r)
	frame := packet.Frame(key.Tuple{Src: netip.MustParseAddr(cleanSource), Dst: netip.MustParseAddr("203.0.113.1")})[:24]
	sendFrame(t, l, 4, frame)
	await(t, "dropped", 4, func() uint64 { return left(d.Daemon, "truncated", true) })
	r.change(func(c *config.Config) { c.Malformed = verdict.Pass })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	sendFrame(t, l, 2, frame)
	await(t, "passed", 2, func() uint64 { return left(d.Daemon, "truncated", false) })
	if got := left(d.Daemon, "truncated", true); got != 4 {
		t.Errorf("%d packets were dropped, want 4", got)
	}
}

// penaltiesOf returns the number of penalties on the first interface.
func penaltiesOf(d *Daemon) uint64 {
	if p := d.readings.Metrics().Interfaces[0].Penalties; p != nil {
		return uint64(*p)
	}
	return 0
}

// What the trackers find is added up, and their penalties are counted.
func TestMetricsTrackers(t *testing.T) {
	l := lab.New(t)
	r := configure(t, l.B)
	spec, err := tracker.Parse("key=src,threshold=100pps,interval=100ms,action=block")
	if err != nil {
		t.Fatal(err)
	}
	r.c.Trackers = []tracker.Spec{spec}
	d := begin(t, r)
	const packets = 200 // heavy over any time that counts are judged for
	sent := uint64(0)
	penalties := func() uint64 { return penaltiesOf(d.Daemon) }
	// Where the daemon has no CPU for some intervals, it discards what was counted meanwhile.
	for deadline := wait.Deadline(); penalties() == 0 && time.Now().Before(deadline); time.Sleep(time.Second) {
		send(t, l, packets, cleanSource)
		sent += packets
	}
	await(t, "penalties", 1, penalties)
	// The first ones can be heavy alone: the others are then dropped before they are counted.
	const least = 10 // the threshold, in an interval
	counted := func() bool { return tracked(d.readings.Metrics())[0].packets >= least }
	for n, deadline := 1, wait.Deadline(); !counted() && time.Now().Before(deadline); n++ {
		time.Sleep(2 * time.Second)
		if counted() {
			break
		}
		send(t, l, packets, fmt.Sprintf("198.18.0.%d", n)) // those of the first source are dropped by now
		sent += packets
	}
	s := d.readings.Metrics()
	all := tracked(s)
	if len(all) != 2 || all[1].action != "drops" {
		t.Fatalf("trackers: %+v", all)
	}
	if tr := all[0]; tr.number != "1" || tr.key != "src" || tr.action != "block" || tr.packets < least || tr.packets > 2*sent {
		t.Errorf("%+v", tr)
	}
	e, err := d.api.Explainer.Explain(t.Context(), cleanSource, true)
	if err != nil || e.Answers[0].Reason != "heavy" || e.Answers[0].Verdict != api.VerdictDrop || e.Answers[1].Verdict != api.VerdictPass {
		t.Errorf("a heavy hitter is explained by %+v, %v", e, err)
	}
}

// A reload that configures another tracker, for which all of them count anew, releases no source.
func TestPenaltiesOutliveReload(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	spec, err := tracker.Parse("key=src,threshold=100pps,interval=100ms,action=block,duration=1h")
	if err != nil {
		t.Fatal(err)
	}
	r.c.Trackers = []tracker.Spec{spec}
	d := begin(t, r)
	blocked := func() uint64 { return left(d.Daemon, "heavy", true) }
	for deadline := wait.Deadline(); blocked() == 0 && time.Now().Before(deadline); time.Sleep(time.Second) {
		send(t, l, 200, cleanSource)
	}
	r.change(func(c *config.Config) { c.Trackers = []tracker.Spec{tracker.DefaultSpec("dst"), spec} })
	if _, err := d.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "penalties", 1, func() uint64 { return penaltiesOf(d.Daemon) })
	before := blocked()
	send(t, l, 3, cleanSource)
	await(t, "blocked", before+3, blocked)
}

// A source that reaches many ports is found and blocked; one that sends as many packets
// to one port is not.
func TestGuard(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	g := tracker.DefaultScan("src")
	g.Action, g.Threshold = tracker.Block, 64
	r.c.Scans = []tracker.Scan{g}
	d := begin(t, r)
	const scanner, packets = "192.0.2.77", 200
	send(t, l, packets, cleanSource)
	for port := range uint16(packets) {
		sendFrame(t, l, 1, packet.Frame(key.Tuple{
			Src: netip.MustParseAddr(scanner), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 1, DstPort: port + 1,
		}))
	}
	await(t, "penalties", 1, func() uint64 { return penaltiesOf(d.Daemon) })
	for source, want := range map[string]verdict.Reason{scanner: verdict.Heavy, cleanSource: verdict.Clean} {
		if e, err := d.api.Explainer.Explain(t.Context(), source, true); err != nil || e.Answers[0].Reason != want.String() {
			t.Errorf("%s is explained by %+v, %v", source, e, err)
		}
	}
	if tr := tracked(d.readings.Metrics())[0]; tr.unit != "ports" {
		t.Errorf("%+v", tr)
	}
}

// Metrics are served at their own address, and on the API's socket.
func TestMetricsServed(t *testing.T) {
	r := configure(t, lab.New(t).B)
	// A loopback address where no other test takes the port meanwhile.
	free, err := net.Listen("tcp", "127.99.97.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address, socket := free.Addr().String(), filepath.Join(t.TempDir(), "weir.sock")
	r.c.Metrics.Listen, r.c.API.Socket = config.Address(address), config.Path(socket)
	free.Close()
	begin(t, r)
	for network, address := range map[string]string{"tcp": address, "unix": socket} {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		}}}
		var answer *http.Response
		for deadline := wait.Deadline(); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if answer, err = client.Get("http://weir" + metrics.Path); err == nil && answer.StatusCode == http.StatusOK {
				break // and not starting
			}
			if err == nil {
				answer.Body.Close()
			}
		}
		if err != nil {
			t.Errorf("%s: %v", network, err)
			continue
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		want := fmt.Sprintf("weir_interface_attached{direction=\"in\",interface=%q,netns=%q} 1\n", r.c.Interfaces[0].Name, r.c.Interfaces[0].Netns)
		if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: %s, %v, want %s in\n%s", network, answer.Status, err, want, body)
		}
	}
}

// What interfaces counted is counted once, whatever they are called.
func TestMetricsRenamed(t *testing.T) {
	t.Parallel() // it waits a lot
	l := lab.New(t)
	r := configure(t, l.B)
	r.c.Interfaces = []config.Interface{{Name: "n[12]", Netns: l.B.Netns}}
	link := func(name string, fn func(netlink.Link) error) {
		t.Helper()
		var err error
		l.B.In(t, func() {
			var i netlink.Link
			if i, err = netlink.LinkByName(name); err == nil {
				err = fn(i)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"1", "2"} {
		var err error
		l.B.In(t, func() {
			err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "n" + n}, PeerName: "p" + n})
		})
		if err != nil {
			t.Fatal(err)
		}
		link("n"+n, netlink.LinkSetUp)
		link("p"+n, netlink.LinkSetUp)
	}
	d := begin(t, r)
	from := func(n string) *lab.Lab { return &lab.Lab{A: lab.End{Netns: l.B.Netns, Iface: "p" + n}} }
	send(t, from("1"), 3, firstSource)
	send(t, from("2"), 4, firstSource)
	awaitHits(t, d.Daemon, "feed", 7)
	link("n1", netlink.LinkDel)
	await(t, "one interface is gone", 1, func() (gone uint64) {
		for _, i := range d.readings.Metrics().Interfaces {
			if i.XDP == "" {
				gone++
			}
		}
		return gone
	})
	link("n2", netlink.LinkSetDown)
	link("n2", func(i netlink.Link) error { return netlink.LinkSetName(i, "n1") })
	link("n1", netlink.LinkSetUp)
	await(t, "one interface is left", 1, func() uint64 {
		if all := d.readings.Metrics().Interfaces; len(all) == 1 && all[0].XDP == "native" {
			return 1
		}
		return 0
	})
	send(t, from("2"), 2, firstSource)
	awaitHits(t, d.Daemon, "feed", 9)
	c := d.readings.Counters()
	if got := c.Blocked(); got != 9 || blocked(d.Daemon) != 9 {
		t.Errorf("%d packets were blocked, and %d on interfaces, want 9", got, blocked(d.Daemon))
	}
	if all := d.readings.Metrics().Interfaces; len(all) != 1 || all[0].Iface != "n1" || all[0].XDP != "native" {
		t.Errorf("%+v", all)
	}
}
