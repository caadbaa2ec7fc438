package contract

import (
	"fmt"
	"testing"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/replay"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
)

// tcPage is a length in bytes that test runs of TC accept.
const tcPage = 3000

// tcKernels returns the generations of incoming and of outgoing packets with the program
// for TC.
func tcKernels(t testing.TB, lists []engine.List, c engine.Config) (in, out *engine.Generation, inKernel, outKernel *replay.Kernel) {
	t.Helper()
	c.TC, c.Outgoing = true, &engine.Telemetry{}
	in, err := engine.Build(lists, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	out = in.Out()
	if inKernel, err = replay.NewTCKernel(in, len(lists)); err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { inKernel.Close() })
	if outKernel, err = replay.NewKernel(out, len(lists)); err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { outKernel.Close() })
	return in, out, inKernel, outKernel
}

// The program for TC decides as its reference: on incoming packets as that for XDP, and on
// outgoing ones, of which failsafe has the sides exchanged, by lists of their own.
func TestTC(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	seen := map[string]int{}
	missing := func() (all []string) {
		for r := range verdict.NumReasons {
			if r == verdict.RateLimited || r == verdict.Heavy || r == verdict.Looped || r == verdict.Policed {
				continue // there are no penalties, loops and policers here
			}
			for _, direction := range []string{"in/", "out/"} {
				if seen[direction+r.String()] == 0 {
					all = append(all, direction+r.String())
				}
			}
		}
		return all
	}
	for i := range 100 {
		if i >= 10 && len(missing()) == 0 {
			break
		}
		var lists []engine.List
		for i := range 5 {
			d := engine.Direction(r.IntN(3))
			if i%2 == 0 {
				d = engine.Out
			}
			lists = append(lists, engine.List{
				Name: fmt.Sprint(i), Allow: i == 2 || i == 3, Direction: d, Contents: r.entries(r.pick(0, 5, 100, 1000)).Set(),
			})
		}
		c := r.config(i)
		in, out, inKernel, outKernel := tcKernels(t, lists, c)
		for range 1000 {
			frame := r.mutate(packet.Frame(r.tuple()))
			if r.IntN(4) == 0 {
				frame = r.packetOnLeanPath()
			}
			frame = frame[:min(len(frame), tcPage)]
			o, err := agree(in, inKernel, frame)
			if err != nil {
				t.Fatalf("incoming: %v: % x", err, frame)
			}
			seen["in/"+o.Reason.String()]++
			if o, err = agree(out, outKernel, frame); err != nil {
				t.Fatalf("outgoing: %v: % x", err, frame)
			}
			seen["out/"+o.Reason.String()]++
			if o.List > 0 && lists[o.List-1].Direction != engine.Out {
				t.Fatalf("an outgoing packet is dropped by list %d, which is of incoming ones: % x", o.List, frame)
			}
		}
	}
	t.Log(seen)
	for _, reason := range missing() {
		t.Errorf("no packet left as %s: the test is too narrow", reason)
	}
}

// Frames in all their variety, as in TestRandomFrames.
func TestRandomFramesOfTC(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	var lists []engine.List
	for _, l := range richLists() {
		l.Direction = engine.Out
		lists = append(lists, l)
	}
	_, out, _, kernel := tcKernels(t, lists, engine.Config{Policy: verdict.Policy{DropMalformed: true}})
	for range 30_000 {
		frame := packet.Frame(r.anyTuple(r.IntN(3) > 0))
		for range r.IntN(3) {
			if len(frame) >= 60 {
				frame = r.mutate(frame)
			}
		}
		frame = frame[:min(len(frame), tcPage)]
		if _, err := agree(out, kernel, frame); err != nil {
			t.Fatalf("%v: % x", err, frame)
		}
	}
}

// What passes goes on to other programs, and no packet is changed: the kernel would copy
// the headers of all that TCP sends.
func TestTCObject(t *testing.T) {
	spec, err := bpf.LoadWeirTC()
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Programs) != 1 || spec.Programs[bpf.WeirTCProgWeir] == nil {
		t.Errorf("the object has %d programs, want weir alone", len(spec.Programs))
	}
	xdp, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range spec.Maps {
		if of := xdp.Maps[name]; name[0] != '.' && (of == nil || of.ValueSize != m.ValueSize || of.Type != m.Type) {
			t.Errorf("map %s is another in the program for XDP", name)
		}
	}
}
