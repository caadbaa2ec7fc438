package bpffs

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A service has mounts of its own, among them a copy of the host's BPF file system, or of a
// directory in it. When the host unmounts that, the copy and its pins stay, until the service
// ends. The copy is a slave of the host's mount, and no longer when that is gone: mountinfo
// says so.

// mountInfo is the last content of mountinfo.
var mountInfo struct {
	sync.Mutex
	until  time.Time
	thread int
	slaves map[uint64]bool // the IDs of mounts that are slaves of others
}

// MirrorOf returns the ID of the mount that a path is in, if that is a slave of another; or
// else 0, also where the kernel does not say.
func MirrorOf(path string) uint64 {
	var s unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &s); err != nil || s.Mask&unix.STATX_MNT_ID == 0 {
		return 0
	}
	if !IsMirror(s.Mnt_id) {
		return 0
	}
	return s.Mnt_id
}

// IsMirror reports whether a mount is a slave of another, by its ID.
func IsMirror(id uint64) bool {
	m := &mountInfo
	m.Lock()
	defer m.Unlock()
	if now, thread := time.Now(), unix.Gettid(); now.After(m.until) || thread != m.thread {
		text, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil {
			return false
		}
		m.until, m.thread, m.slaves = now.Add(time.Second), thread, make(map[uint64]bool)
		for line := range strings.Lines(string(text)) {
			optional, _, _ := strings.Cut(line, " - ")
			var id uint64
			if _, err := fmt.Sscan(line, &id); err == nil && strings.Contains(optional, " master:") {
				m.slaves[id] = true
			}
		}
	}
	return m.slaves[id]
}

// Mounts returns where BPF file systems are mounted that this process sees.
func Mounts() (paths []string) {
	mounts, _ := os.ReadFile("/proc/thread-self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "bpf ") && len(fields) >= 5 {
			paths = append(paths, fields[4])
		}
	}
	return paths
}
