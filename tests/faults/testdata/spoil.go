package main

import (
	"bytes"
	"debug/elf"
	"os"
	"os/signal"
	"sync"
	"syscall"
	_ "unsafe" // for go:linkname

	"github.com/cilium/ebpf"
	"github.com/klauspost/compress/zstd"

	"weir/bpf"
)

// object is the object of package bpf. A file in that package would have nearly all of weir
// compiled again.
//
//go:linkname object weir/bpf._WeirBytes
var object []byte

// parsed returns the object as package loader has parsed it.
//
//go:linkname parsed weir/loader.object
var parsed func() (*ebpf.CollectionSpec, error)

// With SPOILT in the environment the object is such that every kernel's verifier
// refuses it: its program begins with reading beyond what it is given. SIGUSR1
// changes that, at each time, and says so. With SPOILT="many shapes", it refuses only
// programs with many shapes, if it is one that skips functions that are not
// called.
func init() {
	const beyond = "\x79\x10\x0f\x27\x00\x00\x00\x00" // r0 = *(u64 *)(r1 + 9999)
	unzip, err := zstd.NewReader(nil)
	if err != nil {
		panic(err)
	}
	defer unzip.Close()
	plain, err := unzip.DecodeAll(object, nil)
	if err != nil {
		panic(err)
	}
	file, err := elf.NewFile(bytes.NewReader(plain))
	if err != nil {
		panic(err)
	}
	at := file.Section("xdp.frags").Offset
	if os.Getenv("SPOILT") == "many shapes" {
		at = file.Section(".text").Offset + offset(file, "called_match_block")
	}
	copy(plain[at:], beyond)
	zip, err := zstd.NewWriter(nil)
	if err != nil {
		panic(err)
	}
	now, next := object, zip.EncodeAll(plain, nil)
	change := func() {
		now, next = next, now
		object = now
		parsed = sync.OnceValues(bpf.LoadWeir)
	}
	if os.Getenv("SPOILT") != "" {
		change()
	}
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR1)
	go func() {
		for range asked {
			change()
			os.Stderr.WriteString("{\"msg\":\"the object is another one\"}\n")
		}
	}()
}

// offset returns where a function begins in its section.
func offset(file *elf.File, function string) uint64 {
	symbols, err := file.Symbols()
	if err != nil {
		panic(err)
	}
	for _, s := range symbols {
		if s.Name == function {
			return s.Value
		}
	}
	panic("no function " + function)
}
