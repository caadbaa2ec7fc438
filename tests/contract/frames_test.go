package contract

import (
	"fmt"
	"testing"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/replay"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/filter/verdict"
	"weir/tests/cases"
	"weir/tests/lab"
)

// hooks returns the programs of a configuration at all hooks, that for XDP among them.
func hooks(t *testing.T, lists []engine.List, c engine.Config) []tcEntry {
	t.Helper()
	all := tcEntries(t, lists, c)
	in := all[0].Generation
	k, err := replay.NewKernel(in, len(lists))
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { k.Close() })
	return append(all, tcEntry{name: "XDP", ethernet: true, Generation: in, Kernel: k})
}

// eachWay returns block lists with a key each, of incoming packets, and then as many of
// outgoing ones, with the key that out returns for it.
func eachWay(out func(key.Key) key.Key, keys ...key.Key) (lists []engine.List) {
	for _, d := range []engine.Direction{engine.Source, engine.Out} {
		for i, k := range keys {
			if d == engine.Out {
				k = out(k)
			}
			lists = append(lists, engine.List{Name: fmt.Sprint(d, " ", i+1), Direction: d, Contents: list.SetOf(k)})
		}
	}
	return lists
}

// distinct returns keys for the tuples, and the number of each tuple's.
func distinct(tuples ...key.Tuple) (keys []key.Key, number map[key.Tuple]int) {
	number = make(map[key.Tuple]int)
	for _, t := range tuples {
		if t.Src.IsValid() && number[t] == 0 {
			keys = append(keys, t.Key())
			number[t] = len(keys)
		}
	}
	return keys, number
}

// ask compares the twins on a frame, and their outcome with a reason and a list, by its
// number among those of the program's direction.
func (e *tcEntry) ask(t *testing.T, name string, frame []byte, want verdict.Reason, list int) {
	t.Helper()
	o, ok := e.agree(t, frame)
	if !ok {
		return
	}
	own := 0
	for _, l := range e.Lists()[:o.List] {
		if (l.Direction == engine.Out) == e.Policy.Out {
			own++
		}
	}
	if o.Reason != want || own != list {
		t.Errorf("%s: %s: %+v, want %v by list %d: % x", e.name, name, o, want, list, frame)
	}
}

func unchanged(k key.Key) key.Key { return k }

// Both twins read each of the parser's named frames as its name says: each tuple in one of
// them is a list of its own, so that a field that is read wrongly leads to another or to none.
func TestNamedFrames(t *testing.T) {
	lab.Root(t)
	all := cases.OfParser()
	var tuples []key.Tuple
	for _, c := range all {
		tuples = append(tuples, c.Tuple)
	}
	keys, number := distinct(tuples...)
	for _, e := range hooks(t, eachWay(unchanged, keys...), engine.Config{}) {
		for _, c := range all {
			if n := number[c.Tuple]; n > 0 {
				e.ask(t, c.Name, c.Frame, verdict.Blocked, n)
			} else {
				e.ask(t, c.Name, c.Frame, reasonOf[c.Result], 0)
			}
		}
	}
}

// The same of the named frames with tunnels. Only what is in these is listed.
func TestNamedTunnels(t *testing.T) {
	lab.Root(t)
	tunnels, hidden := cases.OfTunnels(), cases.OfHidden()
	var tuples []key.Tuple
	for _, c := range tunnels {
		tuples = append(tuples, c.Tuple)
	}
	for _, c := range hidden {
		tuples = append(tuples, c.Tuple)
	}
	keys, number := distinct(tuples...)
	for _, e := range hooks(t, eachWay(unchanged, keys...), engine.Config{Policy: verdict.Policy{Inner: true}}) {
		for _, c := range tunnels {
			if n := number[c.Tuple]; n > 0 {
				e.ask(t, c.Name, c.Frame, verdict.Blocked, n)
			} else if o, ok := e.agree(t, c.Frame); ok && o.Reason == verdict.Blocked {
				t.Errorf("%s: %s: %+v, and nothing is listed: % x", e.name, c.Name, o, c.Frame)
			}
		}
		for _, c := range hidden {
			outer, _ := packet.Parse(c.Frame)
			switch n := number[c.Tuple]; {
			case number[outer.Tuple] > 0: // it is no tunnel
				e.ask(t, c.Name, c.Frame, verdict.Blocked, number[outer.Tuple])
			case n > 0:
				e.ask(t, c.Name, c.Frame, verdict.Blocked, n)
			case c.Result == packet.NotIP:
				e.ask(t, c.Name, c.Frame, verdict.Clean, 0)
			default:
				e.ask(t, c.Name, c.Frame, reasonOf[c.Result], 0)
			}
		}
	}
}

// onHost returns the programs of a host, with the lists of the named verdicts: on the way
// out, with the sides exchanged.
func onHost(t *testing.T, p verdict.Policy) []tcEntry {
	t.Helper()
	lists := eachWay(key.Key.Reverse, cases.Blocked...)
	for i, k := range []key.Key{cases.Allowed, cases.Allowed.Reverse()} {
		d := []engine.Direction{engine.Source, engine.Out}[i]
		lists = append(lists, engine.List{Name: "allowed " + d.String(), Allow: true, Direction: d, Contents: list.SetOf(k)})
	}
	return hooks(t, lists, engine.Config{Policy: p})
}

// arriving returns a frame as it arrives and, for a program of outgoing packets, the answer.
func (e *tcEntry) arriving(frame []byte) []byte {
	if e.Policy.Out {
		return cases.Reversed(frame)
	}
	return frame
}

// Both twins decide on each of the named frames as its name says, and on the way out, where
// failsafe has its sides exchanged, on the answer to it.
func TestNamedVerdicts(t *testing.T) {
	lab.Root(t)
	for _, e := range onHost(t, cases.Policy) {
		for _, c := range cases.OfVerdicts() {
			e.ask(t, c.Name, e.arriving(c.Frame), c.Reason, c.List)
		}
		for _, c := range cases.OfNeighbours() { // whichever way
			if o, ok := e.agree(t, c.Frame); ok && (o.Reason == verdict.ND) != c.ND {
				t.Errorf("%s: %s: %+v, neighbour discovery: %t: % x", e.name, c.Name, o, c.ND, c.Frame)
			}
		}
		for _, c := range cases.OfDHCP() {
			e.askDHCP(t, c.Frame, c.Client)
		}
	}
}

// The same on a host that serves or relays DHCP.
func TestNamedDHCP(t *testing.T) {
	lab.Root(t)
	p := cases.Policy
	p.DHCPServer = true
	for _, e := range onHost(t, p) {
		for _, c := range cases.OfDHCP() {
			e.askDHCP(t, c.Frame, c.Server)
		}
	}
}

func (e *tcEntry) askDHCP(t *testing.T, frame []byte, want bool) {
	t.Helper()
	frame = e.arriving(frame)
	if o, ok := e.agree(t, frame); ok && (o.Reason == verdict.DHCP) != want {
		t.Errorf("%s: %+v, DHCP: %t: % x", e.name, o, want, frame)
	}
}
