// Package crash puts a disk below package durable that forgets in a crash what was
// not synced, and that fails.
package crash

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"weir/control/durable"
)

// Test checks the files of a program after crashes.
type Test struct {
	// Work changes files below d.Dir, by calls of d.Do. It runs once without a fault, and
	// once for each step that fails; then changes fail, and Work goes on to the next.
	Work func(t *testing.T, d *Disk)
	// Read opens what a crash has left in a directory, and returns its state. It is called
	// after Work, in the order of the crashes, with the number of changes that were
	// acknowledged before.
	Read func(t *testing.T, dir string, acknowledged int) (state string, err error)
	// Begin is the state before the first change.
	Begin string
}

// Run runs a test. It lets the machine crash after each step that changes the disk, that
// is each open, write, truncation, sync, rename, removal and sync of a directory, and
// reads what may be left then: what was not synced may be lost, kept, in any combination,
// or torn. The state must be the last one that was acknowledged, or one that was
// attempted since.
//
// It does so again with each step failing, alone and with the next two.
func (c Test) Run(t *testing.T) {
	t.Helper()
	seen := make(map[string]bool)
	steps := c.run(t, seen, fault{})
	if t.Failed() {
		return // the faults would say the same, many times
	}
	for length := 1; length <= 3; length += 2 {
		for at := 1; at <= steps && !t.Failed(); at++ {
			c.run(t, seen, fault{at, length})
		}
	}
	t.Logf("%d steps, %d states read", steps, len(seen))
}

// fault says which steps fail.
type fault struct{ at, length int }

func (f fault) String() string {
	if f.length == 0 {
		return "without a fault"
	}
	return fmt.Sprintf("steps %d to %d fail", f.at, f.at+f.length-1)
}

func (c Test) run(t *testing.T, seen map[string]bool, f fault) int {
	t.Helper()
	d := newDisk(t, f)
	d.allowed = []string{c.Begin}
	d.capture()
	before := durable.UseDisk(d)
	defer durable.UseDisk(before)
	c.Work(t, d)
	d.idle = true
	if f.length < 2 && !d.kept {
		d.checkLeftovers(t)
	}
	scratch := inMemory(t)
	for i, x := range d.crashes {
		if key := x.key(); !seen[key] && !t.Failed() {
			seen[key] = true
			c.check(t, filepath.Join(scratch, strconv.Itoa(i)), d, x)
		}
	}
	return d.steps
}

// check reads what a crash has left.
func (c Test) check(t *testing.T, dir string, d *Disk, x crash) {
	t.Helper()
	err := os.Mkdir(dir, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range slices.Sorted(maps.Keys(x.left)) { // a directory before what it has
		if at := filepath.Join(dir, path); strings.HasSuffix(path, "/") {
			err = os.MkdirAll(at, 0o700)
		} else {
			err = os.WriteFile(at, []byte(x.left[path]), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	state, err := c.Read(t, dir, x.done)
	if err != nil || !slices.Contains(x.allowed, state) {
		var files []string
		for _, path := range slices.Sorted(maps.Keys(x.left)) {
			files = append(files, fmt.Sprintf("%s: %d bytes", path, len(x.left[path])))
		}
		t.Errorf("%v, crash after step %d, %s: %s:\nread  %.200q, %v\nwant  %.400q\nleft  %s\nsteps %s", d.fault, x.step, d.trace[max(x.step, 1)-1],
			x.variant, state, err, x.allowed, strings.Join(files, ", "), strings.Join(d.trace[:x.step], "; "))
	}
}

// crash holds the files that a crash leaves, by paths relative to the directory, which end in a
// slash if they are directories.
type crash struct {
	step    int
	variant string
	left    map[string]string
	allowed []string
	done    int // changes that were acknowledged
}

func (x crash) key() string {
	var b strings.Builder
	for _, path := range slices.Sorted(maps.Keys(x.left)) {
		fmt.Fprintf(&b, "%q %q\n", path, x.left[path])
	}
	fmt.Fprintf(&b, "%q", x.allowed)
	return b.String()
}

// Disk is a disk that records what is left when it crashes. Below Dir it has the files
// that package durable writes; they are on the disk of the test too, so that all
// programs can read them. Nothing is synced there.
//
// It is for the use of one goroutine.
type Disk struct {
	Dir string

	fault   fault
	idle    bool // work is done, nothing fails or counts any more
	kept    bool // a file could not be removed
	steps   int
	trace   []string
	root    *node
	allowed []string
	done    int
	crashes []crash
}

func newDisk(t *testing.T, f fault) *Disk {
	return &Disk{Dir: inMemory(t), fault: f, root: newDirectory()}
}

// WithoutSyncs makes syncs do nothing until the end of a test, which they would make slow.
func WithoutSyncs(t *testing.T) {
	before := durable.UseDisk(&Disk{idle: true})
	t.Cleanup(func() { durable.UseDisk(before) })
}

// FailDirectories makes syncs of directories fail until the end of a test, the next times
// of them, or all if times is negative.
func FailDirectories(t *testing.T, err error, times int) {
	f := &failing{err: err, times: times}
	f.Disk = durable.UseDisk(f)
	t.Cleanup(func() { durable.UseDisk(f.Disk) })
}

type failing struct {
	durable.Disk
	err   error
	times int
}

func (f *failing) SyncDirectory(path string) error {
	if f.times == 0 {
		return f.Disk.SyncDirectory(path)
	}
	f.times--
	return &fs.PathError{Op: "sync", Path: path, Err: f.err}
}

// inMemory returns a temporary directory, in memory if possible: a disk that is replaced
// file by file is slow even where nothing is synced.
func inMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "weir-durable-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Do makes a change, after which the state is the last of those given. The others are
// those that a crash may leave in between. If the change fails, the state may be any of
// them, or the one before.
func (d *Disk) Do(change func() error, states ...string) error {
	d.allowed = append(slices.Clone(d.allowed), states...)
	err := change()
	if err == nil {
		d.allowed = states[len(states)-1:]
		d.done++
		d.capture()
	}
	return err
}

// Put makes a file directly below Dir that is there from the beginning, before the first
// change.
func (d *Disk) Put(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(d.Dir, name), content, 0o600); err != nil {
		t.Fatal(err)
	}
	n := &node{durable: content}
	d.root.names[name], d.root.stored[name] = n, n
	d.crashes = nil
	d.capture()
}

// Count returns how many steps began with a text, such as "sync /" for files and "sync
// directory", until now.
func (d *Disk) Count(text string) (n int) {
	for _, step := range d.trace {
		if strings.HasPrefix(step, text) {
			n++
		}
	}
	return n
}

// Fails reports whether there is a step that fails.
func (d *Disk) Fails() bool { return d.fault.length > 0 }

// checkLeftovers fails for temporary files.
func (d *Disk) checkLeftovers(t *testing.T) {
	t.Helper()
	err := filepath.WalkDir(d.Dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".new") || strings.HasSuffix(path, ".tmp") {
			t.Errorf("%v: %s is left over\nsteps %s", d.fault, path, strings.Join(d.trace, "; "))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// step counts a step, and returns its error.
func (d *Disk) step(err error, format string, args ...any) error {
	if d.idle {
		return nil
	}
	d.steps++
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), d.Dir, "")
	failed := d.steps >= d.fault.at && d.steps < d.fault.at+d.fault.length
	if failed {
		text += " fails"
	}
	d.trace = append(d.trace, text)
	if failed {
		return err
	}
	return nil
}

// A node is a file or a directory. What is pending may be lost in a crash.
type node struct {
	durable []byte
	names   map[string]*node // as programs see a directory
	stored  map[string]*node // as a crash leaves it
	pending []*change
}

func newDirectory() *node {
	return &node{names: make(map[string]*node), stored: make(map[string]*node)}
}

// A change is a write, a truncation, or a change of names.
type change struct {
	at    int64
	data  []byte
	cut   bool             // at is the new size
	names map[string]*node // nil: the name is removed
	lost  bool             // its sync failed: another one does not make it durable
	text  string
}

func (c *change) apply(b []byte) []byte {
	end := c.at + int64(len(c.data))
	b = append(b, make([]byte, max(0, end-int64(len(b))))...)
	if c.cut {
		return b[:c.at]
	}
	copy(b[c.at:], c.data)
	return b
}

// walk calls fn with each node that programs see or a crash may leave.
func (n *node) walk(fn func(*node)) { n.visit(make(map[*node]bool), fn) }

func (n *node) visit(seen map[*node]bool, fn func(*node)) {
	if n == nil || seen[n] {
		return
	}
	seen[n] = true
	fn(n)
	all := []map[string]*node{n.stored, n.names}
	for _, c := range n.pending {
		all = append(all, c.names)
	}
	for _, names := range all {
		for _, name := range slices.Sorted(maps.Keys(names)) {
			names[name].visit(seen, fn)
		}
	}
}

// capture records what a crash may leave now.
func (d *Disk) capture() {
	if d.idle {
		return
	}
	var pending []*change
	d.root.walk(func(n *node) { pending = append(pending, n.pending...) })
	add := func(variant string, keep func(*change) bool, altered map[*change]*change) {
		left := make(map[string]string)
		d.root.leave("", left, keep, altered)
		d.crashes = append(d.crashes, crash{d.steps, variant, left, d.allowed, d.done})
	}
	add("what is pending is lost", func(*change) bool { return false }, nil)
	if len(pending) == 0 {
		return
	}
	all := func(*change) bool { return true }
	add("what is pending is kept", all, nil)
	if d.fault.length > 0 {
		return // the rest was tried without faults
	}
	add("only the names of pending changes are kept", func(c *change) bool { return c.names != nil }, nil)
	add("only the contents of pending changes are kept", func(c *change) bool { return c.names == nil }, nil)
	for _, p := range pending {
		add("only this pending change is kept: "+p.text, func(c *change) bool { return c == p }, nil)
		add("only this pending change is lost: "+p.text, func(c *change) bool { return c != p }, nil)
		if len(p.data) == 0 {
			continue
		}
		half, zeros := *p, *p
		half.data = p.data[:len(p.data)/2]
		zeros.data = make([]byte, len(p.data))
		add("torn: "+p.text, all, map[*change]*change{p: &half})
		add("zeros only: "+p.text, all, map[*change]*change{p: &zeros})
	}
}

// leave adds what a crash leaves of a directory.
func (n *node) leave(path string, left map[string]string, keep func(*change) bool, altered map[*change]*change) {
	names, content := maps.Clone(n.stored), bytes.Clone(n.durable)
	for _, c := range n.pending {
		if !keep(c) {
			continue
		}
		if other := altered[c]; other != nil {
			c = other
		}
		if n.stored == nil {
			content = c.apply(content)
			continue
		}
		maps.Copy(names, c.names)
	}
	if n.stored == nil {
		left[path] = string(content)
		return
	}
	if path != "" {
		path += "/"
		left[path] = ""
	}
	for name, child := range names {
		if child != nil {
			child.leave(path+name, left, keep, altered)
		}
	}
}

// find returns the directory of a path, nil if it is not below Dir, and the name there.
func (d *Disk) find(path string) (dir *node, name string) {
	rel, err := filepath.Rel(d.Dir, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") || d.idle {
		return nil, ""
	}
	dir = d.root
	parts := strings.Split(rel, "/")
	for _, p := range parts[:len(parts)-1] {
		if dir = dir.names[p]; dir == nil {
			return nil, ""
		}
	}
	return dir, parts[len(parts)-1]
}

// rename changes names in a directory.
func (n *node) rename(text string, names map[string]*node) {
	for name, child := range names {
		if child == nil {
			delete(n.names, name)
		} else {
			n.names[name] = child
		}
	}
	n.pending = append(n.pending, &change{names: names, text: text})
}

// Open implements durable.Disk.
func (d *Disk) Open(path string, flag int, mode fs.FileMode) (durable.DiskFile, error) {
	dir, name := d.find(path)
	if dir == nil {
		f, err := durable.SystemDisk{}.Open(path, flag, mode)
		if err != nil {
			return nil, err
		}
		return &unsynced{f}, nil
	}
	if err := d.step(unix.ENOSPC, "open %s", path); err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f, err := durable.SystemDisk{}.Open(path, flag, mode)
	if err != nil {
		return nil, err
	}
	n := dir.names[name]
	if n == nil {
		n = new(node)
		dir.rename("create "+name, map[string]*node{name: n})
	} else if flag&os.O_TRUNC != 0 {
		n.pending = append(n.pending, &change{cut: true, text: "empty " + name})
	}
	d.capture()
	return &file{unsynced{f}, path, d, n}, nil
}

// Rename implements durable.Disk.
func (d *Disk) Rename(from, to string) error {
	dir, name := d.find(from)
	if dir == nil {
		return durable.SystemDisk{}.Rename(from, to)
	}
	if err := d.step(unix.EIO, "rename %s to %s", from, to); err != nil {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
	if err := (durable.SystemDisk{}).Rename(from, to); err != nil {
		return err
	}
	dir.rename("rename "+name, map[string]*node{name: nil, filepath.Base(to): dir.names[name]})
	d.capture()
	return nil
}

// Link implements durable.Disk.
func (d *Disk) Link(from, to string) error {
	dir, name := d.find(from)
	if dir == nil {
		return durable.SystemDisk{}.Link(from, to)
	}
	if err := d.step(unix.ENOSPC, "link %s to %s", from, to); err != nil {
		return &os.LinkError{Op: "link", Old: from, New: to, Err: err}
	}
	if err := (durable.SystemDisk{}).Link(from, to); err != nil {
		return err
	}
	dir.rename("link "+name, map[string]*node{filepath.Base(to): dir.names[name]})
	d.capture()
	return nil
}

// Remove implements durable.Disk.
func (d *Disk) Remove(path string) error {
	dir, name := d.find(path)
	if dir == nil {
		return durable.SystemDisk{}.Remove(path)
	}
	if err := d.step(unix.EIO, "remove %s", path); err != nil {
		d.kept = true
		return &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	if err := (durable.SystemDisk{}).Remove(path); err != nil {
		return err
	}
	dir.rename("remove "+name, map[string]*node{name: nil})
	d.capture()
	return nil
}

// Mkdir implements durable.Disk.
func (d *Disk) Mkdir(path string, mode fs.FileMode) error {
	dir, name := d.find(path)
	if dir == nil {
		return durable.SystemDisk{}.Mkdir(path, mode)
	}
	if err := d.step(unix.ENOSPC, "mkdir %s", path); err != nil {
		return &fs.PathError{Op: "mkdir", Path: path, Err: err}
	}
	if err := (durable.SystemDisk{}).Mkdir(path, mode); err != nil {
		return err
	}
	dir.rename("mkdir "+name, map[string]*node{name: newDirectory()})
	d.capture()
	return nil
}

// SyncDirectory implements durable.Disk.
func (d *Disk) SyncDirectory(path string) error {
	n := d.root
	if filepath.Clean(path) != d.Dir {
		dir, name := d.find(path)
		if dir != nil {
			n = dir.names[name]
		}
		if dir == nil || n == nil {
			_, err := os.Stat(path)
			return err
		}
	}
	if d.idle {
		return nil
	}
	if err := d.step(unix.EIO, "sync directory %s", path); err != nil {
		return &fs.PathError{Op: "sync", Path: path, Err: err}
	}
	n.stored = maps.Clone(n.names)
	n.pending = nil
	d.capture()
	return nil
}

// unsynced is a file whose syncs cost nothing.
type unsynced struct{ durable.DiskFile }

// Sync does nothing.
func (f *unsynced) Sync() error { return nil }

// WriteOut does nothing.
func (f *unsynced) WriteOut(int64, int64) error { return nil }

// file is a file that remembers what was not synced.
type file struct {
	unsynced
	path string
	disk *Disk
	node *node
}

// WriteAt implements durable.DiskFile. If it fails, it has written one half.
func (f *file) WriteAt(b []byte, at int64) (int, error) {
	bad := f.disk.step(unix.ENOSPC, "write %d bytes at %d to %s", len(b), at, f.path)
	if bad != nil {
		b = b[:len(b)/2]
	}
	n, err := f.DiskFile.WriteAt(b, at)
	f.node.pending = append(f.node.pending, &change{at: at, data: bytes.Clone(b[:n]), text: fmt.Sprintf("write %d bytes at %d to %s", n, at, filepath.Base(f.path))})
	f.disk.capture()
	if bad != nil {
		err = &fs.PathError{Op: "write", Path: f.path, Err: bad}
	}
	return n, err
}

// Truncate implements durable.DiskFile.
func (f *file) Truncate(size int64) error {
	if err := f.disk.step(unix.EIO, "truncate %s to %d", f.path, size); err != nil {
		return &fs.PathError{Op: "truncate", Path: f.path, Err: err}
	}
	if err := f.DiskFile.Truncate(size); err != nil {
		return err
	}
	f.node.pending = append(f.node.pending, &change{at: size, cut: true, text: fmt.Sprintf("truncate %s to %d", filepath.Base(f.path), size)})
	f.disk.capture()
	return nil
}

// Sync implements durable.DiskFile. As on Linux, what a sync has failed to write may be lost
// for ever, though the next one succeeds.
func (f *file) Sync() error {
	if err := f.disk.step(unix.EIO, "sync %s", f.path); err != nil {
		for _, c := range f.node.pending {
			c.lost = !c.cut
		}
		f.disk.capture()
		return &fs.PathError{Op: "sync", Path: f.path, Err: err}
	}
	for _, c := range f.node.pending {
		if !c.lost {
			f.node.durable = c.apply(f.node.durable)
		}
	}
	f.node.pending = nil
	f.disk.capture()
	return nil
}

// Close implements durable.DiskFile. It closes the file, even if it fails.
func (f *file) Close() error {
	err := f.DiskFile.Close()
	if bad := f.disk.step(unix.EIO, "close %s", f.path); bad != nil {
		err = &fs.PathError{Op: "close", Path: f.path, Err: bad}
	}
	return err
}
