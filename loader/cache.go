package loader

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/klauspost/cpuid/v2"
)

// GuessedCache is the size in bytes for which sets are planned where nothing says how large the
// caches are: the smallest second level of the servers of the last ten years. A set planned for
// less than there is costs a packet a few ns, one planned for none tens of them.
const GuessedCache = 256 << 10

// mostNear is the size in bytes above which a cache of which nothing but the size is known is
// taken for one that several CPUs share.
const mostNear = 2 << 20

// NearCache returns the size in bytes of the largest cache that CPU 0 has for itself, the second
// level mostly, as sysfs, the CPU, /proc/cpuinfo or the device tree says, in this order. Where
// none does, as in some virtual machines, it is GuessedCache, and known is false.
func NearCache() (size int, known bool) {
	return nearCache(os.DirFS("/"), max(cpuid.CPU.Cache.L1D, cpuid.CPU.Cache.L2))
}

// nearCache is NearCache for the files of a host; its CPU reports ofCPU, 0 or less if nothing.
func nearCache(host fs.FS, ofCPU int) (size int, known bool) {
	if size := listedCache(host); size > 0 {
		return size, true
	}
	if ofCPU > 0 {
		return ofCPU, true
	}
	if size := namedCache(host); size > 0 {
		return size, true
	}
	if size := deviceCache(host); size > 0 {
		return size, true
	}
	return GuessedCache, false
}

// listedCache is the answer of sysfs, or 0.
func listedCache(host fs.FS) (size int) {
	read := func(name string) string {
		text, _ := fs.ReadFile(host, "sys/devices/system/cpu/cpu0/"+name)
		return strings.TrimSpace(string(text))
	}
	own := read("topology/thread_siblings_list") // the threads of a core share its caches
	for i := range 8 {
		cache := fmt.Sprintf("cache/index%d/", i)
		if kind := read(cache + "type"); kind != "Data" && kind != "Unified" {
			continue
		}
		if shared := read(cache + "shared_cpu_list"); shared != "0" && shared != own {
			continue
		}
		var kib int
		if _, err := fmt.Sscanf(read(cache+"size"), "%dK", &kib); err == nil {
			size = max(size, kib<<10)
		}
	}
	return size
}

// namedCache is the answer of /proc/cpuinfo, or 0. It names the second level of some CPUs, and
// of others the last one, which they share.
func namedCache(host fs.FS) int {
	text, _ := fs.ReadFile(host, "proc/cpuinfo")
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), ":")
		var kib int
		if _, err := fmt.Sscanf(value, " %d KB", &kib); err == nil && strings.TrimSpace(name) == "cache size" && kib<<10 <= mostNear {
			return kib << 10
		}
	}
	return 0
}

// deviceCache is the answer of the device tree, or 0: the data cache of the first CPU, or the
// next level if no other CPU has the same.
func deviceCache(host fs.FS) (size int) {
	const root = "sys/firmware/devicetree/base/"
	read := func(name string) (value int) {
		if text, err := fs.ReadFile(host, name); err == nil && len(text) == 4 {
			value = int(binary.BigEndian.Uint32(text))
		}
		return value
	}
	cpus, _ := fs.Glob(host, root+"cpus/cpu@*")
	if len(cpus) == 0 {
		return 0
	}
	size = read(path.Join(cpus[0], "d-cache-size"))
	next := read(path.Join(cpus[0], "next-level-cache"))
	if next == 0 {
		next = read(path.Join(cpus[0], "l2-cache"))
	}
	for _, cpu := range cpus[1:] {
		if next == 0 || read(path.Join(cpu, "next-level-cache")) == next || read(path.Join(cpu, "l2-cache")) == next {
			return size
		}
	}
	for _, places := range []string{"cpus/cpu@*/*/phandle", "cpus/*/phandle", "*/phandle"} {
		handles, _ := fs.Glob(host, root+places)
		for _, handle := range handles {
			if next != 0 && read(handle) == next {
				size = max(size, read(path.Join(path.Dir(handle), "cache-size")))
			}
		}
	}
	return size
}
