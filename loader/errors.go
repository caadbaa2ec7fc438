package loader

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// What a caller may want to tell apart. The errors that wrap these say what
// is at hand and what to do about it.
var (
	ErrPermission  = errors.New("missing privilege")
	ErrNoBPFFS     = errors.New("no BPF file system")
	ErrNoNetns     = errors.New("no such network namespace")
	ErrNoInterface = errors.New("no such interface")
	ErrForeign     = errors.New("a foreign program is attached")            // which weir leaves alone
	ErrMode        = errors.New("attached in another mode")                 // by weir
	ErrSevered     = errors.New("the interface is gone")                    // attach anew when it is back
	ErrNoDriver    = errors.New("the driver has no native XDP")             // generic mode would work
	ErrMTU         = errors.New("the interface's MTU is too large for XDP") // in this mode and with this driver
	ErrUnsupported = errors.New("not supported")
)

var (
	errNotPinned = errors.New("not pinned")
	errLayout    = errors.New("pinned maps are of another layout")
)

// capabilities that weir needs, and what lets it do without each.
var capabilities = []struct {
	name string
	bit  uint
}{
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN},
	{"CAP_BPF", unix.CAP_BPF},
	{"CAP_PERFMON", unix.CAP_PERFMON},
}

// explainPermission names the missing capabilities in an error that they may
// be the cause of: without CAP_PERFMON, the verifier refuses arithmetic on
// packet pointers as if the program were wrong.
func explainPermission(err error) error {
	if err == nil || errors.Is(err, ErrPermission) ||
		!errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return err
	}
	if missing := missingCapabilities(); len(missing) > 0 {
		return fmt.Errorf("%w, namely %s: %w", ErrPermission, strings.Join(missing, ", "), err)
	}
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", ErrPermission, err)
	}
	return err
}

// missingCapabilities are those of this thread that weir needs and lacks.
func missingCapabilities() []string {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if unix.Capget(&header, &data[0]) != nil {
		return nil
	}
	effective := uint64(data[1].Effective)<<32 | uint64(data[0].Effective)
	var missing []string
	for _, c := range capabilities {
		if effective>>c.bit&1 == 0 {
			missing = append(missing, c.name)
		}
	}
	return missing
}
