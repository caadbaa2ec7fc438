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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"weir/control/heavy"
	"weir/control/metrics"
	"weir/filter/key"
	"weir/filter/packet"
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

// send sends packets from these sources, and waits until the filter has counted
// so many of a list.
func send(t *testing.T, l *lab.Lab, f *Filter, n int, source, list string, want uint64) {
	t.Helper()
	tx := l.A.Sender(t)
	frame := packet.Frame(key.Tuple{
		Src: netip.MustParseAddr(source), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 2,
	})
	for range n {
		if err := tx.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	deadline := time.Now().Add(5 * time.Second)
	for f.Metrics().Hits[list].Packets < want && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if got := f.Metrics().Hits[list].Packets; got != want {
		t.Fatalf("list %q has %d packets, want %d", list, got, want)
	}
}

// write writes a file.
func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func blocked(f *Filter) (n uint64) {
	for _, i := range f.Metrics().Interfaces {
		for _, c := range i.Counts {
			if c.Reason == "blocked" && c.Drops {
				n += c.Packets
			}
		}
	}
	return n
}

// Counters go on through reloads that give lists other numbers, through an
// interface that comes back, and from one process to the next.
func TestMetricsGoOn(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	o := options(t, &log, l.B)
	o.Keep = true
	first, second := o.Rules.Block[0], filepath.Join(t.TempDir(), "second.txt")
	write(t, second, secondSource+"\n")

	f := begin(t, o)
	stop := watched(t, f)
	send(t, l, f, 5, firstSource, "feed", 5)
	f.o.Rules.Block = []string{second, first} // the first list is number 2 now
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	if s := f.Metrics(); s.Hits["feed"].Packets != 5 || s.Hits["second"].Packets != 0 || s.Reloads.Done != 1 || s.Reloads.Failed {
		t.Errorf("after a reload: %+v", s)
	}
	send(t, l, f, 7, firstSource, "feed", 12)
	send(t, l, f, 3, secondSource, "second", 3)

	write(t, second, "")
	if err := f.Reload(); err == nil {
		t.Fatal("a list that lost its entries was taken")
	}
	if s := f.Metrics(); s.Reloads.Refused != 1 || !s.Reloads.Failed || s.Reloads.Last.Equal(s.Reloads.LastDone) || s.Generation != 2 {
		t.Errorf("after a refused reload: %+v", s)
	}

	l.B.In(t, func() {
		wire, err := netlink.LinkByName(l.B.Iface)
		if err == nil {
			err = netlink.LinkDel(wire)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	if err := f.follow(); err != nil {
		t.Fatal(err)
	}
	f.note()
	if s := f.Metrics(); len(s.Interfaces) != 1 || s.Interfaces[0].XDP != "" || blocked(f) != 15 {
		t.Errorf("without the interface: %+v", s.Interfaces)
	}
	l.Wire(t)
	if err := f.follow(); err != nil {
		t.Fatal(err)
	}
	f.note()
	send(t, l, f, 2, firstSource, "feed", 14)
	if s := f.Metrics(); s.Interfaces[0].XDP != "native" || blocked(f) != 17 {
		t.Errorf("with the interface again: %+v", s.Interfaces)
	}
	stop()
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	if blocked(f) != 17 {
		t.Error("stopped, it has forgotten")
	}

	write(t, second, secondSource+"\n")
	o.Rules.Block = []string{second, first}
	f = begin(t, o)
	defer f.Stop()
	if got := blocked(f); got != 2 { // since the interface is new
		t.Errorf("adopted: %d packets were blocked", got)
	}
	send(t, l, f, 1, firstSource, "feed", 3)
}

// With another policy, what was dropped stays dropped.
func TestMetricsVerdict(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	f := begin(t, options(t, &log, l.B))
	defer f.Stop()
	send(t, l, f, 4, firstSource, "feed", 4)
	f.o.Rules.Monitor = true
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	send(t, l, f, 2, firstSource, "feed", 6)
	want := map[string]uint64{"blocked true": 4, "monitored false": 2}
	for _, c := range f.Metrics().Interfaces[0].Counts {
		if name := fmt.Sprint(c.Reason, " ", c.Drops); want[name] != c.Packets && (c.Reason == "blocked" || c.Reason == "monitored") {
			t.Errorf("%s: %d packets, want %d", name, c.Packets, want[name])
		}
	}
}

// What the trackers find is added up, and its penalties are told.
func TestMetricsTrackers(t *testing.T) {
	l := lab.New(t)
	var log bytes.Buffer
	o := options(t, &log, l.B)
	spec, err := heavy.Parse("key=src,rate=100/s,interval=100ms,action=block")
	if err != nil {
		t.Fatal(err)
	}
	o.Track = []heavy.Spec{spec}
	f := begin(t, o)
	defer f.Stop()
	f.tick()
	tx := l.A.Sender(t)
	frame := packet.Frame(key.Tuple{Src: netip.MustParseAddr(cleanSource), Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17})
	const packets = 50
	for range packets {
		if err := tx.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
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

// Metrics are at their own address, and on the API's socket.
func TestMetricsServed(t *testing.T) {
	var log bytes.Buffer
	o := options(t, &log, lab.New(t).B)
	free, err := net.Listen("tcp", "127.0.0.1:0")
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
