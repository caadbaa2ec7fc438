package stage

import (
	"net/netip"
	"testing"
	"time"
)

func TestReported(t *testing.T) {
	addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }
	var r Reported
	now := time.Now()
	for n := range mostReported {
		if !r.Report(addr(n), addr(99), now.Add(time.Duration(n))) || r.Report(addr(n), addr(99), now.Add(reportAgain-1)) {
			t.Fatalf("pair %d is not reported exactly once", n+1)
		}
	}
	if r.Report(addr(98), addr(99), now.Add(reportAgain-1)) {
		t.Error("too many pairs are reported")
	}
	if now = now.Add(reportAgain); !r.Report(addr(0), addr(99), now) || r.Report(addr(98), addr(99), now) {
		t.Error("after its time, only the first pair may be reported again")
	}
	if now = now.Add(reportAgain); !r.Report(addr(99), addr(0), now) || len(r.pairs) != 1 {
		t.Errorf("%d pairs are remembered, want 1", len(r.pairs))
	}
}
