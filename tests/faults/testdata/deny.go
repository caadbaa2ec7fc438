package main

import (
	"os"
	"os/signal"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// With DENIED in the environment SIGUSR2 has the kernel refuse memory to maps of that
// name, and to no others, until the next SIGUSR2, and says so. A limit on the memory of
// the process would not do: its own pages compete with its maps for what there is.
func init() {
	name := os.Getenv("DENIED")
	if name == "" {
		return
	}
	const number, command = 0, 16 // where struct seccomp_data has them
	attempts := listen(
		load(number),
		jump(unix.SYS_BPF, 0, 3),
		load(command),
		jump(unix.BPF_MAP_CREATE, 0, 1),
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	)
	var denied atomic.Bool
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	go func() {
		for range asked {
			denied.Store(!denied.Load())
			os.Stderr.WriteString("{\"msg\":\"memory for maps has changed\"}\n")
		}
	}()
	go attempts.answer(func(args [6]uint64) unix.Errno {
		const at = 28 // where union bpf_attr has the name
		attr := bytesAt(args[1], min(at+unix.BPF_OBJ_NAME_LEN, int(args[2])))
		if len(attr) > at && unix.ByteSliceToString(attr[at:]) == name && denied.Load() {
			return unix.ENOMEM
		}
		return 0
	})
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

func jump(equal uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: equal, Jt: yes, Jf: no}
}

// attempts is a file that has the process's attempts to make certain system calls.
type attempts uintptr

// listen returns the attempts that a filter selects.
func listen(filter ...unix.SockFilter) attempts {
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		panic(errno)
	}
	return attempts(fd)
}

// answer answers all attempts: judge returns the error of a call with these arguments, 0 if it is to be made.
func (a attempts) answer(judge func(args [6]uint64) unix.Errno) {
	for {
		var request struct { // struct seccomp_notif
			id         uint64
			pid, flags uint32
			number     int32
			arch       uint32
			at         uint64
			args       [6]uint64
		}
		if !a.control(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&request)) {
			continue
		}
		answer := struct { // struct seccomp_notif_resp
			id    uint64
			value int64
			errno int32
			flags uint32
		}{id: request.id}
		if errno := judge(request.args); errno != 0 {
			answer.errno = -int32(errno)
		} else {
			answer.flags = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE
		}
		a.control(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer))
	}
}

// control reports whether the attempt that it concerns has not ended.
func (a attempts) control(request uint, arg unsafe.Pointer) bool {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(a), uintptr(request), uintptr(arg))
	if errno != 0 && errno != unix.EINTR && errno != unix.ENOENT {
		panic(errno)
	}
	return errno == 0
}

// bytesAt returns what is at an address, which is no pointer of Go's here, up to size bytes.
func bytesAt(address uint64, size int) []byte {
	there := make([]byte, size)
	local := []unix.Iovec{{Base: &there[0], Len: uint64(size)}}
	n, err := unix.ProcessVMReadv(os.Getpid(), local, []unix.RemoteIovec{{Base: uintptr(address), Len: size}}, 0)
	if err != nil {
		panic(err)
	}
	return there[:n]
}
