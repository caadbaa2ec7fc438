package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/control/api"
	"weir/control/observe/learn"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/wait"
)

// Where networks that send are not those that are listed, the daemon builds a filter with more bits for
// them. What is listed stays blocked.
func TestReplan(t *testing.T) {
	replanInterval = time.Hour
	t.Cleanup(func() { replanInterval = time.Minute })
	const listed = 20_000
	l, began := lab.New(t), time.Now().Truncate(time.Second)
	d := startApproximate(t, l, listed)
	tx := l.A.Sender(t)
	first := d.active.attach.Metadata().Loaded
	send := func(src netip.Addr) {
		if err := tx.Send(packet.Frame(key.Tuple{Src: src, Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17})); err != nil {
			t.Fatal(err)
		}
	}
	// Nor does the first look after the start build the engine.
	if err := d.loop.Do(t.Context(), func() error { d.builder.replanning = time.Now().Add(replanInterval); return nil }); err != nil {
		t.Fatal(err)
	}
	sent, worth := 0, false
	wait.For(t, "another engine makes fewer mistakes", func() bool {
		for range 1000 { // each of another source
			send(inNetwork(0x2d00+sent%20, sent/20))
			sent++
		}
		_ = d.loop.doAlone(t.Context(), func() error {
			present, planned := d.active.engine.Replanned(d.observers.learn.Demand(loader.Monotonic()))
			worth = present >= max(worthAnEngine*planned, fewMistakes)
			return nil
		})
		return worth
	})
	// As long as it does not filter, nothing says that networks have its bits, nor when it is gone.
	if err := d.loop.doAlone(t.Context(), func() error {
		d.loop.still = true
		defer func() { d.loop.still = false }()
		e, rollout, err := d.builder.load(d.active.prepared.Copy(), nil, new(kept))
		if err != nil {
			return err
		}
		if w := d.observers.weightsNow(); len(w.Networks) > 0 {
			t.Errorf("before the engine is active: %+v", w.Networks)
		}
		elements := d.observers.weightsNow().Elements
		if len(elements) == 0 {
			t.Error("no element has a weight")
		}
		for _, e := range elements {
			if e.Found.Before(began) || e.Found.After(time.Now()) {
				t.Errorf("%+v was not found since %v", e, began)
				break
			}
		}
		err = errors.Join(rollout.Close(), e.Close())
		if w := d.observers.weightsNow(); len(w.Networks) > 0 {
			t.Errorf("without the engine: %+v", w.Networks)
		}
		replanInterval, d.builder.replanning = 100*time.Millisecond, time.Time{}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the engine is active", func() bool {
		w := d.readings.weights.Load()
		return w != nil && len(w.Networks) > 0
	})
	w := d.readings.weights.Load()
	t.Logf("after %d sources: %+v; %.3g mistaken, equal %.3g", sent, w.Networks, w.Uniform, w.Equal)
	if w.Uniform > w.Equal/worthAnEngine {
		t.Errorf("%.3g of unlisted packets are predicted to be dropped, %.3g if all had the same number of bits", w.Uniform, w.Equal)
	}
	if !d.active.attach.Metadata().Loaded.After(first) {
		t.Error("the engine is the first one")
	}
	blocked := func() (n uint64) {
		if err := d.loop.Do(t.Context(), func() error {
			reasons, _ := d.observers.meter.Counters()
			n = reasons[verdict.Blocked].Packets
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := blocked()
	for i := range listed {
		send(inNetwork(0x0b00+i%20, i/20))
		if sent := uint64(i + 1); sent%200 == 0 { // fewer than a queue of the wire holds
			wait.For(t, "what is listed is dropped", func() bool { return blocked() == before+sent })
		}
	}
}

// Where what was learned was forged, so that those who send are dropped more often than without classes, the
// daemon builds a filter without these, and says so.
func TestRevert(t *testing.T) {
	long.Seconds(t)
	replanInterval = 100 * time.Millisecond
	t.Cleanup(func() { replanInterval = time.Minute })
	const listed = 20_000
	l := lab.New(t)
	d := startApproximate(t, l, listed)
	forged := membership.Period{Networks: make(map[uint32]membership.Sighting)}
	for i := range uint32(4) { // in which a fifth of the entries are
		forged.Networks[(0x0b00+i)<<16] = membership.Sighting{Found: 100, Exposed: 1}
	}
	d.learned(t, &membership.Sightings{Periods: slices.Repeat([]membership.Period{forged}, membership.MaxPeriods)})
	weights := func() *api.Weights { return d.readings.weights.Load() }
	wait.For(t, "networks have other numbers of bits", func() bool { return weights() != nil && len(weights().Networks) > 0 })
	tx, sent := l.A.Sender(t), 0
	send := func() {
		for range 100 { // each of another source, in the networks of the other entries
			f := packet.Frame(key.Tuple{Src: inNetwork(0x0b04+sent%16, listed/20+sent/16%60_000), Dst: netip.MustParseAddr("192.0.2.1"), Proto: 17})
			if err := tx.Send(f); err != nil {
				t.Fatal(err)
			}
			sent++
		}
	}
	wait.For(t, "networks are equal again", func() bool { send(); return weights().Reverted != nil })
	r := weights().Reverted
	t.Logf("after %d packets: %v", sent, r)
	if r.Equal > 0.065 || r.Counted < 1.1*r.Equal || len(weights().Networks) > 0 {
		t.Errorf("%+v, with networks %+v", r, weights().Networks)
	}
	wait.For(t, "the status says so", func() bool { s := d.readings.Status(); return s.Reverted != nil && *s.Reverted == *r })
	wait.For(t, "the rate is as predicted", func() bool {
		send()
		w := weights()
		return w.Rate != nil && w.Packets > 3000 && *w.Low < r.Equal && r.Equal < *w.High
	})
	if err := d.loop.doAlone(t.Context(), func() error {
		if s := d.observers.learn.Demand(loader.Monotonic()).Sightings; s != nil && len(s.Periods) > 1 {
			t.Errorf("%d periods are known: what was learned is not forgotten", len(s.Periods))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// learned makes the daemon build a filter as if it had learned these, and forgotten all else, and
// waits until that one's packets are counted.
func (d *Daemon) learned(t *testing.T, s *membership.Sightings) {
	t.Helper()
	before := d.active.attach.Metadata().Loaded
	if err := d.loop.doAlone(t.Context(), func() error {
		d.active.engine.Block.Sightings = s
		d.observers.learn.Close()
		d.observers.learn = learn.NewObserver(learn.Config{}, d.observers.hub, d.observers.mistaken, d.o.Log)
		d.observers.weigh(d.active.engine)
		if !d.rebuild(time.Now()) {
			t.Error("not rebuilt")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wait.For(t, "the filter is built", func() bool { return d.active.attach.Metadata().Loaded.After(before) })
	for range 2 { // the first may have begun before
		last := d.readings.top.Load()
		wait.For(t, "its packets are read", func() bool { return d.readings.top.Load() != last })
	}
}

// inNetwork returns an address of a /16 network.
func inNetwork(network, i int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(network<<16+i))))
}

// startApproximate starts a daemon that makes many mistakes: a filter of 6 bits an entry, for addresses of
// 20 networks.
func startApproximate(t *testing.T, l *lab.Lab, listed int, more ...string) *Daemon {
	t.Helper()
	return startMistaken(t, l, listed, func(i int) netip.Addr { return inNetwork(0x0b00+i%20, i/20) }, more...)
}

// startMistaken is startApproximate for other addresses.
func startMistaken(t *testing.T, l *lab.Lab, listed int, address func(int) netip.Addr, more ...string) *Daemon {
	t.Helper()
	file := filepath.Join(t.TempDir(), "list")
	var text strings.Builder
	for i := range listed {
		fmt.Fprintln(&text, address(i))
	}
	write(t, file, text.String())
	return startLists(t, l, io.Discard, fmt.Sprintf("mode: approx\nbits_per_entry: 6\nlists: {feed: {sources: [{file: %s}], interval: 24h}}\n%s", file, strings.Join(more, "\n")))
}
