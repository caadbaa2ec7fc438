package bpf

import (
	"testing"

	"github.com/cilium/ebpf/asm"
)

// TestLoopsForOldKernels follows the control flow as the verifier does. Kernels up to
// 5.14 or so refuse a program in which an instruction that is no jump falls through
// into the head of a loop that it is in, as in a loop that is entered in its middle.
func TestLoopsForOldKernels(t *testing.T) {
	spec, err := LoadWeir()
	if err != nil {
		t.Fatal(err)
	}
	for name, program := range spec.Programs {
		instructions := map[int]asm.Instruction{}
		next := map[int]int{}
		function := map[int]string{}
		starts := []int{}
		symbol := ""
		last := -1
		for it := program.Instructions.Iterate(); it.Next(); {
			at := int(it.Offset)
			if s := it.Ins.Symbol(); s != "" {
				symbol = s
				starts = append(starts, at)
			} else {
				next[last] = at
			}
			instructions[at], function[at], last = *it.Ins, symbol, at
		}
		if len(starts) == 0 {
			t.Fatalf("program %s has no functions", name)
		}
		const open, done = 1, 2
		state := map[int]int{}
		var walk func(at int)
		walk = func(at int) {
			state[at] = open
			ins := instructions[at]
			visit := func(to int, jump bool) {
				switch {
				case state[to] == 0:
					walk(to)
				case state[to] == open && !jump:
					t.Errorf("program %s, function %s: %v falls through into the head of its loop", name, function[at], ins)
				}
			}
			switch op := ins.OpCode.JumpOp(); {
			case !ins.OpCode.Class().IsJump() || op == asm.Call:
				if to, ok := next[at]; ok {
					visit(to, false)
				}
			case op == asm.Exit:
			case op == asm.Ja:
				visit(at+1+int(ins.Offset), true)
			default:
				visit(at+1, true)
				visit(at+1+int(ins.Offset), true)
			}
			state[at] = done
		}
		for _, at := range starts {
			walk(at)
		}
	}
}
