package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"weir/bpf"
	"weir/loader/bpffs"
	"weir/loader/hooks"
	"weir/loader/kernelerr"
	"weir/loader/netif"
)

// Attachment is an interface with weir's program attached to it. Close leaves the
// program attached; [Pins.List] and [Pins.Open] find it again. The methods may be
// called concurrently.
type Attachment struct {
	pins  Pins
	stats *Stats

	mu          sync.Mutex // guards the following; taken before the lock of the pins
	path        string
	metadata    metadata
	metadataMap *ebpf.Map

	// holding guards link and its state, taken after mu: a change of the attachment may
	// wait for the pins, and Index does not.
	holding sync.Mutex
	link    hooks.Hold // set with mu as well; nil: the pin is gone, and with it what it kept, or closed

	// program is the ID of the program that this process attached or found last.
	// If there is another now, a process has taken over.
	program uint32

	// prog is the program that this process attached last, for Reattach. It is nil
	// where another process attached it.
	prog *ebpf.Program

	ifindex int // of the interface that this process attached to, 0 if another did

	unpinned []string // maps of the stats whose pins are yet to be made or replaced

	filter map[string]*array  // pinned beside the program, nil if none is
	seen   map[string]seenPin // pins that are known to be right, by name
	dir    bpffs.Inode        // of the directory of all pins
	mirror uint64             // the mount that it is in, if that is a slave of another

	orphan bool // the program's pins were lost before this process found it

	problem atomic.Pointer[string] // see Unpinned; not guarded
}

// Preparation is an interface that a program is about to be attached to: between
// [Pins.Prepare] and [Preparation.Attach] the program is loaded, which takes time,
// with the counters that it is to have there. The pins are not locked meanwhile.
type Preparation struct {
	pins     Pins
	metadata metadata
	iface    *netif.Iface
	stats    *Stats
	found    *Attachment // the program that is to be replaced, nil if there is none
}

// Prepare prepares to attach a program to an interface. Where one of weir's is
// attached there, Attach will replace it without a gap and its counters go on.
// Prepare changes nothing. It fails with [ErrHook] where the program there is
// attached to another hook.
func (d Pins) Prepare(t netif.Target, hook hooks.Hook) (*Preparation, error) {
	p := &Preparation{pins: d, metadata: metadata{Target: t, Hook: hook}}
	if err := d.locked(p.open); err != nil {
		p.Close()
		return nil, fmt.Errorf("attach to %s: %w", t, err)
	}
	return p, nil
}

func (p *Preparation) open() (err error) {
	if p.iface, err = p.metadata.Target.Find(); err != nil {
		return err
	}
	if err := p.pins.sweep(); err != nil {
		return err
	}
	p.found, err = p.pins.find(p.iface, p.metadata.Target.Out)
	if errors.Is(err, ErrNotAttached) {
		p.found, err = p.pins.findOrphan(p.iface, p.metadata.Target, p.metadata.Hook)
	}
	switch {
	case err == nil:
		err = p.adopt()
	case errors.Is(err, ErrNotAttached):
		p.stats, err = newStats(0)
	}
	if err != nil {
		return kernelerr.Permission(err)
	}
	p.stats.entry.Store(entryOf(p.metadata.Hook, p.iface))
	return nil
}

// adopt prepares the counters of the program that is to be replaced.
func (p *Preparation) adopt() error {
	a := p.found
	if a.metadata.Hook != p.metadata.Hook {
		return fmt.Errorf("%w: %s, not %s: detach it first", ErrHook, a.metadata.Hook, p.metadata.Hook)
	}
	if a.metadataMap == nil { // it was lost
		var err error
		if a.metadataMap, err = a.metadata.newMap(); err != nil {
			return err
		}
	}
	if a.stats == nil {
		// Another version's counters: what they counted is lost.
		var err error
		if a.stats, err = newStats(0); err != nil {
			return kernelerr.Permission(err)
		}
		a.unpinned = pinnedMapNames()
	} else {
		// The process that is replaced may be reading events: a buffer has one reader.
		events, err := newEvents()
		if err != nil {
			return kernelerr.Permission(err)
		}
		a.stats.move(pinnedMaps{bpf.WeirMapEvents: events}) // if it fails, a map leaks
		a.unpinned = append(a.unpinned, bpf.WeirMapEvents)
	}
	p.stats = a.stats
	return nil
}

// Stats returns the counters to load the program with.
func (p *Preparation) Stats() *Stats { return p.stats }

// Attach attaches a program that was loaded with the preparation's Stats, and
// stores the metadata, a JSON value or nil; see [Attachment.Metadata]. It takes
// over prog, also when it fails.
//
// It fails with [ErrReplaced] or [ErrNotAttached] where another process has
// replaced or detached the program that was there, and with [kernelerr.ErrForeign] where
// one has attached its own to an interface that had none.
func (p *Preparation) Attach(prog *Program, metadata []byte) (*Attachment, error) {
	defer prog.Close()
	a, err := p.attach(prog, metadata)
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", p.metadata.Target, err)
	}
	p.stats, p.found = nil, nil
	return a, nil
}

func (p *Preparation) attach(prog *Program, caller []byte) (*Attachment, error) {
	if prog.stats != p.stats {
		return nil, errors.New("the program has other counters: load it with those of the preparation")
	}
	m := p.metadata
	m.Caller = caller
	if p.found == nil {
		return p.pins.attach(m, p.iface, prog)
	}
	return p.found, p.pins.locked(func() error {
		if p.found.orphan {
			if _, err := p.found.restore(); err != nil {
				return err
			}
		}
		if err := p.found.owns(); err != nil {
			return err
		}
		if err := p.found.move(p.pins.path(p.iface, p.metadata.Target.Out)); err != nil { // from where an earlier version made them
			return err
		}
		if p.found.link != nil {
			_, _ = p.found.restore() // before the next metadata lie beside the present ones
		}
		next, err := p.found.pinMetadata(m)
		if err != nil {
			return err
		}
		if err := p.found.replace(prog); err != nil {
			return errors.Join(err, next.Close())
		}
		return p.found.useMetadata(m, next)
	})
}

// Close releases what Attach has not taken over.
func (p *Preparation) Close() error {
	found, stats := p.found, p.stats
	p.found, p.stats = nil, nil
	switch {
	case found != nil:
		return found.Close()
	case stats != nil:
		return stats.Close()
	}
	return nil
}

// Attach attaches a program that is loaded already, with counters of its own, to
// an interface without one, and only then makes the pins: packets may be waiting.
// Should this process die in between, it is as if it had died a moment earlier.
// Attach takes over the program and its counters, unless it fails.
func (d Pins) Attach(t netif.Target, i *netif.Iface, hook hooks.Hook, caller []byte, p *Program) (*Attachment, error) {
	a, err := d.attach(metadata{t, hook, caller}, i, p)
	if err != nil {
		return nil, fmt.Errorf("attach to %s: %w", t, err)
	}
	return a, nil
}

func (d Pins) attach(m metadata, i *netif.Iface, p *Program) (a *Attachment, err error) {
	text, err := m.encode()
	if err != nil {
		return nil, err
	}
	if p.stats.entry.Load() != entryOf(m.Hook, i) {
		return nil, errors.New("the program is for another hook, or for an interface with another kind of frames")
	}
	p.stats.join(p.memory, nil)
	l, err := hooks.Attach(string(d), m.Target, m.Hook, i, p.prog)
	if err != nil {
		p.stats.join(nil, nil)
		return nil, err
	}
	path := d.path(i, m.Target.Out)
	err = d.locked(func() error {
		if err := d.sweep(); err != nil {
			return err
		}
		if err := d.makeRoom(path, i.Inode, m.Target); err != nil {
			return err
		}
		a = &Attachment{pins: d, path: path, metadata: m, link: l, stats: p.stats, ifindex: i.Index}
		return a.pin(p, text)
	})
	if err != nil {
		err = errors.Join(err, l.Close())
		p.stats.join(nil, nil)
		return nil, err
	}
	p.stats.join(p.memory, a.isTakenOver)
	return a, nil
}

// makeRoom removes the pins that interfaces of this index or name left when they
// went.
func (d Pins) makeRoom(path string, inode uint64, t netif.Target) error {
	old, err := d.open(path)
	if err == nil {
		severed := old.Severed()
		if err := old.Close(); err != nil {
			return err
		}
		if !severed {
			return d.errAway(path)
		}
	} else if !errors.Is(err, ErrNotAttached) {
		return kernelerr.Permission(err)
	}
	stale, err := d.severed(inode, t)
	if err != nil {
		return err
	}
	for _, path := range append(stale, path) {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("remove stale pins: %w", err)
		}
	}
	return nil
}

// pin makes the pins of a new attachment, all at once. It takes over the program,
// unless it fails.
func (a *Attachment) pin(p *Program, metadata []byte) (err error) {
	if err := a.stats.move(p.take()); err != nil {
		return err
	}
	if a.metadataMap, err = newTextMap(pinMetadata, metadata); err != nil {
		return kernelerr.Permission(err)
	}
	defer func() {
		if err != nil {
			a.metadataMap.Close()
		}
	}()
	a.filter = p.filter
	err = a.pinAll(a.objects())
	a.filter = nil
	if err != nil {
		return err
	}
	if err := a.begin(a.link, p.prog); err != nil {
		return errors.Join(err, os.RemoveAll(a.path))
	}
	a.program = a.ProgramID()
	a.own(p)
	_ = a.noteDir() // if it fails, Repin pins it elsewhere
	return nil
}

// own takes over the program that is attached now, in place of the last one.
func (a *Attachment) own(p *Program) {
	if a.prog != nil {
		a.prog.Close() // if it fails, it leaks
	}
	a.releaseFilter()
	a.prog, p.prog = p.prog, nil
	a.filter, p.filter = p.filter, nil
}

func (a *Attachment) releaseFilter() {
	for _, m := range a.filter {
		m.Close() // if it fails, a map leaks
	}
	a.filter = nil
}

// open opens the pins in an interface's directory. It fails with ErrNotAttached
// where there are none.
func (d Pins) open(path string) (_ *Attachment, err error) {
	if !bpffs.Exists(path) {
		return nil, ErrNotAttached
	}
	a := &Attachment{pins: d, path: path}
	defer func() {
		if err != nil {
			a.Close()
			err = fmt.Errorf("open the pins in %s: %w", path, kernelerr.Exhausted(kernelerr.Permission(err)))
		}
	}()
	if err := a.noteDir(); err != nil {
		return nil, err
	}
	if err := a.openLink(); err != nil {
		return nil, err
	}
	a.program = a.ProgramID()
	if a.stats, a.unpinned, err = openStats(path); err != nil && !errors.Is(err, errLayout) {
		return nil, err
	}
	return a, nil
}

// openLink opens the pinned metadata, and the link unless it is gone. Metadata that is lost
// or damaged is guessed: what filters is to be found.
func (a *Attachment) openLink() (err error) {
	if err := a.openMetadata(); kernelerr.IsExhausted(err) {
		return err
	}
	l, err := hooks.Load(a.path, a.metadata.Target, a.metadata.Hook)
	if err == nil {
		a.link = l
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if a.metadataMap == nil {
		a.metadata.Target, a.metadata.Hook = hooks.Guess(a.path, a.link)
	}
	return nil
}

// Replace replaces the program with p, loaded with the attachment's Stats, in one
// step: each packet meets one or the other. Where the interface is gone,
// [Attachment.Reattach] will attach p to the next. Replace takes over p, also when
// it fails, which leaves the old program attached: with [ErrSevered] there is none
// any more, and with [ErrReplaced] another process has taken over, whose program stays.
func (a *Attachment) Replace(p *Program) error {
	defer p.Close()
	return a.locked("replace program on", func() error { return a.replace(p) })
}

// replace fails only where nothing has changed: the caller must know which
// generation filters.
func (a *Attachment) replace(p *Program) error {
	if !p.shares(a.stats) {
		return errors.New("the program has other counters: load it with those of the attachment")
	}
	if a.link == nil {
		return ErrSevered
	}
	// The lock keeps others of weir from replacing it between this check and the
	// update. (The kernel can compare as well, but needs the old program open, and
	// opening another process's takes CAP_SYS_ADMIN.)
	if a.replaced() {
		return ErrReplaced
	}
	if index, err := a.Index(); err != nil {
		return err
	} else if index == 0 {
		if err := a.ownsOrLost(); err != nil {
			return fmt.Errorf("%w: %w", ErrSevered, err)
		}
	}
	// Where pins are lost for good, too, the program is to be the present one.
	_, lost := a.restore()
	next := make(pinnedMaps)
	maps.Copy(next, p.fresh)
	for _, name := range a.unpinned {
		next[name] = p.maps[name]
	}
	if lists := p.fresh[pinLists]; lists != nil {
		a.stats.carry(lists)
	}
	names := slices.SortedFunc(maps.Keys(next), comparePins)
	for _, name := range names {
		if lost != nil {
			break
		}
		if err := a.pinNext(bpffs.Map{Map: next[name].m}, name); err != nil {
			return err
		}
	}
	former := a.stats.join(p.memory, a.isTakenOver)
	a.holding.Lock()
	err := a.link.Update(p.prog)
	a.holding.Unlock()
	if err != nil {
		a.stats.join(former, a.isTakenOver)
		return kernelerr.Permission(err)
	}
	a.program = a.ProgramID()
	a.stats.join(p.memory, a.isTakenOver)
	if lost == nil {
		for _, name := range names {
			// If this fails, Repin does so later, and a head must not be replaced before the others.
			if os.Rename(a.next(name), filepath.Join(a.path, name)) != nil {
				break
			}
		}
		_ = a.replaceFilter(p.filter) // likewise
	}
	a.unpinned = nil
	a.stats.move(p.take()) // if it fails, a map leaks
	a.own(p)
	return nil
}

// next is the path of a pin that is about to replace another.
func (a *Attachment) next(name string) string {
	return filepath.Join(a.path, name+"_next")
}

func (a *Attachment) pinNext(object bpffs.Object, name string) error {
	// One may be left from a replacement that failed.
	if err := os.RemoveAll(a.next(name)); err != nil {
		return err
	}
	return bpffs.Pin(object, a.next(name))
}

// Detach detaches the program and removes the pins. It does not touch a program
// that was attached since, and fails with [ErrReplaced] where another process has
// taken over. The attachment must still be closed.
func (a *Attachment) Detach() error {
	return a.locked("detach from", func() error {
		if a.replaced() {
			return ErrReplaced
		}
		return a.detach()
	})
}

// DetachAny is Detach, whichever process attached the program.
func (a *Attachment) DetachAny() error { return a.locked("detach from", a.detach) }

// locked calls fn with the pins locked for writing. Its error names the attempt.
func (a *Attachment) locked(attempt string, fn func() error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.lockedIfAny(fn); err != nil {
		return fmt.Errorf("%s %s: %w", attempt, a.metadata.Target, err)
	}
	return nil
}

// lockedIfAny calls fn with the pins locked for writing; or not locked, where there can be
// none that any process finds, as while their file system is unmounted.
func (a *Attachment) lockedIfAny(fn func() error) error {
	unlock, err := a.pins.lock(unix.LOCK_EX)
	switch {
	case err == nil:
		defer unlock()
	case errors.Is(err, bpffs.ErrNoBPFFS), errors.Is(err, unix.EROFS), errors.Is(err, unix.ENOSPC), kernelerr.IsExhausted(err) && !bpffs.IsDir(string(a.pins)):
	default:
		return err
	}
	return fn()
}

func (a *Attachment) detach() error {
	if a.link != nil {
		// Another process may have the link open, or pinned elsewhere.
		a.holding.Lock()
		err := a.link.Detach()
		a.holding.Unlock()
		if errors.Is(err, netif.ErrNoNetns) {
			err = a.unseen()
		}
		if err != nil {
			return kernelerr.Permission(err)
		}
	}
	now, err := a.pins.open(a.path)
	if errors.Is(err, ErrNotAttached) {
		return nil
	}
	if err == nil {
		defer now.Close()
		if !now.Severed() {
			return nil // another attachment: this one is detached
		}
	}
	if err := os.RemoveAll(a.path); err != nil {
		return err
	}
	if paths, err := hooks.Dirs(string(a.pins)); err != nil || len(paths) > 0 {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return a.pins.ForgetShared()
}

// unseen returns nil if the network namespace that a filter was in, which this process does
// not find, is gone. It fails if the filter is still there: its program is loaded, and no
// process has it open.
func (a *Attachment) unseen() error {
	if a.prog != nil || a.stats == nil {
		return nil
	}
	a.stats.mu.RLock()
	counters := a.stats.maps[bpf.WeirMapReasonStats].m
	a.stats.mu.RUnlock()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(time.Second); ; <-look.C {
		programs, err := hooks.Unheld(counters)
		if err != nil {
			return fmt.Errorf("its network namespace cannot be found: %w", err)
		}
		if len(programs) == 0 {
			return nil
		}
		if time.Now().After(deadline) { // the kernel empties namespaces in the background
			return fmt.Errorf("its network namespace (inode %d) is not in sight, but its filter is still there (program %d): "+
				"detach where the processes of that namespace are visible, as on the host rather than in a container", hooks.NamespaceOf(a.path), programs[0])
		}
	}
}

// Close releases the attachment, which counts as severed then. The program stays
// attached.
func (a *Attachment) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holding.Lock()
	defer a.holding.Unlock()
	var errs []error
	if a.prog != nil {
		errs = append(errs, a.prog.Close())
		a.prog = nil
	}
	if a.link != nil {
		errs = append(errs, a.link.Close())
		a.link = nil
	}
	if a.stats != nil {
		errs = append(errs, a.stats.Close())
	}
	if a.metadataMap != nil {
		errs = append(errs, a.metadataMap.Close())
	}
	a.releaseFilter()
	return errors.Join(errs...)
}

// Stats returns the counters, valid until Close. They are nil where another
// version of weir has made them in another layout; Prepare then makes new ones.
func (a *Attachment) Stats() *Stats { return a.stats }

// Severed reports whether only the pins are left, because the interface is gone
// or somebody has detached the program.
func (a *Attachment) Severed() bool {
	index, err := a.Index()
	return err == nil && index == 0
}

// Index is the index of the interface in its namespace, 0 when severed from it. It
// does not wait for the lock of the pins.
func (a *Attachment) Index() (int, error) {
	_, index, err := a.state()
	return index, err
}

// state returns the ID of the program and the index of the interface, both 0 when
// severed from it.
func (a *Attachment) state() (program uint32, index int, err error) {
	a.holding.Lock()
	defer a.holding.Unlock()
	if a.link == nil {
		return 0, 0, nil
	}
	return a.link.State()
}

// begin attaches the program with a hold that is pinned, which is the attachment's from
// then on.
func (a *Attachment) begin(l hooks.Hold, p *ebpf.Program) error {
	a.holding.Lock()
	defer a.holding.Unlock()
	if a.link != nil && a.link != l {
		a.link.Close() // if it fails, it leaks
	}
	a.link = l
	return l.Start(p, a.path)
}

// isOn reports whether the program is attached to the interface.
func (a *Attachment) isOn(i *netif.Iface) bool {
	a.holding.Lock()
	defer a.holding.Unlock()
	if a.link == nil {
		return false
	}
	_, index, err := a.link.State()
	return err == nil && index == i.Index && a.link.IsOn(i)
}

// Order returns the programs of an attachment to TC, or by a dispatcher, in the order in
// which packets meet them, its own among them. There is none where others cannot be beside it.
func (a *Attachment) Order() ([]hooks.Neighbour, error) {
	a.holding.Lock()
	defer a.holding.Unlock()
	if a.link == nil {
		return nil, nil
	}
	if _, index, err := a.link.State(); err != nil || index == 0 {
		return nil, err
	}
	return a.link.Order()
}

// ProgramID is the kernel's ID of the program, 0 if there is none.
func (a *Attachment) ProgramID() uint32 {
	id, _, _ := a.state()
	return id
}

// Replaced reports whether another process has replaced the program that this one
// attached or found.
func (a *Attachment) Replaced() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.replaced()
}

// IsOn reports whether the program is on the interface with an index, by one system call.
func (a *Attachment) IsOn(index int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	program, now, err := a.state()
	return err == nil && now == index && program == a.program
}

// isTakenOver is Replaced, but false while this process changes the attachment, which may wait for
// the pins.
func (a *Attachment) isTakenOver() bool {
	if !a.mu.TryLock() {
		return false
	}
	defer a.mu.Unlock()
	return a.replaced()
}

// replaced is false where there is no program any more, or that cannot be read.
func (a *Attachment) replaced() bool {
	id := a.ProgramID()
	return id != 0 && id != a.program
}
