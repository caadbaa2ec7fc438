package feed

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// bytesPerEntry is the memory of which a source's entries may take their share
	// by default. Reading an IPv6 prefix takes some 130 bytes at the peak, while its
	// slice grows and is sorted; as much is left for the old contents, the filters
	// and other sources.
	bytesPerEntry = 256

	// maxURLEntries bounds the entries of a source from a URL by default, with any
	// amount of memory: ten times the largest public feeds.
	maxURLEntries = 20_000_000
)

// maxEntries returns the number of entries that a source of a kind may have, given the
// bytes of memory.
func (s Source) maxEntries(kind Kind, memory int64) int {
	if s.MaxEntries > 0 {
		return int(s.MaxEntries)
	}
	most := int(max(memory/bytesPerEntry, 1))
	if kind == CrowdSec {
		most = max(most/5, 1) // decisions are kept in a map, with their expiries
	}
	if s.URL != "" {
		most = min(most, maxURLEntries)
	}
	return most
}

// maxWide bounds what the ranges of a source become, unless the operator has set a bound: a line
// of 60 bytes can be 254 prefixes, or 4096 flows.
func (s Source) maxWide() int {
	if s.MaxEntries > 0 {
		return 0
	}
	return 3 << 19
}

// BoundHeap has garbage collected more often near the limit of this process's memory, of which
// the kernel's maps, files and a service's MemoryMax leave a part, unless GOMEMLIMIT says when. Without
// memory, it would be killed, or stand still.
func BoundHeap() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memory() / 10 * 6)
	}
}

// memory returns the bytes of memory that this process may use: those of the host, or
// the limit of its control group or of one above it.
func memory() int64 {
	most := int64(math.MaxInt64)
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		most = int64(info.Totalram) * int64(info.Unit)
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return most
	}
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) < 3 {
			continue
		}
		root, limit := "/sys/fs/cgroup", "memory.max"
		switch {
		case fields[1] == "memory": // version 1
			root, limit = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		case fields[1] != "":
			continue
		}
		for group := filepath.Join("/", fields[2]); ; group = filepath.Dir(group) {
			// The file does not exist at the root, and says max where there is none.
			text, err := os.ReadFile(filepath.Join(root, group, limit))
			if n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && bad == nil {
				most = min(most, n)
			}
			if group == "/" {
				break
			}
		}
	}
	return most
}
