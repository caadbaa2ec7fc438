// Package bpf has weir's data plane: its C, the compiled objects for both byte
// orders, and the Go types generated from them.
//
// weir.bpf.c is the entry for XDP and weir_tc.bpf.c that for TC, pipeline.h the verdict
// pipeline; each concept has a header. The objects are committed, so that building weir
// needs only Go; `make generate` compiles them again.
package bpf

// Reproducible: the Makefile pins the tool chain (CLANG, STRIP), and the types that Go
// shares are those that it names.
//
//go:generate sh -c "go tool bpf2go -tags linux -target bpfel,bpfeb -no-global-types `./types` Weir weir.bpf.c -- -O2 -Wall -Werror -mcpu=v3"
//go:generate go tool bpf2go -tags linux -target bpfel,bpfeb -no-global-types WeirTC weir_tc.bpf.c -- -O2 -Wall -Werror -mcpu=v3
//go:generate go run ./compress . el eb
