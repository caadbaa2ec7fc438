package contract

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/control/engine"
	"weir/control/replay"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/lab"
	"weir/tests/long"
)

// tcPage is a length in bytes that test runs of TC accept.
const tcPage = 3000

// tcEntry is a program for TC with its reference: of incoming or outgoing packets, with or
// without Ethernet headers.
type tcEntry struct {
	name     string
	ethernet bool
	*engine.Generation
	*replay.Kernel
}

// tcEntries returns the programs for TC of a configuration: those with these names, or all.
func tcEntries(t testing.TB, lists []engine.List, c engine.Config, names ...string) (all []tcEntry) {
	t.Helper()
	c.TC, c.Outgoing = true, true
	in := built(t, lists, c)
	for _, e := range []tcEntry{
		{name: "in", Generation: in, ethernet: true},
		{name: "out", Generation: in.Out(), ethernet: true},
		{name: "in without Ethernet", Generation: in},
		{name: "out without Ethernet", Generation: in.Out()},
	} {
		if len(names) > 0 && !slices.Contains(names, e.name) {
			continue // to verify one takes 60 ms
		}
		kernel, err := replay.NewTCKernel(e.Generation, len(lists), e.ethernet)
		if err != nil {
			t.Fatalf("%s: %+v", e.name, err)
		}
		e.Kernel = kernel
		t.Cleanup(func() { e.Kernel.Close() })
		all = append(all, e)
	}
	return all
}

// agree returns the outcome for a frame, on which the program and its reference must agree.
// ok is false for frames that an interface of the entry does not have: without Ethernet
// headers, there are neither tags nor protocols of the link.
func (e *tcEntry) agree(t testing.TB, frame []byte) (o verdict.Outcome, ok bool) {
	t.Helper()
	frame = frame[:min(len(frame), tcPage)]
	if !e.ethernet {
		if len(frame) < 14 {
			return o, false
		}
		proto := binary.BigEndian.Uint16(frame[12:])
		if _, r := packet.Parse(frame); proto == unix.ETH_P_8021Q || proto == unix.ETH_P_8021AD || proto < 0x600 ||
			r == packet.Link && proto != unix.ETH_P_PPP_SES {
			return o, false
		}
	}
	o, err := agree(e.Generation, e.Kernel, frame)
	if err != nil {
		t.Fatalf("%s: %v: % x", e.name, err, frame)
	}
	return o, true
}

// The programs for TC decide as their references: on incoming packets as that for XDP, and
// on outgoing ones, of which failsafe has the sides exchanged, by lists of their own.
func TestTC(t *testing.T) {
	lab.Root(t)
	r := newRandom(t)
	seen := map[string]int{}
	missing := func() (all []string) {
		for _, entry := range []string{"in", "out", "in without Ethernet", "out without Ethernet"} {
			for r := range verdict.NumReasons {
				switch r {
				case verdict.RateLimited, verdict.Heavy, verdict.Looped, verdict.Policed, verdict.Reply, verdict.Pattern:
					continue // there are no penalties, loops, policers and connections here
				}
				if key := entry + "/" + r.String(); seen[key] == 0 {
					all = append(all, key)
				}
			}
		}
		return all
	}
	for i := range 100 {
		if i >= 6 && len(missing()) == 0 {
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
		round := newRound(t)
		entries := tcEntries(round, lists, r.config(i))
		for range 1000 {
			frame := r.mutate(packet.Frame(r.tuple()))
			if r.IntN(4) == 0 {
				frame = r.packetOnLeanPath()
			}
			for _, e := range entries {
				o, ok := e.agree(t, frame)
				if !ok {
					continue
				}
				seen[e.name+"/"+o.Reason.String()]++
				if o.List > 0 && (lists[o.List-1].Direction == engine.Out) != e.Policy.Out {
					t.Fatalf("%s: dropped by list %d, which is of the other direction: % x", e.name, o.List, frame)
				}
			}
		}
		round.end()
	}
	t.Log(seen)
	for _, reason := range missing() {
		t.Errorf("no packet left as %s: the test is too narrow", reason)
	}
}

// Frames in all their variety, as in TestRandomFrames.
func TestRandomFramesOfTC(t *testing.T) {
	long.Seconds(t)
	lab.Root(t)
	r := newRandom(t)
	var lists []engine.List
	for _, l := range richLists() {
		in := l
		l.Direction, l.Name = engine.Out, l.Name+" out"
		lists = append(lists, in, l)
	}
	entries := tcEntries(t, lists, engine.Config{Policy: verdict.Policy{DropMalformed: true}})
	for range 20_000 {
		frame := packet.Frame(r.anyTuple(r.IntN(3) > 0))
		for range r.IntN(3) {
			if len(frame) >= 60 {
				frame = r.mutate(frame)
			}
		}
		for _, e := range entries {
			e.agree(t, frame)
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
