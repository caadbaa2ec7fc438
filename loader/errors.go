package loader

import (
	"errors"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/loader/kernelerr"
)

// Errors that a caller may distinguish. Those that wrap them say what happened and
// what to do about it.
var (
	ErrNotAttached = errors.New("weir is not attached there")
	ErrHook        = errors.New("attached in another mode")                 // by weir
	ErrSevered     = errors.New("no longer attached")                       // the interface is gone, or somebody has detached
	ErrReplaced    = errors.New("another process has replaced the program") // with one of weir's
)

var errLayout = errors.New("pinned maps are of another layout")

// Rejected reports whether an error is that the verifier rejects a program, which may
// depend on the shapes in it.
func Rejected(err error) bool {
	if errors.Is(err, kernelerr.ErrPermission) {
		return false
	}
	_, rejected := errors.AsType[*ebpf.VerifierError](err)
	return rejected || errors.Is(err, unix.E2BIG)
}
