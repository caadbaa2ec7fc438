package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/loader/hooks"
)

// minFrame is the length of an Ethernet header, in bytes.
const minFrame = 14

// runs reports whether the kernel's test run accepts a frame of this length: for TC, there
// must be a whole IP header behind the EtherType of one, and something behind any other.
func (p *Program) runs(frame []byte) bool {
	least := minFrame
	if p.prog.Type() == ebpf.SchedCLS {
		least++
		if len(frame) >= minFrame {
			switch binary.BigEndian.Uint16(frame[minFrame-2:]) {
			case unix.ETH_P_IP:
				least = minFrame + 20
			case unix.ETH_P_IPV6:
				least = minFrame + 40
			}
		}
	}
	return len(frame) >= least
}

// ErrShortFrame reports that a frame has no complete Ethernet header. No interface
// delivers such frames, and the kernel does not run programs on them.
var ErrShortFrame = errors.New("frame is shorter than an Ethernet header")

// Program is a generation's program for one interface, to be tested or attached.
type Program struct {
	prog  *ebpf.Program
	stats *Stats
	maps  pinnedMaps // of the stats, those that it uses
	fresh pinnedMaps // of these, those that the stats have yet to take over

	filter map[string]*array // to be pinned with it; nil: none is
	memory *trackerMemory    // that it counts in; nil: it has no trackers
}

// Test runs the program on a frame, which begins with its Ethernet header, and
// returns the XDP action, or the equivalent of that of TC. The frame is counted like any
// other. One shorter than that header, or than test runs of TC accept, is refused with
// [ErrShortFrame]; one that does not fit into a page
// (less some 600 bytes) takes a kernel with multi-buffer XDP.
func (p *Program) Test(frame []byte) (action uint32, err error) {
	return p.test(frame, nil)
}

// ErrNoSplit reports that the kernel's test run does not split frames.
var ErrNoSplit = errors.New("test runs split no frames before Linux 6.18")

// TestSplit is Test of a frame whose first buffer ends after some bytes.
func (p *Program) TestSplit(frame []byte, first int) (action uint32, err error) {
	// struct xdp_md
	md := struct{ Data, DataEnd, DataMeta, Ingress, Queue, Egress uint32 }{DataEnd: uint32(first)}
	action, err = p.test(frame, &md)
	if errors.Is(err, unix.EINVAL) && first <= len(frame) {
		err = fmt.Errorf("%w: %w", ErrNoSplit, err)
	}
	return action, err
}

// Time runs the program on a frame n times, and returns the mean time that it takes.
func (p *Program) Time(frame []byte, n int) (time.Duration, error) {
	_, each, err := p.prog.Benchmark(frame, n, nil)
	if err != nil {
		return 0, fmt.Errorf("time a frame of %d bytes: %w", len(frame), err)
	}
	return each, nil
}

func (p *Program) test(frame []byte, context any) (action uint32, err error) {
	if !p.runs(frame) {
		return 0, fmt.Errorf("%w: %d bytes", ErrShortFrame, len(frame))
	}
	action, err = p.prog.Run(&ebpf.RunOptions{Data: frame, Context: context, Repeat: 1})
	if errors.Is(err, unix.EINVAL) {
		if frags, probe := hooks.HasFrags(); probe == nil && !frags {
			err = fmt.Errorf("%w (frames larger than a page take Linux 5.18 or later)", err)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("test a frame of %d bytes: %w", len(frame), err)
	}
	if p.prog.Type() == ebpf.SchedCLS {
		switch action {
		case tcNext:
			return ActionPass, nil
		case tcShot, tcRedirect:
			return ActionDrop, nil
		}
	}
	return action, nil
}

// shares reports whether the program uses the maps of these stats, apart from the maps
// that it brings for them.
func (p *Program) shares(s *Stats) bool {
	if p.stats != s {
		return false
	}
	for name, m := range p.maps {
		if m != s.maps[name] && m != p.fresh[name] {
			return false
		}
	}
	return true
}

// take returns the fresh maps, which Close then does not close.
func (p *Program) take() pinnedMaps {
	k := p.fresh
	p.fresh = nil
	return k
}

// Close releases the program. It stays where it is attached.
func (p *Program) Close() error {
	var err error
	if p.prog != nil {
		err = p.prog.Close()
	}
	err = errors.Join(err, p.fresh.Close())
	p.prog, p.fresh = nil, nil
	p.releaseFilter()
	return err
}

// releaseFilter releases the maps that are pinned, or need not be any more.
func (p *Program) releaseFilter() {
	for _, m := range p.filter {
		m.Close() // if it fails, a map leaks
	}
	p.filter = nil
}

// VerifiedInstructions is the number of instructions that the verifier walked
// to accept the program; its limit is a million.
func (p *Program) VerifiedInstructions() (int, error) {
	// The program's information has it too, but not before 5.16.
	_, rest, _ := strings.Cut(p.prog.VerifierLog, "\nprocessed ")
	var n int
	if _, err := fmt.Sscan(rest, &n); err != nil {
		return 0, fmt.Errorf("no instruction count in the statistics of the verifier: %q", p.prog.VerifierLog)
	}
	return n, nil
}

// Pass is Test, but also returns the frame as it is passed on. To the program, it
// came in by the loopback interface of the calling thread's network namespace.
func (p *Program) Pass(frame []byte) (action uint32, passed []byte, err error) {
	if len(frame) < minFrame {
		return 0, nil, fmt.Errorf("%w: %d bytes", ErrShortFrame, len(frame))
	}
	const most = 64 // bytes that a program may add
	o := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+most), Repeat: 1}
	if action, err = p.prog.Run(o); err != nil {
		return 0, nil, fmt.Errorf("pass a frame of %d bytes: %w", len(frame), err)
	}
	return action, o.DataOut, nil
}
