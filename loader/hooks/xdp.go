package hooks

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir/loader/kernelerr"
	"weir/loader/netif"
)

const xdpPass = 2 // XDP_PASS

// HasFrags reports whether the kernel has multi-buffer XDP (5.18 and later).
func HasFrags() (bool, error) {
	p, err := ebpf.NewProgramWithOptions(&ebpf.ProgramSpec{
		Name:         "weir_probe",
		Type:         ebpf.XDP,
		Flags:        unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
		License:      "Dual BSD/GPL",
	}, ebpf.ProgramOptions{LogDisabled: true})
	switch {
	case err == nil:
		return true, p.Close()
	case errors.Is(err, unix.EINVAL): // an unknown flag
		return false, nil
	}
	return false, fmt.Errorf("probe for multi-buffer XDP: %w", err)
}

// driverMessage returns the reason of the kernel or the driver for refusing a
// program, or "". The system call that makes a link returns only a number; the
// older way over netlink makes the same checks and returns a text. Should it
// unexpectedly attach the program, that is undone at once.
func driverMessage(iface *netif.Iface, p *ebpf.Program, hook Hook) string {
	err := netif.SetXDP(iface.Index, p.FD(), unix.XDP_FLAGS_UPDATE_IF_NOEXIST|uint32(hook.flag()), 0)
	if err == nil {
		netif.SetXDP(iface.Index, -1, unix.XDP_FLAGS_REPLACE|uint32(hook.flag()), p.FD())
		return ""
	}
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return ""
	}
	_, text, _ := strings.Cut(err.Error(), errno.Error()+": ")
	return text
}

// explainAttach says why the target's interface refuses the program, and what to
// do about it. It is called in the target's network namespace.
func explainAttach(root string, err error, t netif.Target, iface *netif.Iface, p *ebpf.Program, hook Hook) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno // without the names of the calls in between
	}
	if errno == unix.EPERM {
		return kernelerr.Permission(err)
	}
	if errno == unix.ENODEV {
		return fmt.Errorf("%w: %w", netif.ErrNoInterface, err)
	}
	message := driverMessage(iface, p, hook)
	if message != "" {
		err = fmt.Errorf("%w: %s", err, message)
	}
	says := func(word string) bool { return strings.Contains(strings.ToLower(message), word) }
	name := iface.Driver()
	switch {
	case errno == unix.EBUSY, errno == unix.EEXIST:
		return explainForeign(root, err, t, iface, p)
	case says("mtu"), message == "" && errno == unix.ERANGE:
		advice := "lower it"
		if frags, err := HasFrags(); err == nil && !frags {
			advice += ", or use Linux 5.18 or later, which has multi-buffer XDP"
		}
		return fmt.Errorf("%w: driver %s, %s: %s: %w", ErrMTU, name, mtus(iface), advice, err)
	case says("lro"), says("gro"):
		return fmt.Errorf("%w by driver %s together with hardware aggregation: "+
			"switch it off with `%s`: %w",
			kernelerr.ErrUnsupported, name, AggregationOff(t), err)
	case errno == unix.EOPNOTSUPP:
		advice := "xdp generic and hook tc work, but are slower"
		if lower := iface.Below(); len(lower) > 0 {
			advice = "filter on " + strings.Join(lower, ", ") + " below it; " + advice
		}
		return fmt.Errorf("%w: driver %s: %s: %w", ErrNoDriver, name, advice, err)
	}
	return fmt.Errorf("driver %s, %s: %w", name, mtus(iface), err)
}

// mtus describes an interface's MTU and, if it is a veth, its peer's, which
// matters too.
func mtus(iface *netif.Iface) string {
	text := fmt.Sprintf("mtu %d", iface.MTU)
	if peer, err := iface.Peer(); err == nil {
		text += fmt.Sprintf(" (the peer's: %d)", peer.MTU)
	}
	return text
}

// explainForeign names the program that occupies an interface.
func explainForeign(root string, err error, t netif.Target, iface *netif.Iface, p *ebpf.Program) error {
	// Again, since it may have been attached since.
	now, e := netif.ByName(iface.Inode, iface.Name)
	if e != nil || now.Xdp == nil || !now.Xdp.Attached {
		return fmt.Errorf("%w: %w", kernelerr.ErrForeign, err)
	}
	id := now.Xdp.ProgId
	if owner := ownerOf(root, id); owner != "" {
		return fmt.Errorf("%w: weir's own, attached by another process or in another namespace: detach it first (its pins are %s): %w",
			kernelerr.ErrForeign, owner, err)
	}
	if isWeirs(id) {
		return fmt.Errorf("%w: %w", explainOwn(root, id, modeOf(now)), err)
	}
	o := occupantOf(t, now, strings.Contains(driverMessage(iface, p, modeOf(now)), "link"))
	return fmt.Errorf("%w: %s: %s: %w", kernelerr.ErrForeign, o.Text, o.Advice, err)
}

// modeOf returns the mode of the program at XDP.
func modeOf(i *netif.Iface) Hook {
	if i.Xdp != nil && i.Xdp.AttachMode == nl.XDP_ATTACHED_SKB {
		return Generic
	}
	return Native
}
