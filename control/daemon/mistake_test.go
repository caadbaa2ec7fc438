package daemon

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
)

// A source that is dropped by mistake passes a few milliseconds after its first packet: the program wakes the
// daemon for it.
func TestMistakesEndSoon(t *testing.T) {
	const listed, sources = 20_000, 25
	l := lab.New(t)
	d := startApproximate(t, l, listed)
	var mistaken []netip.Addr
	if err := d.loop.doAlone(t.Context(), func() error {
		for i := 0; len(mistaken) < sources; i++ {
			if a := inNetwork(0x2d00, i); d.active.engine.Block.Passes(key.Source(netip.PrefixFrom(a, 32))) {
				mistaken = append(mistaken, a)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	tx, rx := l.A.Sender(t), l.B.Receiver(t)
	var took []time.Duration
	dropped := 0
	for i, a := range mistaken {
		frame := l.Numbered(packet.Frame(key.Tuple{Src: a, Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17}), uint64(i))
		began := time.Now()
		for passed := false; !passed; dropped++ {
			if time.Since(began) > 10*time.Second {
				t.Fatalf("%v is still dropped", a)
			}
			if err := tx.Send(frame); err != nil {
				t.Fatal(err)
			}
			for sent := time.Now(); !passed && time.Since(sent) < 200*time.Microsecond; { // a timeout is longer
				if got, err := rx.Receive(0); err == nil {
					n, ok := lab.NumberOf(got)
					passed = ok && n == uint64(i)
				}
			}
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("mistaken sources pass after %v, %v, %v (least, median, most); %d packets were sent", took[0], took[sources/2], took[sources-1], dropped)
	if took[sources/2] > 20*time.Millisecond {
		t.Errorf("half of the mistaken sources pass after %v or later", took[sources/2])
	}
}
