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
		if !l.Tell(addr(n), addr(99), now.Add(time.Duration(n))) || l.Tell(addr(n), addr(99), now.Add(loopsAgain-1)) {
			t.Fatalf("loop %d is not told of once", n+1)
		}
	}
	if l.Tell(addr(98), addr(99), now.Add(loopsAgain-1)) {
		t.Error("one too many is told of")
	}
	if now = now.Add(loopsAgain); !l.Tell(addr(0), addr(99), now) || l.Tell(addr(98), addr(99), now) {
		t.Error("after its time, just the first is to be told of")
	}
	if now = now.Add(loopsAgain); !l.Tell(addr(99), addr(0), now) || len(l.told) != 1 {
		t.Errorf("%d loops are remembered, and want to be told of, want 1", len(l.told))
	}
}
