package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"weir/control/demo/playground"
)

// A frame is marked in its Ethernet addresses, which the filter ignores:
//
//	destination  mark (4 bytes), 0, kind
//	source       2, 0, number of the packet (4 bytes, native order)
const (
	markOffset   = 0
	kindOffset   = 5
	numberOffset = 8
)

// mark is a locally administered address, so that the network stack drops the
// frame as someone else's, after the receiver has seen it.
var mark = [4]byte{0x02, 'w', 'e', 'r'}

const (
	xdpDrop = 1
	// The packets sent by one system call: about ten milliseconds.
	burst = 1 << 15
)

// sender sends the frames of some traffic repeatedly.
type sender interface {
	// send sends until ctx is done. It must be called in the interface's
	// namespace.
	send(ctx context.Context) error
	// sent returns the numbers of packets sent, by kind. It may be called at
	// any time.
	sent() ([numKinds]uint64, error)
	Close()
}

// markFrames marks frames with their kinds.
func markFrames(frames []frame) {
	for i := range frames {
		header := frames[i].data[:12]
		clear(header)
		copy(header[markOffset:], mark[:])
		header[kindOffset] = byte(frames[i].kind)
		header[6] = 0x02
	}
}

// newSender returns the fastest sender that the kernel supports, at one end of
// a wire.
func newSender(t *traffic, from playground.End) (sender, error) {
	markFrames(t.frames)
	// Live frames were introduced in the same kernel, 5.18.
	err := features.HaveProgramHelper(ebpf.XDP, asm.FnXdpStoreBytes)
	var s sender
	switch {
	case err == nil:
		s, err = newLiveSender(t, from)
	case errors.Is(err, ebpf.ErrNotSupported):
		s, err = newSocketSender(t, from)
	}
	if err != nil {
		return nil, fmt.Errorf("packet sender: %w", err)
	}
	return s, nil
}

// liveSender sends with a program in the kernel, as fast as a core can.
type liveSender struct {
	frames, state *ebpf.Map
	program       *ebpf.Program
}

// senderState is the state of the sender's program, and its layout in the map.
type senderState struct {
	Next uint64 // number of the next packet
	Sent [numKinds]uint64
}

func newLiveSender(t *traffic, from playground.End) (_ *liveSender, err error) {
	index, err := from.Index()
	if err != nil {
		return nil, err
	}
	room := (t.longest + 7) &^ 7
	s := &liveSender{}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if s.frames, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "demo_frames", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(8 + room), MaxEntries: uint32(len(t.frames)),
	}); err != nil {
		return nil, err
	}
	if s.state, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "demo_state", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(senderState{})), MaxEntries: 1,
	}); err != nil {
		return nil, err
	}
	value := make([]byte, 8+room)
	for i, f := range t.frames {
		clear(value)
		binary.NativeEndian.PutUint32(value, uint32(len(f.data)))
		binary.NativeEndian.PutUint32(value[4:], uint32(f.kind))
		copy(value[8:], f.data)
		if err := s.frames.Put(uint32(i), value); err != nil {
			return nil, err
		}
	}
	s.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "demo_sender", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: senderProgram(s.frames, s.state, len(t.frames), room, index),
	})
	return s, err
}

// senderProgram takes the next frame, numbers it, counts it by its kind, and
// redirects it. It runs on one core at a time, so that it needs no atomics.
func senderProgram(frames, state *ebpf.Map, n, room, index int) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),

		// R7 = state, R9 = number of the packet
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, state.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.LoadMem(asm.R9, asm.R7, 0, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R9),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R7, 0, asm.R1, asm.DWord),

		// R8 = frame, numbered
		asm.Mov.Reg(asm.R1, asm.R9),
		asm.Mod.Imm(asm.R1, int32(n)),
		asm.StoreMem(asm.RFP, -4, asm.R1, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, frames.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.Mov.Reg(asm.R8, asm.R0),
		asm.StoreMem(asm.R8, 8+numberOffset, asm.R9, asm.Word),

		// R9 = length, to which the packet is cut or stretched
		asm.LoadMem(asm.R9, asm.R8, 0, asm.Word),
		asm.JLT.Imm(asm.R9, 14, "drop"),
		asm.JGT.Imm(asm.R9, int32(room), "drop"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnXdpGetBuffLen.Call(),
		asm.Mov.Reg(asm.R2, asm.R9),
		asm.Sub.Reg(asm.R2, asm.R0),
		asm.JEq.Imm(asm.R2, 0, "store"),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.FnXdpAdjustTail.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),

		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("store"),
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.R8),
		asm.Add.Imm(asm.R3, 8),
		asm.Mov.Reg(asm.R4, asm.R9),
		asm.FnXdpStoreBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),

		// count it
		asm.LoadMem(asm.R1, asm.R8, 4, asm.Word),
		asm.JGT.Imm(asm.R1, int32(numKinds)-1, "drop"),
		asm.LSh.Imm(asm.R1, 3),
		asm.Add.Reg(asm.R7, asm.R1),
		asm.LoadMem(asm.R1, asm.R7, 8, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R7, 8, asm.R1, asm.DWord),

		asm.Mov.Imm(asm.R1, int32(index)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),

		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("drop"),
		asm.Return(),
	}
}

func (s *liveSender) send(ctx context.Context) error {
	for ctx.Err() == nil {
		if _, err := s.program.Run(&ebpf.RunOptions{
			Data: make([]byte, minFrame), Repeat: burst, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES,
		}); err != nil {
			return fmt.Errorf("send packets: %w", err)
		}
	}
	return nil
}

func (s *liveSender) sent() (counts [numKinds]uint64, err error) {
	var state senderState
	if err := s.state.Lookup(uint32(0), &state); err != nil {
		return counts, fmt.Errorf("count packets sent: %w", err)
	}
	return state.Sent, nil
}

func (s *liveSender) Close() {
	s.frames.Close()
	s.state.Close()
	s.program.Close()
}

// socketSender sends through a packet socket, which every kernel has, at a
// system call a packet.
type socketSender struct {
	fd     int
	frames []frame
	counts [numKinds]atomic.Uint64
}

func newSocketSender(t *traffic, from playground.End) (*socketSender, error) {
	fd, err := from.Socket(0, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
	})
	return &socketSender{fd: fd, frames: t.frames}, err
}

func (s *socketSender) send(ctx context.Context) error {
	for n := uint32(0); ctx.Err() == nil; n++ {
		if err := s.put(&s.frames[int(n)%len(s.frames)], n); err != nil {
			return err
		}
	}
	return nil
}

// put sends a frame with a number.
func (s *socketSender) put(f *frame, number uint32) error {
	binary.NativeEndian.PutUint32(f.data[numberOffset:], number)
	switch _, err := unix.Write(s.fd, f.data); err {
	case nil:
		s.counts[f.kind].Add(1)
	case unix.ENOBUFS, unix.EINTR: // not sent
	default:
		return fmt.Errorf("send packets: %w", err)
	}
	return nil
}

func (s *socketSender) sent() (counts [numKinds]uint64, err error) {
	for k := range counts {
		counts[k] = s.counts[k].Load()
	}
	return counts, nil
}

func (s *socketSender) Close() { unix.Close(s.fd) }
