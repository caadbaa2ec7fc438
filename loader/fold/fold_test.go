package fold

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"weir/bpf"
	"weir/tests/lab"
	"weir/tests/seed"
)

// specOf returns a program with 64-bit constants.
func specOf(code asm.Instructions, numbers ...uint64) *ebpf.CollectionSpec {
	var contents []byte
	for _, n := range numbers {
		contents = binary.NativeEndian.AppendUint64(contents, n)
	}
	code = slices.Clone(code)
	code[0] = code[0].WithSymbol("test")
	return &ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{".rodata": {
			Name: "rodata", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(contents)), MaxEntries: 1,
			Flags: 1 << 7, Contents: []ebpf.MapKV{{Key: uint32(0), Value: contents}}, // BPF_F_RDONLY_PROG
		}},
		Programs: map[string]*ebpf.ProgramSpec{"test": {
			Name: "test", Type: ebpf.XDP, Instructions: code, License: "Dual BSD/GPL",
		}},
		ByteOrder: binary.NativeEndian,
	}
}

// constant loads the address of the constants into a register.
func constant(dst asm.Register, at int) asm.Instruction {
	return asm.LoadMapValue(dst, 0, uint32(at)).WithReference(".rodata")
}

func text(code asm.Instructions) string {
	var b strings.Builder
	for _, ins := range code {
		fmt.Fprintf(&b, "%v\n", ins)
	}
	return b.String()
}

// to sets the offset of a jump.
func to(ins asm.Instruction, by int16) asm.Instruction {
	ins.Offset = by
	return ins
}

func jump(op asm.JumpOp, dst asm.Register, n int32, by int16) asm.Instruction {
	return to(op.Imm(dst, n, ""), by)
}

func store(at int16, src asm.Register, size asm.Size) asm.Instruction {
	return asm.StoreMem(asm.RFP, at, src, size)
}

// Functions that are no longer called are left out, with those that only they call, and are not folded.
func TestFoldUncalled(t *testing.T) {
	code := asm.Instructions{
		constant(asm.R2, 0), asm.LoadMem(asm.R2, asm.R2, 0, asm.DWord), jump(asm.JEq, asm.R2, 0, 1),
		asm.Call.Label("uncalled"), asm.Call.Label("called"), asm.Mov.Imm(asm.R0, 1), asm.Return(),
		asm.Call.Label("last").WithSymbol("uncalled"), to(asm.Ja.Label(""), 100), asm.Return(),
		asm.Mov.Imm(asm.R0, 2).WithSymbol("last"), asm.Return(),
		asm.Call.Label("called").WithSymbol("called"), asm.Return(),
	}
	spec := specOf(code, 0)
	if err := Constants(spec); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, ins := range spec.Programs["test"].Instructions {
		if name := ins.Symbol(); name != "" {
			names = append(names, name)
		}
	}
	if want := []string{"test", "called"}; !slices.Equal(names, want) {
		t.Errorf("functions %q, want %q", names, want)
	}
}

// What something else than a load or store by the frame pointer may read or change keeps its
// loads and stores.
func TestFoldSharedStack(t *testing.T) {
	address := func(dst asm.Register, at int32) asm.Instructions {
		return asm.Instructions{asm.Mov.Reg(dst, asm.RFP), asm.Add.Imm(dst, at)}
	}
	loadBytes := func(code ...asm.Instruction) asm.Instructions { // to r3
		return append(code, asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R4, 8), asm.FnXdpLoadBytes.Call())
	}
	for name, c := range map[string]struct {
		between asm.Instructions
		shared  bool
	}{
		"a helper that writes it":            {loadBytes(address(asm.R3, -16)...), true},
		"a helper that writes from below on": {loadBytes(address(asm.R3, -20)...), true},
		"a helper that writes above":         {loadBytes(address(asm.R3, -8)...), false},
		"a function":                         {append(address(asm.R3, -8), asm.Call.Label("other")), true},
		"a pointer that stays":               {loadBytes(append(address(asm.R7, -8), asm.Mov.Reg(asm.R3, asm.R7))...), true},
		"a pointer to the end":               {append(address(asm.R7, -8), asm.StoreMem(asm.R7, -8, asm.R6, asm.DWord)), true},
		"a pointer in memory":                {asm.Instructions{store(-8, asm.RFP, asm.DWord)}, true},
		"a pointer of an unknown offset":     {asm.Instructions{asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Reg(asm.R3, asm.R6), asm.StoreMem(asm.R3, 0, asm.R6, asm.DWord)}, true},
		"none":                               {nil, false},
		"an atomic addition":                 {asm.Instructions{asm.AddAtomic.Mem(asm.RFP, asm.R6, asm.DWord, -16)}, true},
		"a callback":                         {asm.Instructions{asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc}.WithReference("other"), asm.FnLoop.Call()}, true},
	} {
		t.Run(name, func(t *testing.T) {
			code := asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.LoadMem(asm.R6, asm.R1, 12, asm.Word), asm.Mov.Imm(asm.R2, 7), store(-16, asm.R2, asm.DWord)}
			code = append(append(code, c.between...), asm.LoadMem(asm.R0, asm.RFP, -16, asm.DWord), asm.Return())
			code = append(code, asm.Mov.Imm(asm.R0, 2).WithSymbol("other"), asm.Return())
			spec := specOf(code, 7)
			if err := Constants(spec); err != nil {
				t.Fatal(err)
			}
			got := text(spec.Programs["test"].Instructions)
			loads := strings.Contains(got, text(asm.Instructions{asm.LoadMem(asm.R0, asm.RFP, -16, asm.DWord)}))
			if loads != c.shared {
				t.Errorf("the stack is loaded: %t\n%s", loads, got)
			}
		})
	}
}

func TestFold(t *testing.T) {
	unknown := asm.LoadMem(asm.R6, asm.R1, 12, asm.Word) // ingress_ifindex
	first := asm.Mov.Imm(asm.R0, 1)                      // which is not folded: it has the name
	for name, c := range map[string]struct {
		code, want asm.Instructions
	}{
		"a load": {
			asm.Instructions{first, unknown, constant(asm.R2, 0), asm.LoadMem(asm.R2, asm.R2, 0, asm.Word), asm.Add.Reg(asm.R6, asm.R2),
				asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
			asm.Instructions{first, unknown, asm.Add.Imm(asm.R6, 7), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
		},
		"a number of 64 bits": {
			asm.Instructions{first, constant(asm.R2, 8), asm.LoadMem(asm.R0, asm.R2, 0, asm.DWord), asm.Return()},
			asm.Instructions{first, asm.LoadImm(asm.R0, -0x123456789abcdef0, asm.DWord), asm.Return()},
		},
		"a branch": {
			asm.Instructions{first, unknown, constant(asm.R2, 0), asm.LoadMem(asm.R2, asm.R2, 0, asm.Byte),
				jump(asm.JNE, asm.R2, 7, 2), asm.Mov.Reg(asm.R0, asm.R6), asm.Return(), asm.Mov.Imm(asm.R0, 2), asm.Return()},
			asm.Instructions{first, unknown, asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
		},
		"a mask of all": {
			asm.Instructions{first, unknown, constant(asm.R2, 16), asm.LoadMem(asm.R2, asm.R2, 0, asm.Word), asm.And.Reg32(asm.R2, asm.R6),
				asm.Mov.Reg(asm.R0, asm.R2), asm.Return()},
			asm.Instructions{first, unknown, asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
		},
		"the lower half of a pointer to the packet": { // which a load of 32 bits gives
			asm.Instructions{first, asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), asm.Mov.Reg32(asm.R6, asm.R6), asm.LoadImm(asm.R2, 1<<32, asm.DWord),
				to(asm.JGE.Reg(asm.R6, asm.R2, ""), 1), asm.Mov.Imm(asm.R0, 2), asm.Return()},
			asm.Instructions{first, asm.LoadMem(asm.R6, asm.R1, 0, asm.Word), asm.Mov.Reg32(asm.R6, asm.R6), asm.LoadImm(asm.R2, 1<<32, asm.DWord),
				to(asm.JGE.Reg(asm.R6, asm.R2, ""), 1), asm.Mov.Imm(asm.R0, 2), asm.Return()},
		},
		"a mask of none": {
			asm.Instructions{first, unknown, asm.And.Imm(asm.R6, 0), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
			asm.Instructions{first, asm.Mov.Imm(asm.R0, 0), asm.Return()},
		},
		"two paths": { // r2 is 7 on one, and the index of the interface on the other
			asm.Instructions{first, unknown, constant(asm.R2, 0), asm.LoadMem(asm.R2, asm.R2, 0, asm.Word), jump(asm.JEq, asm.R6, 1, 1),
				asm.Mov.Reg(asm.R2, asm.R6), asm.Mov.Reg(asm.R0, asm.R2), asm.Return()},
			asm.Instructions{first, unknown, asm.Mov.Imm(asm.R2, 7), jump(asm.JEq, asm.R6, 1, 1),
				asm.Mov.Reg(asm.R2, asm.R6), asm.Mov.Reg(asm.R0, asm.R2), asm.Return()},
		},
		"a pointer into a map": {
			asm.Instructions{first, unknown, asm.And.Imm(asm.R6, 7), asm.LoadMapValue(asm.R2, 0, 0).WithReference("array"),
				asm.Add.Reg(asm.R2, asm.R6), jump(asm.JEq, asm.R2, 0, 2), asm.LoadMem(asm.R0, asm.R2, 0, asm.Byte), asm.Return(),
				asm.Mov.Imm(asm.R0, 2), asm.Return()},
			asm.Instructions{first, unknown, asm.And.Imm(asm.R6, 7), asm.LoadMapValue(asm.R2, 0, 0).WithReference("array"),
				asm.Add.Reg(asm.R2, asm.R6), asm.LoadMem(asm.R0, asm.R2, 0, asm.Byte), asm.Return()},
		},
		"the marks of the C": {
			asm.Instructions{first, unknown, jump(asm.Ja, 0, 0, 0), jump(asm.Ja, 0, 0, 0), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
			asm.Instructions{first, unknown, jump(asm.Ja, 0, 0, 0), jump(asm.Ja, 0, 0, 0), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
		},
		"a slot of the stack": { // of which a register is a copy
			asm.Instructions{first, unknown, constant(asm.R2, 0), asm.LoadMem(asm.R2, asm.R2, 0, asm.Word), store(-8, asm.R2, asm.DWord),
				store(-16, asm.R6, asm.DWord), asm.Mov.Reg(asm.R7, asm.R6), asm.LoadMem(asm.R3, asm.RFP, -8, asm.DWord),
				asm.LoadMem(asm.R7, asm.RFP, -16, asm.DWord), asm.Add.Reg(asm.R7, asm.R3),
				asm.Mov.Reg(asm.R0, asm.R7), asm.Return()},
			asm.Instructions{first, unknown, asm.Mov.Imm(asm.R2, 7), store(-8, asm.R2, asm.DWord), store(-16, asm.R6, asm.DWord),
				asm.Mov.Reg(asm.R7, asm.R6), asm.Add.Imm(asm.R7, 7), asm.Mov.Reg(asm.R0, asm.R7), asm.Return()},
		},
		"a copy of a register that a loop changes": { // made on both paths to the loop
			asm.Instructions{first, asm.LoadMem(asm.R2, asm.R1, 12, asm.Word), jump(asm.JLT, asm.R2, 9, 3),
				asm.LoadMem(asm.R6, asm.R1, 16, asm.Word), asm.Mov.Reg(asm.R7, asm.R6), jump(asm.Ja, 0, 0, 2),
				asm.LoadMem(asm.R6, asm.R1, 20, asm.Word), asm.Mov.Reg(asm.R7, asm.R6), asm.Mov.Reg(asm.R0, asm.R6), asm.Add.Imm(asm.R6, 1),
				jump(asm.JLT, asm.R6, 9, -3), asm.Add.Reg(asm.R0, asm.R7), asm.Return()},
			asm.Instructions{first, asm.LoadMem(asm.R2, asm.R1, 12, asm.Word), jump(asm.JLT, asm.R2, 9, 3),
				asm.LoadMem(asm.R6, asm.R1, 16, asm.Word), asm.Mov.Reg(asm.R7, asm.R6), jump(asm.Ja, 0, 0, 2),
				asm.LoadMem(asm.R6, asm.R1, 20, asm.Word), asm.Mov.Reg(asm.R7, asm.R6), asm.Mov.Reg(asm.R0, asm.R6), asm.Add.Imm(asm.R6, 1),
				jump(asm.JLT, asm.R6, 9, -3), asm.Add.Reg(asm.R0, asm.R7), asm.Return()},
		},
		"an address in two registers": {
			asm.Instructions{first, asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord), asm.Mov.Reg(asm.R2, asm.R6), asm.LoadMem(asm.R3, asm.R2, 8, asm.DWord),
				asm.StoreMem(asm.R2, 16, asm.R3, asm.DWord), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
			asm.Instructions{first, asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord), asm.LoadMem(asm.R3, asm.R6, 8, asm.DWord),
				asm.StoreMem(asm.R6, 16, asm.R3, asm.DWord), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
		},
		"a slot whose copy was compared": {
			asm.Instructions{first, unknown, store(-16, asm.R6, asm.DWord), jump(asm.JLT, asm.R6, 9, 2), asm.Mov.Reg(asm.R0, asm.R6), asm.Return(),
				asm.LoadMem(asm.R6, asm.RFP, -16, asm.DWord), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
			asm.Instructions{first, unknown, store(-16, asm.R6, asm.DWord), jump(asm.JLT, asm.R6, 9, 2), asm.Mov.Reg(asm.R0, asm.R6), asm.Return(),
				asm.LoadMem(asm.R6, asm.RFP, -16, asm.DWord), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
		},
		"a slot that another overlaps": {
			asm.Instructions{first, unknown, asm.Mov.Imm(asm.R2, 7), store(-8, asm.R2, asm.DWord), store(-4, asm.R6, asm.Word),
				asm.LoadMem(asm.R0, asm.RFP, -8, asm.DWord), asm.Return()},
			asm.Instructions{first, unknown, asm.Mov.Imm(asm.R2, 7), store(-8, asm.R2, asm.DWord), store(-4, asm.R6, asm.Word),
				asm.LoadMem(asm.R0, asm.RFP, -8, asm.DWord), asm.Return()},
		},
		"the lower half of a register": { // of which a copy has the whole
			asm.Instructions{first, asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord), asm.Mov.Reg32(asm.R3, asm.R2), asm.Mov.Reg32(asm.R4, asm.R3),
				asm.Mov.Reg(asm.R5, asm.R3), asm.Mov.Reg(asm.R0, asm.R5), asm.Add.Reg(asm.R0, asm.R4), asm.Return()},
			asm.Instructions{first, asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord), asm.Mov.Reg32(asm.R3, asm.R2), asm.Mov.Reg32(asm.R4, asm.R2),
				asm.Mov.Reg(asm.R5, asm.R3), asm.Mov.Reg(asm.R0, asm.R5), asm.Add.Reg(asm.R0, asm.R4), asm.Return()},
		},
		"a jump that nothing leads to": { // once the branches before it are removed
			asm.Instructions{first, unknown, store(-16, asm.R6, asm.DWord), asm.Mov.Reg(asm.R7, asm.R6), jump(asm.JEq, asm.R6, 1, 3),
				asm.Mov.Reg(asm.R0, asm.R6), asm.Add.Reg(asm.R0, asm.R7), asm.Return(),
				jump(asm.JEq, asm.R6, 2, 1), jump(asm.Ja, 0, 0, -5),
				asm.LoadMem(asm.R3, asm.R1, 16, asm.Word), jump(asm.JEq, asm.R3, 1, -7), asm.LoadMem(asm.R7, asm.RFP, -16, asm.DWord),
				jump(asm.JEq, asm.R3, 2, -9), jump(asm.Ja, 0, 0, -10)},
			asm.Instructions{first, unknown, store(-16, asm.R6, asm.DWord), asm.Mov.Reg(asm.R7, asm.R6),
				asm.Mov.Reg(asm.R0, asm.R6), asm.Add.Reg(asm.R0, asm.R7), asm.Return()},
		},
		"a loop that repeated by a jump": { // to its head, past what is never reached
			asm.Instructions{first, unknown, jump(asm.Ja, 0, 0, 3), asm.Add.Imm(asm.R6, 1), jump(asm.Ja, 0, 0, 1), asm.Mov.Imm(asm.R0, 2),
				jump(asm.JLT, asm.R6, 9, -4), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
			asm.Instructions{first, unknown, jump(asm.Ja, 0, 0, 2), asm.Add.Imm(asm.R6, 1), jump(asm.Ja, 0, 0, 0),
				jump(asm.JLT, asm.R6, 9, -3), asm.Mov.Reg(asm.R0, asm.R6), asm.Return()},
		},
	} {
		t.Run(name, func(t *testing.T) {
			spec := specOf(c.code, 7, 0xedcba98765432110, 0xffffffff)
			if err := Constants(spec); err != nil {
				t.Fatal(err)
			}
			if got := text(spec.Programs["test"].Instructions); got != text(c.want) {
				t.Errorf("got\n%s\nwant\n%s", got, text(c.want))
			}
		})
	}
}

// The value of a variable counts, not the bytes that the object has at its place.
func TestFoldVariables(t *testing.T) {
	spec := specOf(asm.Instructions{asm.Mov.Imm(asm.R0, 1), constant(asm.R2, 8), asm.LoadMem(asm.R0, asm.R2, 0, asm.Word), asm.Return()}, 1, 2)
	v := &ebpf.VariableSpec{Name: "v", SectionName: ".rodata", Offset: 8, Value: make([]byte, 4)}
	spec.Variables = map[string]*ebpf.VariableSpec{"v": v}
	if err := v.Set(uint32(9)); err != nil {
		t.Fatal(err)
	}
	if err := Constants(spec); err != nil {
		t.Fatal(err)
	}
	if got, want := text(spec.Programs["test"].Instructions[1:]), text(asm.Instructions{asm.Mov.Imm(asm.R0, 9), asm.Return()}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// random returns a program of arithmetic on numbers, known and unknown, and of jumps ahead.
// It returns a mixture of all registers.
func random(r *rand.Rand) asm.Instructions {
	registers := []asm.Register{asm.R0, asm.R2, asm.R3, asm.R6, asm.R7}
	pick := func() asm.Register { return registers[r.IntN(len(registers))] }
	code := asm.Instructions{asm.LoadMem(asm.R0, asm.R1, 16, asm.Word), asm.LoadMem(asm.R6, asm.R1, 12, asm.Word)}
	for _, dst := range []asm.Register{asm.R2, asm.R3, asm.R7} {
		code = append(code, constant(dst, 8*r.IntN(8)), asm.LoadMem(dst, dst, 0, []asm.Size{asm.Byte, asm.Half, asm.Word, asm.DWord}[r.IntN(4)]))
	}
	for at := int16(-32); at < 0; at += 8 {
		code = append(code, store(at, pick(), asm.DWord))
	}
	const steps = 40
	ops := []asm.ALUOp{asm.Add, asm.Sub, asm.Mul, asm.Or, asm.And, asm.Xor, asm.Mov, asm.LSh, asm.RSh, asm.ArSh, asm.Div, asm.Mod}
	jumps := []asm.JumpOp{asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSet, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE}
	small := func() int32 { return []int32{0, 1, -1, 7, 255, int32(r.Uint32())}[r.IntN(6)] }
	for i := range steps {
		op := ops[r.IntN(len(ops))]
		wide, dst, src, n := r.IntN(2) == 0, pick(), pick(), small()
		shift := op == asm.LSh || op == asm.RSh || op == asm.ArSh
		if shift || (op == asm.Div || op == asm.Mod) && n == 0 {
			n = 1 + n&15
		}
		switch ahead := int16(r.IntN(min(6, steps-i))); {
		case r.IntN(4) == 0 && ahead > 0:
			j := jumps[r.IntN(len(jumps))]
			code = append(code, [...]asm.Instruction{
				to(j.Imm(dst, n, ""), ahead), to(j.Imm32(dst, n, ""), ahead), to(j.Reg(dst, src, ""), ahead), to(j.Reg32(dst, src, ""), ahead),
			}[r.IntN(4)])
		case r.IntN(4) == 0:
			size := []asm.Size{asm.Half, asm.Word, asm.DWord, asm.DWord, asm.DWord}[r.IntN(5)]
			at := -int16(size.Sizeof() * (1 + r.IntN(32/size.Sizeof())))
			code = append(code, []asm.Instruction{store(at, dst, size), asm.LoadMem(dst, asm.RFP, at, size)}[r.IntN(2)])
		case r.IntN(8) == 0:
			code = append(code, []asm.Instruction{asm.Mov.Reg(dst, src), asm.Mov.Reg32(dst, src)}[r.IntN(2)])
		case r.IntN(2) == 0 && !shift && wide:
			code = append(code, op.Reg(dst, src))
		case r.IntN(2) == 0 && !shift:
			code = append(code, op.Reg32(dst, src))
		case wide:
			code = append(code, op.Imm(dst, n))
		default:
			code = append(code, op.Imm32(dst, n))
		}
	}
	for _, register := range registers[1:] {
		code = append(code, asm.Mul.Imm(asm.R0, 31), asm.Xor.Reg(asm.R0, register))
	}
	return append(code, asm.Return())
}

// The kernel computes the same by programs with their constants in place.
func TestFoldRandom(t *testing.T) {
	lab.Root(t)
	r := seed.New(t)
	const programs = 300
	smaller := 0
	for range programs {
		code := random(r)
		var numbers []uint64
		for range 8 {
			numbers = append(numbers, []uint64{0, 1, 0xffffffff, ^uint64(0), r.Uint64(), uint64(r.Uint32())}[r.IntN(6)])
		}
		folded, plain := specOf(code, numbers...), specOf(code, numbers...)
		if err := Constants(folded); err != nil {
			t.Fatal(err)
		}
		if len(folded.Programs["test"].Instructions) < len(code) {
			smaller++
		}
		want, got := result(t, plain), result(t, folded)
		if got != want {
			t.Fatalf("the program returns %#x, and folded %#x, with %#x:\n%s\nfolded:\n%s", want, got, numbers, text(code), text(folded.Programs["test"].Instructions))
		}
	}
	if smaller < programs*9/10 {
		t.Errorf("only %d of %d programs are smaller than before", smaller, programs)
	}
}

func result(t *testing.T, spec *ebpf.CollectionSpec) uint32 {
	t.Helper()
	c, err := ebpf.NewCollection(spec)
	if err != nil {
		t.Fatalf("%+v\n%s", err, text(spec.Programs["test"].Instructions))
	}
	defer c.Close()
	n, err := c.Programs["test"].Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Programs of all configurations are compared in tests/contract and tests/instructions. This
// is how long they take.
func BenchmarkConstants(b *testing.B) {
	spec, err := bpf.LoadWeir()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := Constants(spec.Copy()); err != nil {
			b.Fatal(err)
		}
	}
}
