package hub

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/api/client"
	"weir/control/api/server"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
	"weir/control/metrics"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
	"weir/tests/wait"
)

// processDir is the variable with the directory of a hub that is a process of its own.
const processDir = "WEIR_TEST_HUB_PROCESS"

// TestProcess is no test: it is the hub that [TestKill] and [TestRolloutKilled] kill.
func TestProcess(t *testing.T) {
	dir := os.Getenv(processDir)
	if dir == "" {
		t.Skip("run by TestKill and TestRolloutKilled")
	}
	a, err := authority.Open(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t, dir: dir, authority: a, listen: os.Getenv("WEIR_TEST_HUB_LISTEN")}
	f.start(os.Getenv("WEIR_TEST_HUB_LISTS"))
	if at := os.Getenv("WEIR_TEST_HUB_JOINS"); at != "" {
		f.joins(t, at)
	}
	socket, err := server.ListenGroup(filepath.Join(dir, "hub.sock"), "")
	if err != nil {
		t.Fatal(err)
	}
	all := http.NewServeMux()
	all.Handle("/", server.HubHandler(f.hub))
	all.Handle(metrics.Path, metrics.HubHandler(f.hub, testLog()))
	if err := server.Serve(t.Context(), socket, all, testLog()); err != nil {
		t.Fatal(err)
	}
}

// versions are the deltas that a node has seen, by version: none may be seen twice with
// different contents.
type versions struct {
	t    *testing.T
	mu   sync.Mutex
	seen map[wire.Place][]byte
}

func (v *versions) see(public []byte, message []byte) {
	d, err := wire.OpenDelta(public, message)
	if err != nil {
		v.t.Error(err)
		return
	}
	place := wire.Place{Epoch: d.Epoch, Version: d.To}
	v.mu.Lock()
	defer v.mu.Unlock()
	if before, ok := v.seen[place]; ok && !bytes.Equal(before, message) {
		v.t.Errorf("version %v was published with two contents", place)
	}
	v.seen[place] = message
}

// reserve sets the address that the hub listens on, whichever process it is.
func (f *fleet) reserve() {
	f.t.Helper()
	f.listen = lab.FreeAddress(f.t)
}

// process starts the hub as a process of its own.
func (f *fleet) process(lists string) *exec.Cmd {
	f.t.Helper()
	c := exec.Command(os.Args[0], "-test.run=^TestProcess$")
	c.Env = append(os.Environ(), processDir+"="+f.dir, "WEIR_TEST_HUB_LISTEN="+f.listen, "WEIR_TEST_HUB_LISTS="+lists, "WEIR_TEST_HUB_JOINS="+f.joinsAt)
	if testing.Verbose() {
		c.Stderr = os.Stderr
	}
	if err := c.Start(); err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *fleet) client() *client.Client { return client.Dial(filepath.Join(f.dir, "hub.sock")) }

// ready waits until the hub's process publishes.
func (f *fleet) ready() {
	f.t.Helper()
	wait.Until(f.t, func() error {
		s, err := f.client().Fleet(f.t.Context())
		if err == nil && s.Catalog == nil {
			err = fmt.Errorf("nothing published yet: %q", s.Problems)
		}
		return err
	})
}

// TestKill kills a hub at random moments, while commands change a list: no command
// that was acknowledged is lost, and no version has two contents.
func TestKill(t *testing.T) {
	long.Unraced(t)
	t.Parallel() // it waits a lot
	random := seed.New(t)
	kills := long.Rounds(3, 5, 30)
	f := newFleet(t)
	f.reserve()
	n, err := f.authority.Enroll("edge-1", nil, []string{"tls://" + f.listen})
	if err != nil {
		t.Fatal(err)
	}
	client := f.client()
	run := func() *exec.Cmd { return f.process("") }
	ready := f.ready
	hub := run()
	defer func() { _ = hub.Process.Kill(); _ = hub.Wait() }()
	ready()
	c, err := f.connect(n, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	w := follower{n.PublicKey, directGetter{n.Name, c}}
	seen := &versions{t: t, seen: make(map[wire.Place][]byte)}
	if _, err := c.Subscribe(wire.DownPrefix+wire.DeltaSubject(config.FleetBlock), func(m *nats.Msg) { seen.see(n.PublicKey, m.Data) }); err != nil {
		t.Fatal(err)
	}
	_, _, first, err := w.read(config.FleetBlock)
	if err != nil {
		t.Fatal(err)
	}

	ctx, stop := context.WithCancel(t.Context())
	var workers sync.WaitGroup
	var mu sync.Mutex
	var acknowledged []string
	for worker := range 4 {
		workers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				entry := fmt.Sprintf("10.%d.%d.%d", worker, i>>8, i&255)
				changed, err := client.ChangeFleet(ctx, block(entry))
				if err != nil {
					time.Sleep(20 * time.Millisecond)
					continue // it may have been made, or not
				}
				mu.Lock()
				acknowledged = append(acknowledged, entry)
				mu.Unlock()
				_ = changed
			}
		})
	}
	for k := range kills {
		time.Sleep(100*time.Millisecond + time.Duration(random.IntN(400))*time.Millisecond)
		wait.Until(t, func() error {
			mu.Lock()
			defer mu.Unlock()
			if len(acknowledged) <= k {
				return fmt.Errorf("%d commands were acknowledged", len(acknowledged))
			}
			return nil
		})
		if err := hub.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = hub.Wait()
		hub = run()
		ready()
	}
	stop()
	workers.Wait()
	mu.Lock()
	defer mu.Unlock()
	if len(acknowledged) < kills {
		t.Fatalf("%d commands were acknowledged: too few to prove anything", len(acknowledged))
	}
	wait.Until(t, func() error {
		s, _, at, err := w.read(config.FleetBlock)
		if err != nil {
			return err
		}
		if at.Epoch != first.Epoch {
			return fmt.Errorf("epoch %d, before %d", at.Epoch, first.Epoch)
		}
		return hasAll(s, acknowledged)
	})
	// The stored contents are the live ones.
	sequence := "1"
	for {
		m, err := w.stream.get(fmt.Sprintf(`{"seq":%s,"next_by_subj":%q}`, sequence, wire.DeltaSubject(config.FleetBlock)))
		if err != nil {
			t.Fatal(err)
		}
		if m == nil {
			break
		}
		seen.see(n.PublicKey, m.Data)
		var at uint64
		fmt.Sscan(m.Header.Get("Nats-Sequence"), &at)
		sequence = fmt.Sprint(at + 1)
	}
	t.Logf("%d kills, %d commands acknowledged, %d versions seen", kills, len(acknowledged), len(seen.seen))
}
