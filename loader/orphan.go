package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"weir/bpf"
)

// An orphan is a program of weir's that filters without pins, nor a process that has it open:
// its file system was unmounted, but another mount namespace, such as a container's, has it
// still. The program goes on until that ends, and nothing else can be attached there.

// programName is the name of weir's programs in their objects.
const programName = "weir"

// isWeirs reports whether a program is one of weir's, by its name and its counters. It is
// false without CAP_SYS_ADMIN, which it takes to open a program by its ID.
func isWeirs(id uint32) bool {
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return false
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil || info.Name != programName {
		return false
	}
	maps, _ := info.MapIDs()
	for _, id := range maps {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		of, err := m.Info()
		m.Close()
		if err == nil && of.Name == bpf.WeirMapReasonStats {
			return true
		}
	}
	return false
}

// findOrphan opens the orphan on an interface in a direction, at XDP in any mode or at TC as
// wanted. Its counters start anew. It fails with ErrNotAttached where there is none.
func (d Pins) findOrphan(i *Iface, t Target, wanted Hook) (*Attachment, error) {
	h, hook, err := d.orphanHold(i, t, wanted)
	if err != nil {
		return nil, err
	}
	a := &Attachment{pins: d, path: d.path(i, t.Out), metadata: metadata{Target: t, Hook: hook}, link: h, orphan: true}
	a.program = a.ProgramID()
	return a, nil
}

// IsOrphaned reports whether a program of weir's filters on the target's interface that was
// attached by a process that has ended, and whose pins are lost.
func (d Pins) IsOrphaned(t Target, hook Hook) bool {
	i, err := t.Find()
	if err != nil {
		return false
	}
	a, err := d.findOrphan(i, t, hook)
	if err != nil {
		return false
	}
	a.Close()
	return true
}

// orphanHold opens what keeps an orphan attached.
func (d Pins) orphanHold(i *Iface, t Target, wanted Hook) (h hold, hook Hook, err error) {
	if wanted.ByDispatcher() {
		return nil, hook, ErrNotAttached
	}
	if has, err := capabilities(); err != nil || has>>unix.CAP_SYS_ADMIN&1 == 0 {
		return nil, hook, ErrNotAttached // or not to be seen
	}
	if wanted != TC {
		xdp := i.Xdp
		if xdp == nil || !xdp.Attached || !isWeirs(xdp.ProgId) || !isForsaken(xdp.ProgId) {
			return nil, hook, ErrNotAttached
		}
		if xdp.AttachMode == nl.XDP_ATTACHED_SKB {
			hook = Generic
		}
		h, err := openForsaken(linkOf(xdp.ProgId, i.Index))
		return h, hook, err
	}
	err = t.in(func(inode uint64) error {
		if err := i.in(inode); err != nil {
			return err
		}
		h, err = d.orphanAtTC(i, t)
		return err
	})
	return h, TC, err
}

// orphanAtTC is orphanHold for TC. It is called in the interface's namespace.
func (d Pins) orphanAtTC(i *Iface, t Target) (hold, error) {
	at := ebpf.AttachTCXIngress
	if t.Out {
		at = ebpf.AttachTCXEgress
	}
	if found, err := link.QueryPrograms(link.QueryOptions{Target: i.Index, Attach: at}); err == nil {
		for _, p := range found.Programs {
			if id, ok := p.LinkID(); ok && isWeirs(uint32(p.ID)) && isForsaken(uint32(p.ID)) {
				if h, err := openForsaken(id); !errors.Is(err, ErrNotAttached) {
					return h, err
				}
			}
		}
	}
	c, err := d.newClsact(t, i)
	if err != nil {
		return nil, err
	}
	f, err := c.own()
	if err != nil || f == nil || !isForsaken(uint32(f.Id)) {
		c.Close()
		return nil, ErrNotAttached // also where there is no such qdisc
	}
	c.Made = 1 // most likely
	if err := c.record.Put(uint32(0), c.clsactRecord); err != nil {
		return nil, errors.Join(explainPermission(err), c.Close())
	}
	return c, nil
}

// isForsaken reports whether no process has a program open, nor anything of its own pinned
// where this process sees it.
func isForsaken(id uint32) bool { return len(holdersOf(id)) == 0 && pinnedFor(id, "") == "" }

// openForsaken opens a link by its ID. It fails with ErrNotAttached where it is gone.
func openForsaken(id link.ID) (hold, error) {
	l, err := link.NewFromID(id)
	if errors.Is(err, fs.ErrNotExist) || id == 0 {
		return nil, ErrNotAttached
	}
	if err != nil {
		return nil, explainPermission(err)
	}
	return kernelLink{l}, nil
}

// maxDirectories bounds how many directories pinnedFor looks through.
const maxDirectories = 10_000

// pinnedFor returns the directory of pins of weir, on any BPF file system that this process
// sees but one, that keeps a program attached, or "".
func pinnedFor(program uint32, except Pins) (found string) {
	mounts, _ := os.ReadFile("/proc/thread-self/mountinfo")
	looked := 0
	for line := range strings.Lines(string(mounts)) {
		before, after, _ := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !strings.HasPrefix(after, "bpf ") || len(fields) < 5 {
			continue
		}
		// Where a directory cannot be read, there is none to be seen.
		_ = filepath.WalkDir(fields[4], func(path string, e fs.DirEntry, err error) error {
			if looked++; looked > maxDirectories {
				return fs.SkipAll
			}
			if err != nil || !e.IsDir() {
				return nil
			}
			if namespaceOf(path) == 0 && unfinishedPath(path) == "" {
				return nil
			}
			if filepath.Dir(path) == filepath.Clean(string(except)) {
				return fs.SkipDir
			}
			a := &Attachment{pins: Pins(filepath.Dir(path)), path: path}
			defer a.Close()
			if a.openLink() == nil && a.ProgramID() == program {
				found = filepath.Dir(path)
				return fs.SkipAll
			}
			return fs.SkipDir
		})
	}
	return found
}

// explainOwn describes a program of weir's that keeps another from being attached, and says
// what to do.
func (d Pins) explainOwn(id uint32, hook Hook) error {
	if holders := holdersOf(id); len(holders) > 0 {
		return fmt.Errorf("%w: it is weir's (program %d), of %s: stop that first", ErrForeign, id, strings.Join(holders, ", "))
	}
	if pins := pinnedFor(id, d); pins != "" {
		return fmt.Errorf("%w: it is weir's (program %d), and its pins are in %s: filter with `pins: %s` (--pins)", ErrForeign, id, pins, pins)
	}
	return fmt.Errorf("%w: it is weir's (program %d), whose pins are lost: start weir with `xdp: %s` once, with CAP_SYS_ADMIN (as with `sudo weir run`), "+
		"to take it over without a gap", ErrForeign, id, hook)
}

// TookOverOrphan reports whether the program that this process replaced filtered without pins.
func (a *Attachment) TookOverOrphan() bool { return a.orphan }
