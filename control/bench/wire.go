package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir/control/playground"
	"weir/filter/key"
	"weir/filter/membership"
	"weir/filter/packet"
)

// frames that one contender is sent in one round.
const frames = 1 << 20

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
	w := wires{playground: p, frame: frameTo(p)}
	defer w.Close()
	if w.exact, err = newContenders(store, membership.Exact, n, n, 0); err != nil {
		return err
	}
	if w.approx, err = newContenders(store, membership.Approximate, 0, 0, 0); err != nil {
		return err
	}
	if err := w.exact.fillRandom(n); err != nil {
		return err
	}
	if err := w.attach(); err != nil {
		return err
	}
	mpps := map[float64]map[string]float64{}
	for _, listed := range []float64{0, 0.01, 0.5, 1} {
		for _, c := range []*contenders{w.exact, w.approx} {
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

// wires are the contenders on the wire.
type wires struct {
	exact, approx *contenders
	playground    *playground.Playground
	frame         []byte
	link          link.Link
}

func (w *wires) attach() error {
	out, err := w.playground.A.Index()
	if err != nil {
		return err
	}
	in, err := w.playground.B.Index()
	if err != nil {
		return err
	}
	if err := errors.Join(w.exact.SetTarget(out), w.approx.SetTarget(out)); err != nil {
		return err
	}
	return w.playground.B.In(func() error {
		w.link, err = link.AttachXDP(link.XDPOptions{
			Program: w.exact.Wire("drop"), Interface: in, Flags: link.XDPDriverMode,
		})
		return err
	})
}

// measure gives the million packets a second that a contender has received.
func (w *wires) measure(name string) (mpps float64, err error) {
	c, program := w.exact, map[string]string{
		"xdp-drop": "drop", "weir-exact": "weir", "weir-approx": "weir", "kernel-hash": "hash", "kernel-bloom": "bloom",
	}[name]
	if name == "weir-approx" {
		c = w.approx
	}
	if err := w.link.Update(c.Wire(program)); err != nil {
		return 0, err
	}
	err = w.playground.A.In(func() error {
		// Generator and receiver share the core that sends.
		var all, one unix.CPUSet
		if err := unix.SchedGetaffinity(0, &all); err != nil {
			return err
		}
		one.Set(runtime.NumCPU() - 1)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return err
		}
		defer unix.SchedSetaffinity(0, &all)

		before, began := c.Received(), time.Now()
		if err := c.Send(w.frame, frames); err != nil {
			return err
		}
		took := time.Since(began)
		received := c.Received() - before
		if received < frames*9/10 {
			return fmt.Errorf("%d of %d frames arrived", received, frames)
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
	for _, c := range []*contenders{w.exact, w.approx} {
		if c != nil {
			c.Close()
		}
	}
}
