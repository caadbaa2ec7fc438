package loader

import (
	"fmt"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// CPUs returns the number of possible CPUs: each has counters and banks of its
// own.
func CPUs() int {
	n, err := ebpf.PossibleCPU()
	if err != nil {
		return 1 // callers that need the number fail on their own
	}
	return n
}

// StayOnCPU binds the goroutine to a CPU until release is called: the frames that
// it sends stay in order, since a wire has a queue for each CPU, and the programs
// that it tests count in one row and one bank.
func StayOnCPU() (release func(), err error) { return StayOn(0) }

// StayOn is StayOnCPU for one of the CPUs that the process may use, by its place
// among them.
func StayOn(place int) (release func(), err error) {
	runtime.LockOSThread()
	var allowed, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("get the CPUs to run on: %w", err)
	}
	if place >= allowed.Count() {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("stay on CPU %d of %d that may be used", place+1, allowed.Count())
	}
	cpu := 0
	for ; !allowed.IsSet(cpu) || place > 0; cpu++ {
		if allowed.IsSet(cpu) {
			place--
		}
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("stay on CPU %d: %w", cpu, err)
	}
	return func() {
		if unix.SchedSetaffinity(0, &allowed) == nil { // else the thread ends with the goroutine
			runtime.UnlockOSThread()
		}
	}, nil
}
