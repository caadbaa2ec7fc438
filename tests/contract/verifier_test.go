package contract

import (
	"fmt"
	"testing"

	"github.com/cilium/ebpf/asm"

	"weir/bpf"
	"weir/loader"
	"weir/loader/fold"
)

// The program that Go tests is the one that is attached: there is no other but
// that for copies of multicast.
func TestOneProgram(t *testing.T) {
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Programs) != 2 || spec.Programs[bpf.WeirProgWeir] == nil || spec.Programs[bpf.WeirProgWeirEgress] == nil {
		t.Errorf("the object has %d programs, want weir and weir_egress alone", len(spec.Programs))
	}
}

// Linux 5.10 refuses a program where a loop repeats otherwise than by a jump: where
// the instruction before its head, which is no jump, is a part of it.
func TestLoopsRepeatByJumps(t *testing.T) {
	spec, err := bpf.LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range spec.Programs {
		repeatByJumps(t, name, p.Instructions)
	}
	// The same with constants: what they rule out is left out.
	for shapes := range 5 {
		for lean := range uint8(4) {
			spec := spec.Copy()
			block := loader.KeySet{N_prefixes: uint32(shapes), N_v4Flow: uint32(shapes), N_v6: uint32(shapes), Lines: 1}
			block.Quotient.Lines, block.Quotient.LaneBits = uint32(shapes), 21
			for name, value := range map[string]any{
				bpf.WeirVarBlock: &block, bpf.WeirVarTrackerCount: uint32(shapes), bpf.WeirVarLean: lean,
			} {
				if err := spec.Variables[name].Set(value); err != nil {
					t.Fatal(err)
				}
			}
			if err := fold.Constants(spec); err != nil {
				t.Fatal(err)
			}
			for name, p := range spec.Programs {
				repeatByJumps(t, fmt.Sprintf("%s, %d shapes, lean %v", name, shapes, lean), p.Instructions)
			}
		}
	}
}

// repeatByJumps searches as the verifier's check_cfg does.
func repeatByJumps(t *testing.T, name string, code asm.Instructions) {
	t.Helper()
	at, symbols := make(map[int]*asm.Instruction), make(map[string]int)
	next, last := make(map[int]int), -1
	starts := []int{0}
	function := make(map[int]string)
	in := ""
	for it := code.Iterate(); it.Next(); {
		o := int(it.Offset)
		if s := it.Ins.Symbol(); s != "" {
			in = s
			symbols[s] = o
			starts = append(starts, o)
		}
		at[o], next[last], last, function[o] = it.Ins, o, o, in
	}
	const discovered, explored = 1, 2
	state := make(map[int]int)
	for _, start := range starts {
		if state[start] != 0 {
			continue
		}
		state[start] = discovered
		for stack := []int{start}; len(stack) > 0; {
			o := stack[len(stack)-1]
			i := at[o]
			op, class := i.OpCode.JumpOp(), i.OpCode.Class()
			jump := class == asm.JumpClass || class == asm.Jump32Class
			target := o + 1 + int(i.Offset)
			if r := i.Reference(); r != "" {
				target = symbols[r]
			}
			var follow []int
			repeats := jump && op != asm.Call
			switch {
			case jump && op == asm.Exit:
			case jump && op == asm.Ja:
				follow = []int{target}
			case repeats:
				follow = []int{next[o], target}
			default:
				follow = []int{next[o]}
			}
			deeper := false
			for _, f := range follow {
				if state[f] == discovered && !repeats {
					t.Errorf("%s: in %s, instruction %d, %v, runs into the head of a loop that it is a part of", name, function[o], o, i)
				}
				if state[f] == 0 {
					state[f], deeper = discovered, true
					stack = append(stack, f)
					break
				}
			}
			if !deeper {
				state[o] = explored
				stack = stack[:len(stack)-1]
			}
		}
	}
}
