// Package instructions counts the instructions that weir's program executes for a
// packet. A machine of its own runs the program, since counts are the same on every
// machine and in every run, as times are not.
package instructions

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// machine runs a program on little-endian memory. It is strict: what it does not know,
// and any access outside of a region, ends the run.
type machine struct {
	code    asm.Instructions
	raw     []int          // offset of each instruction, in those of 8 bytes
	at      map[int]int    // and back
	symbols map[string]int // functions
	maps    map[string]*mapMemory
	regions []*region
	frame   *region // the packet

	executed int
}

// region is memory at an address.
type region struct {
	base  uint64
	bytes []byte
}

// mapMemory is a map's handle, and the entries of an array.
type mapMemory struct {
	handle    uint64
	entries   *region // nil: another type
	valueSize int
}

// Addresses. Regions are so far apart that none reaches the next.
const (
	stride  = 1 << 32
	context = 1 * stride // struct xdp_md, which is no memory: the kernel translates its fields
	kernel  = 2 * stride // struct xdp_buff, of zeros: a frame in one buffer
	stack   = 3 * stride
	packet  = 4 * stride
	others  = 16 * stride
)

const (
	stackSize  = 512
	mostCalls  = 8
	mostSteps  = 1 << 20
	handleBits = 1 << 63
)

// newMachine returns a machine for a program of a specification. Its arrays have the
// contents of the maps and, for variables, of the specification.
func newMachine(spec *ebpf.CollectionSpec, program string, maps map[string]*ebpf.Map) (*machine, error) {
	m := &machine{
		code: spec.Programs[program].Instructions, at: make(map[int]int), symbols: make(map[string]int),
		maps: make(map[string]*mapMemory),
	}
	for iter := m.code.Iterate(); iter.Next(); {
		m.at[int(iter.Offset)] = iter.Index
		m.raw = append(m.raw, int(iter.Offset))
		if name := iter.Ins.Symbol(); name != "" {
			m.symbols[name] = iter.Index
		}
	}
	m.add(kernel, make([]byte, 512))
	m.add(stack, make([]byte, stackSize*mostCalls))
	m.frame = m.add(packet, nil)
	for name, s := range spec.Maps {
		n := uint64(len(m.maps))
		one := &mapMemory{handle: handleBits | n, valueSize: int(s.ValueSize)}
		m.maps[name] = one
		var contents []byte
		if real := maps[name]; real != nil {
			memory, err := real.Memory()
			if errors.Is(err, ebpf.ErrNotSupported) {
				continue // no array
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			contents = make([]byte, memory.Size())
			if _, err := memory.ReadAt(contents, 0); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			contents = contents[:int(real.MaxEntries())*int(real.ValueSize())]
		} else if s.Type == ebpf.Array {
			contents = make([]byte, s.ValueSize)
			for _, v := range spec.Variables {
				if v.SectionName == name {
					copy(contents[v.Offset:], v.Value)
				}
			}
		} else {
			continue
		}
		one.entries = m.add(others+n*stride, contents)
	}
	return m, nil
}

func (m *machine) add(base uint64, contents []byte) *region {
	r := &region{base, contents}
	m.regions = append(m.regions, r)
	return r
}

// memory returns n bytes at an address.
func (m *machine) memory(addr uint64, n int) ([]byte, error) {
	for _, r := range m.regions {
		if at := addr - r.base; addr >= r.base && at+uint64(n) <= uint64(len(r.bytes)) {
			return r.bytes[at:][:n], nil
		}
	}
	return nil, fmt.Errorf("access to %d bytes at %#x", n, addr)
}

// run runs the program on a frame and returns its action and the number of
// instructions executed.
func (m *machine) run(frame []byte) (action uint32, executed int, err error) {
	m.frame.bytes = append([]byte(nil), frame...)
	m.executed = 0
	var r [11]uint64
	r[1], r[10] = context, stack+stackSize
	result, err := m.call(0, r)
	return uint32(result), m.executed, err
}

// call executes a function and returns its result.
func (m *machine) call(pc int, r [11]uint64) (uint64, error) {
	for {
		if pc >= len(m.code) {
			return 0, errors.New("the end of the program was reached")
		}
		ins := m.code[pc]
		next := pc + 1
		jump := func(by int) (err error) {
			var ok bool
			if next, ok = m.at[m.raw[pc]+1+by]; !ok {
				err = errors.New("a jump into an instruction")
			}
			return err
		}
		op := ins.OpCode
		// The kernel removes jumps to the next instruction.
		if !(op.Class() == asm.JumpClass && op.JumpOp() == asm.Ja && ins.Offset == 0) {
			m.executed++
		}
		if m.executed > mostSteps {
			return 0, errors.New("the program does not end")
		}
		var err error
		switch class := op.Class(); class {
		case asm.ALUClass, asm.ALU64Class:
			r[ins.Dst], err = alu(ins, r[ins.Dst], r[ins.Src])
		case asm.LdClass:
			r[ins.Dst], err = m.load64(ins)
		case asm.LdXClass:
			r[ins.Dst], err = m.load(ins, r[ins.Src])
		case asm.StClass, asm.StXClass:
			v := uint64(ins.Constant)
			if class == asm.StXClass {
				v = r[ins.Src]
			}
			err = m.store(ins, r[ins.Dst], v)
		case asm.JumpClass, asm.Jump32Class:
			switch op.JumpOp() {
			case asm.Exit:
				return r[0], nil
			case asm.Call:
				r[0], err = m.callOther(ins, r)
			case asm.Ja:
				by := int(ins.Offset)
				if class == asm.Jump32Class { // a long one
					by = int(ins.Constant)
				}
				err = jump(by)
			default:
				var taken bool
				if taken, err = condition(ins, r[ins.Dst], r[ins.Src]); err == nil && taken {
					err = jump(int(ins.Offset))
				}
			}
		default:
			err = errors.New("unknown class")
		}
		if err != nil {
			return 0, fmt.Errorf("instruction %d, %v: %w", pc, ins, err)
		}
		pc = next
	}
}

// operand returns the second operand of an instruction.
func operand(ins asm.Instruction, src uint64) uint64 {
	if ins.OpCode.Source() == asm.ImmSource {
		return uint64(ins.Constant)
	}
	return src
}

func alu(ins asm.Instruction, a, src uint64) (uint64, error) {
	op, b := ins.OpCode.ALUOp(), operand(ins, src)
	if op == asm.Swap {
		return swap(ins, a), nil
	}
	wide := ins.OpCode.Class() == asm.ALU64Class
	shift := b & 63
	if !wide {
		a, b, shift = uint64(uint32(a)), uint64(uint32(b)), b&31
	}
	switch op {
	case asm.Add:
		a += b
	case asm.Sub:
		a -= b
	case asm.Mul:
		a *= b
	case asm.Div:
		if b == 0 {
			a = 0
		} else {
			a /= b
		}
	case asm.Mod:
		if b != 0 {
			a %= b
		}
	case asm.Or:
		a |= b
	case asm.And:
		a &= b
	case asm.Xor:
		a ^= b
	case asm.LSh:
		a <<= shift
	case asm.RSh:
		a >>= shift
	case asm.ArSh:
		if wide {
			a = uint64(int64(a) >> shift)
		} else {
			a = uint64(int32(a) >> shift)
		}
	case asm.Neg:
		a = -a
	case asm.Mov:
		a = b
	default:
		return 0, errors.New("unknown operation")
	}
	if !wide {
		a = uint64(uint32(a))
	}
	return a, nil
}

func swap(ins asm.Instruction, a uint64) uint64 {
	size := uint(ins.Constant)
	if ins.OpCode.Endianness() == asm.BE || ins.OpCode.Class() == asm.ALU64Class {
		a = bits.ReverseBytes64(a) >> (64 - size)
	}
	return a << (64 - size) >> (64 - size)
}

func condition(ins asm.Instruction, a, src uint64) (bool, error) {
	b := operand(ins, src)
	signedA, signedB := int64(a), int64(b)
	if ins.OpCode.Class() == asm.Jump32Class {
		a, b = uint64(uint32(a)), uint64(uint32(b))
		signedA, signedB = int64(int32(a)), int64(int32(b))
	}
	switch ins.OpCode.JumpOp() {
	case asm.JEq:
		return a == b, nil
	case asm.JNE:
		return a != b, nil
	case asm.JGT:
		return a > b, nil
	case asm.JGE:
		return a >= b, nil
	case asm.JLT:
		return a < b, nil
	case asm.JLE:
		return a <= b, nil
	case asm.JSet:
		return a&b != 0, nil
	case asm.JSGT:
		return signedA > signedB, nil
	case asm.JSGE:
		return signedA >= signedB, nil
	case asm.JSLT:
		return signedA < signedB, nil
	case asm.JSLE:
		return signedA <= signedB, nil
	}
	return false, errors.New("unknown condition")
}

// load64 returns a constant of 64 bits, or the address of a map or variable.
func (m *machine) load64(ins asm.Instruction) (uint64, error) {
	if !ins.OpCode.IsDWordLoad() {
		return 0, errors.New("unknown load")
	}
	if !ins.IsLoadFromMap() {
		return uint64(ins.Constant), nil
	}
	of := m.maps[ins.Reference()]
	switch {
	case of == nil:
		return 0, fmt.Errorf("no map %q", ins.Reference())
	case ins.Src == asm.PseudoMapFD:
		return of.handle, nil
	case of.entries == nil:
		return 0, fmt.Errorf("map %s has no memory", ins.Reference())
	}
	return of.entries.base + uint64(ins.Constant)>>32, nil
}

func (m *machine) load(ins asm.Instruction, base uint64) (uint64, error) {
	addr, n := base+uint64(int64(ins.Offset)), ins.OpCode.Size().Sizeof()
	if ins.OpCode.Mode() != asm.MemMode {
		return 0, errors.New("unknown load")
	}
	if base == context {
		switch ins.Offset {
		case 0, 8: // data, data_meta
			return packet, nil
		case 4: // data_end
			return packet + uint64(len(m.frame.bytes)), nil
		case 12, 16, 20: // ingress_ifindex, rx_queue_index, egress_ifindex
			return 0, nil
		}
	}
	b, err := m.memory(addr, n)
	if err != nil {
		return 0, err
	}
	var word [8]byte
	copy(word[:], b)
	return binary.LittleEndian.Uint64(word[:]), nil
}

func (m *machine) store(ins asm.Instruction, base, v uint64) error {
	addr, n := base+uint64(int64(ins.Offset)), ins.OpCode.Size().Sizeof()
	if ins.OpCode.Mode() != asm.MemMode {
		return errors.New("unknown store")
	}
	b, err := m.memory(addr, n)
	if err != nil {
		return err
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], v)
	copy(b, word[:])
	return nil
}

// callOther calls a function of the program, of the kernel, or a helper.
func (m *machine) callOther(ins asm.Instruction, r [11]uint64) (uint64, error) {
	switch {
	case ins.IsFunctionCall():
		pc, ok := m.symbols[ins.Reference()]
		if !ok {
			return 0, fmt.Errorf("no function %q", ins.Reference())
		}
		r[10] += stackSize
		return m.call(pc, r)
	case ins.IsKfuncCall() && r[1] == context: // bpf_cast_to_kern_ctx
		return kernel, nil
	case !ins.IsBuiltinCall():
		return 0, errors.New("unknown function of the kernel")
	}
	switch asm.BuiltinFunc(ins.Constant) {
	case asm.FnMapLookupElem:
		return m.lookUp(r[1], r[2])
	case asm.FnGetSmpProcessorId:
		return 0, nil
	case asm.FnKtimeGetNs, asm.FnJiffies64:
		return 1e9, nil
	case asm.FnXdpGetBuffLen:
		return uint64(len(m.frame.bytes)), nil
	case asm.FnGetPrandomU32:
		return 1 << 31, nil
	case asm.FnXdpLoadBytes:
		if r[2]+r[4] > uint64(len(m.frame.bytes)) {
			return ^uint64(unix.EINVAL - 1), nil
		}
		to, err := m.memory(r[3], int(r[4]))
		copy(to, m.frame.bytes[r[2]:])
		return 0, err
	}
	return 0, errors.New("unknown helper")
}

func (m *machine) lookUp(handle, key uint64) (uint64, error) {
	for name, one := range m.maps {
		if one.handle != handle {
			continue
		}
		if one.entries == nil {
			return 0, fmt.Errorf("%s is no array", name)
		}
		k, err := m.memory(key, 4)
		if err != nil {
			return 0, err
		}
		at := int(binary.LittleEndian.Uint32(k)) * one.valueSize
		if at >= len(one.entries.bytes) {
			return 0, nil
		}
		return one.entries.base + uint64(at), nil
	}
	return 0, errors.New("no map")
}
