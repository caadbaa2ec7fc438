package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/control/list"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/verdict"
	"weir/loader"
	"weir/loader/hooks"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/pins"
	"weir/tests/seed"
	"weir/tests/wait"
)

// address is the i-th of different sources without a pattern.
func address(i int) key.Key {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(i)*0x9e3779b1)
	return key.Source(netip.PrefixFrom(netip.AddrFrom4(b), 32))
}

func addresses(from, n int) []key.Key {
	var keys []key.Key
	for i := from; i < from+n; i++ {
		keys = append(keys, address(i))
	}
	return keys
}

func frameFrom(k key.Key) []byte {
	return frameOf(key.Tuple{Src: k.Src, Dst: netip.MustParseAddr("203.0.113.1"), Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 2})
}

// The upper half of a frame's number is its kind, the lower half counts.
const (
	listedFrame = 1 << 32
	cleanFrame  = 2 << 32
	addedFrame  = 3 << 32
	passFrame   = 4 << 32
	kindMask    = ^uint64(1<<32 - 1)
)

// cleanEvery is the number of frames per one that passes, large enough that the
// receiver's buffer does not overflow.
const cleanEvery = 32

// load floods the filter with numbered frames of listed sources and occasional
// clean ones, and checks all that pass.
type load struct {
	sent, clean, leaked atomic.Uint64
	passed              chan uint64 // numbers of frames that are neither
	done                atomic.Bool
	wg                  sync.WaitGroup
}

// startLoad begins. The load ends with stop, or with the test.
func startLoad(t *testing.T, l *lab.Lab, sources []key.Key) *load {
	t.Helper()
	f := &load{passed: make(chan uint64, 1<<16)}
	tx, rx := l.A.Sender(t), l.B.Receiver(t)
	t.Cleanup(func() { // before the sockets are closed
		f.done.Store(true)
		f.wg.Wait()
	})
	var frames [][]byte
	for _, k := range sources {
		frames = append(frames, l.Numbered(frameFrom(k), 0))
	}
	clean := l.Numbered(frameOf(udp("198.51.100.1", "203.0.113.1", 2)), 0)
	f.wg.Go(func() {
		if _, err := loader.StayOnCPU(); err != nil { // the thread ends with the goroutine
			t.Error(err)
			return
		}
		for n := uint64(0); !f.done.Load(); n++ {
			frame, kind := frames[n%uint64(len(frames))], uint64(listedFrame)
			if n%cleanEvery == 0 {
				frame, kind = clean, cleanFrame
			}
			lab.Renumber(frame, kind|n&^kindMask)
			if err := tx.TrySend(frame); err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.ENETDOWN) {
				t.Errorf("send: %v", err)
				return
			}
			f.sent.Add(1)
		}
	})
	f.wg.Go(func() {
		last := uint64(0)
		for !f.done.Load() {
			frame, err := rx.Receive(100 * time.Millisecond)
			if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, unix.ENETDOWN) {
				continue
			}
			if err != nil {
				t.Errorf("receive: %v", err)
				return
			}
			n, ok := lab.NumberOf(frame)
			switch {
			case !ok:
			case n&kindMask == listedFrame:
				if f.leaked.Add(1) == 1 {
					t.Errorf("the listed packet %d of %d came through", n&^kindMask, f.sent.Load())
				}
			case n&kindMask == cleanFrame:
				f.clean.Add(1)
				if n <= last {
					t.Errorf("clean packet %d comes after %d", n&^kindMask, last&^kindMask)
				}
				last = n
			default:
				f.passed <- n
			}
		}
	})
	return f
}

// hasPassed looks for a number among the frames that passed in addition to the
// load, none of which may be an added one.
func (f *load) hasPassed(t *testing.T, number uint64) bool {
	t.Helper()
	found := false
	for {
		select {
		case n := <-f.passed:
			if n&kindMask == addedFrame {
				t.Errorf("what was added in batch %d came through", n&^kindMask)
			}
			found = found || n == number
		case <-time.After(time.Millisecond):
			return found
		}
	}
}

// await waits until the filter has seen a number of further frames of the load.
func (f *load) await(t *testing.T, frames uint64) {
	t.Helper()
	until, deadline := f.sent.Load()+frames, wait.Deadline()
	for f.sent.Load() < until {
		if time.Now().After(deadline) {
			t.Fatal("the load has stalled")
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// stop ends the load. It fails the test if too little came through for a leak
// to be seen, or too little arrived to leak at all.
func (f *load) stop(t *testing.T, a *loader.Attachment) {
	t.Helper()
	f.done.Store(true)
	f.wg.Wait()
	blocked := a.Stats().Reasons(nil)[verdict.Blocked].Packets
	t.Logf("%d packets sent, %d of them blocked, %d clean ones came through, %d listed ones did",
		f.sent.Load(), blocked, f.clean.Load(), f.leaked.Load())
	if f.leaked.Load() > 0 {
		t.Errorf("%d listed packets came through", f.leaked.Load())
	}
	if f.clean.Load() < 100 || blocked < 10*f.clean.Load() {
		t.Error("too few packets for the test to say anything")
	}
}

func eachHook(t *testing.T, test func(t *testing.T, xdp hooks.Hook)) {
	for _, xdp := range []hooks.Hook{hooks.Native, hooks.Generic} {
		t.Run(xdp.String(), func(t *testing.T) { test(t, xdp) })
	}
}

// eachModes runs a test at both hooks, and in both modes; without WEIR_LONG=1, in one at each.
func eachModes(t *testing.T, test func(t *testing.T, xdp hooks.Hook, mode membership.Mode)) {
	for _, xdp := range []hooks.Hook{hooks.Native, hooks.Generic} {
		for _, mode := range []membership.Mode{membership.Exact, membership.Approximate} {
			if !long.Enabled && (xdp == hooks.Native) != (mode == membership.Exact) {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v", xdp, mode), func(t *testing.T) { test(t, xdp, mode) })
		}
	}
}

// Generations are exchanged under load, and not one listed packet passes. When
// weir is detached they do, so one would be seen.
func TestReplaceUnderLoad(t *testing.T) {
	long.Seconds(t)
	const sources = 200
	replacements := long.Or(5, 20)
	eachModes(t, func(t *testing.T, xdp hooks.Hook, mode membership.Mode) {
		l := lab.New(t)
		s := lists(addresses(0, sources), nil)
		c := engine.Config{Mode: mode}
		a, err := pins.Attach(pins.New(t), target(l.B), xdp, nil, build(t, s, c).Load)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		f := startLoad(t, l, addresses(0, sources))
		for range replacements {
			f.await(t, 200)
			g, err := engine.Build(s, c)
			if err != nil {
				t.Fatal(err)
			}
			p, err := g.Load(a.Stats())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(a.Replace(p), g.Close()); err != nil {
				t.Fatal(err)
			}
		}
		f.await(t, 200)
		f.stop(t, a)
		if err := a.Detach(); err != nil {
			t.Fatal(err)
		}
		for _, f := range lab.NewProbe(t, l).Pass(t, frameFrom(address(0)), frameFrom(address(sources-1))) {
			if f == nil {
				t.Error("a packet is lost though nothing filters")
			}
		}
	})
}

// Thousands of entries are added and removed in place, under load, in a table
// close to capacity: entries that stay listed never leak, added ones are blocked from
// the moment at which Apply returns, and removed ones pass.
func TestApplyUnderLoad(t *testing.T) {
	const (
		staying = 5000
		coming  = 50_000
		batch   = 600
		rounds  = 40
	)
	eachModes(t, func(t *testing.T, xdp hooks.Hook, mode membership.Mode) {
		r := seed.Secrets(t)
		l := lab.New(t)
		listed := addresses(0, staying+coming)
		g := build(t, lists(listed, nil), engine.Config{Mode: mode})
		next := len(listed)
		// change removes and adds entries, and returns one of each. Now and then, a table so
		// close to capacity has no place for one of them by chance: then nothing is changed,
		// and others are drawn.
		full := 0
		var change func(remove, add int) (removed, added key.Key)
		change = func(remove, add int) (removed, added key.Key) {
			before := slices.Clone(listed)
			var gone, come []key.Key
			for range remove {
				i := staying + r.IntN(len(listed)-staying)
				removed = listed[i]
				gone = append(gone, removed)
				listed[i] = listed[len(listed)-1]
				listed = listed[:len(listed)-1]
			}
			for range add {
				added = address(next)
				next++
				come = append(come, added)
				listed = append(listed, added)
			}
			d := list.Delta{Add: list.SetOf(come...), Remove: list.SetOf(gone...)}
			switch n, err := g.Apply([]engine.Change{{List: 1, Delta: d}}); {
			case err == nil && n == d.Len():
				return removed, added
			case n != 0 || !errors.Is(err, membership.ErrFull) || full == 3:
				t.Fatalf("%d of %d changes: %v", n, d.Len(), err)
			}
			full++
			listed = before
			return change(remove, add)
		}
		change(0, g.Block.Planned()*99/100-g.Block.Len()-batch) // its lines fill up by chance

		a := attachGeneration(t, l, xdp, g)
		f := startLoad(t, l, listed[:staying])
		tx := l.A.Sender(t)
		send := func(k key.Key, number uint64) {
			if err := tx.TrySend(l.Numbered(frameFrom(k), number)); err != nil && !errors.Is(err, unix.ENOBUFS) {
				t.Fatal(err)
			}
		}
		for round := range uint64(rounds) {
			removed, added := change(batch, batch)
			for range 5 {
				send(added, addedFrame|round)
			}
			// In approximate mode, a removed one may be a false positive.
			for deadline := wait.Deadline(); mode == membership.Exact && !f.hasPassed(t, passFrame|round); {
				send(removed, passFrame|round) // again: the wire loses some under load
				if time.Now().After(deadline) {
					t.Fatalf("%v was removed and does not come through", removed)
				}
			}
		}
		f.await(t, 1000)
		cascade, table := g.Block.Load()
		t.Logf("%d batches of %d changes; filled to %.3f and %.3f", rounds, 2*batch, cascade, table)
		f.stop(t, a)
		f.hasPassed(t, 0)
	})
}
