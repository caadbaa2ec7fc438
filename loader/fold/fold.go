// Package fold specialises programs to their constants: what the object reads from a section
// of constants, whose values are known when it is loaded, becomes part of the instructions.
//
// The kernel's verifier knows these values too, and does not walk branches that they rule
// out. But it leaves the loads in place, and the branches wherever other paths lead to both
// of their ends: on a short path these are a third of all instructions.
package fold

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Constants rewrites the programs of a specification, whose variables are set, so that they
// do not read them. Variables that change later must not be constants. Results stay the
// same, and so do maps, helpers and the order in which memory is accessed.
//
// It is conditional constant propagation (Wegman and Zadeck, 1991) over registers and slots of
// the stack. Then it removes instructions that are not reached, whose results nothing uses, or
// whose destination has the result already. Stores to slots stay, though nothing loads them: without
// them, the verifiers of some kernels walk a quarter more.
func Constants(spec *ebpf.CollectionSpec) error {
	folded, err := constantsOf(spec).programs(instructionsOf(spec))
	if err != nil {
		return err
	}
	for name, p := range spec.Programs {
		p.Instructions = folded[name]
	}
	return nil
}

// constants are the contents of the sections of constants, by their numbers.
type constants struct {
	order    binary.ByteOrder
	numbers  map[string]int
	sections [][]byte
}

func constantsOf(spec *ebpf.CollectionSpec) *constants {
	c := &constants{order: spec.ByteOrder, numbers: make(map[string]int)}
	if c.order == nil {
		c.order = binary.NativeEndian
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		if !strings.HasPrefix(name, ".rodata") || len(m.Contents) != 1 {
			continue
		}
		if contents, ok := m.Contents[0].Value.([]byte); ok {
			c.numbers[name] = len(c.sections)
			c.sections = append(c.sections, slices.Clone(contents))
		}
	}
	for _, v := range spec.Variables {
		if i, ok := c.numbers[v.SectionName]; ok {
			copy(c.sections[i][v.Offset:], v.Value)
		}
	}
	return c
}

// read returns a number in a section.
func (c *constants) read(at value, size int) (uint64, bool) {
	contents := c.sections[at.section]
	if at.bits > uint64(len(contents)) || uint64(size) > uint64(len(contents))-at.bits {
		return 0, false
	}
	b := contents[at.bits:][:size]
	switch size {
	case 1:
		return uint64(b[0]), true
	case 2:
		return uint64(c.order.Uint16(b)), true
	case 4:
		return uint64(c.order.Uint32(b)), true
	}
	return c.order.Uint64(b), true
}

var errUnknown = errors.New("an instruction that is not known")

// programs folds programs, by their names.
func (c *constants) programs(plain map[string]asm.Instructions) (map[string]asm.Instructions, error) {
	folded := make(map[string]asm.Instructions, len(plain))
	for name, code := range plain {
		var err error
		if folded[name], err = c.program(code); err != nil {
			return nil, fmt.Errorf("fold the constants of %s: %w", name, err)
		}
	}
	return folded, nil
}

// program folds the functions of a program, and leaves out those that it does not call any
// more, which the verifier would refuse.
func (c *constants) program(code asm.Instructions) (asm.Instructions, error) {
	plain, names := make(map[string]asm.Instructions), []string{}
	for len(code) > 0 {
		end := 1
		for end < len(code) && code[end].Symbol() == "" {
			end++
		}
		names = append(names, code[0].Symbol())
		plain[code[0].Symbol()] = code[:end]
		code = code[end:]
	}
	folded := make(map[string]asm.Instructions)
	for pending := []string{names[0]}; len(pending) > 0; {
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if folded[name] != nil || plain[name] == nil {
			continue
		}
		code, err := c.function(plain[name])
		if err != nil {
			return nil, err
		}
		folded[name] = code
		for i := range code {
			if code[i].IsFunctionReference() {
				pending = append(pending, code[i].Reference())
			}
		}
	}
	var out asm.Instructions
	for _, name := range names {
		out = append(out, folded[name]...)
	}
	return out, nil
}

// function folds a function.
func (c *constants) function(code asm.Instructions) (asm.Instructions, error) {
	f, err := newFunction(code)
	if err != nil {
		return nil, err
	}
	f.propagate(c)
	f.rewrite(c)
	f.straighten()
	f.removeUnused()
	f.compact() // few slots overlap in what is left
	f.findSlots()
	f.propagate(c)
	f.rewrite(c)
	f.straighten()
	f.removeUnused()
	f.straighten()
	f.join()
	return f.assemble()
}

// value has the known properties of a register or slot.
type value struct {
	kind    kind
	low     bool   // of an unknown value: its lower half
	narrow  bool   // of an unknown value: its upper half is 0
	section int16  // of an address
	from    int32  // of an unknown value or a pointer: the instruction that computed or compared it, plus 1; negative: see joinName; 0: not known
	bits    uint64 // a number, or an offset in the section
}

// isSame reports whether two values are equal when the program runs.
func isSame(a, b value) bool {
	a.narrow = b.narrow
	return a == b && (a.kind == number || a.kind == address || a.from != 0)
}

// isNarrow reports whether the upper half of a value is 0.
func (v value) isNarrow() bool {
	return v.kind == unknown && v.narrow || v.kind == number && v.bits <= math.MaxUint32
}

// name marks a value, if it is not a constant, as what instruction i computes or copies.
func (v *value) name(i int) {
	if (v.kind == unknown || v.kind == pointer) && v.from == 0 {
		v.from = int32(i) + 1
	}
}

var zero = value{kind: number}

type kind uint8

const (
	unreached kind = iota // no path is known to lead here
	number
	address // in a section of constants
	pointer // into the value of a map, and so not null
	unknown
)

// registers are the machine's registers, and then slots.
type registers [64]value

const machineRegisters = 11

// holder returns the last register of the machine of which a value is the lower half, or that has
// it. The last ones outlast calls, and compilers copy them into others.
func (r *registers) holder(v value) (asm.Register, bool) {
	whole := v
	whole.low = false
	for _, v := range [...]value{whole, v} {
		for i := int(asm.R9); i >= 0; i-- {
			if isSame(r[i], v) {
				return asm.Register(i), true
			}
		}
	}
	return 0, false
}

// joinName is the name of a value that differs between the paths to an instruction, by the first
// register that has it on all of them.
func joinName(at, first int) int32 { return -int32(at*len(registers{}) + first + 1) }

// isJoined reports whether the name of a value is one of joinName's for an instruction.
func (v value) isJoined(at int) bool { return v.from < 0 && -int(v.from+1)/len(registers{}) == at }

// join adds what is known on another path, to instruction at, of the first n, and reports whether
// that is news.
func (r *registers) join(other *registers, n, at int, names bool) (news bool) {
	before := *r
	for i := range n {
		joined := value{kind: unknown}
		switch {
		// In a loop, a value with a name of this place is older.
		case other[i].kind == unreached || r[i] == other[i] && !other[i].isJoined(at):
			continue
		case r[i].kind == unreached:
			joined = other[i]
		default:
			if before[i].kind == pointer && other[i].kind == pointer {
				joined.kind = pointer
			}
			joined.narrow = before[i].isNarrow() && other[i].isNarrow()
			if names {
				first := 0
				for first < i && (!isSame(before[first], before[i]) || !isSame(other[first], other[i])) {
					first++
				}
				joined.from = joinName(at, first)
			}
		}
		if r[i] != joined {
			r[i], news = joined, true
		}
	}
	return news
}

// function is the code of a function. Indexes of instructions stay the same until it is
// assembled.
type function struct {
	code    asm.Instructions
	targets []int        // of jumps
	kept    []bool       // instructions that are reached and needed
	marks   []bool       // jumps to the next instruction, by which the C marks states for the verifier
	before  []*registers // what is known before instructions that are jumped to, and the first one
	slots   slots
}

func newFunction(code asm.Instructions) (*function, error) {
	n := len(code)
	f := &function{
		code: slices.Clone(code), targets: make([]int, n), kept: make([]bool, n), marks: make([]bool, n),
		before: make([]*registers, n),
	}
	raw, at := make([]int, n), make([]int, 0, 2*n) // offsets of instructions, and the instructions at offsets
	for i := range code {
		raw[i] = len(at)
		at = append(at, i)
		if code[i].Width() == 2 {
			at = append(at, -1)
		}
	}
	f.before[0] = new(registers)
	for i, ins := range code {
		if !jumps(ins) {
			continue
		}
		to := raw[i] + 1 + int(ins.Offset)
		if ins.OpCode.JumpOp() == asm.Ja && ins.OpCode.Class() == asm.Jump32Class || ins.Reference() != "" {
			return nil, fmt.Errorf("%w: %v", errUnknown, ins)
		}
		if to < 0 || to >= len(at) || at[to] < 0 {
			return nil, fmt.Errorf("%w: a jump out of the function: %v", errUnknown, ins)
		}
		target := at[to]
		f.targets[i] = target
		if f.before[target] == nil {
			f.before[target] = new(registers)
		}
		f.marks[i] = ins.OpCode.JumpOp() == asm.Ja && ins.Offset == 0
	}
	return f, nil
}

// jumps reports whether an instruction has a target in its function.
func jumps(ins asm.Instruction) bool {
	switch ins.OpCode.JumpOp() {
	case asm.InvalidJumpOp, asm.Exit, asm.Call:
		return false
	}
	return true
}

// ends reports whether the next instruction is not reached from this one.
func ends(ins asm.Instruction) bool {
	op := ins.OpCode.JumpOp()
	return op == asm.Exit || op == asm.Ja
}

// propagate finds out what is reached, and what is known there.
func (f *function) propagate(c *constants) {
	n := machineRegisters + f.slots.n
	for i := range n {
		f.before[0][i].kind = unknown
	}
	f.kept[0] = true
	pending := []int{0}
	reach := func(i int, known *registers) {
		news := f.before[i].join(known, n, i, f.slots.of != nil)
		if news || !f.kept[i] {
			f.kept[i] = true
			pending = append(pending, i)
		}
	}
	for len(pending) > 0 {
		i := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		known := *f.before[i]
		for {
			f.kept[i] = true
			ins := f.code[i]
			if ins.OpCode.JumpOp() == asm.Exit {
				break
			}
			taken, decided := false, true
			if jumps(ins) {
				taken, decided = decide(ins, &known)
			}
			f.step(c, i, &known)
			if taken || !decided {
				reach(f.targets[i], &known)
			}
			if taken && decided {
				break
			}
			if i++; i == len(f.code) {
				break
			}
			if f.before[i] != nil {
				reach(i, &known)
				break
			}
		}
	}
}

// step follows an instruction.
func (f *function) step(c *constants, i int, known *registers) {
	ins := f.code[i]
	if f.slots.of != nil {
		for r := range machineRegisters + f.slots.n {
			if known[r].from == int32(i)+1 { // what it has computed before, in a loop
				known[r].from, known[r].low = 0, false
			}
		}
		if from := f.copies(i, known); from >= 0 {
			known[from].name(i)
		}
		if jumps(ins) && ins.OpCode.JumpOp() != asm.Ja {
			f.compare(i, known)
		}
	}
	to, v := f.result(c, i, known)
	if to >= 0 {
		if f.slots.of != nil {
			v.name(i)
		}
		known[to] = v
		for others := f.slots.overlap[to]; others != 0 && ins.OpCode.Class().IsStore(); others &= others - 1 {
			known[bits.TrailingZeros64(others)] = value{kind: unknown}
		}
		return
	}
	may := defines(ins)
	if ins.OpCode.Mode() == asm.AtomicMode {
		may |= 1<<ins.Src | 1<<asm.R0 // some return what they found
		if ins.Constant == loadAcquire {
			may |= 1 << ins.Dst
		}
	}
	for r := range machineRegisters {
		if may>>r&1 != 0 {
			known[r] = value{kind: unknown}
		}
	}
}

// loadAcquire is BPF_LOAD_ACQ, the atomic operation that sets its destination.
const loadAcquire = 0x100

// compare gives values that a branch compares new names. From the comparison, the verifier
// learns nothing about their copies before Linux 5.11.
func (f *function) compare(i int, known *registers) {
	ins := f.code[i]
	if ins.OpCode.Source() == asm.RegSource {
		known[ins.Src].from, known[ins.Src].low = 0, false
	}
	known[ins.Dst].from, known[ins.Dst].low = 0, false
	known[ins.Dst].name(i)
}

// copies returns the register or slot of which an instruction makes a copy, -1 if it does not.
func (f *function) copies(i int, known *registers) int {
	switch ins, slot := f.code[i], f.slots.at(i); {
	case slot != 0 && ins.OpCode.Class() == asm.LdXClass:
		return slot
	case slot != 0 && ins.OpCode.Class() == asm.StXClass && ins.OpCode.Size() == asm.DWord,
		slot != 0 && ins.OpCode.Class() == asm.StXClass && ins.OpCode.Size() == asm.Word && known[ins.Src].isNarrow():
		return int(ins.Src)
	case ins.OpCode.Class().IsALU() && ins.OpCode.ALUOp() == asm.Mov && ins.OpCode.Source() == asm.RegSource:
		return int(ins.Src)
	}
	return -1
}

// result returns the only register or slot that an instruction sets, and its value; -1 where
// it does not set just one.
func (f *function) result(c *constants, i int, known *registers) (to int, v value) {
	ins, slot := f.code[i], f.slots.at(i)
	class := ins.OpCode.Class()
	if from := f.copies(i, known); from >= 0 && (known[from].kind == unknown || slot != 0) {
		v = known[from]
		switch class {
		case asm.StXClass:
			return slot, v
		case asm.LdXClass:
			v.narrow = v.narrow || v.kind == unknown && ins.OpCode.Size() != asm.DWord
		case asm.ALUClass:
			v.low = v.low || v.from != 0 && !v.narrow
			v.narrow = true
		}
		return int(ins.Dst), v
	}
	switch {
	case slot != 0 && class.IsStore():
		v = operand(ins, known)
		if class == asm.StClass {
			v = value{kind: number, bits: uint64(ins.Constant)}
		}
		if v.kind != number {
			return slot, value{kind: unknown}
		}
		v.bits &= math.MaxUint64 >> (64 - 8*ins.OpCode.Size().Sizeof())
		return slot, v
	case class.IsALU(), class == asm.LdXClass, ins.OpCode.IsDWordLoad():
		if v, ok := c.result(ins, known); ok {
			return int(ins.Dst), v
		}
		return int(ins.Dst), value{kind: unknown, narrow: narrows(ins)}
	}
	return -1, value{}
}

// narrows reports whether an instruction sets the upper half of its destination to 0, whatever it
// computes.
func narrows(ins asm.Instruction) bool {
	op := ins.OpCode
	switch op.Class() {
	case asm.ALUClass:
		return op.ALUOp() != asm.Swap || ins.Constant <= 32
	case asm.LdXClass:
		return op.Mode() == asm.MemMode && op.Size() != asm.DWord && !loadsPointer(ins)
	case asm.ALU64Class:
		return op.Source() == asm.ImmSource &&
			(op.ALUOp() == asm.RSh && ins.Constant >= 32 || op.ALUOp() == asm.And && ins.Constant >= 0)
	}
	return false
}

// loadsPointer reports whether an instruction may load a pointer to the packet from the context: there
// the offset of a field of 32 bits gives 64 bits.
func loadsPointer(ins asm.Instruction) bool {
	if ins.OpCode.Size() != asm.Word || ins.Src == asm.RFP {
		return false
	}
	switch ins.Offset {
	case 0, 4, 8, // data, data_end and data_meta of struct xdp_md
		76, 80, 140: // and of struct __sk_buff
		return true
	}
	return false
}

// result returns what an instruction without other effects computes.
func (c *constants) result(ins asm.Instruction, known *registers) (value, bool) {
	switch ins.OpCode.Class() {
	case asm.LdClass:
		if !ins.OpCode.IsDWordLoad() {
			return value{}, false
		}
		if ins.Src == 0 && ins.Reference() == "" {
			return value{kind: number, bits: uint64(ins.Constant)}, true
		}
		section, ok := c.numbers[ins.Reference()]
		if ins.Src == asm.PseudoMapValue && ok {
			return value{kind: address, section: int16(section), bits: uint64(ins.Constant) >> 32}, true
		}
		return value{kind: pointer}, ins.Src == asm.PseudoMapValue
	case asm.LdXClass:
		from := known[ins.Src]
		if from.kind != address || ins.OpCode.Mode() != asm.MemMode {
			return value{}, false
		}
		from.bits += uint64(int64(ins.Offset))
		n, ok := c.read(from, ins.OpCode.Size().Sizeof())
		return value{kind: number, bits: n}, ok
	case asm.ALUClass, asm.ALU64Class:
		return calculate(ins.OpCode.ALUOp(), ins.OpCode.Class() == asm.ALU64Class, known[ins.Dst], operand(ins, known))
	}
	return value{}, false
}

func calculate(op asm.ALUOp, wide bool, a, b value) (value, bool) {
	switch {
	case op == asm.Mov && wide && (b.kind == address || b.kind == pointer):
		return b, true
	case op == asm.Add && wide && a.kind == pointer && b.kind != pointer:
		return value{kind: pointer}, true // within the value, or the verifier refuses it
	case op == asm.Add && wide && a.kind == address && b.kind == number:
		a.bits += b.bits
		return a, true
	case (op == asm.And || op == asm.Mul) && (a == zero || b == zero), (op == asm.LSh || op == asm.RSh) && a == zero:
		return zero, true
	case b.kind == number && (a.kind == number || op == asm.Mov):
		n, ok := compute(op, wide, a.bits, b.bits)
		return value{kind: number, bits: n}, ok
	}
	return value{}, false
}

// operand returns the second operand of an instruction.
func operand(ins asm.Instruction, known *registers) value {
	if ins.OpCode.Source() == asm.ImmSource {
		return value{kind: number, bits: uint64(ins.Constant)}
	}
	return known[ins.Src]
}

func compute(op asm.ALUOp, wide bool, a, b uint64) (uint64, bool) {
	size := uint64(64)
	if !wide {
		a, b, size = uint64(uint32(a)), uint64(uint32(b)), 32
	}
	switch op {
	case asm.Mov:
		a = b
	case asm.Add:
		a += b
	case asm.Sub:
		a -= b
	case asm.Mul:
		a *= b
	case asm.Or:
		a |= b
	case asm.And:
		a &= b
	case asm.Xor:
		a ^= b
	case asm.LSh:
		a <<= b & (size - 1)
	case asm.RSh:
		a >>= b & (size - 1)
	case asm.ArSh:
		if wide {
			a = uint64(int64(a) >> (b & 63))
		} else {
			a = uint64(int32(a) >> (b & 31))
		}
	default:
		return 0, false
	}
	if !wide {
		a = uint64(uint32(a))
	}
	return a, true
}

// decide returns whether a jump is taken, if that is known.
func decide(ins asm.Instruction, known *registers) (taken, decided bool) {
	if ins.OpCode.JumpOp() == asm.Ja {
		return true, true
	}
	x, y := known[ins.Dst], operand(ins, known)
	if op := ins.OpCode.JumpOp(); x.kind == pointer && y == zero && ins.OpCode.Class() == asm.JumpClass && (op == asm.JEq || op == asm.JNE) {
		return op == asm.JNE, true
	}
	if x.kind != number || y.kind != number {
		return false, false
	}
	a, b := x.bits, y.bits
	signedA, signedB := int64(a), int64(b)
	if ins.OpCode.Class() == asm.Jump32Class {
		a, b = uint64(uint32(a)), uint64(uint32(b))
		signedA, signedB = int64(int32(a)), int64(int32(b))
	}
	switch ins.OpCode.JumpOp() {
	case asm.JEq:
		return a == b, true
	case asm.JNE:
		return a != b, true
	case asm.JGT:
		return a > b, true
	case asm.JGE:
		return a >= b, true
	case asm.JLT:
		return a < b, true
	case asm.JLE:
		return a <= b, true
	case asm.JSet:
		return a&b != 0, true
	case asm.JSGT:
		return signedA > signedB, true
	case asm.JSGE:
		return signedA >= signedB, true
	case asm.JSLT:
		return signedA < signedB, true
	case asm.JSLE:
		return signedA <= signedB, true
	}
	return false, false
}

// rewrite puts what is known into the instructions.
func (f *function) rewrite(c *constants) {
	var known registers
	for i := range f.code {
		if !f.kept[i] {
			continue
		}
		if f.before[i] != nil {
			known = *f.before[i]
		}
		ins := f.code[i]
		switch class := ins.OpCode.Class(); {
		case jumps(ins):
			if taken, decided := decide(ins, &known); !decided {
				f.code[i] = withImmediate(ins, &known)
			} else if taken {
				f.code[i].OpCode, f.code[i].Dst, f.code[i].Src = asm.Ja.Op(asm.ImmSource), 0, 0
				f.code[i].Constant = 0
			} else {
				f.kept[i] = false
			}
		default:
			f.code[i] = withHolder(f.code[i], &known)
			if to, v := f.result(c, i, &known); to >= 0 && isSame(known[to], v) {
				f.kept[i] = false
			} else if to == int(ins.Dst) && v.kind == number {
				f.code[i] = withResult(ins, v.bits)
			} else if holder, ok := known.holder(v); ok && class == asm.LdXClass && !v.low {
				f.code[i] = asm.Mov.Reg(ins.Dst, holder)
				f.code[i].Metadata = ins.Metadata
			} else if class.IsALU() {
				if ok && f.copies(i, &known) >= 0 && (class == asm.ALUClass || !v.low) { // the copies may then be unused
					ins.Src = holder
				}
				f.code[i], f.kept[i] = simplify(withImmediate(ins, &known), known[ins.Dst], operand(ins, &known))
			}
		}
		f.step(c, i, &known)
	}
	f.kept[0] = true // it has the function's name
}

// withHolder returns an instruction that accesses memory by the last register that has the address:
// copies may then be unused.
func withHolder(ins asm.Instruction, known *registers) asm.Instruction {
	base := &ins.Src
	switch class := ins.OpCode.Class(); {
	case class.IsStore() && ins.OpCode.Mode() == asm.MemMode:
		base = &ins.Dst
	case class != asm.LdXClass || ins.OpCode.Mode() != asm.MemMode:
		return ins
	}
	if holder, ok := known.holder(known[*base]); ok && *base != asm.RFP && !known[*base].low {
		*base = holder
	}
	return ins
}

// withResult returns the instruction that sets the destination to a number.
func withResult(ins asm.Instruction, n uint64) asm.Instruction {
	next := asm.LoadImm(ins.Dst, int64(n), asm.DWord)
	switch {
	case int64(n) == int64(int32(n)):
		next = asm.Mov.Imm(ins.Dst, int32(n))
	case n <= math.MaxUint32:
		next = asm.Mov.Imm32(ins.Dst, int32(uint32(n)))
	}
	next.Metadata = ins.Metadata
	return next
}

// withImmediate returns an instruction with its second operand as a part of it, where it is
// known and fits.
func withImmediate(ins asm.Instruction, known *registers) asm.Instruction {
	if ins.OpCode.Source() != asm.RegSource {
		return ins
	}
	v := known[ins.Src]
	wide := ins.OpCode.Class() == asm.ALU64Class || ins.OpCode.Class() == asm.JumpClass
	if v.kind != number || wide && int64(v.bits) != int64(int32(v.bits)) {
		return ins
	}
	switch ins.OpCode.ALUOp() {
	case asm.Swap, asm.Neg, asm.Div, asm.Mod, asm.SDiv, asm.SMod, asm.MovSX8, asm.MovSX16, asm.MovSX32:
		return ins
	case asm.LSh, asm.RSh, asm.ArSh:
		if v.bits > 31 && (!wide || v.bits > 63) {
			return ins
		}
	}
	ins.OpCode, ins.Src, ins.Constant = ins.OpCode.SetSource(asm.ImmSource), 0, int64(int32(v.bits))
	return ins
}

// simplify returns a simpler instruction, or reports that it is not needed. Those of 32 bits
// set the upper half to zero, whatever else they do.
func simplify(ins asm.Instruction, a, b value) (asm.Instruction, bool) {
	op, wide := ins.OpCode.ALUOp(), ins.OpCode.Class() == asm.ALU64Class
	ones := uint64(math.MaxUint64)
	if !wide {
		ones = math.MaxUint32
		a.bits, b.bits = uint64(uint32(a.bits)), uint64(uint32(b.bits))
	}
	from := ins.Dst
	switch {
	case op == asm.Mov && b.kind != number:
		return ins, ins.Dst != ins.Src || !wide && !b.isNarrow()
	case b.kind == number && isNeutral(op, b.bits, ones):
	case a.kind == number && b.kind != number && commutes(op) && isNeutral(op, a.bits, ones):
		from = ins.Src
	case op == asm.And && b == (value{kind: number, bits: math.MaxUint32}):
		wide = false // the lower half
	default:
		return ins, true
	}
	if wide && from == ins.Dst {
		return ins, false
	}
	next := asm.Mov.Reg32(ins.Dst, from)
	if wide {
		next = asm.Mov.Reg(ins.Dst, from)
	}
	next.Metadata = ins.Metadata
	return next, true
}

// isNeutral reports whether an operation with n as its second operand returns the first.
func isNeutral(op asm.ALUOp, n, ones uint64) bool {
	switch op {
	case asm.Add, asm.Sub, asm.Or, asm.Xor, asm.LSh, asm.RSh, asm.ArSh:
		return n == 0
	case asm.And:
		return n == ones
	case asm.Mul:
		return n == 1
	}
	return false
}

func commutes(op asm.ALUOp) bool {
	switch op {
	case asm.Add, asm.Or, asm.Xor, asm.And, asm.Mul:
		return true
	}
	return false
}

// next returns the first instruction from i on that is kept.
func (f *function) next(i int) int {
	for i < len(f.code) && !f.kept[i] {
		i++
	}
	return i
}

// straighten removes jumps that lead where the program goes anyway, and what is no longer
// reached: without a jump, another one at its target may not be.
func (f *function) straighten() {
	for i := range f.code {
		if f.kept[i] && jumps(f.code[i]) {
			f.targets[i] = f.end(f.targets[i])
		}
	}
	for again := true; again; {
		f.removeUnreached()
		again = f.removeJumps()
	}
}

// removeUnreached removes what no path leads to.
func (f *function) removeUnreached() {
	reached := make([]bool, len(f.code))
	pending := []int{0}
	for len(pending) > 0 {
		i := f.next(pending[len(pending)-1])
		pending = pending[:len(pending)-1]
		for i < len(f.code) && !reached[i] {
			reached[i] = true
			if jumps(f.code[i]) {
				pending = append(pending, f.targets[i])
			}
			if ends(f.code[i]) {
				break
			}
			i = f.next(i + 1)
		}
	}
	f.kept = reached
}

// removeJumps removes jumps that lead where the program goes anyway, and reports whether there
// were any.
func (f *function) removeJumps() (removed bool) {
	for i := len(f.code) - 1; i > 0; i-- { // backwards: what is between a jump and its target may go, too
		if !f.kept[i] || !jumps(f.code[i]) || f.marks[i] {
			continue
		}
		if f.next(f.targets[i]) == f.next(i+1) || !ends(f.code[i]) && (f.meets(f.targets[i]) == f.meets(i+1) || f.isRepeated(i)) {
			f.kept[i], removed = false, true
		}
	}
	return removed
}

// end follows jumps to jumps.
func (f *function) end(i int) int {
	for range 8 { // a loop of jumps, without an end, would be no program
		i = f.next(i)
		if i == len(f.code) || f.code[i].OpCode.JumpOp() != asm.Ja || f.marks[i] {
			break
		}
		i = f.targets[i]
	}
	return i
}

// isRepeated reports whether the next branch leads to the same wherever branch i is taken, as
// i == 32 before i >= 2.
func (f *function) isRepeated(i int) bool {
	to := f.next(i + 1)
	if to == len(f.code) || f.code[i].OpCode.JumpOp() != asm.JEq || f.code[i].OpCode.Source() != asm.ImmSource ||
		f.code[i].OpCode.Class() != f.code[to].OpCode.Class() || f.code[to].OpCode.Source() != asm.ImmSource ||
		!jumps(f.code[to]) || ends(f.code[to]) || f.code[to].Dst != f.code[i].Dst || f.next(f.targets[i]) != f.next(f.targets[to]) {
		return false
	}
	var known registers
	known[f.code[i].Dst] = value{kind: number, bits: uint64(f.code[i].Constant)}
	taken, decided := decide(f.code[to], &known)
	return taken && decided
}

// meets follows jumps to jumps, and marks.
func (f *function) meets(i int) int {
	for range 8 {
		i = f.next(i)
		if i == len(f.code) || f.code[i].OpCode.JumpOp() != asm.Ja {
			break
		}
		i = f.targets[i]
	}
	return i
}

// join moves the target of a jump behind it, and leaves out the jump: first where no other jump
// leads there.
func (f *function) join() {
	leads := make([]int, len(f.code)) // numbers of jumps
	for i := range f.code {
		if f.kept[i] && jumps(f.code[i]) {
			f.targets[i] = f.next(f.targets[i])
			leads[f.targets[i]]++
		}
	}
	// Runs of instructions up to one behind which the program does not go on, by their first ones.
	var firsts []int
	last, behind, follows := make(map[int]int), make(map[int]int), make(map[int]bool)
	for i := f.next(0); i < len(f.code); i = f.next(i + 1) {
		first := i
		for !ends(f.code[i]) {
			if i = f.next(i + 1); i == len(f.code) {
				return // no program: the verifier says so
			}
		}
		firsts, last[first] = append(firsts, first), i
	}
	place := func(first int) {
		end := last[first]
		to := f.targets[end]
		if _, run := last[to]; !run || to == 0 || follows[to] || !f.kept[end] || f.code[end].OpCode.JumpOp() != asm.Ja || f.marks[end] || leads[end] != 0 {
			return
		}
		for i, ok := to, true; ok; i, ok = behind[i] {
			if i == first {
				return // that leads back to this run
			}
		}
		behind[first], follows[to], f.kept[end] = to, true, false
	}
	for _, first := range firsts {
		if leads[f.targets[last[first]]] == 1 {
			place(first)
		}
	}
	for _, first := range firsts {
		place(first)
	}
	var order []int
	for _, first := range firsts {
		if follows[first] {
			continue
		}
		for i, ok := first, true; ok; i, ok = behind[i] {
			for at := i; at <= last[i]; at++ {
				if f.kept[at] {
					order = append(order, at)
				}
			}
		}
	}
	f.reorder(order)
}

// compact leaves out instructions that are not kept, and forgets all known values.
func (f *function) compact() {
	var order []int
	for i := range f.code {
		if f.kept[i] {
			order = append(order, i)
			if jumps(f.code[i]) {
				f.targets[i] = f.next(f.targets[i])
			}
		}
	}
	f.reorder(order)
	f.kept, f.before = make([]bool, len(order)), make([]*registers, len(order))
	f.before[0] = new(registers)
	for i := range f.code {
		if jumps(f.code[i]) && f.before[f.targets[i]] == nil {
			f.before[f.targets[i]] = new(registers)
		}
	}
}

// reorder makes these instructions the code, in this order.
func (f *function) reorder(order []int) {
	at := make([]int, len(f.code))
	for n, i := range order {
		at[i] = n
	}
	next := &function{kept: make([]bool, len(order)), marks: make([]bool, len(order)), targets: make([]int, len(order))}
	for n, i := range order {
		next.code = append(next.code, f.code[i])
		next.kept[n], next.marks[n] = true, f.marks[i]
		if jumps(f.code[i]) {
			next.targets[n] = at[f.targets[i]]
		}
	}
	*f = *next
}

// removeUnused removes instructions whose results nothing uses.
func (f *function) removeUnused() {
	used := make([]uint16, len(f.code)+1) // registers, by their bits, before each instruction
	for changed := true; changed; {
		changed = false
		for i := len(f.code) - 1; i >= 0; i-- {
			if !f.kept[i] {
				used[i] = used[i+1] // as before the next one, for those who come from above
				continue
			}
			before := f.usedBefore(i, used)
			changed = changed || before != used[i]
			used[i] = before
		}
	}
	for i := 1; i < len(f.code); i++ {
		if f.kept[i] && pure(f.code[i]) && f.usedAfter(i, used)&defines(f.code[i]) == 0 {
			f.kept[i] = false
		}
	}
}

func (f *function) usedAfter(i int, used []uint16) (after uint16) {
	if !ends(f.code[i]) {
		after = used[i+1]
	}
	if jumps(f.code[i]) {
		after |= used[f.targets[i]]
	}
	return after
}

func (f *function) usedBefore(i int, used []uint16) uint16 {
	after, sets := f.usedAfter(i, used), defines(f.code[i])
	if pure(f.code[i]) && i > 0 && after&sets == 0 {
		return after
	}
	return after&^sets | uses(f.code[i])
}

// pure reports whether an instruction only sets its destination.
func pure(ins asm.Instruction) bool {
	class := ins.OpCode.Class()
	return class.IsALU() || ins.OpCode.IsDWordLoad() || class == asm.LdXClass && ins.OpCode.Mode() == asm.MemMode
}

const scratch = 1<<asm.R0 | arguments

const arguments = 1<<asm.R1 | 1<<asm.R2 | 1<<asm.R3 | 1<<asm.R4 | 1<<asm.R5

// argumentsOf are the registers that helpers take, where these are not all.
var argumentsOf = map[asm.BuiltinFunc]uint16{
	asm.FnGetSmpProcessorId: 0,
	asm.FnKtimeGetNs:        0,
	asm.FnGetPrandomU32:     0,
	asm.FnMapLookupElem:     1<<asm.R1 | 1<<asm.R2,
}

// defines returns the registers that an instruction sets in any case, a bit for each.
func defines(ins asm.Instruction) uint16 {
	switch class := ins.OpCode.Class(); {
	case class.IsALU(), class == asm.LdXClass, ins.OpCode.IsDWordLoad():
		return 1 << ins.Dst
	case class == asm.LdClass, ins.OpCode.JumpOp() == asm.Call:
		return scratch
	}
	return 0
}

// uses returns the registers that an instruction may read.
func uses(ins asm.Instruction) uint16 {
	op, dst, src := ins.OpCode, uint16(1)<<ins.Dst, uint16(1)<<ins.Src
	switch class := op.Class(); class {
	case asm.ALUClass, asm.ALU64Class:
		switch fromRegister := op.Source() == asm.RegSource; {
		case op.ALUOp() == asm.Swap || op.ALUOp() == asm.Neg:
			return dst
		case movesOnly(op) && fromRegister:
			return src
		case movesOnly(op):
			return 0
		case fromRegister:
			return dst | src
		}
		return dst
	case asm.LdClass:
		if op.IsDWordLoad() {
			return 0
		}
	case asm.LdXClass:
		return src
	case asm.StClass:
		return dst
	case asm.StXClass:
		if op.Mode() == asm.MemMode {
			return dst | src
		}
	case asm.JumpClass, asm.Jump32Class:
		switch op.JumpOp() {
		case asm.Ja:
			return 0
		case asm.Exit:
			return 1 << asm.R0
		case asm.Call:
			if known, ok := argumentsOf[asm.BuiltinFunc(ins.Constant)]; ok && ins.IsBuiltinCall() {
				return known
			}
			return arguments
		}
		if op.Source() == asm.RegSource {
			return dst | src
		}
		return dst
	}
	return math.MaxUint16 // atomic operations, and what compilers do not make
}

// movesOnly reports whether an instruction does not read its destination.
func movesOnly(op asm.OpCode) bool {
	switch op.ALUOp() {
	case asm.Mov, asm.MovSX8, asm.MovSX16, asm.MovSX32:
		return true
	}
	return false
}

// repeats returns the instructions, but jumps, behind which a loop begins again. The verifier
// of Linux 5.10 accepts loops by jumps alone.
func (f *function) repeats() []bool {
	const discovered, explored = 1, 2
	found, state, pending := make([]bool, len(f.code)), make([]byte, len(f.code)+1), []int{0}
	state[0] = discovered
	for len(pending) > 0 {
		i, deeper := pending[len(pending)-1], false
		var follow []int
		if !ends(f.code[i]) {
			follow = append(follow, f.next(i+1))
		}
		if jumps(f.code[i]) {
			follow = append(follow, f.next(f.targets[i]))
		}
		for _, to := range follow {
			if state[to] == discovered && !jumps(f.code[i]) {
				found[i] = true
			}
			if state[to] == 0 && to < len(f.code) {
				state[to], deeper = discovered, true
				pending = append(pending, to)
				break
			}
		}
		if !deeper {
			state[i] = explored
			pending = pending[:len(pending)-1]
		}
	}
	return found
}

// assemble returns the instructions that are left.
func (f *function) assemble() (asm.Instructions, error) {
	repeats := f.repeats()
	at, offset := make([]int, len(f.code)+1), 0
	for i := range f.code {
		at[i] = offset
		if f.kept[i] {
			offset += int(f.code[i].Width())
		}
		if repeats[i] {
			offset++
		}
	}
	at[len(f.code)] = offset
	out := make(asm.Instructions, 0, offset)
	for i, ins := range f.code {
		if !f.kept[i] {
			continue
		}
		if jumps(ins) {
			by := at[f.targets[i]] - at[i] - 1
			if by != int(int16(by)) {
				return nil, fmt.Errorf("a jump by %d instructions", by)
			}
			ins.Offset = int16(by)
		}
		out = append(out, ins)
		if repeats[i] {
			out = append(out, asm.Instruction{OpCode: asm.Ja.Op(asm.ImmSource)})
		}
	}
	return out, nil
}
