package loader

import (
	"encoding/binary"
	"testing"
	"testing/fstest"
)

// The largest cache that is not shared counts, by the first place that lists any.
func TestNearCache(t *testing.T) {
	const (
		cpu0 = "sys/devices/system/cpu/cpu0/"
		tree = "sys/firmware/devicetree/base/"
		kib  = 1 << 10
	)
	cell := func(v uint32) string { return string(binary.BigEndian.AppendUint32(nil, v)) }
	sysfs := map[string]string{
		cpu0 + "topology/thread_siblings_list": "0,4\n",
		cpu0 + "cache/index0/type":             "Data\n", cpu0 + "cache/index0/shared_cpu_list": "0,4\n", cpu0 + "cache/index0/size": "48K\n",
		cpu0 + "cache/index1/type": "Instruction\n", cpu0 + "cache/index1/shared_cpu_list": "0,4\n", cpu0 + "cache/index1/size": "4096K\n",
		cpu0 + "cache/index2/type": "Unified\n", cpu0 + "cache/index2/shared_cpu_list": "0,4\n", cpu0 + "cache/index2/size": "1280K\n",
		cpu0 + "cache/index3/type": "Unified\n", cpu0 + "cache/index3/shared_cpu_list": "0-7\n", cpu0 + "cache/index3/size": "24576K\n",
	}
	own := map[string]string{
		tree + "cpus/cpu@0/d-cache-size": cell(32 * kib), tree + "cpus/cpu@0/next-level-cache": cell(7),
		tree + "cpus/cpu@1/d-cache-size": cell(32 * kib), tree + "cpus/cpu@1/next-level-cache": cell(8),
		tree + "cpus/cpu@0/l2-cache/phandle": cell(7), tree + "cpus/cpu@0/l2-cache/cache-size": cell(512 * kib),
		tree + "cpus/cpu@1/l2-cache/phandle": cell(8), tree + "cpus/cpu@1/l2-cache/cache-size": cell(1024 * kib),
	}
	shared := map[string]string{
		tree + "cpus/cpu@0/d-cache-size": cell(32 * kib), tree + "cpus/cpu@0/next-level-cache": cell(7),
		tree + "cpus/cpu@1/d-cache-size": cell(32 * kib), tree + "cpus/cpu@1/next-level-cache": cell(7),
		tree + "cpus/l2-cache0/phandle": cell(7), tree + "cpus/l2-cache0/cache-size": cell(1024 * kib),
	}
	cpuinfo := func(size string) map[string]string {
		return map[string]string{"proc/cpuinfo": "processor\t: 0\nmodel name\t: any\ncache size\t: " + size + "\nflags\t\t: fpu\n"}
	}
	for _, c := range []struct {
		name  string
		files map[string]string
		ofCPU int
		size  int
		known bool
	}{
		{"nothing speaks", nil, 0, GuessedCache, false},
		{"the CPU is of no known vendor", nil, -1, GuessedCache, false},
		{"sysfs", sysfs, 2048 * kib, 1280 * kib, true},
		{"sysfs lists no caches", map[string]string{cpu0 + "topology/thread_siblings_list": "0\n"}, 2048 * kib, 2048 * kib, true},
		{"what sysfs lists is shared", map[string]string{
			cpu0 + "topology/thread_siblings_list": "0\n",
			cpu0 + "cache/index0/type":             "Unified\n", cpu0 + "cache/index0/shared_cpu_list": "0-3\n", cpu0 + "cache/index0/size": "512K\n",
		}, 0, GuessedCache, false},
		{"sysfs has nonsense", map[string]string{
			cpu0 + "topology/thread_siblings_list": "0\n",
			cpu0 + "cache/index0/type":             "Unified\n", cpu0 + "cache/index0/shared_cpu_list": "0\n", cpu0 + "cache/index0/size": "many\n",
		}, 0, GuessedCache, false},
		{"/proc/cpuinfo", cpuinfo("512 KB"), 0, 512 * kib, true},
		{"/proc/cpuinfo names the last level", cpuinfo("36608 KB"), 0, GuessedCache, false},
		{"/proc/cpuinfo has nonsense", cpuinfo("-1 KB"), 0, GuessedCache, false},
		{"device tree", own, 0, 512 * kib, true},
		{"device tree, one CPU", map[string]string{
			tree + "cpus/cpu@0/d-cache-size": cell(32 * kib), tree + "cpus/cpu@0/l2-cache": cell(3),
			tree + "l2-cache/phandle": cell(3), tree + "l2-cache/cache-size": cell(256 * kib),
		}, 0, 256 * kib, true},
		{"device tree, a shared level", shared, 0, 32 * kib, true},
		{"device tree without caches", map[string]string{tree + "cpus/cpu@0/reg": cell(0), tree + "cpus/cpu@1/reg": cell(1)}, 0, GuessedCache, false},
	} {
		files := make(fstest.MapFS)
		for name, text := range c.files {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if size, known := nearCache(files, c.ofCPU); size != c.size || known != c.known {
			t.Errorf("%s: %d bytes, known: %t; want %d, %t", c.name, size, known, c.size, c.known)
		}
	}
}
