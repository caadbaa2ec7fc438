package measure

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"weir/control/engine"
	"weir/filter/verdict"
	"weir/loader/hooks"
	"weir/tests/bench/probe"
	"weir/tests/offload"
)

// The contenders of hooks: weir, and programs that drop and do nothing else.
const (
	weirGenericXDP = "weir-generic-xdp"
	weirTC         = "weir-tc"
	genericXDPDrop = "generic-xdp-drop"
	tcDrop         = "tc-drop"
)

// hooks measures weir where the kernel has made a socket buffer of each packet: at generic
// XDP, and at TC. The programs are those in use, which pass what is not listed. It is for
// another host, so the stack drops it as soon as it gets it.
func (s *session) hooks() (err error) {
	b, err := s.lists.make(setRandom, s.usual)
	if err != nil {
		return err
	}
	c, err := s.enterAll(b, []kind{
		{name: weirGenericXDP, make: newHooked(hooks.Generic), slow: true},
		{name: weirTC, make: newHooked(hooks.TC), slow: true},
		{name: genericXDPDrop, make: newUnconditional(hooks.Generic), slow: true, silent: true},
		{name: tcDrop, make: newUnconditional(hooks.TC), slow: true, silent: true},
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		s.logf("  left out: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return s.cleanAndListed("hooks", c, b, func(all series, added []Result) {
		ratios := slices.Sorted(slices.Values(all.ratios(weirTC, weirGenericXDP)))
		s.logf("    %s of %s, %g %% listed: median %.3f, quartiles %.3f and %.3f", weirTC, weirGenericXDP,
			100*added[0].ListedShare, median(ratios), ratios[len(ratios)/4], ratios[3*len(ratios)/4])
	})
}

// stacked makes the receiving end of a wire hand frames to the network stack. A veth takes
// those by redirection with a native XDP program, which would be in the way, or with GRO.
func (w *wire) stacked() error {
	copy(w.frame, w.A.MAC) // as the destination: it is not for B
	return w.B.In(func() error { return offload.Set(w.B.Iface, unix.ETHTOOL_SGRO, true) })
}

// hooked is weir at a hook behind the driver.
type hooked struct {
	weir
	hook hooks.Hook
}

func newHooked(hook hooks.Hook) func(place) contender {
	return func(p place) contender {
		return &hooked{weir{place: p, configuration: configuration{config: engine.Config{TC: hook == hooks.TC}}}, hook}
	}
}

// catch makes the list active: what is not listed goes on.
func (h *hooked) catch() error {
	if err := h.wire.stacked(); err != nil {
		return err
	}
	return h.enforceAt(h.hook)
}

func (h *hooked) received() (all, listed uint64, err error) {
	reasons := h.attachment.Stats().Reasons(nil)
	for _, c := range reasons {
		all += c.Packets
	}
	return all, reasons[verdict.Blocked].Packets, nil
}

// unconditional drops every packet at a hook behind the driver.
type unconditional struct {
	nothing
	hook hooks.Hook
	link link.Link
}

func newUnconditional(hook hooks.Hook) func(place) contender {
	return func(p place) contender { return &unconditional{nothing: nothing{p}, hook: hook} }
}

func (u *unconditional) catch() error {
	if err := u.wire.stacked(); err != nil {
		return err
	}
	drop := probe.NewDropping
	if u.hook == hooks.TC {
		drop = probe.NewDroppingTC
	}
	p, err := drop()
	if err != nil {
		return err
	}
	defer p.Close() // the link keeps it
	return u.wire.B.In(func() (err error) {
		if u.hook == hooks.TC {
			u.link, err = link.AttachTCX(link.TCXOptions{Interface: u.wire.in, Program: p, Attach: ebpf.AttachTCXIngress})
		} else {
			u.link, err = link.AttachXDP(link.XDPOptions{Interface: u.wire.in, Program: p, Flags: link.XDPGenericMode})
		}
		if err != nil {
			return fmt.Errorf("attach to %s at %v: %w", u.wire.B.Iface, u.hook, err)
		}
		return nil
	})
}

func (u *unconditional) Close() error {
	if u.link == nil {
		return nil
	}
	return u.link.Close()
}
