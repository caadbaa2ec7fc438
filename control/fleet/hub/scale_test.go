package hub

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/config"
	"weir/control/fleet/enrollment"
	fleetnode "weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/control/metrics"
	"weir/tests/long"
	"weir/tests/timed"
	"weir/tests/wait"
)

// memory returns what a process has of memory, or had at most, in kB.
func memory(t *testing.T, pid int, what string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == what+":" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in the status of process %d", what, pid)
	return 0
}

// used has the memory of a hub, in kB.
type used struct{ rss, heap, stacks int }

// used reads that of a process that has a socket.
func (p *process) used(socket string) used {
	p.t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", socket) }}}
	defer c.CloseIdleConnections()
	r, err := c.Get("http://hub" + metrics.Path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	u := used{rss: memory(p.t, p.command.Process.Pid, "VmRSS")}
	for lines := bufio.NewScanner(r.Body); lines.Scan(); {
		f := strings.Fields(lines.Text())
		of := map[string]*int{"go_memstats_heap_inuse_bytes": &u.heap, "go_memstats_stack_inuse_bytes": &u.stacks}[f[0]]
		if of != nil {
			n, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				p.t.Fatal(err)
			}
			*of = int(n) >> 10
		}
	}
	if u.heap == 0 || u.stacks == 0 {
		p.t.Fatalf("no memory among the metrics: %+v", u)
	}
	return u
}

// tally is the daemon of a node that filters nothing, and counts the nodes whose
// block list has become at least so long.
type tally struct {
	node   *fleetnode.Node
	length *atomic.Int64
	last   int64
	done   *atomic.Int64
}

func (c *tally) TakeLists(ctx context.Context) error {
	for _, l := range c.node.Lists() {
		_ = c.TakeContents(ctx, l)
	}
	return nil
}

func (c *tally) TakeContents(_ context.Context, l *fleetnode.List) error {
	version := l.Version()
	if n := int64(l.Contents().Len()); l.Name() == config.FleetBlock {
		if want := c.length.Load(); n >= want && c.last < want {
			c.last = want
			c.done.Add(1)
		}
	}
	return l.Keep(version)
}

func (*tally) DescribeNode(s *wire.Status)                                   { s.Interfaces, s.Filtered = 1, 1 }
func (*tally) Rehearse(context.Context, string, *fleetnode.Candidate) error  { return nil }
func (*tally) Rehearsed(string) wire.Rehearsal                               { return wire.Rehearsal{} }
func (*tally) Conversed(string) *wire.Conversed                              { return nil }
func (*tally) TakePatterns(context.Context, []wire.Pattern, time.Time) error { return nil }

func (*tally) Measure(context.Context, string, *fleetnode.Candidate, *list.Set) *wire.Conversed {
	return nil
}
func (*tally) Answer(context.Context, string, []byte) (any, error) {
	return nil, fmt.Errorf("nothing is known")
}

// TestScale connects a thousand nodes to a hub that is a process of its own, and has
// five hundred fetch a snapshot at once.
func TestScale(t *testing.T) {
	long.Only(t, "takes minutes")
	timed.Alone(t)
	const nodes, cold = 1000, 500
	f := newFleet(t)
	f.reserve()
	enroll := func(name string) enrollment.Node {
		n, err := f.authority.Enroll(name, nil, []string{"tls://" + f.listen})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var files []enrollment.Node
	for i := range nodes {
		files = append(files, enroll(fmt.Sprintf("edge-%d", i)))
	}
	feed := filepath.Join(f.dir, "large.txt")
	if err := writeFeed(feed, 10_000_000); err != nil {
		t.Fatal(err)
	}
	hub := &process{t: t, test: "TestProcess", env: []string{processDir + "=" + f.dir, "WEIR_TEST_HUB_LISTEN=" + f.listen, "GOGC=40"}} // as weir-hub has it
	hub.start()
	client := client.Dial(filepath.Join(f.dir, "hub.sock"))
	status := func() api.HubStatus {
		t.Helper()
		var s *api.HubStatus
		wait.Until(t, func() (err error) {
			if s, err = client.Fleet(t.Context()); err == nil && s.Catalog == nil {
				err = fmt.Errorf("nothing published yet: %q", s.Problems)
			}
			return err
		})
		return *s
	}
	status()
	time.Sleep(2 * time.Second)
	socket := filepath.Join(f.dir, "hub.sock")
	idle := hub.used(socket)

	var length, done atomic.Int64
	length.Store(1 << 40)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	began := time.Now()
	for _, e := range files {
		n, err := fleetnode.Open(fleetnode.Config{Enrollment: e, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = n.Run(ctx, &tally{node: n, length: &length, done: &done}) })
	}
	for end := wait.Deadline(); ; time.Sleep(time.Second) {
		current := 0
		for _, n := range status().Nodes {
			if n.State == api.NodeCurrent {
				current++
			}
		}
		if current == nodes {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d nodes are current", current, nodes)
		}
	}
	t.Logf("%d nodes connected and current after %v", nodes, time.Since(began).Round(time.Millisecond))
	// They have all reported, and the broker has tidied up. Memory grows then until the
	// collector runs: the median is of half a minute.
	var seen []used
	for range 6 {
		time.Sleep(5 * time.Second)
		seen = append(seen, hub.used(socket))
	}
	slices.SortFunc(seen, func(a, b used) int { return cmp.Compare(a.rss, b.rss) })
	busy := seen[len(seen)/2]
	each := used{(busy.rss - idle.rss) / nodes, (busy.heap - idle.heap) / nodes, (busy.stacks - idle.stacks) / nodes}
	t.Logf("hub: %d MB idle, a connection %d kB: %d of heap in use, garbage included, %d of stacks", idle.rss>>10, each.rss, each.heap, each.stacks)
	// The broker's writers have 32 kB of the stacks: flushOutbound of nats-server
	// 2.15 has an array of 24 kB there.
	if each.rss > 120 || each.heap > 60 || each.stacks > 48 {
		t.Errorf("%+v kB of the hub's memory a connection, want 120 at most, of them 60 of heap and 48 of stacks", each)
	}

	total := 0
	change := func(entries int) time.Duration {
		t.Helper()
		var all []string
		for range entries {
			all = append(all, fmt.Sprintf("10.%d.%d.%d", total>>16, total>>8&255, total&255))
			total++
		}
		done.Store(0)
		length.Store(int64(total))
		began := time.Now()
		if c, err := client.ChangeFleet(t.Context(), block(all...)); err != nil || !c.Published {
			t.Fatalf("%+v, %v", c, err)
		}
		for done.Load() < nodes {
			if time.Since(began) > time.Minute {
				t.Fatalf("%d of %d nodes have it", done.Load(), nodes)
			}
			time.Sleep(time.Millisecond)
		}
		return time.Since(began)
	}
	change(1)
	for _, c := range []struct {
		entries, times int
		most           time.Duration
	}{{1, 7, time.Second}, {5000, 3, 0}} { // a tenth of a second on a quick machine, 0.4 on a slow one
		var took []time.Duration
		for range c.times {
			took = append(took, change(c.entries))
			time.Sleep(500 * time.Millisecond)
		}
		slices.Sort(took)
		t.Logf("%d entries more, at the last of %d nodes: median %v, from %v to %v", c.entries, nodes, took[c.times/2], took[0], took[c.times-1])
		if c.most > 0 && took[0] > c.most { // others may have used the machine at the rest
			t.Errorf("%v at best, want %v at most", took[0], c.most)
		}
	}
	// Commands at once: they share versions.
	const atOnce = 32
	best := time.Hour // others may have used the machine at the rest
	for round := range 3 {
		took := make([]time.Duration, atOnce)
		var commands errgroup.Group
		for i := range atOnce {
			commands.Go(func() error {
				began := time.Now()
				c, err := client.ChangeFleet(t.Context(), block(fmt.Sprintf("192.0.2.%d", round*atOnce+i)))
				if took[i] = time.Since(began); err == nil && !c.Published {
					err = fmt.Errorf("a command is not published: %+v", c)
				}
				return err
			})
		}
		if err := commands.Wait(); err != nil {
			t.Error(err)
		}
		slices.Sort(took)
		t.Logf("%d commands at once, answered: median %v, the slowest %v", atOnce, took[atOnce/2], took[atOnce-1])
		best = min(best, took[atOnce-1])
	}
	if best > time.Second {
		t.Errorf("the slowest of %d commands at once is answered after %v at best, want 1 s at most", atOnce, best)
	}
	stop()
	running.Wait()

	// Cold starts, at once.
	f.coldStarts(hub, client, feed, files[:cold])
}

// coldStarts has nodes fetch a large list at once.
func (f *fleet) coldStarts(hub *process, client *client.Client, feed string, nodes []enrollment.Node) {
	t := f.t
	t.Helper()
	hub.kill()
	hub.env = append(hub.env, "WEIR_TEST_HUB_LISTS=lists: {large: {sources: [{file: "+feed+"}]}}")
	hub.start()
	var place wire.Place
	for end := wait.Deadline(); ; time.Sleep(time.Second) {
		s, err := client.Fleet(t.Context())
		if err == nil {
			for _, l := range s.Lists {
				if l.Name == "large" && l.Entries > 0 && l.Published == l.Version {
					place = l.Version
				}
			}
		}
		if place != (wire.Place{}) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the large list is not published")
		}
	}
	pid := hub.command.Process.Pid
	t.Logf("hub with the large list: %d MB, at most %d MB while it was read", memory(t, pid, "VmRSS")>>10, memory(t, pid, "VmHWM")>>10)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var bytesRead atomic.Int64
	var all errgroup.Group
	for _, e := range nodes {
		all.Go(func() error {
			o, err := e.Options()
			if err != nil {
				return err
			}
			var c *nats.Conn
			for range 20 { // nodes try again, too
				if c, err = nats.Connect(e.URL(), append(o, nats.Timeout(time.Minute))...); err == nil {
					break
				}
				time.Sleep(time.Second)
			}
			if err != nil {
				return err
			}
			defer c.Close()
			n, err := fetch(c, e, "large")
			bytesRead.Add(int64(n))
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	peak := memory(t, pid, "VmHWM") >> 10
	t.Logf("%d cold starts with a snapshot of %.1f MB each: %v, hub %d MB at most", len(nodes), float64(bytesRead.Load())/float64(len(nodes))/1e6, time.Since(began).Round(time.Millisecond), peak)
	if peak > 1000 {
		t.Errorf("the hub had %d MB, want 1000 at most", peak)
	}
}

// fetch reads a snapshot as nodes do, one chunk after the other, and forgets it.
func fetch(c *nats.Conn, node enrollment.Node, name string) (n int, err error) {
	get := func(subject string) (*nats.Msg, error) {
		m, err := c.Request(wire.NodeFetchSubject(node.Name), fmt.Appendf(nil, `{"last_by_subj":%q}`, subject), time.Minute)
		if err == nil && m.Header.Get("Status") != "" {
			err = fmt.Errorf("%s: %s %s", subject, m.Header.Get("Status"), m.Header.Get("Description"))
		}
		return m, err
	}
	m, err := get(wire.HeadSubject(name))
	if err != nil {
		return 0, err
	}
	h, err := wire.OpenHead(node.PublicKey, m.Data)
	if err != nil {
		return 0, err
	}
	sum := sha256.New()
	for i := range h.Chunks() {
		m, err := get(wire.ChunkSubject(name, h.Epoch, h.Version, i))
		if err != nil {
			return n, err
		}
		n += len(m.Data)
		_, _ = sum.Write(m.Data) // cannot fail
	}
	if hex.EncodeToString(sum.Sum(nil)) != h.SHA256 {
		return n, fmt.Errorf("snapshot %v: its checksum is wrong", h.Place)
	}
	return n, nil
}

// writeFeed writes random addresses.
func writeFeed(path string, entries int) error {
	r := rand.New(rand.NewPCG(1, 2))
	var text bytes.Buffer
	for range entries {
		a := 1<<24 + r.Uint32N(0xdfffffff-1<<24)
		text.Write(netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)}).AppendTo(text.AvailableBuffer()))
		text.WriteByte('\n')
	}
	return os.WriteFile(path, text.Bytes(), 0o600)
}
