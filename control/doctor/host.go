package doctor

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"weir/control/config"
	"weir/control/feed"
	"weir/control/stage"
	"weir/control/stages"
	"weir/loader"
	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
)

// Where the kernel shows what it is; variables for tests.
var (
	sysfs  = "/sys"
	procfs = "/proc"
)

func finding(level Level, format string, args ...any) Finding {
	return Finding{Level: level, Text: fmt.Sprintf(format, args...)}
}

// thatRuns returns the finding with a line for a shell.
func (f Finding) thatRuns(format string, args ...any) Finding {
	f.Run = fmt.Sprintf(format, args...)
	return f
}

// thatSets returns the finding with a line of weir.yaml.
func (f Finding) thatSets(format string, args ...any) Finding {
	f.Set = fmt.Sprintf(format, args...)
	return f
}

// release is a version of Linux.
type release struct{ major, minor int }

func (r release) before(major, minor int) bool {
	return r.major < major || r.major == major && r.minor < minor
}

// kernelRelease returns the version of the kernel, and its name as in uname -r.
func kernelRelease() (r release, name string) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return r, "unknown"
	}
	name = unix.ByteSliceToString(u.Release[:])
	fmt.Sscanf(name, "%d.%d", &r.major, &r.minor)
	return r, name
}

// features take a version of Linux, beside those of stages: docs/kernels.md.
var features = []stage.Feature{
	{Major: 5, Minor: 15, Name: "native XDP at bonds", Otherwise: "filter on their ports, or with hook: tc"},
	{Major: 5, Minor: 18, Name: "frames larger than a page in native mode (multi-buffer XDP)", Otherwise: "such an MTU is refused in native mode"},
	{Major: 6, Minor: 2, Name: "attach: dispatcher", Otherwise: "it is refused, unless the kernel is 6.1.4 or later"},
	{Major: 6, Minor: 6, Name: "tcx", Otherwise: "egress and hook: tc take a filter of the qdisc clsact"},
}

// checkKernel says which of weir's features the kernel allows. A distribution may have brought
// some to an older one; whether multi-buffer XDP is there is tried, where that is allowed.
func checkKernel(s *Subject) []Finding {
	r, name := kernelRelease()
	if r.before(5, 10) {
		return []Finding{finding(Problem, "the kernel is %s, and weir needs Linux 5.10 or later: install a newer one, and reboot", name)}
	}
	frags, err := hooks.HasFrags()
	var sections stages.Sections
	if s.Config != nil {
		sections = s.Config.Sections
	}
	var all []Finding
	for _, f := range append(sections.Features(), features...) {
		switch {
		case !r.before(f.Major, f.Minor) || f.Minor == 18 && err == nil && frags:
		case f.Configured:
			all = append(all, finding(Problem, "%s is configured, and takes Linux %d.%d; the kernel is %s", f.Name, f.Major, f.Minor, name))
		default:
			all = append(all, finding(Note, "%s takes Linux %d.%d, and the kernel is %s: %s", f.Name, f.Major, f.Minor, name, f.Otherwise))
		}
	}
	if all == nil {
		all = append(all, finding(OK, "the kernel, %s, has everything that weir uses", name))
	}
	return all
}

func checkBTF(*Subject) []Finding {
	if _, err := os.Stat(filepath.Join(sysfs, "kernel/btf/vmlinux")); err == nil {
		return []Finding{finding(OK, "the kernel shows its types (BTF)")}
	}
	const costs = "packets on the lean path cost some 7 ns more for it"
	if hasBTF() {
		return []Finding{finding(Note, "the kernel has its types (BTF), and %s/kernel/btf is hidden; %s", sysfs, costs).
			thatRuns("umount %s/kernel/btf || mount -o remount,bind %[1]s", sysfs)}
	}
	return []Finding{finding(Note, "the kernel has no types (BTF); %s; a kernel with CONFIG_DEBUG_INFO_BTF has them, as those of distributions", costs).
		thatRuns(`grep CONFIG_DEBUG_INFO_BTF= "/boot/config-$(uname -r)"`)}
}

// hasBTF reports whether the kernel has loaded its own types, as far as this process may know.
func hasBTF() bool {
	it := new(btf.HandleIterator)
	defer func() { it.Handle.Close() }()
	for it.Next() {
		if info, err := it.Handle.Info(); err == nil && info.IsVmlinux() {
			return true
		}
	}
	return false
}

func checkJIT(*Subject) []Finding {
	text, err := os.ReadFile(filepath.Join(procfs, "sys/net/core/bpf_jit_enable"))
	if err != nil || strings.TrimSpace(string(text)) != "0" {
		return nil // only root may read it
	}
	return []Finding{finding(Problem, "the kernel interprets programs instead of compiling them, which is several times slower").
		thatRuns("sysctl -w net.core.bpf_jit_enable=1")}
}

// nearCache is a variable for tests.
var nearCache = loader.NearCache

// checkCache says for which cache sets are planned, where it is a guess.
func checkCache(*Subject) []Finding {
	size, known := nearCache()
	if !known {
		return []Finding{finding(Note, "neither the kernel nor the CPU says how large the CPU's caches are: "+
			"filters are laid out for %d KiB, which is a guess; lookups may be slower by some ns a packet", size>>10)}
	}
	return []Finding{finding(OK, "filters are laid out for the %d KiB of cache that a CPU has for itself", size>>10)}
}

// realtimeProblem warns of kernels with PREEMPT_RT.
const realtimeProblem = "this kernel has PREEMPT_RT, with which weir was not tried: unless it has PREEMPT_RT_NEEDS_BH_LOCK, " +
	"or is older than that option, two packets may be filtered on a CPU at once, and take each other's memory"

// Realtime returns a warning if the kernel may interrupt the filtering of one packet by another
// on the same CPU, or "".
func Realtime() string {
	text, err := os.ReadFile(filepath.Join(sysfs, "kernel/realtime"))
	if err == nil && strings.TrimSpace(string(text)) == "1" {
		return realtimeProblem
	}
	return ""
}

func checkRealtime(*Subject) []Finding {
	if text := Realtime(); text != "" {
		return []Finding{finding(Problem, "%s; if this finds no line, boot a kernel without PREEMPT_RT", text).
			thatRuns(`grep PREEMPT_RT_NEEDS_BH_LOCK=y "/boot/config-$(uname -r)"`)}
	}
	return []Finding{finding(OK, "the kernel has no PREEMPT_RT")}
}

func checkLockdown(*Subject) []Finding {
	text, err := os.ReadFile(filepath.Join(sysfs, "kernel/security/lockdown"))
	if err != nil || !strings.Contains(string(text), "[confidentiality]") {
		return nil
	}
	return []Finding{finding(Problem, "the kernel is locked down for confidentiality, and refuses programs that read packets: "+
		"boot it with lockdown=integrity")}
}

func checkCapabilities(s *Subject) []Finding {
	if !s.Process {
		return nil
	}
	missing := kernelerr.MissingCapabilities()
	switch {
	case len(missing) == 0:
		return []Finding{finding(OK, "this process has the capabilities that weir needs")}
	case os.Geteuid() != 0:
		return []Finding{finding(Note, "this process lacks %s: as root, doctor sees more", strings.Join(missing, ", ")).thatRuns("sudo weir doctor")}
	}
	run := []string{"podman run"}
	for _, c := range missing {
		run = append(run, "--cap-add="+strings.TrimPrefix(c, "CAP_"))
	}
	return []Finding{finding(Problem, "this process is root, and lacks %s: a service needs them in AmbientCapabilities=, a container as follows",
		strings.Join(missing, ", ")).thatRuns("%s …", strings.Join(run, " "))}
}

func checkBPFFS(s *Subject) []Finding {
	if s.Pins == "" {
		return nil
	}
	at, mounted, err := bpffs.CheckPlace(string(s.Pins))
	switch {
	case errors.Is(err, bpffs.ErrNoBPFFS) && strings.HasPrefix(string(s.Pins)+"/", bpffs.Mount+"/") && !bpffs.Exists(bpffs.Mount):
		return []Finding{finding(Problem, "%[1]s is not there, as in a container that has its own /sys: have it mount that of the host, "+
			"as with -v %[1]s:%[1]s, or set `pins: /run/bpf/weir`; programs that are pinned nowhere end with the daemon", bpffs.Mount).
			thatRuns("mkdir -p /run/bpf && mount -t bpf bpf /run/bpf")}
	case errors.Is(err, bpffs.ErrNoBPFFS) && strings.HasPrefix(string(s.Pins)+"/", bpffs.Mount+"/"):
		return []Finding{finding(Problem, "no BPF file system is at %s, where programs are pinned: filtering would end with the daemon", bpffs.Mount).
			thatRuns("mount -t bpf bpf %s", bpffs.Mount)}
	case errors.Is(err, bpffs.ErrNoBPFFS):
		return []Finding{finding(Problem, "the directory of pins, %s, is on no BPF file system", s.Pins).
			thatRuns("mkdir -p %[1]s && mount -t bpf bpf %[1]s", s.Pins)}
	case err != nil:
		return []Finding{finding(Problem, "the directory of pins: %v", err)}
	case !mounted:
		return []Finding{finding(OK, "weir mounts the BPF file system at %s when it starts", at)}
	}
	if errors.Is(unix.Access(at, unix.W_OK), unix.EROFS) {
		return []Finding{finding(Problem, "the BPF file system at %s is read-only", at).thatRuns("mount -o remount,rw %s", mountPoint(at))}
	}
	return []Finding{finding(OK, "programs are pinned in %s", s.Pins)}
}

func checkMemlock(s *Subject) []Finding {
	r, _ := kernelRelease()
	if !s.Process {
		return nil
	}
	if !r.before(5, 11) {
		return []Finding{finding(OK, "the kernel does not count maps as locked memory")}
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Max == unix.RLIM_INFINITY {
		return []Finding{finding(OK, "locked memory is not limited")}
	}
	// The loader tries to raise the limit.
	if has(unix.CAP_SYS_RESOURCE) {
		return []Finding{finding(OK, "weir raises the limit of locked memory by itself")}
	}
	return []Finding{finding(Problem, "this process may lock %d KiB of memory, and Linux before 5.11 counts filters as such: "+
		"a service needs LimitMEMLOCK=infinity, a shell this", limit.Max>>10).thatRuns("prlimit --pid $$ --memlock=unlimited")}
}

// has reports whether this process has a capability.
func has(capability int) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return err == nil && data[capability/32].Effective>>(capability%32)&1 == 1
}

// fewestFiles is the number of open files that a daemon may need with a dozen interfaces, each
// of which has some fifty pins and maps.
const fewestFiles = 1024

func checkFiles(s *Subject) []Finding {
	var limit unix.Rlimit
	if !s.Process || unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return nil
	}
	if limit.Max < fewestFiles {
		return []Finding{finding(Problem, "this process may open %d files, which a dozen interfaces exceed: a service needs LimitNOFILE=, a shell this", limit.Max).
			thatRuns("prlimit --pid $$ --nofile=65536")}
	}
	return []Finding{finding(OK, "this process may open %d files", limit.Max)}
}

func checkState(s *Subject) []Finding {
	switch {
	case s.StateDir == "":
		return []Finding{finding(OK, "no state directory is configured: nothing outlives the daemon")}
	case s.Pins != "" && strings.HasPrefix(s.StateDir+"/", string(s.Pins)+"/"):
		return []Finding{finding(Problem, "state_dir: %s is in the directory of pins, which takes no files", s.StateDir)}
	}
	at, fs, err := fileSystem(s.StateDir)
	switch {
	case err != nil:
		return []Finding{finding(Problem, "state_dir: %v", err)}
	case fs.Type == unix.PROC_SUPER_MAGIC || fs.Type == unix.SYSFS_MAGIC || fs.Type == unix.BPF_FS_MAGIC:
		return []Finding{finding(Problem, "state_dir: %s: %s takes no files", s.StateDir, at).thatSets("state_dir: %s", config.Default().StateDir)}
	case fs.Flags&unix.ST_RDONLY != 0:
		return []Finding{finding(Problem, "state_dir: %s: the file system at %s is read-only: manual entries would be lost with the daemon", s.StateDir, mountPoint(at)).
			thatRuns("mount -o remount,rw %s", mountPoint(at))}
	}
	if at != filepath.Clean(s.StateDir) {
		return []Finding{finding(OK, "the state would be saved in %s, which does not exist yet", s.StateDir)}
	}
	return []Finding{finding(OK, "the state is saved in %s", s.StateDir)}
}

const (
	leastRoom   = 64 << 20 // the saved contents of a list of ten million entries, written beside the old ones
	leastInodes = 100
)

func checkDisk(s *Subject) []Finding {
	if s.StateDir == "" {
		return nil
	}
	at, fs, err := fileSystem(s.StateDir)
	if err != nil || fs.Blocks == 0 || fs.Flags&unix.ST_RDONLY != 0 {
		return nil // the state's check says so
	}
	var f Finding
	free := fs.Bavail * uint64(fs.Bsize)
	switch {
	case free < leastRoom:
		f = finding(Problem, "the file system of %s has %d MiB left, and saving large lists takes %d MiB", s.StateDir, free>>20, leastRoom>>20)
	case fs.Files > 0 && fs.Ffree < leastInodes:
		f = finding(Problem, "the file system of %s has room for %d more files", s.StateDir, fs.Ffree)
	default:
		return []Finding{finding(OK, "the file system of %s has %d MiB left", s.StateDir, free>>20)}
	}
	if fs.Type == unix.TMPFS_MAGIC {
		const enough = 4 * leastRoom
		return []Finding{f.thatRuns("mount -o remount,size=%dm,nr_inodes=0 %s", (fs.Blocks*uint64(fs.Bsize)+enough)>>20, mountPoint(at))}
	}
	f.Text += "; what takes it is shown by"
	return []Finding{f.thatRuns("du -xam %s | sort -n | tail -n 20", mountPoint(at))}
}

// fileSystem describes the file system that a directory is on, or would be made on, and returns
// the nearest directory there is.
func fileSystem(dir string) (at string, fs unix.Statfs_t, err error) {
	for at = filepath.Clean(dir); ; at = filepath.Dir(at) {
		switch err := unix.Statfs(at, &fs); {
		case errors.Is(err, unix.ENOENT) && at != "/":
			continue
		case err != nil:
			return at, fs, fmt.Errorf("%s: %w", at, err)
		}
		return at, fs, nil
	}
}

// mountPoint returns where the file system of a directory is mounted.
func mountPoint(dir string) string {
	var own, above unix.Stat_t
	for unix.Stat(dir, &own) == nil && dir != "/" {
		if unix.Stat(filepath.Dir(dir), &above) != nil || above.Dev != own.Dev {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// now is the clock; a variable for tests.
var now = time.Now

// released is before every release of weir: a clock that shows an earlier time is wrong.
var released = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	aLittle  = 2 * time.Minute // steps of a clock that is being set
	mostSeen = 1000            // files of the state directory that are looked at
)

// adjtimex asks the kernel about its clock; a variable for tests.
var adjtimex = unix.Adjtimex

// checkClock looks for a clock that is behind: certificates are not valid yet then.
func checkClock(s *Subject) []Finding {
	t := now()
	behind := finding(Problem, "the clock says %s, which is in the past: certificates are not valid yet", t.Format(time.DateOnly)).
		thatRuns("timedatectl set-ntp true")
	if t.Before(released) {
		return []Finding{behind}
	}
	var x unix.Timex
	_, err := adjtimex(&x)
	unsynchronised := x.Status&unix.STA_UNSYNC != 0
	switch name, at := newest(s.StateDir); {
	case at.Sub(t) <= aLittle:
	case err == nil && !unsynchronised:
		return []Finding{finding(Note, "the clock is synchronised, and %s was written at %s, which is in the future: the clock was ahead then", name, at.UTC().Format(time.DateTime))}
	default:
		behind.Text += fmt.Sprintf("; %s was written at %s", name, at.UTC().Format(time.DateTime))
		return []Finding{behind}
	}
	if err == nil && unsynchronised {
		return []Finding{finding(Note, "nothing synchronises the clock: certificates depend on it, and the time that the host is off does not count for a TTL").thatRuns("timedatectl set-ntp true")}
	}
	return []Finding{finding(OK, "the clock is synchronised")}
}

// newest returns the file of a directory that was written last.
func newest(dir string) (name string, at time.Time) {
	f, err := os.Open(dir)
	if dir == "" || err != nil {
		return "", at
	}
	defer f.Close()
	entries, _ := f.ReadDir(mostSeen)
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().After(at) {
			name, at = filepath.Join(dir, e.Name()), info.ModTime()
		}
	}
	return name, at
}

// checkConfig finds what a configuration names and this host does not have.
func checkConfig(s *Subject) (all []Finding) {
	c := s.Config
	if c == nil {
		return nil
	}
	if text := c.Metrics.Warning(); text != "" {
		all = append(all, finding(Problem, "%s", text))
	}
	if group := c.API.Group; group != "" {
		if _, err := user.LookupGroup(group); err != nil {
			all = append(all, finding(Problem, "api.group: no group %s on this host; commands cannot reach the daemon until there is one", group).
				thatRuns("groupadd --system %s", group))
		}
	}
	for _, l := range c.Lists {
		for _, source := range l.Sources {
			if l.Format.Kind == feed.CrowdSec && len(source.Headers) == 0 {
				all = append(all, finding(Problem, "list %s: CrowdSec wants a key in headers: {X-Api-Key: KEY}, and this makes one", l.Name).
					thatRuns("cscli bouncers add weir"))
			}
		}
	}
	return all
}
