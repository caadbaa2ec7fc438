package node

import (
	"crypto/ed25519"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weir/control/fleet/wire"
	"weir/filter/snapshot"
	"weir/tests/long"
)

// The live deltas that wait for the catalog to want them are bounded in bytes, too.
func TestAheadIsBounded(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	var lines strings.Builder
	for range 200_000 {
		n := r.Uint32()
		lines.WriteString(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}).String() + "\n")
	}
	large := set(t, lines.String())
	f := &follower{n: &Node{key: public, log: slog.New(slog.DiscardHandler), reports: make(chan struct{}, 1)}, name: name, wake: make(chan struct{}, 1), ahead: make(map[uint64]opened)}
	want := wanted{Place: wire.Place{Epoch: 1}}
	const deltas = 30
	sent := 0
	for i := range uint64(deltas) {
		m := must(wire.SealDelta(private, wire.Delta{
			List: name, Epoch: 1, From: i, To: i + 1, Sum: snapshot.Of(large.Groups()).String(), Entries: large.Len(), Issued: time.Now(), Add: large.Groups(),
		}))
		sent += len(m)
		for range 2 { // the same once more counts once
			f.arrived(message{data: m})
			inbox := f.inbox
			f.inbox, f.inboxBytes = nil, 0
			f.sort(inbox, want)
		}
	}
	kept := 0
	for _, d := range f.ahead {
		kept += len(d.data)
	}
	if sent <= maxAheadBytes || kept > maxAheadBytes || kept < maxAheadBytes-sent/deltas {
		t.Errorf("%d deltas of %d bytes are kept, of %d with %d; want %d bytes at most", len(f.ahead), kept, deltas, sent, maxAheadBytes)
	}
}
