package node

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/fleet/enrollment"
	"weir/control/fleet/wire"
	"weir/filter/key"
	"weir/tests/wait"
)

// Where an answer is lost, a message is asked for again, with the longer timeouts where it is large.
func TestRequestAgain(t *testing.T) {
	usual := getTimeouts
	t.Cleanup(func() { getTimeouts = usual })
	h := newHub(t)
	const soon, late = 20 * time.Millisecond, 10 * time.Minute
	for _, c := range []struct {
		what     string
		timeouts [3]time.Duration
		large    bool
		lost     int32 // answers
		asked    int32
		err      error
	}{
		{"none is lost", [...]time.Duration{late, late, late}, false, 0, 1, nil},
		{"the first one is", [...]time.Duration{soon, late, late}, false, 1, 2, nil},
		{"two are", [...]time.Duration{soon, soon, late}, false, 2, 3, nil},
		{"all are", [...]time.Duration{soon, soon, soon}, false, 3, 3, context.DeadlineExceeded},
		{"the first one is, of a large message", [...]time.Duration{0, soon, late}, true, 1, 2, nil},
		{"all are, of a large message", [...]time.Duration{late, soon, soon}, true, 2, 2, context.DeadlineExceeded},
	} {
		var asked atomic.Int32
		n := &Node{c: Config{Enrollment: enrollment.Node{Name: "lossy"}}}
		s, err := h.conn.Subscribe(wire.NodeFetchSubject(n.Name()), func(m *nats.Msg) {
			if asked.Add(1) > c.lost {
				if err := m.Respond([]byte("here")); err != nil {
					t.Error(err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		getTimeouts = c.timeouts
		m, err := n.request(t.Context(), h.conn, []byte("{}"), c.large)
		if !errors.Is(err, c.err) || err == nil && string(m.Data) != "here" {
			t.Errorf("%s: %+v, %v", c.what, m, err)
		}
		if err := s.Drain(); err != nil {
			t.Fatal(err)
		}
		wait.For(t, "the subscription to end", func() bool { return !s.IsValid() })
		if got := asked.Load(); got != c.asked {
			t.Errorf("%s: asked %d times, want %d", c.what, got, c.asked)
		}
	}
	left, leave := context.WithCancel(t.Context())
	leave()
	getTimeouts = [...]time.Duration{late, late, late}
	if _, err := new(Node).request(left, h.conn, []byte("{}"), false); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end: %v", err)
	}
}

// However often the hub was asked where entries come from, it is asked again.
func TestOriginsAgain(t *testing.T) {
	h := newHub(t)
	n := &Node{c: Config{Enrollment: enrollment.Node{Name: "curious"}}, asking: make(chan struct{}, 1), log: slog.New(slog.DiscardHandler)}
	n.conn.Store(h.conn)
	n.connected.Store(true)
	s, err := h.conn.Subscribe(wire.OriginSubject("curious"), func(m *nats.Msg) {
		if err := m.Respond(wire.MarshalAnswer(wire.Origins{Origins: []wire.Origin{{Source: "https://example.com/list", Line: 7}}}, nil)); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Unsubscribe() }()
	keys := []key.Key{key.Source(netip.MustParsePrefix("192.0.2.1/32"))}
	for range 3 {
		if got := n.origins("drop", keys); len(got) != 1 || got[0].Line != 7 {
			t.Fatalf("%+v", got)
		}
		if len(n.asking) > 0 {
			t.Fatal("the question keeps its place")
		}
	}
}
