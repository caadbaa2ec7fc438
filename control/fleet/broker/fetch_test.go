package broker

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"weir/control/fleet/authority"
	"weir/control/fleet/wire"
	"weir/tests/lab"
	"weir/tests/wait"
)

// A node may fetch what the stream has more than once, then as much as it has each minute.
func TestAllowed(t *testing.T) {
	for _, size := range []int64{0, 1 << 20, 100 << 20} {
		n, now := &fetching{}, time.Now()
		fetch := func() (bytes int64) {
			for n.allowed(size, now) {
				bytes += wire.ChunkSize
				n.used += wire.ChunkSize
			}
			return bytes
		}
		most := fetchTimes*size + fetchLeast
		if got := fetch(); got < most || got > most+wire.ChunkSize {
			t.Errorf("of %d bytes, %d at once", size, got)
		}
		now = now.Add(fetchPeriod)
		if got, each := fetch(), max(size, fetchLeast); got < each-wire.ChunkSize || got > each+wire.ChunkSize {
			t.Errorf("of %d bytes, %d in the next minute", size, got)
		}
		now = now.Add(-time.Hour) // a clock that is set back
		if got := fetch(); got > 0 {
			t.Errorf("of %d bytes, %d after the clock was set back", size, got)
		}
	}
}

// The first node that can connect is answered on its own subject. Without an answer it would take the
// server for one of a cluster.
func TestFirstConnection(t *testing.T) {
	a, err := authority.Init(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	listen := lab.FreeAddress(t)
	e, err := a.Enroll("edge-1", nil, []string{"tls://" + listen})
	if err != nil {
		t.Fatal(err)
	}
	o, err := e.Options()
	if err != nil {
		t.Fatal(err)
	}
	o = append(o, nats.Timeout(wait.Patience), nats.NoReconnect(), nats.CustomInboxPrefix(wire.NodeInbox("edge-1")+"0"))
	for range 5 {
		started := make(chan *Server)
		go func() {
			b, err := Start(Options{Authority: a, Dir: t.TempDir(), Listen: listen, Names: []string{"127.0.0.1"}, Log: discard})
			if err != nil {
				t.Error(err)
			}
			started <- b
		}()
		var c *nats.Conn
		for c == nil && !t.Failed() {
			c, _ = nats.Connect(e.Servers[0], o...) // refused until it listens
		}
		if c != nil {
			m, err := c.Request(wire.NodeFetchSubject("edge-1"), []byte(`{"last_by_subj":"`+wire.CatalogSubject()+`"}`), wait.Patience)
			if err != nil {
				t.Errorf("the first question: %v", err)
			} else if status := m.Header.Get("Status"); status != "503" {
				t.Errorf("status %q, want 503: the stream is not there yet", status)
			}
			c.Close()
		}
		if b := <-started; b != nil {
			b.Close()
		}
	}
}
