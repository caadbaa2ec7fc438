package loader

import (
	"errors"

	"github.com/cilium/ebpf"

	"weir/bpf"
	"weir/loader/hooks"
	"weir/loader/netif"
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

// entryOf returns the entry of the program for a hook of an interface.
func entryOf(h hooks.Hook, i *netif.Iface) uint32 {
	switch {
	case h == hooks.TC && i.HasEthernet():
		return entryTC
	case h == hooks.TC:
		return entryBare
	case h.ByDispatcher():
		return entryDispatched
	}
	return entryXDP
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
