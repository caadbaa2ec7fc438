package daemon

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"weir/control/export"
	"weir/control/observe/traffic"
	"weir/filter/verdict"
	"weir/loader"
)

// Every packet is in exactly one record of all packets, in whatever order counters,
// lists and sources become known, and however wrong these are.
func TestExportedOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	now := time.Now()
	for range 200 {
		x := exports{Exporter: export.New(slog.New(slog.DiscardHandler)), interval: time.Hour, began: now, lists: make(map[string]loader.Counter)}
		x.clear()
		var want [verdict.NumReasons]loader.Counter
		got, hits := make(map[string]loader.Counter), make(map[string]loader.Counter)
		take := func(b export.Batch) {
			for _, f := range b.All {
				n := got[f.Reason]
				got[f.Reason] = loader.Counter{Packets: n.Packets + f.Packets, Bytes: n.Bytes + f.Bytes}
			}
		}
		for range 20 {
			var r traffic.Rates
			for _, reason := range []verdict.Reason{verdict.Clean, verdict.Blocked, verdict.WouldBlock, verdict.Heavy} {
				n := loader.Counter{Packets: random.Uint64N(100)}
				n.Bytes = n.Packets * (60 + random.Uint64N(1000))
				r.Grown[reason] = n
				want[reason] = loader.Counter{Packets: want[reason].Packets + n.Packets, Bytes: want[reason].Bytes + n.Bytes}
			}
			next := make(map[string]loader.Counter)
			for n := range 4 {
				name, more := fmt.Sprintf("list%d", n), random.Uint64N(60)
				next[name] = loader.Counter{Packets: hits[name].Packets + more, Bytes: hits[name].Bytes + 100*more}
			}
			hits = next
			monitor := random.IntN(4) == 0
			x.second(now, r, random.IntN(4) > 0, func(r verdict.Reason) bool { return r == verdict.Blocked || r == verdict.Heavy }, hits)
			for n := range random.IntN(8) {
				id := dropFlow{netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), verdict.Blocked, fmt.Sprintf("list%d", n%5)}
				addFlow(x.sources, id, export.Flow{Packets: random.Uint64N(50), Bytes: random.Uint64N(50_000)})
			}
			take(x.batch(now, monitor, false))
			x.clear()
		}
		take(x.batch(now, false, true))
		for i, n := range want {
			if r := verdict.Reason(i).String(); got[r] != n {
				t.Fatalf("%s: %+v exported, %+v counted", r, got[r], n)
			}
		}
	}
}
