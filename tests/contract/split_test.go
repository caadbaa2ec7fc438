package contract

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"weir/control/engine"
	"weir/control/replay"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
)

// Where the buffers of a frame end makes no difference: drivers put as much of it
// into the first one as they like.
func TestSplitFrames(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	r := newRandom(t)
	for i := range 4 {
		c := r.config(i)
		c.DropMalformed = i%2 == 0
		g, k := engines(t, richLists(), c)
		splits(t, k)
		seen := map[verdict.Reason]int{}
		for range 20_000 {
			frame := packet.Frame(r.anyTuple(r.IntN(3) > 0))
			if r.IntN(8) == 0 {
				frame = r.later(frame)
			}
			for range r.IntN(3) {
				if len(frame) >= 60 {
					frame = r.mutate(frame)
				}
			}
			first := r.IntN(min(len(frame), 120) + 1)
			if r.IntN(4) == 0 {
				first = r.IntN(len(frame) + 1)
			}
			got, err := agreeSplit(g, k, frame, first)
			if err != nil {
				t.Fatalf("%v: % x", err, frame)
			}
			seen[got.Reason]++
		}
		t.Log(seen)
		for _, reason := range []verdict.Reason{verdict.Clean, verdict.Blocked, verdict.Allowed, verdict.Truncated, verdict.Malformed} {
			if seen[reason] == 0 && !c.Monitor {
				t.Errorf("no packet left as %v: the test is too narrow", reason)
			}
		}
	}
}

// later makes a packet of IPv6 a later fragment: its payload looks as if it had ports, and is too
// short for them at times.
func (r random) later(f []byte) []byte {
	if f[12] != 0x86 {
		return f
	}
	header := []byte{f[20], 0, 0, byte(8 * (1 + r.IntN(31))), 0, 0, 0, 1}
	f = slices.Concat(f[:54], header, f[54:54+r.pick(0, 2, 4, len(f)-54)])
	f[20], f[18], f[19] = 44, 0, byte(len(f)-54)
	return f
}

// agreeSplit is agree, with so many bytes of the frame in its first buffer.
func agreeSplit(g *engine.Generation, k *replay.Kernel, frame []byte, first int) (verdict.Outcome, error) {
	want := g.Decide(frame)
	got, err := k.DecideSplit(frame, first)
	if err == nil && got != want {
		err = fmt.Errorf("%d bytes in the first buffer: kernel %+v, reference %+v", first, got, want)
	}
	return got, err
}

// splitter decides on frames whose first buffer ends anywhere.
type splitter interface {
	DecideSplit([]byte, int) (verdict.Outcome, error)
}

// canSplit returns an error where test runs split no frames.
func canSplit(k splitter) error {
	if _, err := k.DecideSplit(make([]byte, 60), 14); errors.Is(err, loader.ErrNoSplit) {
		return err
	}
	return nil
}

// splits skips the test where test runs split no frames.
func splits(t *testing.T, k splitter) {
	t.Helper()
	if err := canSplit(k); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}
