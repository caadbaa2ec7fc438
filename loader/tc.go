package loader

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/bpf"
)

// The kinds of programs that count in [Stats], by their entry point.
const (
	entryXDP  uint32 = iota
	entryTC          // frames begin with an Ethernet header
	entryBare        // TC, where they begin with the IP header

	entryDispatched // XDP, jumped to from a dispatcher
)

// Verdicts of TC: the packet goes on to the next program, is dropped, or comes back as one
// that refuses it.
const (
	tcNext     = 0xffffffff // TC_ACT_UNSPEC
	tcShot     = 2          // TC_ACT_SHOT
	tcRedirect = 7          // TC_ACT_REDIRECT
)

// entry returns the entry for an interface.
func (h Hook) entry(iface *netlink.LinkAttrs) uint32 {
	switch {
	case h == TC:
		return tcEntry(iface)
	case h.ByDispatcher():
		return entryDispatched
	}
	return entryXDP
}

// tcEntry returns the entry for an interface whose packets TC filters.
func tcEntry(iface *netlink.LinkAttrs) uint32 {
	if hasEthernet(iface) {
		return entryTC
	}
	return entryBare
}

// UseTC makes the programs that are loaded with the stats from now on programs of TC, for an
// interface with Ethernet headers, or whose packets begin with the IP header.
func (s *Stats) UseTC(ethernet bool) {
	if ethernet {
		s.entry.Store(entryTC)
	} else {
		s.entry.Store(entryBare)
	}
}

// UseDispatcher makes the programs that are loaded with the stats from now on those for
// libxdp's dispatcher.
func (s *Stats) UseDispatcher() { s.entry.Store(entryDispatched) }

// tcSpec returns the program for TC, specialised to a configuration.
func tcSpec(cfg *Config) (*ebpf.CollectionSpec, error) {
	object, err := objectTC()
	if err != nil {
		return nil, err
	}
	spec := object.Copy()
	const buffers = true // a packet may have several
	for name, value := range constants(cfg, buffers) {
		if v := spec.Variables[name]; v == nil {
			continue // only XDP has it
		} else if err := v.Set(value); err != nil {
			return nil, err
		}
	}
	return spec, spec.Variables[bpf.WeirTCVarOutgoing].Set(Flag(cfg.Out))
}

// tcFor returns the program for TC that an entry is for.
func (g *Generation) tcFor(entry uint32) (*ebpf.CollectionSpec, error) {
	if g.tc == nil {
		return nil, errors.New("the generation is not for TC")
	}
	spec := g.tc.Copy()
	if entry != entryBare {
		return spec, nil
	}
	if err := spec.Variables[bpf.WeirTCVarNoLinkHeader].Set(Flag(true)); err != nil {
		return nil, err
	}
	return spec, spec.Variables[bpf.WeirVarLean].Set(Flag(false))
}

// attachTC attaches a program to an interface, in the direction of the target, before
// those that are there: they may have packets pass that no other program then sees. Without
// tcx, it returns a filter that is yet to be added.
func (d Pins) attachTC(t Target, i *Iface, p *ebpf.Program) (h hold, err error) {
	if !i.startsWithIP() && !hasEthernet(i.LinkAttrs) {
		return nil, fmt.Errorf("%w: packets of %s are not known to begin with an Ethernet or an IP header (link type %s, kind %s): "+
			"of tunnels, those of tun, WireGuard, PPP, ipip and GRE are", ErrUnsupported, i.Name, i.EncapType, i.kind)
	}
	if clsactForced() {
		return d.newClsact(t, i)
	}
	at := ebpf.AttachTCXIngress
	if t.Out {
		at = ebpf.AttachTCXEgress
	}
	err = t.in(func(inode uint64) error {
		if err := i.in(inode); err != nil {
			return err
		}
		l, err := link.AttachTCX(link.TCXOptions{Interface: i.Index, Program: p, Attach: at, Anchor: link.Head()})
		switch {
		case errors.Is(err, unix.ENODEV):
			return fmt.Errorf("%w: %w", ErrNoInterface, err)
		case errors.Is(err, ebpf.ErrNotSupported):
			h, err = d.newClsact(t, i)
			return err
		case err != nil:
			return fmt.Errorf("tcx: %w", explainPermission(err))
		}
		h = kernelLink{l}
		return nil
	})
	return h, err
}
