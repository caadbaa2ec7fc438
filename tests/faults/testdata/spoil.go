package bpf

import (
	"bytes"
	"debug/elf"
	"os"
	"os/signal"
	"syscall"
)

// With SPOILT in the environment the object is such that every kernel's verifier
// refuses it: its program begins with reading beyond what it is given. SIGUSR1
// changes that, at each time, and says so.
func init() {
	const beyond = "\x79\x10\x0f\x27\x00\x00\x00\x00" // r0 = *(u64 *)(r1 + 9999)
	object, err := elf.NewFile(bytes.NewReader(_WeirBytes))
	if err != nil {
		panic(err)
	}
	at := object.Section("xdp.frags").Offset
	now, next := _WeirBytes, bytes.Clone(_WeirBytes)
	copy(next[at:], beyond)
	change := func() {
		now, next = next, now
		_WeirBytes = now
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
