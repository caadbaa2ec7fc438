package hooks

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// outSuffix ends the name of the directory for outgoing packets.
const outSuffix = ":out"

// Unfinished is the prefix of a directory under construction; left over only by a killed process.
const Unfinished = "new-"

// DirOf returns the directory of an interface in a direction, below root, the directory of all pins.
// It is named by indexes, since names change while a program filters.
func DirOf(root string, i *netif.Iface, out bool) string {
	name := fmt.Sprintf("%d:%d", i.Inode, i.Index)
	if out {
		name += outSuffix
	}
	return filepath.Join(root, name)
}

// IsOut reports whether a directory is for outgoing packets.
func IsOut(dir string) bool { return strings.HasSuffix(dir, outSuffix) }

// siblingOf returns the directory of the other direction of an interface.
func siblingOf(dir string) string {
	if in, out := strings.CutSuffix(dir, outSuffix); out {
		return in
	}
	return dir + outSuffix
}

// Dirs returns the directories of all interfaces. Those that earlier versions made
// are named by the interface's name, after a dash, in place of its index.
func Dirs(root string) ([]string, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return nil, fmt.Errorf("read directory of pins: %w", kernelerr.Permission(err))
	}
	var dirs []string
	for _, e := range entries {
		if dir := filepath.Join(root, e.Name()); e.IsDir() && NamespaceOf(dir) != 0 {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// NamespaceOf returns the inode of the network namespace that an interface's directory
// is for, 0 for any other path.
func NamespaceOf(dir string) (inode uint64) {
	name := filepath.Base(dir)
	if end := strings.IndexAny(name, ":-"); end > 0 && end < len(name)-1 {
		inode, _ = strconv.ParseUint(name[:end], 10, 64)
	}
	return inode
}

// FinishedDir returns the directory that one under construction is for, "" where its
// name does not say.
func FinishedDir(temp string) string {
	name, ok := strings.CutPrefix(filepath.Base(temp), Unfinished)
	end := strings.LastIndexByte(name, '-')
	if !ok || end < 0 || NamespaceOf(name[:end]) == 0 {
		return ""
	}
	return filepath.Join(filepath.Dir(temp), name[:end])
}
