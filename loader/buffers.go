package loader

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// kernelContext is how programs read the kernel's context of XDP programs: a function
// that casts to it, and the offset of its flags. It is zero where they cannot: the kernel
// is older than 6.2, or has no BTF.
//
// Reading the kernel's types takes 20 ms and megabytes, so it happens once. Left to the
// library, it would for each program.
type kernelContext struct {
	cast  btf.TypeID
	flags uint32
}

var contextOf = sync.OnceValue(func() kernelContext {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return kernelContext{}
	}
	var cast *btf.Func
	var buff *btf.Struct
	var flags *btf.Enum
	if errors.Join(kernel.TypeByName("bpf_cast_to_kern_ctx", &cast), kernel.TypeByName("xdp_buff", &buff),
		kernel.TypeByName("xdp_buff_flags", &flags)) != nil {
		return kernelContext{}
	}
	id, err := kernel.TypeID(cast)
	if err != nil {
		return kernelContext{}
	}
	for _, v := range flags.Values {
		if v.Name == "XDP_FLAGS_HAS_FRAGS" && v.Value == 1 {
			if at := offsetOf(buff.Members, "flags"); at != 0 {
				return kernelContext{id, at}
			}
		}
	}
	return kernelContext{}
})

// resolve resolves the calls of the only function of the kernel that programs call, the
// cast. Where there is none, the code that calls it is not reached, and loses the call.
func (c kernelContext) resolve(code asm.Instructions) {
	for i := range code {
		if !code[i].IsKfuncCall() {
			continue
		}
		call := asm.Mov.Imm(asm.R0, 0)
		if c.cast != 0 {
			call = asm.Instruction{OpCode: code[i].OpCode, Src: asm.PseudoKfuncCall, Constant: int64(c.cast)}
		}
		code[i] = call.WithSource(code[i].Source())
	}
}

// offsetOf returns the offset in bytes of a 32-bit member, also of an anonymous struct
// or union, or 0.
func offsetOf(members []btf.Member, name string) uint32 {
	for _, m := range members {
		at := m.Offset.Bytes()
		if m.Name == name {
			if size, err := btf.Sizeof(m.Type); err != nil || size != 4 || m.BitfieldSize != 0 {
				return 0
			}
			return at
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if found := offsetOf(inner, name); found != 0 {
			return at + found
		}
	}
	return 0
}
