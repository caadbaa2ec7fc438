package events

import (
	"net/netip"
	"testing"
	"time"
)

func TestLoops(t *testing.T) {
	addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }
	var l Loops
	now := time.Now()
	for n := range mostLoops {
		if !l.Report(addr(n), addr(99), now.Add(time.Duration(n))) || l.Report(addr(n), addr(99), now.Add(loopsAgain-1)) {
			t.Fatalf("loop %d is not reported exactly once", n+1)
		}
	}
	if l.Report(addr(98), addr(99), now.Add(loopsAgain-1)) {
		t.Error("too many loops are reported")
	}
	if now = now.Add(loopsAgain); !l.Report(addr(0), addr(99), now) || l.Report(addr(98), addr(99), now) {
		t.Error("after its time, only the first loop may be reported again")
	}
	if now = now.Add(loopsAgain); !l.Report(addr(99), addr(0), now) || len(l.reported) != 1 {
		t.Errorf("%d loops are remembered, want 1", len(l.reported))
	}
}
