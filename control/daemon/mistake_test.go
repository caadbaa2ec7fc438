package daemon

import (
	"encoding/binary"
	"math"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weir/control/api"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/tests/forgers"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
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
			if time.Since(began) > wait.Patience {
				t.Fatalf("%v is still dropped, after %d packets; the others: %v", a, dropped, took)
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
	if took[sources/4] > 20*time.Millisecond { // on a busy machine half wait for a turn; without being woken, all do
		t.Errorf("three quarters of the mistaken sources pass after %v or later", took[sources/4])
	}
}

// The rate that is shown is the share of the unlisted packets that did not arrive, counted by who receives
// them, with and without weights.
func TestCountedRate(t *testing.T) {
	long.Seconds(t)
	for name, config := range map[string]string{"with weights": "", "without": "learning: {elements: 0}"} {
		t.Run(name, func(t *testing.T) {
			const sources, each = 3000, 2
			l := lab.New(t)
			d := startApproximate(t, l, 20_000, config)
			c := newRateCheck(t, l, d)
			c.shows(sources*each, func(i int) netip.Addr { return inNetwork(0x2d00+i%20, i%sources) })
			if config != "" && (d.readings.weights.Load() != nil || d.observers.learn.Hot() > 0) {
				t.Error("there are weights")
			}
		})
	}
}

// The rate that is shown is the counted one, whatever the daemon has learned from forged sources, and where those
// who send change to the networks in which most is listed.
func TestCountedRateUnderAttack(t *testing.T) {
	long.Only(t, "takes half a minute")
	const listed, packets = 20_000, 4000
	address := func(a uint32) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, a)))
	}
	w := forgers.New(seed.Secrets(t), 1.1)
	entries := make(map[uint32]bool)
	l := lab.New(t)
	d := startMistaken(t, l, listed, func(int) netip.Addr {
		for {
			if a := w.Listed(); !entries[a] {
				entries[a] = true
				return address(a)
			}
		}
	})
	unlisted := func(next func() uint32) func(int) netip.Addr {
		return func(int) netip.Addr {
			for {
				if a := next(); !entries[a] {
					return address(a)
				}
			}
		}
	}
	attack := func(name string, f *forgers.Forger, next func() uint32) {
		s := membership.Sightings{Periods: make([]membership.Period, membership.MaxPeriods)}
		w.Found(4000, f, func(period int, source uint32) {
			s.Periods[period].Exposed = 1
			s.Periods[period].Add(key.Source(netip.PrefixFrom(address(source), 32)))
		})
		d.learned(t, &s)
		t.Log(name)
		newRateCheck(t, l, d).shows(packets, unlisted(next))
	}
	all := forgers.All()
	w.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, f := range all[:long.Rounds(4, 4, len(all))] {
		attack(f.Name, &f, w.Honest)
	}
	attack("nothing forged", nil, w.Honest)
	attack("drift to the listed", nil, w.Listed)
}

// A rateCheck counts the packets that arrive, beside the rate that a daemon shows.
type rateCheck struct {
	t       *testing.T
	lab     *lab.Lab
	d       *Daemon
	tx      *lab.Sender
	rx      *lab.Receiver
	arrived int
}

// newRateCheck waits until a daemon shows the rate of its filter.
func newRateCheck(t *testing.T, l *lab.Lab, d *Daemon) *rateCheck {
	t.Helper()
	c := &rateCheck{t: t, lab: l, d: d, tx: l.A.Sender(t), rx: l.B.Receiver(t)}
	// The filter may drop some of these, too: they are not counted.
	sent := 0
	wait.For(t, "the filter is judged", func() bool {
		c.send(inNetwork(0x2cff, sent), 1<<40)
		sent++
		return c.shown().Rate != nil
	})
	return c
}

func (c *rateCheck) shown() (r api.FalsePositives) {
	if top := c.d.readings.Top(); top != nil {
		r = top.Filter.FalsePositives
	}
	return r
}

func (c *rateCheck) send(src netip.Addr, number uint64) {
	c.t.Helper()
	f := packet.Frame(key.Tuple{Src: src, Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17})
	if err := c.tx.Send(c.lab.Numbered(f, number)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rateCheck) receive() {
	for {
		got, err := c.rx.Receive(0)
		if err != nil {
			return
		}
		if n, ok := lab.NumberOf(got); ok && n < 1<<40 {
			c.arrived++
		}
	}
}

// shows sends packets of these sources, none of which is listed, and compares what arrived with what is shown.
func (c *rateCheck) shows(packets int, source func(int) netip.Addr) {
	t := c.t
	t.Helper()
	last := c.d.readings.top.Load()
	wait.For(t, "what was sent before is counted", func() bool {
		now := c.d.readings.top.Load()
		if now == last {
			return false
		}
		same := now.Filter.FalsePositives.Packets == last.Filter.FalsePositives.Packets
		last = now
		return same
	})
	before := last.Filter.FalsePositives
	c.arrived = 0
	for i := range packets {
		c.send(source(i), uint64(i))
		if i%100 == 99 { // fewer than a queue holds
			c.receive()
		}
	}
	wait.For(t, "all packets are counted", func() bool {
		c.receive()
		return c.shown().Packets >= before.Packets+uint64(packets)
	})
	lost, r := float64(packets-c.arrived), c.shown()
	got, share := *r.Rate*float64(r.Packets)-*before.Rate*float64(before.Packets), lost/float64(packets)
	t.Logf("%v of %d did not arrive, a share of %.4f; shown %.4f, %.4f to %.4f, of %d packets; predicted %.4f",
		lost, packets, share, *r.Rate, *r.Low, *r.High, r.Packets, c.d.active.attach.Metadata().Predicted)
	if math.Abs(got-lost) > 1.5 || share < *r.Low || share > *r.High || *r.High > 3**r.Rate {
		t.Errorf("%.1f packets are shown to be dropped, %v are", got, lost)
	}
}
