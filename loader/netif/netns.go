// Package netif finds network interfaces and enters their network namespaces.
//
// A [Target] names an interface, and an [Iface] is one that was found, with its attributes.
package netif

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/loader/kernelerr"
)

// namedNetns is where `ip netns` keeps namespaces by name.
const namedNetns = "/run/netns"

// Target names an interface, and the direction in which packets cross it.
type Target struct {
	Netns string // network namespace: a name as of `ip netns`, a path if it contains a slash, or "" for the caller's
	Iface string
	Out   bool `json:",omitempty"` // outgoing packets, otherwise incoming ones
}

func (t Target) String() string {
	name := t.Iface
	if t.Netns != "" {
		name += " in namespace " + t.Netns
	}
	if t.Out {
		name += " (out)"
	}
	return name
}

// Direction is "out" or "in".
func (t Target) Direction() string {
	if t.Out {
		return "out"
	}
	return "in"
}

// Namespace returns the inode number of the target's network namespace, which
// identifies it. It fails with [ErrNoNetns] where there is none.
func (t Target) Namespace() (inode uint64, err error) {
	ns, err := openNetns(t.netnsPath())
	if err != nil {
		return 0, err
	}
	return ns.inode, ns.Close()
}

const ownNetns = "/proc/thread-self/ns/net"

// netnsPath is the file of the target's network namespace.
func (t Target) netnsPath() string {
	switch {
	case t.Netns == "":
		return ownNetns
	case strings.Contains(t.Netns, "/"):
		return t.Netns
	}
	return filepath.Join(namedNetns, t.Netns)
}

// Tool returns the command for ip(8) or tc(8) in the target's network namespace.
func (t Target) Tool(name string) string {
	switch {
	case t.Netns == "":
		return name
	case strings.Contains(t.Netns, "/"):
		return "nsenter --net=" + t.Netns + " " + name
	}
	return name + " -n " + t.Netns
}

// In calls fn in the target's network namespace, with the namespace's inode
// number. fn must not leave its goroutine.
func (t Target) In(fn func(inode uint64) error) error {
	ns, err := openNetns(t.netnsPath())
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.in(fn)
}

func (ns *netnsFile) in(fn func(inode uint64) error) error {
	own, err := openNetns(ownNetns)
	if err != nil {
		return err
	}
	defer own.Close()
	if ns.inode == own.inode {
		return fn(own.inode) // which takes no privilege
	}

	done := make(chan error, 1)
	go func() {
		// The thread serves other goroutines again only when it is back where
		// it came from; else it ends with this one, locked. That may be another namespace
		// than the caller's, whose thread may have entered one, too.
		runtime.LockOSThread()
		done <- func() error {
			own, err := openNetns(ownNetns)
			if err != nil {
				runtime.UnlockOSThread()
				return err
			}
			defer own.Close()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network namespace %s: %w", ns.Name(), explainSetns(err))
			}
			defer func() {
				if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
					runtime.UnlockOSThread()
				}
			}()
			return fn(ns.inode)
		}()
	}()
	return <-done
}

// Within returns a command that is run in the target's network namespace.
func (t Target) Within(command string) string {
	switch {
	case t.Netns == "":
		return command
	case strings.Contains(t.Netns, "/"):
		return "nsenter --net=" + t.Netns + " " + command
	}
	return "ip netns exec " + t.Netns + " " + command
}

// Glob reports whether the target's name is a glob with *, ? and [ ].
func (t Target) Glob() bool { return strings.ContainsAny(t.Iface, "*?[") }

// Covers reports whether the target is an interface, or a glob that matches it.
func (t Target) Covers(i Target) bool {
	if !t.Glob() {
		return t == i
	}
	ok, _ := path.Match(t.Iface, i.Iface)
	return ok && t.Netns == i.Netns && t.Out == i.Out
}

// EphemeralPort returns the lowest port that is connected from in the target's network
// namespace.
func (t Target) EphemeralPort() (port uint16, err error) {
	err = t.In(func(uint64) error {
		text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range") // the thread's namespace's
		if err != nil {
			return err
		}
		if _, err := fmt.Sscan(string(text), &port); err != nil || port == 0 {
			return fmt.Errorf("ip_local_port_range: %q", text)
		}
		return nil
	})
	return port, err
}

// InNamespace calls fn in the network namespace where the target was attached to, which this
// process may know by another name. It fails with ErrNoNetns where it finds none.
func (t Target) InNamespace(inode uint64, fn func() error) error {
	found := false
	err := t.In(func(now uint64) error {
		if found = now == inode; !found {
			return nil
		}
		return fn()
	})
	if found {
		return err
	}
	ns, err := findNetns(inode)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.in(func(uint64) error { return fn() })
}

// UnlessNoNetns returns nil for the error of a network namespace that is gone.
func UnlessNoNetns(err error) error {
	if errors.Is(err, ErrNoNetns) {
		return nil
	}
	return err
}

func explainSetns(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w, namely CAP_SYS_ADMIN: %w", kernelerr.ErrPermission, err)
	}
	return err
}

type netnsFile struct {
	*os.File
	inode uint64
}

// openNetns opens a network namespace by its file.
func openNetns(path string) (*netnsFile, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNoNetns, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", kernelerr.Permission(err))
	}
	kind, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWNET {
		f.Close()
		return nil, fmt.Errorf("%w: %s is something else", ErrNoNetns, path)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		f.Close()
		return nil, fmt.Errorf("stat network namespace %s: %w", path, err)
	}
	return &netnsFile{f, stat.Ino}, nil
}

// findNetns opens the network namespace of an inode number, by a mount or by a process. It
// fails with ErrNoNetns where neither shows it.
func findNetns(inode uint64) (*netnsFile, error) {
	name := fmt.Sprintf("net:[%d]", inode)
	mounts, _ := os.ReadFile("/proc/thread-self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && f[3] == name {
			if ns := openOnly(f[4], inode); ns != nil {
				return ns, nil
			}
		}
	}
	if ns := shown.open(inode); ns != nil {
		return ns, nil
	}
	return nil, fmt.Errorf("%w: inode %d", ErrNoNetns, inode)
}

// openOnly opens a network namespace by its file, nil where it is not the one of an inode number:
// the process has ended, or another mount covers this one.
func openOnly(path string, inode uint64) *netnsFile {
	ns, err := openNetns(path)
	if err != nil {
		return nil
	}
	if ns.inode != inode {
		ns.Close()
		return nil
	}
	return ns
}

// processes has the network namespaces of processes, as a pass over many pins looks for them: to
// read all of /proc for each pin takes a minute where there are 200 pins and 1000 processes.
type processes struct {
	mu   sync.Mutex
	read time.Time
	of   map[string]string // the directory of a process, by the name of its namespace
}

var shown processes

// processesAge is for how long it is believed that no process is in a namespace. Within a pass, the
// next pin is looked at sooner.
const processesAge = 100 * time.Millisecond

// open opens the namespace of an inode number by a process, nil where none is in it.
func (p *processes) open(inode uint64) *netnsFile {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := fmt.Sprintf("net:[%d]", inode)
	for range 2 {
		directory, found := p.of[name]
		if found {
			if ns := openOnly(directory+"/ns/net", inode); ns != nil {
				return ns
			}
		}
		if !found && time.Since(p.read) < processesAge {
			return nil
		}
		p.readAll()
	}
	return nil
}

// readAll reads which process is in which namespace.
func (p *processes) readAll() {
	p.of = make(map[string]string)
	all, _ := os.ReadDir("/proc")
	for _, process := range all {
		if name := process.Name(); name[0] < '0' || name[0] > '9' {
			continue
		}
		directory := "/proc/" + process.Name()
		if name, err := os.Readlink(directory + "/ns/net"); err == nil {
			p.of[name] = directory
		}
	}
	p.read = time.Now()
}

// NameOf returns the name of a network namespace as of `ip netns`, "" for the
// namespace of this process, and where it has none.
func NameOf(inode uint64) string {
	if own, err := (Target{}).Namespace(); err == nil && own == inode {
		return ""
	}
	names, _ := os.ReadDir(namedNetns)
	for _, n := range names {
		if i, err := (Target{Netns: n.Name()}).Namespace(); err == nil && i == inode {
			return n.Name()
		}
	}
	return ""
}
