package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf/link"

	"weir/control/generation"
	"weir/control/playground"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
	"weir/loader"
)

// wire measures packets on a veth pair, generator and receiver sharing a core:
// none of them listed, some, and all. Each contender parses, looks up, counts
// and drops every packet, so that what differs is the lookup.
func (r *Report) wire(o Options, n int) (err error) {
	o.logf("wire: %d random addresses", n)
	p, err := playground.New("weir-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	store, err := randomStore(n)
	if err != nil {
		return err
	}
	exact, err := newContenders(store, generation.Config{}, n, n, 0)
	if err != nil {
		return err
	}
	defer exact.Close()
	approx, err := newContenders(store, generation.Config{Mode: membership.Approximate}, 0, 0, 0)
	if err != nil {
		return err
	}
	defer approx.Close()
	if err := exact.fillRandom(n); err != nil {
		return err
	}
	w, err := newWires(p, 1<<20, map[string]runner{
		"xdp-drop": {exact, "drop"}, "weir-exact": {exact, "weir"}, "weir-approx": {approx, "weir"},
		"kernel-hash": {exact, "hash"}, "kernel-bloom": {exact, "bloom"},
	})
	if err != nil {
		return err
	}
	defer w.Close()
	mpps := map[float64]map[string]float64{}
	for _, listed := range []float64{0, 0.01, 0.5, 1} {
		for _, c := range []*contenders{exact, approx} {
			c.SetKeys(mixed(n, listed))
		}
		names := []string{"xdp-drop", "weir-exact", "weir-approx", "kernel-hash", "kernel-bloom"}
		m, err := rounds(o.Rounds, names, w.measure)
		if err != nil {
			return err
		}
		for _, name := range names {
			r.Results = append(r.Results, Result{
				Benchmark: "wire", Contender: name, Entries: n, ListedShare: listed,
				NS: 1000 / m[name], Mpps: m[name], Ratio: m[name] / m["xdp-drop"],
			})
		}
		mpps[listed] = m
	}
	size := count(n)
	clean, all := mpps[0], mpps[1]
	if n >= 10_000_000 {
		r.atLeast("wire, clean, "+size+", of XDP_DROP", clean["weir-exact"]/clean["xdp-drop"], 0.92)
		r.atLeast("wire, all listed, "+size+", of XDP_DROP", all["weir-exact"]/all["xdp-drop"], 0.58)
		r.atLeast("wire, all listed, "+size+", of kernel hash", all["weir-exact"]/all["kernel-hash"], 1.6)
	} else {
		r.atLeast("wire, all listed, "+size+", of XDP_DROP", all["weir-exact"]/all["xdp-drop"], 0.80)
		r.atLeast("wire, all listed, "+size+", of kernel hash", all["weir-exact"]/all["kernel-hash"], 1.7)
	}
	return nil
}

// frameTo is a UDP datagram of 64 bytes from A to B, but for its source, which
// the generator sets.
func frameTo(p *playground.Playground) []byte {
	f := packet.Frame(key.Tuple{Src: p.A.IPv4, Dst: p.B.IPv4, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 9})
	copy(f, p.B.MAC)
	copy(f[6:], p.A.MAC)
	f = append(f, make([]byte, max(0, 60-len(f)))...)
	binary.BigEndian.PutUint16(f[38:], 26) // the UDP length
	return f
}

// runner is a program of a contender's.
type runner struct {
	*contenders
	program string
}

// wires are contenders on the wire.
type wires struct {
	runners    map[string]runner
	playground *playground.Playground
	frame      []byte
	frames     int // that one contender is sent in one round
	link       link.Link
}

func newWires(p *playground.Playground, frames int, runners map[string]runner) (*wires, error) {
	w := &wires{runners: runners, playground: p, frame: frameTo(p), frames: frames}
	out, err := p.A.Index()
	if err != nil {
		return nil, err
	}
	in, err := p.B.Index()
	if err != nil {
		return nil, err
	}
	var first runner
	for _, first = range runners {
		if err := first.SetTarget(out); err != nil {
			return nil, err
		}
	}
	return w, p.B.In(func() error {
		w.link, err = link.AttachXDP(link.XDPOptions{
			Program: first.Wire(first.program), Interface: in, Flags: link.XDPDriverMode,
		})
		return err
	})
}

// measure gives the million packets a second that a contender has received.
func (w *wires) measure(name string) (mpps float64, err error) {
	c := w.runners[name]
	if err := w.link.Update(c.Wire(c.program)); err != nil {
		return 0, err
	}
	err = w.playground.A.In(func() error {
		// Generator and receiver share the core that sends.
		release, err := loader.StayOnCPU()
		if err != nil {
			return err
		}
		defer release()
		before, began := c.Received(), time.Now()
		if err := c.Send(w.frame, w.frames); err != nil {
			return err
		}
		took := time.Since(began)
		received := c.Received() - before
		if received < uint64(w.frames)*9/10 {
			return fmt.Errorf("%d of %d frames arrived", received, w.frames)
		}
		mpps = float64(received) / took.Seconds() / 1e6
		return nil
	})
	return mpps, err
}

func (w *wires) Close() {
	if w.link != nil {
		w.link.Close()
	}
}
