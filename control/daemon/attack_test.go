package daemon

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/control/list/listfile"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/timed"
	"weir/tests/wait"
)

// lockedLog is a log that is read while it is written.
type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// broker connects to the broker with all that the broker itself may do.
func (h *fleetHub) broker() (*nats.Conn, nats.JetStreamContext) {
	h.t.Helper()
	token, seed, err := h.authority.OwnStream()
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := h.authority.ClientTLS()
	if err != nil {
		h.t.Fatal(err)
	}
	conn, err := nats.Connect("tls://"+h.listen, nats.Secure(c), nats.UserJWTAndSeed(token, seed))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(conn.Close)
	js, err := conn.JetStream()
	if err != nil {
		h.t.Fatal(err)
	}
	return conn, js
}

// A broker that was taken over forges, changes, cuts off and repeats messages, live and
// in the stream. The node applies none of them and reports each; the hub goes on.
func TestFleetAttacks(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	t.Parallel() // it waits a lot
	h := newFleetHub(t)
	h.start("")
	log := &lockedLog{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the log of both nodes:\n%s", log)
		}
	})
	d := startLists(t, lab.New(t), log, fmt.Sprintf("fleet: {enroll: %s}", h.enroll("edge-1")))
	conn, js := h.broker()
	last := func(subject string) []byte {
		t.Helper()
		m, err := js.GetLastMsg(wire.Stream, subject)
		if err != nil {
			t.Fatal(err)
		}
		return m.Data
	}
	const mine = "203.0.113.1" // which the attacker wants to be blocked
	catalog, delta := wire.CatalogSubject(), wire.DeltaSubject(config.FleetBlock)
	h.block("192.0.2.1")
	becomes(t, d, "192.0.2.1", verdict.Drop)
	old := last(catalog)
	h.block("192.0.2.2")
	becomes(t, d, "192.0.2.2", verdict.Drop)

	public := h.authority.PublicKey()
	now, err := wire.OpenDelta(public, last(delta))
	if err != nil {
		t.Fatal(err)
	}
	_, stranger, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	entry, err := listfile.ParseEntry(mine)
	if err != nil {
		t.Fatal(err)
	}
	forgedDelta, err := wire.SealDelta(stranger, wire.Delta{List: config.FleetBlock, Epoch: now.Epoch, From: now.To, To: now.To + 1, Add: entry.Set().Groups()})
	if err != nil {
		t.Fatal(err)
	}
	forgedCatalog, err := wire.SealCatalog(stranger, wire.Catalog{Place: wire.Place{Epoch: now.Epoch + 1, Version: 1}, Term: wire.Term{Issued: time.Now()}})
	if err != nil {
		t.Fatal(err)
	}
	changed := func(m []byte) []byte { m = bytes.Clone(m); m[len(m)-1] ^= 1; return m }
	attacks := uint64(0)
	for i, attack := range []struct {
		what, subject string
		message       []byte
	}{
		{"a forged delta", delta, forgedDelta},
		{"a forged catalog", catalog, forgedCatalog},
		{"a changed delta", delta, changed(last(delta))},
		{"a changed catalog", catalog, changed(last(catalog))},
		{"half a delta", delta, last(delta)[:len(last(delta))/2]},
		{"half a catalog", catalog, last(catalog)[:len(last(catalog))/2]},
		{"an empty catalog", catalog, []byte{}},
		{"a delta as a catalog", catalog, last(delta)},
		{"a catalog as a delta", delta, last(catalog)},
		{"an old catalog", catalog, old},
	} {
		for _, stored := range []bool{false, true} {
			if !long.Enabled && stored != (i%2 == 1) {
				continue // each attack in one way
			}
			attacks++
			before := d.readings.Status().Fleet.Refused
			if stored {
				_, err = js.Publish(attack.subject, attack.message)
			} else {
				err = conn.Publish(wire.DownPrefix+attack.subject, attack.message)
			}
			if err != nil {
				t.Fatal(err)
			}
			for deadline := wait.Deadline(); d.readings.Status().Fleet.Refused == before; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s, stored: %t: it is not refused", attack.what, stored)
				}
			}
			for from, want := range map[string]verdict.Action{"192.0.2.1": verdict.Drop, "192.0.2.2": verdict.Drop, mine: verdict.Pass} {
				if got := verdictOf(t, d, from); got != want {
					t.Errorf("%s, stored: %t: packets from %s: %v, want %v", attack.what, stored, from, got, want)
				}
			}
		}
	}
	for deadline := wait.Deadline(); ; time.Sleep(20 * time.Millisecond) {
		m := d.readings.Metrics()
		if m.Fleet != nil && m.Fleet.Refused >= attacks {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("metrics: %+v", m.Fleet)
		}
	}
	if text := log.String(); !strings.Contains(text, "refused") || !strings.Contains(text, "level=ERROR") {
		t.Errorf("the log:\n%s", text)
	}
	for deadline := wait.Deadline(); ; time.Sleep(20 * time.Millisecond) {
		s, err := h.Fleet(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r := s.Nodes[0].Report; r != nil && strings.Contains(strings.Join(r.Problems, "\n"), "refused") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the hub does not know: %+v", s.Nodes[0].Report)
		}
	}
	h.block("192.0.2.3")
	becomes(t, d, "192.0.2.3", verdict.Drop)

	// What is in the stream is found by a node that starts, too.
	for _, subject := range []string{catalog, delta} {
		if _, err := js.Publish(subject, old); err != nil {
			t.Fatal(err)
		}
	}
	late := startLists(t, lab.New(t), log, fmt.Sprintf("fleet: {enroll: %s}", h.enroll("edge-2")))
	for _, from := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"} {
		becomes(t, late, from, verdict.Drop)
	}
	if got := verdictOf(t, late, mine); got != verdict.Pass {
		t.Errorf("packets from %s: %v", mine, got)
	}
}

// A list of flows of too many shapes costs its own time once, however many lists are
// beside it: at a start, and at the update of another list, where commands wait.
func TestShapesBesideManyLists(t *testing.T) {
	m := newMachine(t)
	dir, err := os.MkdirTemp("", "w") // short: paths of lists are bounded
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var shapes, lists strings.Builder
	for src := range 18 {
		for dst := range 18 {
			fmt.Fprintf(&shapes, "tcp 10.%d.%d.0/%d:* > 172.16.0.0/%d:80\n", src, dst, 15+src, 15+dst)
			fmt.Fprintf(&shapes, "tcp [2001:db8::/%d]:* > [2001:db9::/%d]:80\n", 111+src, 111+dst)
		}
	}
	fmt.Fprintf(&lists, "state_dir: \"\"\nlists:\n  shapes: {lenient: true, sources: [{file: %s/s}]}\n", dir)
	write(t, filepath.Join(dir, "s"), shapes.String())
	for i := range 150 {
		write(t, filepath.Join(dir, fmt.Sprint(i)), fmt.Sprintf("198.51.100.%d\n", i))
		fmt.Fprintf(&lists, "  l%d: {sources: [{file: %s/%[1]d}], interval: 1h}\n", i, dir)
	}
	began := timed.Process(t)
	d, stop := m.start(lists.String())
	defer stop()
	started := timed.Process(t) - began
	var left int
	for _, l := range d.readings.Lists().Lists {
		for _, s := range l.Spare {
			left += s.Entries
		}
	}
	if left == 0 {
		t.Fatal("nothing is left out: the test tests nothing")
	}
	turns, longest := make(chan struct{}), time.Duration(0)
	updating, updated := make(chan struct{}), make(chan error, 1)
	began = timed.Process(t)
	write(t, filepath.Join(dir, "7"), "198.51.100.7\n203.0.113.7\n")
	go func() {
		defer close(updating)
		_, err := d.api.Refresh(context.Background(), "l7", false)
		updated <- err
	}()
	go func() {
		defer close(turns)
		for {
			asked := timed.Process(t)
			if err := d.loop.Do(t.Context(), func() error { return nil }); err != nil {
				return
			}
			longest = max(longest, timed.Process(t)-asked)
			select {
			case <-updating:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	<-turns
	if err := <-updated; err != nil {
		t.Error(err)
	}
	took := timed.Process(t) - began
	if got := verdictOf(t, d, "203.0.113.7"); got != verdict.Drop {
		t.Errorf("the update is not active: %v", got)
	}
	t.Logf("processor time: start %v, update %v, of which a command waited for %v", started, took, longest)
	if started > 4*time.Second || took > time.Second || longest > time.Second {
		t.Errorf("processor time: start %v, update %v, of which a command waited for %v", started, took, longest)
	}
}
