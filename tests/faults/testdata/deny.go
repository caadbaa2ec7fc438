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
	listener, err := listen()
	if err != nil {
		panic(err)
	}
	var denied atomic.Bool
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	go func() {
		for range asked {
			denied.Store(!denied.Load())
			os.Stderr.WriteString("{\"msg\":\"memory for maps has changed\"}\n")
		}
	}()
	go func() {
		for {
			if err := answer(listener, func(n string) bool { return n == name && denied.Load() }); err != nil {
				panic(err)
			}
		}
	}()
}

// listen returns a file that has the process's attempts to create a map.
func listen() (fd uintptr, err error) {
	const number, command = 0, 16 // where struct seccomp_data has them
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	filter := []unix.SockFilter{
		load(number),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.SYS_BPF},
		load(command),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.BPF_MAP_CREATE},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
		unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return 0, errno
	}
	return fd, nil
}

// answer answers one attempt: refuses says whether there is no memory for a map.
func answer(listener uintptr, refuses func(name string) bool) error {
	var request struct { // struct seccomp_notif
		id         uint64
		pid, flags uint32
		number     int32
		arch       uint32
		at         uint64
		args       [6]uint64
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&request))); errno != 0 {
		if errno == unix.EINTR || errno == unix.ENOENT { // it has ended
			return nil
		}
		return errno
	}
	const name = 28 // where union bpf_attr has it
	var attr [name + unix.BPF_OBJ_NAME_LEN]byte
	// As the kernel reads another's memory, which has no pointer of Go's.
	local := []unix.Iovec{{Base: &attr[0], Len: uint64(min(len(attr), int(request.args[2])))}}
	remote := []unix.RemoteIovec{{Base: uintptr(request.args[1]), Len: int(local[0].Len)}}
	if _, err := unix.ProcessVMReadv(os.Getpid(), local, remote, 0); err != nil {
		return err
	}
	answer := struct { // struct seccomp_notif_resp
		id    uint64
		value int64
		errno int32
		flags uint32
	}{id: request.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	if refuses(unix.ByteSliceToString(attr[name:])) {
		answer.errno, answer.flags = -int32(unix.ENOMEM), 0
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, listener, unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer))); errno != 0 && errno != unix.ENOENT {
		return errno
	}
	return nil
}
