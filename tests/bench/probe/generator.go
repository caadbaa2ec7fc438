package probe

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Generator sends packets whose IPv4 sources are the keys, in turn.
type Generator struct{ coll *ebpf.Collection }

// NewGenerator loads the program that sends, beginning with a certain key.
func NewGenerator(k *Keys, first int) (*Generator, error) {
	spec, err := newSpec()
	if err != nil {
		return nil, err
	}
	coll, err := loadOnly(spec, []string{benchProgGenerate}, map[string]*ebpf.Map{benchMapBenchKeys: k.m})
	if err != nil {
		return nil, fmt.Errorf("load the generator: %w", err)
	}
	loop := struct{ At, Hits uint32 }{At: uint32(first)}
	if err := coll.Variables[benchVarBenchLoop].Set(loop); err != nil {
		coll.Close()
		return nil, err
	}
	return &Generator{coll}, nil
}

// Send sends n copies of a frame out of an interface of this network namespace,
// each with the next key as its source, or its end, as fast as this CPU can. It returns the
// mean time of one in nanoseconds as the kernel measures it, without setting up
// the run and without the time that other processes have the CPU.
func (g *Generator) Send(ifindex int, frame []byte, n int) (ns float64, err error) {
	if err := g.coll.Variables[benchVarBenchIfindex].Set(uint32(ifindex)); err != nil {
		return 0, err
	}
	var pinner runtime.Pinner // the kernel reads the frame
	pinner.Pin(&frame[0])
	defer pinner.Unpin()
	run := testRun{
		fd:    uint32(g.coll.Programs[benchProgGenerate].FD()),
		size:  uint32(len(frame)),
		data:  uint64(uintptr(unsafe.Pointer(&frame[0]))),
		times: uint32(n),
		flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
	}
	for {
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&run)), unsafe.Sizeof(run))
		switch errno {
		case 0:
			return float64(run.duration), nil
		case unix.EINTR: // Go's scheduler sends signals
			continue
		}
		return 0, fmt.Errorf("send %d live frames (needs Linux 5.18 or later): %w", n, errno)
	}
}

// testRun is the kernel's union bpf_attr for BPF_PROG_TEST_RUN: cilium/ebpf does
// not return the duration of runs with flags.
type testRun struct {
	fd, _    uint32
	size, _  uint32
	data, _  uint64
	times    uint32
	duration uint32 // of one, in nanoseconds
	_, _     uint32
	_, _     uint64
	flags    uint32
	_, _     uint32
	_        uint32 // pads to a multiple of eight bytes
}

// Close releases the program.
func (g *Generator) Close() error {
	g.coll.Close()
	return nil
}
