package measure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir/control/demo/playground"
	"weir/filter/key"
	"weir/filter/packet"
	"weir/loader"
	"weir/tests/bench/probe"
)

// wire is a veth pair between two network namespaces for one contender, which
// receives at B on the core that sends.
type wire struct {
	*playground.Playground
	frame   []byte
	out, in int // numbers of the interfaces of A and B
	link    link.Link
}

func newWire() (_ *wire, err error) {
	p, err := playground.New("weir-bench")
	if err != nil {
		return nil, err
	}
	w := &wire{Playground: p, frame: frameTo(p, p.A.IPv4, p.B.IPv4)}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.Close())
		}
	}()
	if w.out, err = p.A.Index(); err != nil {
		return nil, err
	}
	w.in, err = p.B.Index()
	return w, err
}

// frameTo returns a minimal frame with a UDP datagram from A to B. The generator
// sets the source.
func frameTo(p *playground.Playground, from, to netip.Addr) []byte {
	f := packet.Frame(key.Tuple{Src: from, Dst: to, Proto: 17, HasPorts: true, SrcPort: 1, DstPort: 9})
	copy(f, p.B.MAC)
	copy(f[6:], p.A.MAC)
	if from.Is6() {
		return f
	}
	f = append(f, make([]byte, max(0, 60-len(f)))...)
	binary.BigEndian.PutUint16(f[16:], uint16(len(f)-14))    // the IP length
	binary.BigEndian.PutUint16(f[38:], uint16(len(f)-14-20)) // the UDP length
	binary.BigEndian.PutUint16(f[24:], checksum(f[14:34]))   // which the generator adjusts
	return f
}

// tag inserts a VLAN tag into the wire's frames.
func (w *wire) tag() {
	w.frame = slices.Insert(w.frame, 12, 0x81, 0x00, 0, 7)
}

// checksum returns the Internet checksum (RFC 1071) of an IPv4 header whose own
// is 0.
func checksum(header []byte) uint16 {
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	sum = sum&0xffff + sum>>16
	return ^uint16(sum + sum>>16)
}

// attach attaches an XDP program to the receiving end, replacing the last one.
func (w *wire) attach(p *ebpf.Program) error {
	if w.link != nil {
		return w.link.Update(p)
	}
	return w.B.In(func() (err error) {
		w.link, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: w.in, Flags: link.XDPDriverMode})
		if err != nil {
			return fmt.Errorf("attach to %s: %w", w.B.Iface, err)
		}
		return nil
	})
}

// send sends frames and returns the time of one in nanoseconds.
func (w *wire) send(g *probe.Generator, frames int) (ns float64, err error) {
	return w.sendOn(0, g, frames)
}

// sendOn is send on a certain CPU, on which frames are received too.
func (w *wire) sendOn(cpu int, g *probe.Generator, frames int) (ns float64, err error) {
	err = w.A.In(func() error {
		release, err := loader.StayOn(cpu)
		if err != nil {
			return err
		}
		defer release()
		ns, err = g.Send(w.out, w.frame, frames)
		return err
	})
	return ns, err
}

func (w *wire) Close() error {
	if w == nil {
		return nil
	}
	var err error
	if w.link != nil {
		err = w.link.Close()
	}
	return errors.Join(err, w.Playground.Close())
}
