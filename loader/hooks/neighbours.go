package hooks

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"weir/loader/bpffs"
	"weir/loader/dispatcher"
	"weir/loader/kernelerr"
)

// Neighbour is a program on an interface, as far as this process may know: without
// CAP_SYS_ADMIN that is the ID.
type Neighbour struct {
	ID   uint32 `json:"id"`
	Name string `json:"name,omitempty"`
	Tag  string `json:"tag,omitempty"`  // a hash of its instructions
	Weir bool   `json:"weir,omitempty"` // the attachment's own
}

func (n Neighbour) String() string {
	switch {
	case n.Weir:
		return "weir"
	case n.Name == "":
		return fmt.Sprintf("id %d", n.ID)
	}
	return fmt.Sprintf("%s (id %d)", n.Name, n.ID)
}

// neighbour describes a program.
func neighbour(id uint32) Neighbour {
	n := Neighbour{ID: id}
	p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
	if err != nil {
		return n
	}
	defer p.Close()
	if info, err := p.Info(); err == nil {
		n.Name, n.Tag = info.Name, info.Tag
	}
	return n
}

// foreign identifies a program where it is attached.
type foreign struct {
	id     uint32
	index  int // of the interface
	byLink bool
}

// description remembers what was found out about a program that occupies an interface:
// it takes a walk through /proc, and a daemon tries again and again.
var description struct {
	sync.Mutex
	of    foreign
	until time.Time
	text  string
}

// describeForeign describes a program that occupies an interface: its name and tag, by
// what it is attached, and which processes hold it.
func describeForeign(f foreign) string {
	d := &description
	d.Lock()
	defer d.Unlock()
	if now := time.Now(); d.of != f || now.After(d.until) {
		d.of, d.until, d.text = f, now.Add(time.Minute), f.describe()
	}
	return d.text
}

func (f foreign) describe() string {
	n := neighbour(f.id)
	text := fmt.Sprintf("id %d", f.id)
	if n.Name != "" {
		text += fmt.Sprintf(", %s, tag %s", n.Name, n.Tag)
	}
	if n.Name == dispatcher.Name {
		text += ", the dispatcher of libxdp"
		var names []string
		members, _ := dispatcher.Members(f.index, f.id)
		for _, m := range members {
			names = append(names, m.Name)
		}
		if len(names) > 0 {
			text += " with " + strings.Join(names, ", ")
		}
	}
	if f.byLink {
		text += ", attached by a link"
		if l := linkOf(f.id, f.index); l != 0 {
			text += fmt.Sprintf(" (id %d)", l)
		}
	} else {
		text += ", attached over netlink"
	}
	if holders := holdersBy(f.id, time.Now().Add(holdersPatience)); len(holders) > 0 {
		return text + ", held by " + strings.Join(holders, ", ")
	}
	return text + ", held by no process that can be seen"
}

// linkOf returns the ID of the link that attaches a program to an interface, or 0.
func linkOf(id uint32, index int) link.ID {
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil {
			continue
		}
		if xdp := info.XDP(); xdp != nil && uint32(info.Program) == id && int(xdp.Ifindex) == index {
			return it.ID
		}
	}
	return 0
}

// mostHolders is the number of processes that a message names.
const mostHolders = 4

// holdersOf returns the processes that have a program, or a link of it, open.
func holdersOf(id uint32) []string { return holdersBy(id, time.Time{}) }

// holdersPatience bounds the time of a description: with thousands of processes, the walk through
// their open files takes seconds.
const holdersPatience = 500 * time.Millisecond

// holdersBy returns those that it finds by a time, unless that is zero, and says that there may be
// others.
func holdersBy(id uint32, deadline time.Time) (holders []string) {
	processes, _ := os.ReadDir("/proc")
	wanted := fmt.Sprintf("prog_id:\t%d", id)
	for _, p := range processes {
		if !deadline.IsZero() && time.Now().After(deadline) {
			return append(holders, "perhaps others")
		}
		pid, err := strconv.Atoi(p.Name())
		if err != nil || !holds(pid, wanted) {
			continue
		}
		if len(holders) == mostHolders {
			return append(holders, "and others")
		}
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		holders = append(holders, fmt.Sprintf("%q (PID %d)", strings.TrimSpace(string(name)), pid))
	}
	return holders
}

func holds(pid int, wanted string) bool {
	dir := fmt.Sprintf("/proc/%d/", pid)
	files, _ := os.ReadDir(dir + "fd")
	return slices.ContainsFunc(files, func(f os.DirEntry) bool {
		to, err := os.Readlink(dir + "fd/" + f.Name())
		if err != nil || !strings.HasPrefix(to, "anon_inode:bpf") {
			return false
		}
		info, err := os.ReadFile(dir + "fdinfo/" + f.Name())
		return err == nil && slices.Contains(strings.Split(string(info), "\n"), wanted)
	})
}

// Unheld returns the IDs of the loaded programs that use a map and that no process has open.
func Unheld(m *ebpf.Map) (ids []uint32, err error) {
	wanted, err := bpffs.MapID(m)
	if err != nil {
		return nil, err
	}
	for id := ebpf.ProgramID(0); ; {
		id, err = ebpf.ProgramGetNextID(id)
		if errors.Is(err, fs.ErrNotExist) {
			return ids, nil
		}
		if err != nil {
			return nil, kernelerr.Permission(err)
		}
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // it is gone
		}
		info, err := p.Info()
		p.Close() // before its holders are looked for
		if err != nil {
			continue
		}
		if maps, _ := info.MapIDs(); slices.Contains(maps, wanted) && len(holdersOf(uint32(id))) == 0 {
			ids = append(ids, uint32(id))
		}
	}
}
