package daemon

import (
	"bytes"
	"crypto/ed25519"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/config"
	"weir/control/fleet/wire"
	"weir/control/list"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
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
	h := newFleetHub(t)
	h.start("")
	log := &lockedLog{}
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
	entry, err := list.ParseEntry(mine)
	if err != nil {
		t.Fatal(err)
	}
	forgedDelta, err := wire.SealDelta(stranger, wire.Delta{List: config.FleetBlock, Epoch: now.Epoch, From: now.To, To: now.To + 1, Add: entry.Set().Groups()})
	if err != nil {
		t.Fatal(err)
	}
	forgedCatalog, err := wire.SealCatalog(stranger, wire.Catalog{Place: wire.Place{Epoch: now.Epoch + 1, Version: 1}, Issued: time.Now()})
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
			before := d.Status().Fleet.Refused
			if stored {
				_, err = js.Publish(attack.subject, attack.message)
			} else {
				err = conn.Publish(wire.DownPrefix+attack.subject, attack.message)
			}
			if err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(30 * time.Second); d.Status().Fleet.Refused == before; time.Sleep(5 * time.Millisecond) {
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
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		m := d.Metrics()
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
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
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
