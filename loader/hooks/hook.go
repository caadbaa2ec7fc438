// Package hooks attaches programs to interfaces, and keeps them there: at XDP by a link or as one of
// the programs of libxdp's dispatcher, at TC by a link or a filter. It knows nothing of the programs
// but their names and types.
//
// [Attach] makes a [Hold] of an interface, which lasts as long as it is open or pinned. [Load]
// opens a pinned one, and [Orphan] one whose pins are lost. Programs of others on an
// interface are described, and never touched.
package hooks

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir/loader/bpffs"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Errors that a caller may distinguish. Those that wrap them say what happened and
// what to do about it.
var (
	ErrNoDriver = errors.New("the driver has no native XDP")             // generic mode would work
	ErrMTU      = errors.New("the interface's MTU is too large for XDP") // in this mode and with this driver
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

// Attach attaches a program to an interface, as far as that can be done before its
// pins are made in a directory of root; [Hold.Start] does the rest. The hold lasts as long as
// this process has it open, or it is pinned.
func Attach(root string, t netif.Target, h Hook, i *netif.Iface, p *ebpf.Program) (l Hold, err error) {
	if h == TC {
		return attachTC(root, t, i, p)
	}
	if !i.HasEthernet() {
		return nil, fmt.Errorf("%w: %s has no Ethernet headers (link type %s), so at XDP no packet would match a list: "+
			"use `hook: tc` (--hook tc)", kernelerr.ErrUnsupported, i.Name, i.EncapType)
	}
	if h.ByDispatcher() {
		return newDispatched(root, t, h, i)
	}
	err = t.In(func(inode uint64) error {
		if err := i.In(inode); err != nil {
			return err
		}
		xdp, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: i.Index, Flags: h.flag()})
		if err != nil {
			return explainAttach(root, err, t, i, p, h)
		}
		l = &kernelLink{bpffs.Link{Link: xdp}, t, inode}
		return nil
	})
	return l, err
}

// attachTC attaches a program in the direction of the target, before
// those that are there: they may have packets pass that no other program then sees. Without
// tcx, it returns a filter that is yet to be added.
func attachTC(root string, t netif.Target, i *netif.Iface, p *ebpf.Program) (l Hold, err error) {
	if !i.StartsWithIP() && !i.HasEthernet() {
		return nil, fmt.Errorf("%w: packets of %s are not known to begin with an Ethernet or an IP header (link type %s, kind %s): "+
			"of tunnels, those of tun, WireGuard, PPP, ipip and GRE are", kernelerr.ErrUnsupported, i.Name, i.EncapType, i.Kind)
	}
	if clsactForced() {
		return newClsact(root, t, i)
	}
	err = t.In(func(inode uint64) error {
		if err := i.In(inode); err != nil {
			return err
		}
		at, err := link.AttachTCX(link.TCXOptions{Interface: i.Index, Program: p, Attach: tcx(t.Out), Anchor: link.Head()})
		switch {
		case errors.Is(err, unix.ENODEV):
			return fmt.Errorf("%w: %w", netif.ErrNoInterface, err)
		case errors.Is(err, ebpf.ErrNotSupported):
			l, err = newClsact(root, t, i)
			return err
		case err != nil:
			return fmt.Errorf("tcx: %w", kernelerr.Permission(err))
		}
		l = &kernelLink{bpffs.Link{Link: at}, t, inode}
		return nil
	})
	return l, err
}

// tcx returns the place of tcx for a direction.
func tcx(out bool) ebpf.AttachType {
	if out {
		return ebpf.AttachTCXEgress
	}
	return ebpf.AttachTCXIngress
}
