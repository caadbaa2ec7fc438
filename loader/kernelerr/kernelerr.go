// Package kernelerr says what is behind errors of the kernel, and what to do about them.
package kernelerr

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
	ErrExhausted   = errors.New("a limit is reached")            // of this process or of the kernel; pins and programs are not the cause
	ErrUnsupported = errors.New("not supported")                 // by the kernel or the interface
	ErrForeign     = errors.New("a foreign program is attached") // which weir leaves alone
)

// Permission names the missing capabilities in an error that the lack
// of them may have caused: without CAP_PERFMON, the verifier refuses arithmetic
// on packet pointers as if the program were wrong.
func Permission(err error) error {
	if err == nil || errors.Is(err, ErrPermission) ||
		!errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return err
	}
	if missing := MissingCapabilities(); len(missing) > 0 {
		return fmt.Errorf("%w, namely %s: run it as root, or with these: %w", ErrPermission, strings.Join(missing, ", "), err)
	}
	if _, ok := errors.AsType[*ebpf.VerifierError](err); ok {
		return err // the program is wrong
	}
	return fmt.Errorf("%w: %w", ErrPermission, err)
}

// IsExhausted reports whether an error in opening a pin is of this process or of the kernel,
// and says nothing about the pin.
func IsExhausted(err error) bool {
	for _, e := range []error{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSPC, unix.EPERM, unix.EACCES, unix.EAGAIN, unix.EINTR, unix.EIO} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Exhausted says what to do about an error that a limit causes.
func Exhausted(err error) error {
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

// MissingCapabilities returns the names of those that weir needs and this thread lacks.
func MissingCapabilities() []string {
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

// LacksSysAdmin reports whether this thread lacks CAP_SYS_ADMIN, which it takes to open
// programs and maps by their IDs.
func LacksSysAdmin() bool {
	has, err := capabilities()
	return err == nil && has>>unix.CAP_SYS_ADMIN&1 == 0
}

// capabilities returns the bits of those that this thread has.
func capabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return uint64(data[1].Effective)<<32 | uint64(data[0].Effective), err
}
