package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/control/config"
	"weir/control/feed"
	"weir/loader"
)

// HostWarnings returns what a configuration names that this host does not have, a
// line each. It may be there when the daemon starts, which waits for it.
func HostWarnings(c *config.Config) (all []string) {
	warn := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	for _, i := range c.Interfaces {
		waits := "the daemon waits for it"
		if i.Required {
			waits = "it is required, and the daemon does not start without it"
		}
		if i.Netns != "" {
			if _, err := (loader.Target{Netns: i.Netns, Iface: i.Name}).Namespace(); err != nil {
				warn("interface %s: %v; %s", i.Name, err, waits)
			}
			continue // its interfaces are seen from inside only
		}
		if strings.ContainsAny(i.Name, "*?[") {
			continue
		}
		if _, err := net.InterfaceByName(i.Name); err != nil {
			warn("interface %s is not on this host; %s", i.Name, waits)
		}
	}
	if text := c.Metrics.Warning(); text != "" {
		warn("%s", text)
	}
	all = append(all, slowVeths(c)...)
	if isRealtime() {
		warn("%s", realtimeProblem)
	}
	if group := c.API.Group; group != "" {
		if _, err := user.LookupGroup(group); err != nil {
			warn("api.group: no group %s on this host; commands cannot reach the daemon until there is one", group)
		}
	}
	if err := holdsFiles(string(c.StateDir)); err != nil {
		warn("state_dir: %v", err)
	}
	for _, l := range c.Lists {
		for _, s := range l.Sources {
			if l.Format.Kind == feed.CrowdSec && len(s.Headers) == 0 {
				warn(`list %s: CrowdSec wants a key, of "cscli bouncers add": headers: {X-Api-Key: KEY}`, l.Name)
			}
		}
	}
	return all
}

// realtime is a file that contains 1 on a kernel with PREEMPT_RT; a variable for tests.
var realtime = "/sys/kernel/realtime"

// realtimeProblem warns of kernels with PREEMPT_RT.
const realtimeProblem = "this kernel has PREEMPT_RT, with which weir was not tried: unless it has PREEMPT_RT_NEEDS_BH_LOCK, " +
	"or is older than that option, two packets may be filtered on a CPU at once, and take each other's memory"

// isRealtime reports whether the kernel may interrupt the filtering of one packet by another
// on the same CPU.
func isRealtime() bool {
	text, err := os.ReadFile(realtime)
	return err == nil && strings.TrimSpace(string(text)) == "1"
}

// slowVeths returns a line if interfaces of this namespace are veths that would be filtered
// natively, without need: with XDP, their driver passes on TCP in single packets.
func slowVeths(c *config.Config) []string {
	needsXDP := c.Loop.On() || c.Digests() != nil || len(c.Multicast.Interfaces) > 0
	links, err := netlink.LinkList()
	if err != nil || needsXDP {
		return nil
	}
	var names []string
	for _, l := range links {
		name := l.Attrs().Name
		at := slices.IndexFunc(c.Interfaces, func(i config.Interface) bool {
			matches, _ := path.Match(i.Name, name)
			return i.Netns == "" && matches
		})
		if at >= 0 && l.Type() == "veth" && c.Interfaces[at].Place() == loader.Native && c.Interfaces[at].NeedsXDP() == "" {
			names = append(names, name)
		}
	}
	const most = 5
	switch more := len(names) - most; {
	case len(names) == 0:
		return nil
	case more > 0:
		names = append(names[:most], fmt.Sprintf("%d more", more))
	}
	return []string{"interfaces are veths, through which TCP is several times slower with native XDP: hook: tc costs it little: " + strings.Join(names, ", ")}
}

// holdsFiles returns an error if a directory is, or would be made, on a file system
// that takes no files.
func holdsFiles(dir string) error {
	if dir == "" {
		return nil
	}
	for at := dir; ; at = filepath.Dir(at) {
		var s unix.Statfs_t
		switch err := unix.Statfs(at, &s); {
		case errors.Is(err, unix.ENOENT) && at != "/":
			continue
		case err != nil:
			return fmt.Errorf("%s: %w", at, err)
		case s.Type == unix.PROC_SUPER_MAGIC || s.Type == unix.SYSFS_MAGIC || s.Type == unix.BPF_FS_MAGIC:
			return fmt.Errorf("%s: %s takes no files", dir, at)
		case s.Flags&unix.ST_RDONLY != 0:
			return fmt.Errorf("%s: the file system at %s is read-only", dir, at)
		}
		return nil
	}
}
