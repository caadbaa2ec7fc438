package instructions

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"

	"weir/loader/fold"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// TestFoldedPrograms checks that fold.Constants keeps what programs compute: for random programs and
// frames, the kernel returns the same value and the same frame before and after.
func TestFoldedPrograms(t *testing.T) {
	lab.Root(t)
	if err := features.HaveProgramHelper(ebpf.XDP, asm.FnXdpLoadBytes); err != nil {
		t.Skipf("needs the helper bpf_xdp_load_bytes: %v", err)
	}
	v4 := features.HaveV4ISA() == nil
	r := seed.New(t)
	programs := long.Or(200, 3000)
	accepted, smaller := 0, 0
	var refusal error
	for i := range programs {
		plain := newGenerator(r, v4).spec()
		folded := plain.Copy()
		if err := fold.Constants(folded); err != nil {
			t.Fatal(err)
		}
		before, after := plain.Programs[generated].Instructions, folded.Programs[generated].Instructions
		report := func(format string, a ...any) {
			t.Helper()
			t.Fatalf("program %d: %s\nbefore:\n%vafter:\n%v", i, fmt.Sprintf(format, a...), before, after)
		}
		one, err := ebpf.NewCollection(plain)
		if err != nil {
			refusal = err
			continue
		}
		accepted++
		if len(after) < len(before) {
			smaller++
		}
		other, err := ebpf.NewCollection(folded)
		if err != nil {
			one.Close()
			report("the verifier refuses it after: %+v", err)
		}
		for range 4 {
			frame := randomFrame(r)
			result, out, err := runOnce(one, frame)
			if err != nil {
				t.Fatal(err)
			}
			got, gotOut, err := runOnce(other, frame)
			if err != nil {
				t.Fatal(err)
			}
			if result != got || !slices.Equal(out, gotOut) {
				report("the frame %x gives %#x and %x before, %#x and %x after", frame, result, out, got, gotOut)
			}
		}
		one.Close()
		other.Close()
	}
	t.Logf("of %d programs, the verifier accepts %d; %d of these are smaller after", programs, accepted, smaller)
	if accepted < programs/2 {
		t.Errorf("the verifier accepts only %d of %d programs: %+v", accepted, programs, refusal)
	}
	if smaller < accepted*9/10 {
		t.Errorf("only %d of %d programs are smaller after", smaller, accepted)
	}
}

func runOnce(c *ebpf.Collection, frame []byte) (uint32, []byte, error) {
	o := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame))}
	result, err := c.Programs[generated].Run(&o)
	return result, o.DataOut, err
}

// randomFrame returns a frame of numbers that are often small, or have only ones in a half.
func randomFrame(r *rand.Rand) []byte {
	var frame []byte
	for range frameSize / 8 {
		frame = binary.NativeEndian.AppendUint64(frame, randomNumber(r))
	}
	return frame
}

func randomNumber(r *rand.Rand) uint64 {
	return []uint64{0, 1, 7, 1<<32 - 1, ^uint64(0), 1 << 31, 1 << 63, uint64(r.Uint32()), r.Uint64(), r.Uint64()}[r.IntN(10)]
}

const (
	generated  = "generated" // the name of the program
	frameSize  = 64
	arraySize  = 32 // of the value in the map "array"
	inRodata   = 8  // numbers of 64 bits
	lowestSlot = -64

	// What programs keep for themselves, below the slots.
	contextSlot = -72
	frameSlot   = -80
	counterSlot = -88
)

// generator makes a random function of the program.
type generator struct {
	*rand.Rand
	v4     bool // instructions of version 4, as moves with sign extension
	main   bool // it has the context and the frame
	units  []unit
	buffer int32 // where helpers write

	counter  asm.Register // of loops; R10: it is in a slot
	calls    bool         // "callee"
	lends    bool         // its stack, to "borrower"
	numbers  [inRodata]uint64
	loops    int
	loopHead int // -1: not in a loop
	loopEnd  int
}

// unit has instructions that belong together. Jumps lead from the end of a unit to the start of another.
type unit struct {
	code asm.Instructions
	to   int // where its last instruction leads, if not 0
}

func newGenerator(r *rand.Rand, v4 bool) *generator {
	g := &generator{Rand: r, v4: v4, main: true, loopHead: -1, loops: r.IntN(4), counter: asm.R10}
	g.buffer = []int32{-8, -8, -16, -16, -16, -24, -40, -64}[r.IntN(8)]
	if r.IntN(2) == 0 {
		g.counter = asm.Register(6 + r.IntN(4))
	}
	for i := range g.numbers {
		g.numbers[i] = randomNumber(r)
	}
	return g
}

// spec returns a program with its functions and maps.
func (g *generator) spec() *ebpf.CollectionSpec {
	code := g.function(generated)
	if g.calls {
		callee := newGenerator(g.Rand, g.v4)
		callee.main = false
		code = append(code, callee.function("callee")...)
	}
	if g.lends {
		code = append(code,
			asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord).WithSymbol("borrower"),
			asm.Add.Imm(asm.R2, 1),
			asm.StoreMem(asm.R1, []int16{0, 0, -8}[g.IntN(3)], asm.R2, asm.DWord),
			asm.Mov.Reg(asm.R0, asm.R2), asm.Return(),
		)
	}
	var contents []byte
	for _, n := range g.numbers {
		contents = binary.NativeEndian.AppendUint64(contents, n)
	}
	return &ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{
			".rodata": {
				Name: "rodata", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(contents)), MaxEntries: 1,
				Flags: 1 << 7, Contents: []ebpf.MapKV{{Key: uint32(0), Value: contents}}, // BPF_F_RDONLY_PROG
			},
			"array": {Name: "array", Type: ebpf.Array, KeySize: 4, ValueSize: arraySize, MaxEntries: 1},
		},
		Programs: map[string]*ebpf.ProgramSpec{generated: {
			Name: generated, Type: ebpf.XDP, Instructions: code, License: "Dual BSD/GPL",
		}},
		ByteOrder: binary.NativeEndian,
	}
}

// function returns a function. All registers and slots are numbers between its units, and its result is
// a mixture of them.
func (g *generator) function(name string) asm.Instructions {
	g.add(g.begin(name)...)
	for n := 15 + g.IntN(45); n > 0; n-- {
		g.one()
	}
	if g.loopHead >= 0 {
		g.repeat()
	}
	last := len(g.units)
	g.add(g.mix()...)
	var starts []int
	at := 0
	for _, u := range g.units {
		starts = append(starts, at)
		at += width(u.code)
	}
	var code asm.Instructions
	for i, u := range g.units {
		if u.to != 0 {
			end := &u.code[len(u.code)-1]
			end.Offset = int16(starts[min(u.to, last)] - starts[i] - width(u.code))
		}
		code = append(code, u.code...)
	}
	return code
}

// width returns the size of instructions, in those of 8 bytes.
func width(code asm.Instructions) (n int) {
	for _, ins := range code {
		n += int(ins.Width())
	}
	return n
}

func (g *generator) add(code ...asm.Instruction) { g.units = append(g.units, unit{code: code}) }

// jump ends a unit with a jump.
func (g *generator) jump(to int, code ...asm.Instruction) {
	g.units = append(g.units, unit{code, to})
}

// begin sets all registers and slots to numbers.
func (g *generator) begin(name string) asm.Instructions {
	var code asm.Instructions
	if g.main {
		code = asm.Instructions{
			asm.StoreMem(asm.RFP, contextSlot, asm.R1, asm.DWord),
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
			asm.LoadMem(asm.R3, asm.R1, 4, asm.Word),
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, frameSize),
			by(asm.JLE.Reg(asm.R4, asm.R3, ""), 2),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
			asm.StoreMem(asm.RFP, frameSlot, asm.R2, asm.DWord),
			asm.Mov.Reg(asm.R1, asm.R2),
		}
		for r := asm.R2; r <= asm.R9; r++ {
			code = append(code, g.load(r, asm.R1, frameSize))
		}
		code = append(code, g.load(asm.R0, asm.R1, frameSize), asm.Mov.Reg(asm.R1, asm.R0))
	} else {
		code = asm.Instructions{asm.Mov.Reg(asm.R0, asm.R1)}
		for r := asm.R6; r <= asm.R9; r++ {
			code = append(code, asm.Mov.Reg(r, asm.Register(1+g.IntN(5))))
		}
	}
	code[0] = code[0].WithSymbol(name)
	if g.counter != asm.R10 {
		code = append(code, asm.Mov.Imm(g.counter, 0))
	}
	code = append(code, asm.Mov.Imm(asm.R5, 0), asm.StoreMem(asm.RFP, counterSlot, asm.R5, asm.DWord))
	for at := int16(lowestSlot); at < 0; at += 8 {
		code = append(code, asm.StoreMem(asm.RFP, at, g.any(), asm.DWord))
	}
	return code
}

// mix returns what all registers and slots, or some of them, are at the end.
func (g *generator) mix() (code asm.Instructions) {
	all := g.IntN(2) == 0
	step := func(r asm.Register) {
		code = append(code, asm.Mul.Imm(asm.R0, 0x3779b1), asm.Xor.Reg(asm.R0, r))
	}
	for r := asm.R1; r <= asm.R9; r++ {
		if all || g.IntN(2) == 0 {
			step(r)
		}
	}
	for at := int16(lowestSlot); at < 0; at += 8 {
		if all || g.IntN(2) == 0 {
			code = append(code, asm.LoadMem(asm.R1, asm.RFP, at, asm.DWord))
			step(asm.R1)
		}
	}
	code = append(code, array(asm.R2, 0))
	for at := int16(0); at < arraySize; at += 8 {
		code = append(code, asm.LoadMem(asm.R1, asm.R2, at, asm.DWord))
		step(asm.R1)
	}
	if g.main {
		code = append(code, asm.Mov.Reg(asm.R1, asm.R0), asm.RSh.Imm(asm.R1, 32), asm.Xor.Reg(asm.R0, asm.R1))
	}
	return append(code, asm.Return())
}

// by sets the offset of a jump.
func by(ins asm.Instruction, n int) asm.Instruction {
	ins.Offset = int16(n)
	return ins
}

// array loads an address in the map "array".
func array(dst asm.Register, at int) asm.Instruction {
	return asm.LoadMapValue(dst, 0, uint32(at)).WithReference("array")
}

// any returns a register to read.
func (g *generator) any() asm.Register { return asm.Register(g.IntN(10)) }

// other returns a register to write, which is none of these.
func (g *generator) other(than ...asm.Register) asm.Register {
	for {
		if r := g.any(); r != g.counter && !slices.Contains(than, r) {
			return r
		}
	}
}

func (g *generator) size() asm.Size {
	return []asm.Size{asm.Byte, asm.Half, asm.Word, asm.Word, asm.DWord, asm.DWord, asm.DWord}[g.IntN(7)]
}

// load loads a number of any size from memory of n bytes.
func (g *generator) load(dst, base asm.Register, n int) asm.Instruction {
	size := g.size()
	at := int16(size.Sizeof() * g.IntN(n/size.Sizeof()))
	if g.v4 && size != asm.DWord && g.IntN(5) == 0 {
		return asm.LoadMemSX(dst, base, at, size)
	}
	return asm.LoadMem(dst, base, at, size)
}

func (g *generator) immediate() int32 {
	return []int32{0, 1, -1, 7, 255, 1 << 30, -1 << 31, int32(g.Uint32())}[g.IntN(8)]
}

// loop begins a loop, or ends it.
func (g *generator) loop() {
	if g.loopHead < 0 && g.loops > 0 && g.IntN(8) == 0 {
		g.loops--
		if g.counter == asm.R10 {
			dst := g.other()
			g.add(asm.Mov.Imm(dst, 0), asm.StoreMem(asm.RFP, counterSlot, dst, asm.DWord))
		} else {
			g.add(asm.Mov.Imm(g.counter, 0))
		}
		g.loopHead = len(g.units)
		g.loopEnd = g.loopHead + 1 + g.IntN(10)
		g.late()
	} else if g.loopHead >= 0 && len(g.units) >= g.loopEnd {
		g.repeat()
	}
}

// late adds, in a random order, copies that are of the iteration before.
func (g *generator) late() {
	now := g.other()
	old := g.other(now)
	older := g.other(now, old)
	at := int16(lowestSlot + 8*g.IntN(2))
	units := []asm.Instruction{
		asm.Mov.Reg(older, old),
		[]asm.Instruction{asm.Mov.Reg(old, now), asm.Mov.Reg32(old, now), asm.LoadMem(old, asm.RFP, at, asm.DWord)}[g.IntN(3)],
		[]asm.Instruction{asm.Mul.Imm(now, 3), asm.LoadMem(now, asm.RFP, at, asm.DWord), asm.Mov.Reg(now, g.any()), asm.Add.Reg(now, g.any())}[g.IntN(4)],
		asm.StoreMem(asm.RFP, at, []asm.Register{now, old, older}[g.IntN(3)], asm.DWord),
	}
	for _, i := range g.Perm(len(units)) {
		g.add(units[i])
	}
}

func (g *generator) repeat() {
	most := int32(1 + g.IntN(4))
	if g.counter == asm.R10 {
		r := g.other()
		g.jump(g.loopHead, asm.LoadMem(r, asm.RFP, counterSlot, asm.DWord), asm.Add.Imm(r, 1),
			asm.StoreMem(asm.RFP, counterSlot, r, asm.DWord), asm.JLT.Imm(r, most, ""))
	} else {
		g.jump(g.loopHead, asm.Add.Imm(g.counter, 1), asm.JLT.Imm(g.counter, most, ""))
	}
	g.loopHead = -1
}

// one adds a unit, or a few.
func (g *generator) one() {
	g.loop()
	switch n := g.IntN(100); {
	case n < 30:
		g.add(g.arithmetic())
	case n < 42:
		g.add(g.move())
	case n < 45:
		g.add(g.swap())
	case n < 58:
		g.add(g.store())
	case n < 69:
		g.add(g.loadSlot())
	case n < 75:
		g.constant()
	case n < 79:
		g.frame()
	case n < 83:
		g.array()
	case n < 96:
		g.branch()
	default:
		g.call()
	}
}

var operations = []asm.ALUOp{
	asm.Add, asm.Sub, asm.Mul, asm.Or, asm.And, asm.Xor, asm.LSh, asm.RSh, asm.ArSh, asm.Div, asm.Mod, asm.Neg, asm.SDiv, asm.SMod,
}

func (g *generator) arithmetic() asm.Instruction {
	dst, src, n := g.other(), g.any(), g.immediate()
	ops := operations
	if !g.v4 {
		ops = ops[:len(ops)-2] // without signed divisions
	}
	op, wide := ops[g.IntN(len(ops))], g.IntN(2) == 0
	switch op {
	case asm.LSh, asm.RSh, asm.ArSh:
		n &= 31
		if wide && g.IntN(2) == 0 {
			n += 32
		}
	case asm.Div, asm.Mod, asm.SDiv, asm.SMod:
		if n == 0 {
			n = 3
		}
	case asm.Neg:
		if wide {
			return op.Imm(dst, 0)
		}
		return op.Imm32(dst, 0)
	}
	switch fromRegister := g.IntN(2) == 0; {
	case fromRegister && wide:
		return op.Reg(dst, src)
	case fromRegister:
		return op.Reg32(dst, src)
	case wide:
		return op.Imm(dst, n)
	}
	return op.Imm32(dst, n)
}

func (g *generator) move() asm.Instruction {
	dst, src := g.other(), g.any()
	switch n := g.IntN(12); {
	case n == 0:
		return asm.Mov.Imm(dst, g.immediate())
	case n == 1:
		return asm.Mov.Imm32(dst, g.immediate())
	case n == 2:
		return asm.LoadImm(dst, int64(randomNumber(g.Rand)), asm.DWord)
	case n == 3 && g.v4:
		return []asm.ALUOp{asm.MovSX8, asm.MovSX16, asm.MovSX32}[g.IntN(3)].Reg(dst, src)
	case n == 4 && g.v4:
		return []asm.ALUOp{asm.MovSX8, asm.MovSX16}[g.IntN(2)].Reg32(dst, src)
	case n < 8:
		return asm.Mov.Reg32(dst, src)
	}
	return asm.Mov.Reg(dst, src)
}

func (g *generator) swap() asm.Instruction {
	size := []asm.Size{asm.Half, asm.Word, asm.DWord}[g.IntN(3)]
	switch n := g.IntN(3); {
	case n == 0 && g.v4:
		return asm.BSwap(g.other(), size)
	case n == 1:
		return asm.HostTo(asm.LE, g.other(), size)
	}
	return asm.HostTo(asm.BE, g.other(), size)
}

// slot returns a part of the slots. Most are those at the low end, which helpers do not write.
func (g *generator) slot() (at int16, size asm.Size) {
	size = g.size()
	among := []int{16, 32, -lowestSlot}[g.IntN(3)]
	return int16(lowestSlot + size.Sizeof()*g.IntN(among/size.Sizeof())), size
}

func (g *generator) store() asm.Instruction {
	at, size := g.slot()
	if g.IntN(6) == 0 {
		return asm.Instruction{OpCode: asm.StoreImmOp(size), Dst: asm.RFP, Offset: at, Constant: int64(g.immediate())}
	}
	return asm.StoreMem(asm.RFP, at, g.any(), size)
}

func (g *generator) loadSlot() asm.Instruction {
	at, size := g.slot()
	if g.v4 && size != asm.DWord && g.IntN(6) == 0 {
		return asm.LoadMemSX(g.other(), asm.RFP, at, size)
	}
	return asm.LoadMem(g.other(), asm.RFP, at, size)
}

// constant loads numbers from the section of constants, sometimes by a copy of the address.
func (g *generator) constant() {
	base := g.other()
	copied := g.other(base)
	at := 8 * g.IntN(inRodata-1)
	code := asm.Instructions{asm.LoadMapValue(base, 0, uint32(at)).WithReference(".rodata"), asm.Mov.Reg(copied, base)}
	if g.IntN(2) == 0 {
		code = append(code, asm.Add.Imm(copied, 8))
		at += 8
	}
	from := []asm.Register{base, copied}[g.IntN(2)]
	dst := g.other(base, copied)
	code = append(code, g.load(dst, from, 8), g.load(base, copied, 8*inRodata-at), asm.Mov.Reg(copied, base))
	g.add(code...)
}

// frame loads a number from the frame and stores one, by an address that is in a slot.
func (g *generator) frame() {
	if !g.main {
		return
	}
	base := g.other()
	copied := g.other(base)
	dst, src := g.other(base, copied), g.other(base, copied)
	code := asm.Instructions{asm.LoadMem(base, asm.RFP, frameSlot, asm.DWord), asm.Mov.Reg(copied, base)}
	if g.IntN(3) == 0 {
		code = append(code, asm.LoadMem(base, asm.RFP, frameSlot, asm.DWord))
	}
	if g.IntN(2) == 0 {
		size := g.size()
		code = append(code, asm.StoreMem(copied, int16(size.Sizeof()*g.IntN(frameSize/size.Sizeof())), src, size))
	}
	g.add(append(code, g.load(dst, base, frameSize), g.load(base, copied, frameSize), asm.Mov.Reg(copied, dst))...)
}

// array changes the map, often by an atomic operation, and compares its address.
func (g *generator) array() {
	base := g.other()
	dst, src := g.other(base), g.other(base)
	size := []asm.Size{asm.Word, asm.DWord}[g.IntN(2)]
	at := int16(8 * g.IntN(arraySize/8))
	atomics := []asm.AtomicOp{
		asm.AddAtomic, asm.FetchAdd, asm.AndAtomic, asm.FetchAnd, asm.OrAtomic, asm.FetchOr, asm.XorAtomic, asm.FetchXor, asm.Xchg, asm.CmpXchg,
	}
	if src == g.counter {
		src = dst
	}
	var changes asm.Instructions
	if g.IntN(3) == 0 {
		changes = append(changes, asm.StoreMem(base, at, src, size))
	} else {
		atomic := atomics[g.IntN(len(atomics))]
		change := atomic.Mem(base, src, size, at)
		change.Constant = int64(atomic >> 8) // which ebpf 0.22 does not write, unless it has read it
		changes = append(changes, change)
		if atomic == asm.CmpXchg && size == asm.Word {
			// The instruction must clear the upper half of R0. Where the values are equal, Linux 6.18 on
			// x86-64 does not always: one of two equal programs had what was there before.
			changes = append(changes, asm.Mov.Reg32(asm.R0, asm.R0))
		}
	}
	changes = append(changes, g.load(dst, base, arraySize), g.load(base, base, arraySize))
	code := asm.Instructions{array(base, 0)}
	if g.IntN(2) == 0 { // an address is not 0
		code = append(code, by(asm.JNE.Imm(base, 0, ""), 3), asm.Mov.Imm(base, 1), asm.Mov.Imm(dst, 2), by(asm.Ja.Label(""), len(changes)))
	} else {
		code = append(code, by(asm.JEq.Imm(base, 0, ""), len(changes)))
	}
	g.add(append(code, changes...)...)
}

// branch adds a jump forward, mostly a conditional one.
func (g *generator) branch() {
	to := len(g.units) + 1 + g.IntN(6)
	if g.IntN(15) == 0 {
		g.jump(len(g.units)+1, asm.Ja.Label("")) // as marks in C
		return
	}
	ops := []asm.JumpOp{asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSet, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE}
	op, dst, src, n := ops[g.IntN(len(ops))], g.any(), g.any(), g.immediate()
	ins := []asm.Instruction{op.Imm(dst, n, ""), op.Imm32(dst, n, ""), op.Reg(dst, src, ""), op.Reg32(dst, src, "")}[g.IntN(4)]
	g.jump(to, ins)
	if g.IntN(6) == 0 && to > len(g.units) { // again, to the same place
		g.jump(to, op.Imm(dst, n+1, ""))
	}
}

// call calls a helper or a function, and then sets the registers to new numbers that calls overwrite.
func (g *generator) call() {
	var code asm.Instructions
	address := func(dst asm.Register) {
		code = append(code, asm.Mov.Reg(dst, asm.RFP), asm.Add.Imm(dst, g.buffer))
	}
	context := asm.LoadMem(asm.R1, asm.RFP, contextSlot, asm.DWord)
	switch n := g.IntN(10); {
	case n < 2 && g.main:
		code = append(code, context, asm.FnXdpGetBuffLen.Call())
	case n < 6 && g.main:
		code = append(code, context, asm.Mov.Imm(asm.R2, int32(g.IntN(frameSize-8))))
		address(asm.R3)
		code = append(code, asm.Mov.Imm(asm.R4, int32(1+g.IntN(8))), asm.FnXdpLoadBytes.Call())
	case n < 8 && g.main:
		g.calls = true
		code = append(code, asm.Call.Label("callee"))
	case n == 8 && g.main && g.IntN(3) == 0:
		g.lends = true
		g.buffer = max(g.buffer, lowestSlot+8)
		address(asm.R1)
		code = append(code, asm.Call.Label("borrower"))
	default: // of a value in the map
		address(asm.R2)
		code = append(code, asm.StoreImm(asm.R2, 0, int64(g.IntN(2)), asm.Word))
		if g.IntN(2) == 0 {
			code = append(asm.Instructions{asm.StoreImm(asm.RFP, int16(g.buffer), int64(g.IntN(2)), asm.Word)}, code[:2]...)
		}
		code = append(code, asm.LoadMapPtr(asm.R1, 0).WithReference("array"), asm.FnMapLookupElem.Call(),
			by(asm.JEq.Imm(asm.R0, 0, ""), 1), g.load(asm.R0, asm.R0, arraySize))
	}
	for r := asm.R1; r <= asm.R5; r++ {
		switch at, _ := g.slot(); g.IntN(3) {
		case 0:
			code = append(code, asm.Mov.Reg(r, asm.Register(6+g.IntN(4))))
		case 1:
			code = append(code, asm.LoadMem(r, asm.RFP, at&^7, asm.DWord))
		default:
			code = append(code, asm.Mov.Reg(r, asm.R0))
		}
	}
	g.add(code...)
}
