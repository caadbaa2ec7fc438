// Package probe loads programs that run one part of the data plane at a time:
// a lookup in a loop, the pipeline behind a generator. Benchmarks measure with
// them, and tests ask the kernel a million questions.
//
// bench.bpf.c includes the data plane's own headers. Its object is compiled for
// little-endian machines alone.
package probe

//go:generate go tool bpf2go -tags linux -target bpfel -no-global-types bench bench.bpf.c -- -I../../../bpf -O2 -Wall -Werror -mcpu=v3

// Nothing reads the relocations of debug information, a third of the object.
//go:generate $BPF2GO_STRIP -g --remove-section=.rel.BTF --remove-section=.rel.BTF.ext bench_bpfel.o
