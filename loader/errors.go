package loader

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Errors that a caller may distinguish. Those that wrap them say what happened and
// what to do about it.
var (
	ErrPermission  = errors.New("missing privilege")
	ErrNoBPFFS     = errors.New("no BPF file system")
	ErrNoNetns     = errors.New("no such network namespace")
	ErrNoInterface = errors.New("no such interface")
	ErrNotAttached = errors.New("weir is not attached there")
	ErrForeign     = errors.New("a foreign program is attached")            // which weir leaves alone
	ErrHook        = errors.New("attached in another mode")                 // by weir
	ErrSevered     = errors.New("no longer attached")                       // the interface is gone, or somebody has detached
	ErrReplaced    = errors.New("another process has replaced the program") // with one of weir's
	ErrNoDriver    = errors.New("the driver has no native XDP")             // generic mode would work
	ErrMTU         = errors.New("the interface's MTU is too large for XDP") // in this mode and with this driver
	ErrUnsupported = errors.New("not supported")
	ErrExhausted   = errors.New("a limit is reached") // of this process or of the kernel; pins and programs are not the cause
)

var errLayout = errors.New("pinned maps are of another layout")

// explainPermission names the missing capabilities in an error that the lack
// of them may have caused: without CAP_PERFMON, the verifier refuses arithmetic
// on packet pointers as if the program were wrong.
func explainPermission(err error) error {
	if err == nil || errors.Is(err, ErrPermission) ||
		!errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return err
	}
	if missing := missingCapabilities(); len(missing) > 0 {
		return fmt.Errorf("%w, namely %s: run it as root, or with these: %w", ErrPermission, strings.Join(missing, ", "), err)
	}
	if _, ok := errors.AsType[*ebpf.VerifierError](err); ok {
		return err // the program is wrong
	}
	return fmt.Errorf("%w: %w", ErrPermission, err)
}

// isExhausted reports whether an error in opening a pin is of this process or of the kernel,
// and says nothing about the pin.
func isExhausted(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSPC, unix.EPERM, unix.EACCES, unix.EAGAIN, unix.EINTR, unix.EIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// explainExhausted says what to do about an error that a limit causes.
func explainExhausted(err error) error {
	if err == nil || errors.Is(err, ErrExhausted) {
		return err
	}
	for _, c := range []struct {
		cause  unix.Errno
		advice string
	}{
		{unix.EMFILE, "raise the limit of open files of this process (`ulimit -n`, LimitNOFILE= of the service)"},
		{unix.ENFILE, "raise the limit of open files of the system (`sysctl fs.file-max`)"},
		{unix.ENOMEM, "the kernel has no memory for it, or the control group may have no more"},
		{unix.ENOSPC, "there is no room for it in the kernel"},
	} {
		if errors.Is(err, c.cause) {
			return fmt.Errorf("%w: %s; what filters goes on: %w", ErrExhausted, c.advice, err)
		}
	}
	return err
}

// Rejected reports whether an error is that the verifier rejects a program, which may
// depend on the shapes in it.
func Rejected(err error) bool {
	if errors.Is(err, ErrPermission) {
		return false
	}
	_, rejected := errors.AsType[*ebpf.VerifierError](err)
	return rejected || errors.Is(err, unix.E2BIG)
}

// missingCapabilities returns those that weir needs and this thread lacks.
func missingCapabilities() []string {
	effective, err := capabilities()
	if err != nil {
		return nil
	}
	has := func(capability int) bool { return effective>>capability&1 == 1 }
	var missing []string
	if !has(unix.CAP_NET_ADMIN) {
		missing = append(missing, "CAP_NET_ADMIN")
	}
	// CAP_SYS_ADMIN includes these two, which are newer.
	if !has(unix.CAP_BPF) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_BPF")
	}
	if !has(unix.CAP_PERFMON) && !has(unix.CAP_SYS_ADMIN) {
		missing = append(missing, "CAP_PERFMON")
	}
	return missing
}

// capabilities returns the bits of those that this thread has.
func capabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), err
}
