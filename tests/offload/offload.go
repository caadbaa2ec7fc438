// Package offload switches offloads of interfaces, as ethtool does.
package offload

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Set switches an offload of an interface of this network namespace, such as
// [unix.ETHTOOL_SGRO].
func Set(iface string, feature uint32, on bool) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command: feature}
	if on {
		value.data = 1
	}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(request.name[:], iface)
	request.data = unsafe.Pointer(&value)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("switch offload %#x of %s: %w", feature, iface, errno)
	}
	return nil
}
