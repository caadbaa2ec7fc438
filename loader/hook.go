package loader

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Hook is the place on the way of an interface's packets where the program runs. A
// program is attached to just the hook that is asked for, or not at all: weir
// never falls back to another.
type Hook uint8

// The hooks: XDP, the fastest first, then TC, the only one for outgoing packets.
const (
	Native  Hook = iota // in the driver
	Generic             // in the network stack: slower, with any driver
	TC                  // in the network stack, behind XDP, also without Ethernet headers

	Dispatcher        // native, as one of the programs of libxdp's dispatcher
	DispatcherGeneric // the same, generic
)

var hooks = [...]struct {
	name string
	flag link.XDPAttachFlags
}{
	Native:  {"native", link.XDPDriverMode},
	Generic: {"generic", link.XDPGenericMode},
	TC:      {"tc", 0},

	Dispatcher:        {"dispatcher", link.XDPDriverMode},
	DispatcherGeneric: {"dispatcher-generic", link.XDPGenericMode},
}

func (h Hook) String() string { return hooks[h].name }

// Dispatched returns the same hook, but as one of the programs of libxdp's dispatcher.
func (h Hook) Dispatched() Hook {
	if h == Generic {
		return DispatcherGeneric
	}
	return Dispatcher
}

// ByDispatcher reports whether the program is one of a dispatcher's.
func (h Hook) ByDispatcher() bool { return h == Dispatcher || h == DispatcherGeneric }

func (h Hook) flag() link.XDPAttachFlags { return hooks[h].flag }

// MarshalText returns the hook's name.
func (h Hook) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText parses the hook's name: native or generic.
func (h *Hook) UnmarshalText(text []byte) error {
	for i, hook := range hooks {
		if hook.name == string(text) {
			*h = Hook(i)
			return nil
		}
	}
	return fmt.Errorf("%q is not an XDP mode: native or generic", text)
}

// attachLink attaches a program to an interface, as far as that can be done before the
// pins are made. What it returns lasts as long as this process has it open, or it is pinned.
func (d Pins) attachLink(m metadata, i *Iface, p *ebpf.Program) (h hold, err error) {
	if m.Hook == TC {
		return d.attachTC(m.Target, i, p)
	}
	if !hasEthernet(i.LinkAttrs) {
		return nil, fmt.Errorf("%w: %s has no Ethernet headers (link type %s), so at XDP no packet would match a list: "+
			"use `hook: tc` (--hook tc)", ErrUnsupported, i.Name, i.EncapType)
	}
	if m.Hook.ByDispatcher() {
		return newDispatched(d, m, i)
	}
	err = m.Target.in(func(inode uint64) error {
		if err := i.in(inode); err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: i.Index, Flags: m.Hook.flag()})
		if err != nil {
			return d.explainAttach(err, m.Target, i.LinkAttrs, p, m.Hook)
		}
		h = kernelLink{l}
		return nil
	})
	return h, err
}
