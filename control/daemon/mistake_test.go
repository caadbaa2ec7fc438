package daemon

import (
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
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

// The rate that is shown is the share of the unlisted packets that did not arrive, counted by who receives
// them, with and without weights.
func TestCountedRate(t *testing.T) {
	long.Seconds(t)
	for name, config := range map[string]string{"with weights": "", "without": "learning: {elements: 0}"} {
		t.Run(name, func(t *testing.T) {
			const listed, sources, each = 20_000, 3000, 2
			l := lab.New(t)
			d := startApproximate(t, l, listed, config)
			shown := func() (r api.FalsePositives) {
				if top := d.readings.Top(); top != nil {
					r = top.Filter.FalsePositives
				}
				return r
			}
			tx, rx := l.A.Sender(t), l.B.Receiver(t)
			arrived, sent := 0, 0
			receive := func() {
				for {
					got, err := rx.Receive(0)
					if err != nil {
						return
					}
					if n, ok := lab.NumberOf(got); ok && n < 1<<40 {
						arrived++
					}
				}
			}
			send := func(src netip.Addr, number uint64) {
				f := packet.Frame(key.Tuple{Src: src, Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17})
				if err := tx.Send(l.Numbered(f, number)); err != nil {
					t.Fatal(err)
				}
			}
			// The filter may drop some of these, too: they are not counted below.
			first := 0
			wait.For(t, "the filter is judged", func() bool {
				send(inNetwork(0x2cff, first), 1<<40)
				first++
				return shown().Rate != nil
			})
			last := d.readings.top.Load()
			wait.For(t, "they are counted", func() bool {
				now := d.readings.top.Load()
				if now == last {
					return false
				}
				same := now.Filter.FalsePositives.Packets == last.Filter.FalsePositives.Packets
				last = now
				return same
			})
			before := last.Filter.FalsePositives
			for i := range sources * each {
				send(inNetwork(0x2d00+i%20, i%sources), uint64(i))
				if sent++; sent%100 == 0 { // fewer than a queue holds
					receive()
				}
			}
			wait.For(t, "all packets are counted", func() bool {
				receive()
				return shown().Packets >= before.Packets+sources*each
			})
			lost, r := float64(sent-arrived), shown()
			got, share := *r.Rate*float64(r.Packets)-*before.Rate*float64(before.Packets), lost/float64(sent)
			t.Logf("%d of %d did not arrive, a share of %.4f; shown %.4f, %.4f to %.4f, of %d packets; predicted %.4f",
				sent-arrived, sent, share, *r.Rate, *r.Low, *r.High, r.Packets, d.active.attach.Metadata().Predicted)
			if math.Abs(got-lost) > 1.5 || share < *r.Low || share > *r.High || *r.High > 2**r.Rate {
				t.Errorf("%.1f packets are shown to be dropped, %v are", got, lost)
			}
			if config != "" && (d.readings.weights.Load() != nil || d.observers.learn.Hot() > 0) {
				t.Error("there are weights")
			}
		})
	}
}
