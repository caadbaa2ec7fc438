package loader

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// bufferFlags returns the offset of the flags in the kernel's context of XDP programs,
// or 0 where programs cannot read them: the kernel is older than 6.2, or has no BTF.
var bufferFlags = sync.OnceValue(func() uint32 {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return 0
	}
	var cast *btf.Func
	var buff *btf.Struct
	var flags *btf.Enum
	if errors.Join(kernel.TypeByName(castToKernelContext, &cast), kernel.TypeByName("xdp_buff", &buff),
		kernel.TypeByName("xdp_buff_flags", &flags)) != nil {
		return 0
	}
	for _, v := range flags.Values {
		if v.Name == "XDP_FLAGS_HAS_FRAGS" && v.Value == 1 {
			return offsetOf(buff.Members, "flags")
		}
	}
	return 0
})

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

const castToKernelContext = "bpf_cast_to_kern_ctx"

// dropKernelContext removes the calls, in code that is not reached, of a function that
// the kernel may not have: it would be looked for in every module.
func dropKernelContext(code asm.Instructions) {
	for i := range code {
		if code[i].IsKfuncCall() {
			code[i] = asm.Mov.Imm(asm.R0, 0).WithSource(code[i].Source())
		}
	}
}
