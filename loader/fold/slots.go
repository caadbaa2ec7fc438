package fold

import (
	"slices"

	"github.com/cilium/ebpf/asm"
)

// slots are parts of a function's stack that only loads and stores by the frame pointer
// access: mostly registers that the compiler has had too few of. A pointer reaches none.
// Parts that overlap are different slots.
type slots struct {
	n       int        // their number, from machineRegisters on
	of      []uint8    // of each instruction, the slot that it loads or stores; 0: none
	overlap [64]uint64 // of each slot, the others that have bytes of it, by their bits
}

// at returns the slot that instruction i loads or stores, or 0.
func (s *slots) at(i int) int {
	if s.of == nil {
		return 0
	}
	return int(s.of[i])
}

const stackSize = 512

// span is a part of the stack.
type span struct{ from, to int }

// spanOf returns what an instruction accesses by the frame pointer.
func spanOf(ins asm.Instruction) (span, bool) {
	op := ins.OpCode
	loads, stores := op.Class() == asm.LdXClass && ins.Src == asm.RFP, op.Class().IsStore() && ins.Dst == asm.RFP
	from := stackSize + int(ins.Offset)
	return span{from, from + op.Size().Sizeof()}, loads || stores
}

// findSlots finds the slots of the code, all of which must be kept. Where there are too many
// there are none.
func (f *function) findSlots() {
	lowest, ok := f.passed()
	if !ok {
		return
	}
	end := stackSize + lowest // there are no slots from there on
	for again := true; again; {
		again = false
		for _, ins := range f.code {
			if s, ok := spanOf(ins); ok && s.from < end && s.to > end {
				end, again = s.from, true
			}
		}
	}
	found := slots{of: make([]uint8, len(f.code))}
	var spans []span
	for i, ins := range f.code {
		s, ok := spanOf(ins)
		if !ok || s.from >= end {
			continue
		}
		n := slices.Index(spans, s)
		if n < 0 {
			n, spans = len(spans), append(spans, s)
		}
		if s.from < 0 || machineRegisters+len(spans) > len(registers{}) {
			return
		}
		if ins.OpCode.Mode() == asm.MemMode {
			found.of[i] = uint8(machineRegisters + n)
		}
	}
	found.n = len(spans)
	for n, s := range spans {
		for other, t := range spans {
			if n != other && s.from < t.to && t.from < s.to {
				found.overlap[machineRegisters+n] |= 1 << (machineRegisters + other)
			}
		}
	}
	f.slots = found
}

// passed returns the lowest offset to the frame pointer that is the address of an argument of a
// helper, which accesses the stack from there on, and nothing below. ok is false where an
// address is used otherwise: its user may access bytes below it, too.
func (f *function) passed() (lowest int, ok bool) {
	for i, ins := range f.code {
		op, class := ins.OpCode, ins.OpCode.Class()
		fromRegister := op.Source() == asm.RegSource
		switch {
		case class.IsALU() && (ins.Dst == asm.RFP || fromRegister && ins.Src == asm.RFP):
			offset, ok := f.argument(i)
			if !ok {
				return 0, false
			}
			lowest = min(lowest, offset)
		case op.IsDWordLoad() && ins.Src == asm.PseudoFunc, // of a function that a helper calls
			class == asm.StXClass && ins.Src == asm.RFP,
			class.IsStore() && ins.Dst == asm.RFP && op.Mode() != asm.MemMode,
			jumps(ins) && fromRegister && (ins.Dst == asm.RFP || ins.Src == asm.RFP):
			return 0, false
		}
	}
	return lowest, true
}

// argument returns the offset to the frame pointer of the address that is computed from
// instruction i on, if the next helper gets it, and nothing else does.
func (f *function) argument(i int) (offset int, ok bool) {
	r := f.code[i].Dst
	if f.code[i].OpCode != asm.Mov.Op(asm.RegSource) || r < asm.R1 || r > asm.R5 || i+2 >= len(f.code) {
		return 0, false
	}
	add := f.code[i+1]
	if add.OpCode != asm.Add.Op(asm.ImmSource) || add.Dst != r {
		return 0, false
	}
	for at := i + 1; at < len(f.code) && f.before[at] == nil; at++ {
		ins := f.code[at]
		switch {
		case at == i+1:
		case ins.IsBuiltinCall():
			return int(add.Constant), true
		case ins.OpCode.JumpOp() != asm.InvalidJumpOp, uses(ins)>>r&1 != 0:
			return 0, false
		}
	}
	return 0, false
}
