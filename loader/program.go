package loader

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// minFrame is the length of an Ethernet header, in bytes.
const minFrame = 14

// ErrShortFrame says that a frame has no whole Ethernet header. No interface
// delivers such a one, and the kernel runs no program over it.
var ErrShortFrame = errors.New("frame is shorter than an Ethernet header")

// Program is a generation's program for one interface. It does nothing by
// itself: it is tested, or attached.
type Program struct {
	prog  *ebpf.Program
	stats *Stats
	maps  pinnedMaps // of the stats', those that it uses
	fresh pinnedMaps // of these, the ones that the stats are yet to take over
}

// Test runs the program over a frame, which begins with its Ethernet header,
// and returns the XDP action. The frame is counted like any other. One that
// is shorter than that header is refused with [ErrShortFrame]; one that does
// not fit into a page (less some 600 bytes) needs a kernel with multi-buffer XDP.
func (p *Program) Test(frame []byte) (action uint32, err error) {
	if len(frame) < minFrame {
		return 0, fmt.Errorf("%w: %d bytes", ErrShortFrame, len(frame))
	}
	action, err = p.prog.Run(&ebpf.RunOptions{Data: frame, Repeat: 1})
	if errors.Is(err, unix.EINVAL) {
		if frags, probe := haveFrags(); probe == nil && !frags {
			err = fmt.Errorf("%w (what is larger than a page wants Linux 5.18 or later)", err)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("test a frame of %d bytes: %w", len(frame), err)
	}
	return action, nil
}

// shares tells whether the program keeps its counters in these stats, or
// brings what is new in them.
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

// take gives away the fresh maps, which Close then leaves alone.
func (p *Program) take() pinnedMaps {
	k := p.fresh
	p.fresh = nil
	return k
}

// Close lets go of the program. Where it is attached, it stays.
func (p *Program) Close() error {
	var err error
	if p.prog != nil {
		err = p.prog.Close()
	}
	err = errors.Join(err, p.fresh.Close())
	p.prog, p.fresh = nil, nil
	return err
}

// VerifiedInstructions is the number of instructions that the verifier walked
// to accept the program; its limit is a million.
func (p *Program) VerifiedInstructions() (int, error) {
	// Information about a program has it too, but not before 5.16.
	_, rest, _ := strings.Cut(p.prog.VerifierLog, "\nprocessed ")
	var n int
	if _, err := fmt.Sscan(rest, &n); err != nil {
		return 0, fmt.Errorf("the verifier's statistics do not say what it walked: %q", p.prog.VerifierLog)
	}
	return n, nil
}

// Pass is Test, and gives the frame as it is passed on. It came in by the
// loopback interface of the calling thread's network namespace, as far as the
// program can tell.
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
