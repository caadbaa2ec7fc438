package hub

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/fleet/enrollment"
	fleetnode "weir/control/fleet/node"
	"weir/control/fleet/wire"
	"weir/tests/long"
	"weir/tests/timed"
	"weir/tests/wait"
)

// deaf is a connection that can stop to read.
type deaf struct {
	net.Conn
	stop  *atomic.Bool
	until <-chan struct{}
}

func (d deaf) Read(b []byte) (int, error) {
	if d.stop.Load() {
		<-d.until
	}
	return d.Conn.Read(b)
}

// deafDialer dials such.
type deafDialer struct {
	stop  *atomic.Bool
	until <-chan struct{}
}

func (d deafDialer) Dial(network, address string) (net.Conn, error) {
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).Dial(network, address)
	return deaf{c, d.stop, d.until}, err
}

// TestIsolation has one node's file do its worst: it has what it fetches sent to all, has 80
// connections that do not read what they ask for, and makes 1,500 connections. The hub's
// memory hardly grows, and changes reach all other nodes at once.
func TestIsolation(t *testing.T) {
	long.Only(t, "takes three quarters of a minute")
	timed.Alone(t)
	const nodes, slow, many = 8, 80, 1500
	f := newFleet(t)
	f.reserve()
	enroll := func(name string) enrollment.Node {
		n, err := f.authority.Enroll(name, nil, []string{"tls://" + f.listen})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	feed := filepath.Join(f.dir, "large.txt")
	if err := writeFeed(feed, 1_000_000); err != nil {
		t.Fatal(err)
	}
	hub := &process{t: t, test: "TestProcess", env: []string{processDir + "=" + f.dir, "WEIR_TEST_HUB_LISTEN=" + f.listen, "GOGC=50", "WEIR_TEST_HUB_LISTS=lists: {large: {sources: [{file: " + feed + "}]}}"}}
	var files []enrollment.Node
	for i := range nodes {
		files = append(files, enroll(fmt.Sprintf("edge-%d", i)))
	}
	bad := enroll("bad")
	hub.start()
	client := client.Dial(filepath.Join(f.dir, "hub.sock"))
	var length, done atomic.Int64
	length.Store(1 << 40)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	for _, e := range files {
		n, err := fleetnode.Open(fleetnode.Config{Enrollment: e, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = n.Run(ctx, &tally{node: n, length: &length, done: &done}) })
	}
	wait.Until(t, func() error {
		s, err := client.Fleet(t.Context())
		if err != nil {
			return err
		}
		// While its source is read, nodes are current without the large list.
		for _, l := range s.Lists {
			if l.Name == "large" && (l.Entries == 0 || l.Published != l.Version) {
				return fmt.Errorf("the large list is not published: %d entries", l.Entries)
			}
		}
		current := 0
		for _, n := range s.Nodes {
			if n.State == api.NodeCurrent {
				current++
			}
		}
		if current < nodes {
			return fmt.Errorf("%d nodes are current", current)
		}
		return nil
	})
	c, err := f.connect(bad)
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Request(wire.NodeFetchSubject(bad.Name), fmt.Appendf(nil, `{"last_by_subj":%q}`, wire.HeadSubject("large")), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	h, err := wire.OpenHead(bad.PublicKey, m.Data)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if h.Chunks() < 2 {
		t.Fatalf("a snapshot of %d bytes: too few to say anything", h.Size)
	}
	chunk := fmt.Appendf(nil, `{"last_by_subj":%q}`, wire.ChunkSubject("large", h.Epoch, h.Version, 0))

	total := 0
	commands := func(what string, n int) {
		t.Helper()
		var took []time.Duration
		for range n {
			total++
			done.Store(0)
			length.Store(int64(total))
			began := time.Now()
			if c, err := client.ChangeFleet(t.Context(), block(fmt.Sprintf("10.1.%d.%d", total>>8, total&255))); err != nil || !c.Published {
				t.Fatalf("%s: %+v, %v", what, c, err)
			}
			for done.Load() < nodes {
				if time.Since(began) > time.Minute {
					t.Fatalf("%s: %d of %d nodes have it", what, done.Load(), nodes)
				}
				time.Sleep(time.Millisecond)
			}
			took = append(took, time.Since(began))
			time.Sleep(100 * time.Millisecond)
		}
		slices.Sort(took)
		t.Logf("%s: at the last node after %v, at most %v", what, took[n/2], took[n-1])
		if took[n/2] > time.Second {
			t.Errorf("%s: a change takes %v, want 1 s at most", what, took[n/2])
		}
	}
	commands("before", 5)
	rss := func() int { return memory(t, hub.command.Process.Pid, "VmRSS") >> 10 }
	before := rss()

	// Answers to all.
	attack, end := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	again := func(do func()) {
		attackers.Go(func() {
			for attack.Err() == nil {
				do()
				select {
				case <-attack.Done():
				case <-time.After(40 * time.Millisecond):
				}
			}
		})
	}
	for range 2 {
		again(func() {
			c, err := f.tryConnect(bad, nats.NoReconnect())
			if err != nil {
				return
			}
			defer c.Close()
			for range 130 {
				if attack.Err() != nil || c.PublishRequest(wire.NodeFetchSubject("bad"), wire.DownPrefix+wire.DeltaSubject("large"), chunk) != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
			_ = c.Flush() // it may be cut off
		})
	}
	commands("answers to all", 10)
	end()
	attackers.Wait()

	// Connections that do not read, of another file: the first one is cut off.
	attack, end = context.WithCancel(t.Context())
	lazy := enroll("lazy")
	var asking atomic.Int64
	for range slow {
		attackers.Go(func() {
			var deaf atomic.Bool
			for attack.Err() == nil {
				deaf.Store(false)
				// 80 handshakes at once may take a busy machine long, and who tries too often is not let in.
				c, err := f.tryConnect(lazy, nats.NoReconnect(), nats.Timeout(20*time.Second), nats.SetCustomDialer(deafDialer{&deaf, attack.Done()}))
				if err != nil {
					select {
					case <-attack.Done():
					case <-time.After(200 * time.Millisecond):
					}
					continue
				}
				inbox := c.NewInbox()
				_, _ = c.Subscribe(inbox, func(*nats.Msg) {}) // which does not happen
				_ = c.Flush()
				deaf.Store(true)
				asking.Add(1)
				for range 130 {
					_ = c.PublishRequest(wire.NodeFetchSubject("lazy"), inbox, chunk)
				}
				_ = c.FlushTimeout(time.Second) // to the socket; it is not answered
				<-attack.Done()
				c.Close()
			}
		})
	}
	wait.Until(t, func() error {
		if n := asking.Load(); n < 2 {
			return fmt.Errorf("%d ask", n)
		}
		return nil
	})
	peak := 0
	watch := func() { peak = max(peak, rss()) }
	for range 4 {
		commands(fmt.Sprintf("%d that do not read", asking.Load()), 5)
		watch()
	}
	end()
	attackers.Wait()

	// Connections without end.
	crowd := enroll("crowd")
	attack, end = context.WithCancel(t.Context())
	var tried, made atomic.Int64
	for range 50 {
		attackers.Go(func() {
			for attack.Err() == nil && tried.Add(1) <= many {
				if c, err := f.tryConnect(crowd, nats.NoReconnect()); err == nil {
					made.Add(1)
					t.Cleanup(c.Close)
				}
			}
		})
	}
	for range 4 {
		commands("many connections", 5)
		watch()
	}
	attackers.Wait()
	end()
	watch()
	t.Logf("%d MB before, %d MB at most; %d of %d connections were let in", before, peak, made.Load(), tried.Load())
	if peak > before+100 {
		t.Errorf("the hub has %d MB, before %d", peak, before)
	}
	if tried.Load() < many {
		t.Errorf("%d connected: too few to say anything", tried.Load())
	}
}
