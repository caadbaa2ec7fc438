package loader

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weir/bpf"
)

// Mode is where on an interface's receive path the program runs. The mode
// that is asked for is the one that is had, or Attach fails.
type Mode uint8

// The modes, from the one to choose downwards.
const (
	Native  Mode = iota // in the driver
	Generic             // in the network stack, slower, with any driver
	Offload             // on the NIC, if its driver takes such a program
)

var modes = [...]struct {
	name string
	flag link.XDPAttachFlags
}{
	Native:  {"native", link.XDPDriverMode},
	Generic: {"generic", link.XDPGenericMode},
	Offload: {"offload", link.XDPOffloadMode},
}

func (m Mode) String() string { return modes[m].name }

func (m Mode) flag() link.XDPAttachFlags { return modes[m].flag }

// MarshalText returns the mode's name.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText sets the mode by its name: native, generic or offload.
func (m *Mode) UnmarshalText(text []byte) error {
	for i, mode := range modes {
		if mode.name == string(text) {
			*m = Mode(i)
			return nil
		}
	}
	return fmt.Errorf("%q is no XDP mode: native, generic or offload", text)
}

// AboutSize is how much may be said about an attachment, in bytes: the
// caller's own, and some two hundred bytes of the loader's.
const AboutSize = 64 << 10

// record is what stands in the pin about.
type record struct {
	Target Target          `json:"target"` // as it was named when it was attached
	Mode   Mode            `json:"mode"`
	About  json.RawMessage `json:"about,omitempty"` // the caller's own
}

// Attachment is an interface with weir's program on it. Close leaves it in
// force, [Pins.List] and [Pins.Attach] find it again. The methods may be called
// concurrently.
type Attachment struct {
	pins  Pins
	stats *Stats

	mu     sync.Mutex // guards what follows, before the lock of the pins
	path   string
	record record
	link   link.Link // nil: the pin is gone, which severs it
	about  *ebpf.Map

	// program is the kernel's number of the program that was put or found here
	// last. Where there is another now, a process has taken over.
	program uint32

	// prog is the program that was put here last: where the interface goes, it
	// waits for the next of that name. It is nil where another process put it.
	prog *ebpf.Program

	iface int // number of the interface that it was put on here; 0: another process did

	unpinned []string // maps of the stats that are new, in the place of pinned ones
}

// Attach attaches a program to an interface, or, where the interface has one
// already that is pinned here, replaces that without a gap and takes over its
// counters. load is called with the counters that the program is to use:
// mostly it is [Generation.Load]. It must not use the pins, which are locked.
//
// about is a JSON value for the caller's own use, or nil; see
// [Attachment.About].
func (d Pins) Attach(t Target, mode Mode, about []byte, load func(*Stats) (*Program, error)) (*Attachment, error) {
	a, err := d.attach(record{t, mode, about}, load)
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", t, err)
	}
	return a, nil
}

func (d Pins) attach(r record, load func(*Stats) (*Program, error)) (*Attachment, error) {
	unlock, err := d.lock(unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.sweep(); err != nil {
		return nil, err
	}

	var iface *netlink.LinkAttrs
	var path string
	if err := r.Target.in(func(inode uint64) (err error) {
		if iface, err = findIface(r.Target.Iface); err != nil {
			return err
		}
		path = d.path(inode, iface.Name) // which may have other names
		return nil
	}); err != nil {
		return nil, err
	}

	a, err := d.open(path)
	switch {
	case errors.Is(err, ErrNotAttached):
		return d.create(path, r, iface, load)
	case err != nil:
		return nil, explainPermission(err)
	case a.Severed():
		// The interface is a new one of the same name.
		if err := errors.Join(a.Close(), os.RemoveAll(path)); err != nil {
			return nil, fmt.Errorf("remove stale pins: %w", err)
		}
		return d.create(path, r, iface, load)
	}
	if err := a.adopt(r, iface, load); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

// create attaches a program and pins it.
func (d Pins) create(path string, r record, iface *netlink.LinkAttrs, load func(*Stats) (*Program, error)) (*Attachment, error) {
	stats, err := newStats(0)
	if err != nil {
		return nil, explainPermission(err)
	}
	p, err := loadFor(stats, load)
	if err != nil {
		return nil, errors.Join(err, stats.Close())
	}
	l, err := d.attachLink(r, iface, p.prog)
	if err != nil {
		return nil, errors.Join(err, p.Close(), stats.Close())
	}
	a, err := d.pinAll(path, r, l, p)
	if err != nil {
		return nil, errors.Join(err, l.Close(), p.Close(), stats.Close())
	}
	a.iface = iface.Index
	return a, nil
}

// AttachReady attaches a program that is loaded already, with counters of its
// own, to an interface that has none, and then makes the pins: packets may be
// waiting. Should this process die in between, it is as if it had died a moment
// earlier. It takes over the program and the counters, unless it fails.
func (d Pins) AttachReady(t Target, i *Iface, mode Mode, about []byte, p *Program) (*Attachment, error) {
	a, err := d.attachReady(record{t, mode, about}, i, p)
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", t, err)
	}
	return a, nil
}

func (d Pins) attachReady(r record, i *Iface, p *Program) (a *Attachment, err error) {
	err = r.Target.in(func(inode uint64) error {
		if err := i.in(inode); err != nil {
			return err
		}
		l, err := d.attachLink(r, i.LinkAttrs, p.prog)
		if err != nil {
			return err
		}
		if a, err = d.pinReady(d.path(inode, i.Name), r, l, p); err != nil {
			return errors.Join(err, l.Close())
		}
		a.iface = i.Index
		return nil
	})
	return a, err
}

func (d Pins) pinReady(path string, r record, l link.Link, p *Program) (*Attachment, error) {
	unlock, err := d.lock(unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := d.sweep(); err != nil {
		return nil, err
	}
	old, err := d.open(path)
	switch {
	case errors.Is(err, ErrNotAttached):
		return d.pinAll(path, r, l, p)
	case err != nil:
		return nil, err
	}
	defer old.Close()
	if !old.Severed() {
		return nil, fmt.Errorf("%w: the pins %s are those of an interface that has another name now: detach it first", ErrForeign, path)
	}
	if err := os.RemoveAll(path); err != nil {
		return nil, fmt.Errorf("remove stale pins: %w", err)
	}
	return d.pinAll(path, r, l, p)
}

// pinAll pins a program and the link that has put it on an interface. It takes
// over both, unless it fails.
func (d Pins) pinAll(path string, r record, l link.Link, p *Program) (_ *Attachment, err error) {
	a := &Attachment{pins: d, path: path, record: r, link: l, stats: p.stats}
	if err := a.stats.move(p.take()); err != nil {
		return nil, err
	}
	text, err := r.encode()
	if err != nil {
		return nil, err
	}
	if a.about, err = newAbout(text); err != nil {
		return nil, explainPermission(err)
	}
	temp, err := os.MkdirTemp(string(d), unfinished)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make directory for pins: %w", err), a.about.Close())
	}
	defer func() {
		if err != nil {
			os.RemoveAll(temp)
			a.about.Close()
		}
	}()
	pins := map[string]interface{ Pin(string) error }{pinAbout: a.about, pinLink: l}
	for name, m := range a.stats.maps {
		pins[name] = m.m
	}
	for name, object := range pins {
		if err := pin(object, filepath.Join(temp, name)); err != nil {
			return nil, err
		}
	}
	if err := os.Rename(temp, path); err != nil {
		return nil, fmt.Errorf("put pins in their place: %w", err)
	}
	a.program = a.programID()
	a.keep(p)
	return a, nil
}

// keep holds on to the program that is put here, in the place of the last one.
func (a *Attachment) keep(p *Program) {
	if a.prog != nil {
		a.prog.Close() // a program that does not close is a leak, and no more
	}
	a.prog, p.prog = p.prog, nil
}

func (d Pins) attachLink(r record, iface *netlink.LinkAttrs, p *ebpf.Program) (l link.Link, err error) {
	if !hasEthernet(iface) {
		return nil, fmt.Errorf("%w: %s has no Ethernet headers (link type %s), and nothing listed would be found: "+
			"weir filters where frames are Ethernet, and what comes out of a tunnel is for nftables", ErrUnsupported, iface.Name, iface.EncapType)
	}
	err = r.Target.in(func(uint64) (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: iface.Index, Flags: r.Mode.flag()})
		if err != nil {
			return d.explainAttach(err, r.Target, iface, p, r.Mode)
		}
		return nil
	})
	return l, err
}

func pin(object interface{ Pin(string) error }, path string) error {
	if err := object.Pin(path); err != nil {
		return fmt.Errorf("pin %s: %w", filepath.Base(path), explainPermission(err))
	}
	return nil
}

// open opens what is pinned in an interface's directory. It fails with
// ErrNotAttached where there is none.
func (d Pins) open(path string) (_ *Attachment, err error) {
	if !exists(path) {
		return nil, ErrNotAttached
	}
	a := &Attachment{pins: d, path: path}
	defer func() {
		if err != nil {
			a.Close()
			err = fmt.Errorf("damaged pins, removing the directory %s detaches: %w", path, err)
		}
	}()
	if a.about, err = ebpf.LoadPinnedMap(filepath.Join(path, pinAbout), nil); err != nil {
		return nil, err
	}
	if a.record, err = readAbout(a.about); err != nil {
		return nil, err
	}
	a.link, err = link.LoadPinnedLink(filepath.Join(path, pinLink), nil)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	a.program = a.programID()
	if a.stats, err = openStats(path); err != nil && !errors.Is(err, errLayout) {
		return nil, err
	}
	return a, nil
}

// adopt replaces the program of an attachment that another process has made.
func (a *Attachment) adopt(r record, iface *netlink.LinkAttrs, load func(*Stats) (*Program, error)) error {
	index, err := a.index()
	if err != nil {
		return err
	}
	if index != iface.Index {
		return fmt.Errorf("%w: the pins %s are those of the interface with index %d, which has another name now: "+
			"detach it first", ErrForeign, a.path, index)
	}
	if a.record.Mode != r.Mode {
		return fmt.Errorf("%w: %s, not %s: detach it first", ErrMode, a.record.Mode, r.Mode)
	}
	if a.stats == nil {
		// Another version's counters; what they have counted is lost.
		if a.stats, err = newStats(0); err != nil {
			return explainPermission(err)
		}
		a.unpinned = keptNames
	} else {
		// The process that is replaced may be reading: a buffer has one reader.
		events, err := newEvents()
		if err != nil {
			return explainPermission(err)
		}
		a.stats.move(kept{bpf.WeirMapEvents: events}) // a map that does not close is a leak, and no more
		a.unpinned = []string{bpf.WeirMapEvents}
	}
	text, err := r.encode()
	if err != nil {
		return err
	}
	p, err := loadFor(a.stats, load)
	if err != nil {
		return err
	}
	if err := a.replace(p); err != nil {
		return err
	}
	a.record = r
	return a.about.Put(uint32(0), text)
}

func loadFor(stats *Stats, load func(*Stats) (*Program, error)) (*Program, error) {
	p, err := load(stats)
	if err != nil {
		return nil, err
	}
	if p.stats != stats {
		return nil, errors.Join(errors.New("the program has other counters than it was given"), p.Close())
	}
	return p, nil
}

// Replace exchanges the program for p, loaded with the attachment's Stats,
// in one step: every packet meets the one or the other. Where the interface is
// gone, p is what [Attachment.Return] puts on the next. Replace takes over p,
// also when it fails, which leaves the old program in force: with [ErrSevered],
// there is none any more, and with [ErrReplaced], it is that of the process
// which has taken over.
func (a *Attachment) Replace(p *Program) error {
	defer p.Close()
	return a.locked("replace program on", func() error { return a.replace(p) })
}

// replace fails only where nothing has changed: the caller must know which
// generation it is that filters.
func (a *Attachment) replace(p *Program) error {
	defer p.Close()
	if !p.shares(a.stats) {
		return errors.New("the program counts elsewhere: load it with the attachment's counters")
	}
	if a.link == nil {
		return ErrSevered
	}
	// What is found under the lock cannot change before it is exchanged. (The
	// kernel can compare as well, but wants the old program open, and opening
	// one that another process has loaded wants CAP_SYS_ADMIN.)
	if a.replaced() {
		return ErrReplaced
	}
	if index, err := a.index(); err != nil {
		return err
	} else if index == 0 {
		if err := a.owns(); err != nil {
			return fmt.Errorf("%w: %w", ErrSevered, err)
		}
	}
	next := make(kept)
	maps.Copy(next, p.fresh)
	for _, name := range a.unpinned {
		next[name] = p.maps[name]
	}
	if lists := p.fresh[pinLists]; lists != nil {
		a.stats.carry(lists)
	}
	for name, m := range next {
		if err := a.pinNext(m.m, name); err != nil {
			return err
		}
	}
	if err := a.link.Update(p.prog); err != nil && !errors.Is(err, unix.ENOLINK) { // which is that the interface is gone
		return explainPermission(err)
	}
	a.program = a.programID()
	for name := range next {
		// A failure here would cost the process after this one the counters,
		// and no more.
		os.Rename(a.next(name), filepath.Join(a.path, name))
	}
	a.unpinned = nil
	a.stats.move(p.take()) // a map that does not close is a leak, and no more
	a.keep(p)
	return nil
}

// Return puts the program, with its counters, on the interface that has come in
// the place of the one that is gone: nothing is loaded, and so it takes no longer
// than the kernel does to attach it. The interface is looked for by its name
// unless it is given. Where the program is on one, nothing happens.
//
// It fails with [ErrNoInterface] or [ErrNoNetns] while there is none, with
// [ErrNotAttached] where somebody has removed the pins, who wants it detached,
// and with [ErrReplaced] where another process has attached its own.
func (a *Attachment) Return(i *Iface) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if index, err := a.index(); err != nil || index != 0 {
		return err
	}
	if err := a.comeBack(i); err != nil {
		return fmt.Errorf("put the program back on %s: %w", a.record.Target, err)
	}
	return nil
}

func (a *Attachment) comeBack(i *Iface) error {
	switch {
	case a.prog == nil:
		return ErrSevered
	case i == nil && a.owns() != nil:
		// It is no longer wanted; or another process is about to attach its own, which
		// is waited for. In no other case is it: the interface may come any moment.
		if err := a.underLock(a.owns); err != nil {
			return err
		}
	case i != nil && i.Index == a.iface:
		return ErrNoInterface // the kernel tells of its end as well
	}
	return a.record.Target.in(func(inode uint64) (err error) {
		var iface *netlink.LinkAttrs
		if i != nil {
			if err := i.in(inode); err != nil {
				return err
			}
			iface = i.LinkAttrs
		} else if iface, err = findIface(a.record.Target.Iface); err != nil {
			return err
		}
		l, err := a.pins.attachLink(a.record, iface, a.prog)
		if err != nil {
			return err
		}
		if err := a.underLock(func() error { return a.pinBack(l, a.pins.path(inode, iface.Name)) }); err != nil {
			return errors.Join(err, l.Close())
		}
		a.link.Close() // a link that does not close is a leak, and no more
		a.link, a.iface = l, iface.Index
		a.program = a.programID()
		return nil
	})
}

// pinBack pins a link in the place of the one that is severed. In a namespace
// that was made anew, the pins get another path.
func (a *Attachment) pinBack(l link.Link, path string) error {
	if err := a.owns(); err != nil {
		return err
	}
	if path != a.path {
		if err := os.Rename(a.path, path); err != nil {
			return fmt.Errorf("move pins to those of the new namespace: %w", explainPermission(err))
		}
		a.path = path
	}
	if err := os.Remove(a.next(pinLink)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := pin(l, a.next(pinLink)); err != nil {
		return err
	}
	if err := os.Rename(a.next(pinLink), filepath.Join(a.path, pinLink)); err != nil {
		return fmt.Errorf("put pin in its place: %w", err)
	}
	return nil
}

// owns fails with ErrNotAttached where the pins are gone, and with ErrReplaced
// where they are of another attachment.
func (a *Attachment) owns() error {
	pinned, err := link.LoadPinnedLink(filepath.Join(a.path, pinLink), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotAttached
	}
	if err != nil {
		return explainPermission(err)
	}
	defer pinned.Close()
	theirs, err := pinned.Info()
	if err != nil {
		return err
	}
	ours, err := a.link.Info()
	if err != nil {
		return err
	}
	if theirs.ID != ours.ID {
		return ErrReplaced
	}
	return nil
}

// next is where a pin is made that is to take the place of another.
func (a *Attachment) next(name string) string {
	return filepath.Join(a.path, name+"_next")
}

func (a *Attachment) pinNext(m *ebpf.Map, name string) error {
	// One may be left over from an exchange that failed.
	if err := os.Remove(a.next(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return pin(m, a.next(name))
}

// Detach takes the program off the interface and removes the pins. It leaves
// alone what has been attached in the meantime, and fails with [ErrReplaced]
// where another process has taken over. The attachment is still to be closed.
func (a *Attachment) Detach() error {
	return a.locked("detach from", func() error {
		if a.replaced() {
			return ErrReplaced
		}
		return a.detach()
	})
}

// DetachAny is Detach, whichever process the program there is from.
func (a *Attachment) DetachAny() error { return a.locked("detach from", a.detach) }

// locked calls fn with the pins locked for writing, and says in its error what
// was tried.
func (a *Attachment) locked(what string, fn func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.underLock(fn); err != nil {
		return fmt.Errorf("%s %s: %w", what, a.record.Target, err)
	}
	return nil
}

// underLock calls fn with the pins locked for writing.
func (a *Attachment) underLock(fn func() error) error {
	unlock, err := a.pins.lock(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer unlock()
	return fn()
}

func (a *Attachment) detach() error {
	if a.link != nil {
		// The pin may not be the only one to hold the link.
		if err := a.link.Detach(); err != nil && !errors.Is(err, unix.ENOLINK) {
			return explainPermission(err)
		}
	}
	now, err := a.pins.open(a.path)
	if errors.Is(err, ErrNotAttached) {
		return nil
	}
	if err == nil {
		defer now.Close()
		if !now.Severed() {
			return nil // another one, since ours is detached
		}
	}
	return os.RemoveAll(a.path)
}

// Close lets go of the attachment, which stays in force.
func (a *Attachment) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	if a.prog != nil {
		errs = append(errs, a.prog.Close())
	}
	if a.link != nil {
		errs = append(errs, a.link.Close())
	}
	if a.stats != nil {
		errs = append(errs, a.stats.Close())
	}
	if a.about != nil {
		errs = append(errs, a.about.Close())
	}
	return errors.Join(errs...)
}

// Target names the interface as it was named when it was attached to.
func (a *Attachment) Target() Target { return a.record.Target }

// Mode is the mode that it was attached in.
func (a *Attachment) Mode() Mode { return a.record.Mode }

// Stats are the counters, until Close. They are nil where another version of
// weir has made them in another layout; Attach then makes new ones.
func (a *Attachment) Stats() *Stats { return a.stats }

// Severed tells whether nothing but the pins is left, because the interface is
// gone or somebody has detached the program.
func (a *Attachment) Severed() bool {
	index, err := a.Index()
	return err == nil && index == 0
}

// Index is the interface's number in its namespace, 0 when severed from it.
func (a *Attachment) Index() (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.index()
}

func (a *Attachment) index() (int, error) {
	if a.link == nil {
		return 0, nil
	}
	info, err := a.link.Info()
	if err != nil {
		return 0, err
	}
	xdp := info.XDP()
	if xdp == nil {
		return 0, errors.New("the pinned link is none of XDP")
	}
	return int(xdp.Ifindex), nil
}

// ProgramID is the kernel's number of the program, 0 if there is none.
func (a *Attachment) ProgramID() uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.programID()
}

func (a *Attachment) programID() uint32 {
	if a.link == nil {
		return 0
	}
	info, err := a.link.Info()
	if err != nil {
		return 0
	}
	return uint32(info.Program)
}

// Replaced tells whether another process has put its program in the place of
// the one that was put or found here.
func (a *Attachment) Replaced() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replaced()
}

func (a *Attachment) replaced() bool { return a.programID() != a.program }

// About is what was last said about the attachment, nil if nothing was.
func (a *Attachment) About() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.record.About
}

// SetAbout says something about the attachment, a JSON value, for whoever
// opens it later. It fails with [ErrReplaced] where another process has taken
// over, and spoken.
func (a *Attachment) SetAbout(about []byte) error {
	return a.locked("describe the attachment to", func() error {
		r := a.record
		r.About = about
		text, err := r.encode()
		if err != nil {
			return err
		}
		if a.replaced() {
			return ErrReplaced
		}
		if err := a.about.Put(uint32(0), text); err != nil {
			return explainPermission(err)
		}
		a.record = r
		return nil
	})
}

// ForgetStats removes the pins of the counters: whoever attaches next begins
// anew, as is right where the numbers have got another meaning.
func (a *Attachment) ForgetStats() error {
	return a.locked("forget the counters of", func() error {
		var errs []error
		for _, name := range keptNames {
			if err := os.Remove(filepath.Join(a.path, name)); !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, explainPermission(err))
			}
		}
		return errors.Join(errs...)
	})
}

// encode is how a record stands in its map: padded with zeros.
func (r record) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("describe the attachment: %w", err)
	}
	if len(text) > AboutSize {
		return nil, fmt.Errorf("describe the attachment: %d bytes are more than %d", len(text), AboutSize)
	}
	return append(text, make([]byte, AboutSize-len(text))...), nil
}

func newAbout(text []byte) (*ebpf.Map, error) {
	return ebpf.NewMap(&ebpf.MapSpec{
		Name: pinAbout, Type: ebpf.Array, KeySize: 4, ValueSize: AboutSize, MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: text}},
	})
}

func readAbout(m *ebpf.Map) (r record, err error) {
	text, err := m.LookupBytes(uint32(0))
	if err != nil {
		return r, err
	}
	err = json.Unmarshal(bytes.TrimRight(text, "\x00"), &r)
	return r, err
}
