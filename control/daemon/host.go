package daemon

import (
	"errors"
	"fmt"
	"net"
	"os/user"
	"path/filepath"
	"strings"

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
