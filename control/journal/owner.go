package journal

import (
	"fmt"
	"os"
)

// OpenIn reports whether a process has the journal at path open, as far as this
// one may look: it is true if the descriptors of the process cannot be read.
func OpenIn(pid int, path string) bool {
	lock, err := os.Stat(lockOf(path))
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	descriptors, err := os.ReadDir(dir)
	if err != nil {
		return os.IsPermission(err)
	}
	for _, d := range descriptors {
		if f, err := os.Stat(dir + d.Name()); err == nil && os.SameFile(f, lock) {
			return true
		}
	}
	return false
}
