package feed

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxWatched bounds the directories that are watched. The kernel allows a user
	// 8192 at the least.
	maxWatched = 1024

	// settle is how long a file must be left alone before it is read, and maxSettle
	// how long it may be written to in short steps before it is read anyway. A file that
	// was put in its place whole, as by rename(2), has no such steps: what may follow is
	// another one.
	settle      = 500 * time.Millisecond
	maxSettle   = 10 * settle
	settleWhole = 50 * time.Millisecond

	// maxWriting is how long a file is not read because another process has it open
	// for writing: what it has written so far may be a part of the list.
	maxWriting = 5 * time.Minute

	// maxFollowed bounds how often a path is followed that changes meanwhile.
	maxFollowed = 100

	// maxLinks bounds the symbolic links that a path is followed through.
	maxLinks = 8
)

// Watcher notices changes of files and directories, so that [Feed.Run] reads them
// at once. What it misses, as on network file systems, is read at the next
// interval. It watches directories, since editors and configuration managers
// replace files and links.
type Watcher struct {
	log *slog.Logger
	fs  *notifier
	run sync.WaitGroup

	mu      sync.Mutex // guards the rest
	all     map[*watched]bool
	dirs    map[string]int // watched directories, with the number of sources that want them
	refused bool           // a directory could not be watched: logged
}

// watched is a source that is watched.
type watched struct {
	source *source
	dirs   map[string]bool // as counted in Watcher.dirs
	names  map[string]bool // of files, links and missing directories: what is done to them matters
	first  time.Time       // of the changes that are not read yet; zero: there are none
	steps  bool            // these are more than a file that was put in its place
	held   time.Time       // since when reading waits for a writer; zero: it does not
	timer  *time.Timer     // of the time to read them
}

// NewWatcher returns a watcher that watches until it is closed.
func NewWatcher(log *slog.Logger) (*Watcher, error) {
	notify, err := newNotifier()
	if err != nil {
		return nil, err
	}
	w := &Watcher{log: log, fs: notify, all: make(map[*watched]bool), dirs: make(map[string]int)}
	w.run.Go(w.watch)
	return w, nil
}

// Close ends watching.
func (w *Watcher) Close() error {
	if w == nil {
		return nil
	}
	err := w.fs.Close()
	w.run.Wait()
	return err
}

func (w *Watcher) watch() {
	if err := w.fs.run(w.changed); err != nil {
		w.log.Warn("files are not watched any more, their changes are noticed at their interval: " + err.Error())
	}
}

// changed notes that something has changed, "" for what is unknown.
func (w *Watcher) changed(name string, how uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for d := range w.all {
		if name == "" || d.concerns(name) {
			w.follow(d)
			d.note(how)
		}
	}
}

// concerns reports whether a change of a file matters to a source.
func (d *watched) concerns(name string) bool {
	dir := string(d.source.Directory)
	return d.names[name] || d.dirs[name] || dir != "" && filepath.Dir(name) == filepath.Clean(dir) && d.source.matches(filepath.Base(name))
}

// note has the source read once nothing has changed for a while.
func (d *watched) note(how uint32) {
	now := time.Now()
	if d.first.IsZero() {
		d.first = now
	}
	d.steps = d.steps || d.source.File == "" || how&(put|altered) == 0
	wait := settle
	if !d.steps {
		wait = settleWhole
	}
	d.timer.Reset(max(min(wait, maxSettle-now.Sub(d.first)), 0))
}

// watch watches a source until ctx ends or the returned function is called.
func (f *Feed) watch(ctx context.Context, s *source) (end func()) {
	w := f.Watcher
	if w == nil || s.URL != "" || s.written != nil || isStream(string(s.File)) {
		return func() {}
	}
	d := &watched{source: s}
	d.timer = time.AfterFunc(time.Hour, func() {
		writing, empty := s.isWritten(), s.isEmpty()
		w.mu.Lock()
		defer w.mu.Unlock()
		now := time.Now()
		if empty && !d.steps { // it was made just now, and is written next
			d.steps = true
			d.timer.Reset(settle)
			return
		}
		switch {
		case !writing:
			d.held = time.Time{}
		case d.held.IsZero():
			d.held = now
		}
		if writing && now.Sub(d.held) < maxWriting {
			d.timer.Reset(settle)
			return
		}
		d.first, d.held, d.steps = time.Time{}, time.Time{}, false
		s.noteChange()
	})
	d.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all[d] = true
	w.follow(d)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, d)
		d.timer.Stop()
		w.replace(d, nil)
	}
}

// isWritten reports whether a process has a file of the source open for writing, as
// far as that can be known.
func (s *source) isWritten() bool {
	if s.File != "" {
		return isWritten(string(s.File))
	}
	files, _ := os.ReadDir(string(s.Directory)) // reading it will fail, too
	return slices.ContainsFunc(files, func(f fs.DirEntry) bool {
		return s.matches(f.Name()) && isWritten(filepath.Join(string(s.Directory), f.Name()))
	})
}

// isEmpty reports whether the source is a file with nothing in it, or none.
func (s *source) isEmpty() bool {
	if s.File == "" {
		return false
	}
	st, err := os.Stat(string(s.File))
	return err != nil || st.Size() == 0
}

// isWritten asks for a lease, which is refused while the file is open for writing
// (fcntl(2)), and returns the lease at once.
func isWritten(path string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, _ = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // closing does it, too
	}
	return errors.Is(err, unix.EAGAIN)
}

// follow watches the directories that a source is in now. They may be made, or replaced,
// while it does: it ends when those that are watched are those that the path has then.
func (w *Watcher) follow(d *watched) {
	path, err := filepath.Abs(string(d.source.File + d.source.Directory))
	if err != nil {
		return
	}
	var before map[string]bool
	for range maxFollowed {
		d.names = make(map[string]bool)
		dirs := make(map[string]bool)
		d.walk(path, dirs, maxLinks)
		if d.source.Directory != "" {
			dirs[path] = true
		}
		if maps.Equal(dirs, before) {
			return
		}
		if before = dirs; !w.replace(d, dirs) {
			before = nil // it may be made anew before the path is walked again
		}
	}
}

// walk adds the directories in which links and the end of a path are, or where it
// breaks off.
func (d *watched) walk(path string, dirs map[string]bool, links int) {
	at := "/"
	parts := strings.Split(strings.TrimPrefix(filepath.Clean(path), "/"), "/")
	for i, part := range parts {
		dir := at
		at = filepath.Join(at, part)
		st, err := os.Lstat(at)
		link := err == nil && st.Mode()&fs.ModeSymlink != 0
		if err == nil && !link && i < len(parts)-1 {
			continue
		}
		d.names[at], dirs[dir] = true, true
		if link && links > 0 {
			if to, err := os.Readlink(at); err == nil {
				if !filepath.IsAbs(to) {
					to = filepath.Join(dir, to)
				}
				d.walk(filepath.Join(append([]string{to}, parts[i+1:]...)...), dirs, links-1)
			}
		}
		return
	}
}

// replace replaces the directories that are watched for a source. It reports whether all of them
// were there.
func (w *Watcher) replace(d *watched, dirs map[string]bool) (there bool) {
	before := d.dirs
	there = true
	d.dirs = make(map[string]bool)
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		// Again even if it is watched: it may be another one of the same name.
		if err := w.add(dir); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				there = false
			} else if !w.refused {
				w.refused = true
				w.log.Warn("some files cannot be watched, their changes are noticed at their interval: "+err.Error(), "directory", dir)
			}
			continue
		}
		d.dirs[dir] = true
		w.dirs[dir]++
	}
	for dir := range before {
		if w.dirs[dir]--; w.dirs[dir] == 0 {
			delete(w.dirs, dir)
			w.fs.remove(dir)
		}
	}
	return there
}

func (w *Watcher) add(dir string) error {
	if w.dirs[dir] == 0 && len(w.dirs) >= maxWatched {
		return errors.New("too many directories")
	}
	return w.fs.add(dir)
}
