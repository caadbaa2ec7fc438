package demo

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"weir/control/demo/playground"
)

// receiver counts the frames that pass the filter, by the kind marked in them.
// It is a packet socket with its own program before its queue, and independent
// of weir's counters.
type receiver struct {
	fd      int
	counts  *ebpf.Map
	program *ebpf.Program
}

// newReceiver returns a receiver at one end of a wire.
func newReceiver(at playground.End) (_ *receiver, err error) {
	r := &receiver{fd: -1}
	defer func() {
		if err != nil {
			r.Close()
			err = fmt.Errorf("packet receiver: %w", err)
		}
	}()
	if r.counts, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "demo_received", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: uint32(numKinds),
	}); err != nil {
		return nil, err
	}
	if r.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "demo_receiver", Type: ebpf.SocketFilter, License: "Dual BSD/GPL",
		Instructions: receiverProgram(r.counts),
	}); err != nil {
		return nil, err
	}
	r.fd, err = at.Socket(unix.ETH_P_ALL, func(fd int) error {
		return errors.Join(
			unix.SetNonblock(fd, true),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ATTACH_BPF, r.program.FD()),
		)
	})
	return r, err
}

// receiverProgram counts a marked frame by its kind. Listed ones, which should
// not arrive, are passed to the socket as evidence.
func receiverProgram(counts *ebpf.Map) asm.Instructions {
	const header = 12 // length of the Ethernet addresses in bytes
	return asm.Instructions{
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -16),
		asm.Mov.Imm(asm.R4, header),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "ignore"),

		asm.LoadMem(asm.R1, asm.RFP, -16+markOffset, asm.Word),
		asm.LoadImm(asm.R2, int64(binary.NativeEndian.Uint32(mark[:])), asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, "ignore"),
		asm.LoadMem(asm.R6, asm.RFP, -16+kindOffset, asm.Byte),

		asm.StoreMem(asm.RFP, -20, asm.R6, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -20),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "ignore"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),

		asm.JNE.Imm(asm.R6, int32(listed), "ignore"),
		asm.Mov.Imm(asm.R0, -1), // all of it
		asm.Return(),

		asm.Mov.Imm(asm.R0, 0).WithSymbol("ignore"),
		asm.Return(),
	}
}

// received returns the numbers of packets that passed, by kind.
func (r *receiver) received() (counts [numKinds]uint64, err error) {
	for k := range counts {
		if err := r.counts.Lookup(uint32(k), &counts[k]); err != nil {
			return counts, fmt.Errorf("count packets received: %w", err)
		}
	}
	return counts, nil
}

// evidence returns a listed frame that passed, nil if there is none, and its
// number.
func (r *receiver) evidence() (data []byte, number uint32) {
	data = make([]byte, maxFrame)
	n, err := unix.Read(r.fd, data)
	if err != nil || n < minFrame {
		return nil, 0
	}
	return data[:n], binary.NativeEndian.Uint32(data[numberOffset:])
}

func (r *receiver) Close() {
	if r.fd >= 0 {
		unix.Close(r.fd)
	}
	r.counts.Close()
	r.program.Close()
}
