package feed

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/control/list"
	"weir/control/quantity"
	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/wait"
)

func newTestWatcher(t *testing.T) *Watcher {
	t.Helper()
	w, err := NewWatcher(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// follow runs a feed of one source, with an interval that never ends.
func follow(t *testing.T, src Source) *Feed {
	t.Helper()
	src.MaxBytes = 1 << 20
	return followBy(t, config(src))
}

// followBy is follow by a configuration.
func followBy(t *testing.T, c Config) *Feed {
	t.Helper()
	c.Interval, c.Watcher = quantity.Duration(700*time.Hour), newTestWatcher(t)
	f := mustOpen(t, c, "")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.Run(t.Context(), func(Outcome) {})
	}()
	t.Cleanup(func() { <-ended }) // t.Context ends before
	return f
}

// awaitEntries waits until a feed has entries.
func awaitEntries(t *testing.T, f *Feed, when, entries string) {
	t.Helper()
	for end := wait.Deadline(); ; time.Sleep(5 * time.Millisecond) {
		got := strings.Join(textsOf(f.Contents()), " ")
		if got == entries {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: entries %q, want %q: %+v", when, got, entries, f.Status())
		}
	}
}

// succeed fails the test where any error is there.
func succeed(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// A file that is being copied is not taken before it is whole, whether it was opened before the feed,
// its copy pauses in the middle of a line or at an end, or it is opened anew for each part.
func TestHalfCopied(t *testing.T) {
	t.Parallel()
	const text = "192.0.2.1\n192.0.2.23\n192.0.2.4\n"
	const whole = "192.0.2.1 192.0.2.4 192.0.2.23"
	for name, parts := range map[string][]string{"in a line": {text[:18], text[18:]}, "at an end": {text[:21], text[21:]}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "list")
			file, err := os.Create(path)
			succeed(t, err)
			_, err = file.WriteString(parts[0])
			succeed(t, err, os.Chtimes(path, time.Time{}, time.Now().Add(wait.Patience))) // just now, also on a slow machine
			f := mustOpen(t, config(Source{File: Path(path)}), "")
			want(t, f, fetch(t, f), Failed, Truncated, "")
			_, err = file.WriteString(parts[1])
			succeed(t, err, file.Close())
			want(t, f, fetch(t, f), New, NoFailure, whole)
		})
	}
	t.Run("in steps", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "list")
		wait.For(t, "the rest comes during an attempt", func() bool { // it may come later on a slow machine
			must.Write(t, path, text[:18])
			f := mustOpen(t, config(Source{File: Path(path)}), "")
			rest := time.AfterFunc(settle/10, func() {
				if file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0); err == nil {
					_, _ = file.WriteString(text[18:])
					_ = file.Close()
				}
			})
			defer rest.Stop()
			return fetch(t, f).Failure == Truncated
		})
	})
	t.Run("while it is watched", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "list")
		file, err := os.Create(path)
		succeed(t, err)
		_, err = file.WriteString(text[:18])
		succeed(t, err)
		f := follow(t, Source{File: Path(path)})
		wait.For(t, "the first attempt", func() bool { return f.Status().Sources[0].Last.Failure == Truncated })
		_, err = file.WriteString(text[18:])
		succeed(t, err, file.Close())
		awaitEntries(t, f, "copied", whole)
	})
}

// A file is read whenever it changes: written in place, in steps, replaced, removed
// and made anew, also behind links, and where its directory does not exist at first.
func TestWatchFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "list")
	f := follow(t, Source{File: Path(path)})
	succeed(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must.Write(t, path, "192.0.2.1\n")
	awaitEntries(t, f, "made with its directory", "192.0.2.1")
	must.Write(t, path, "192.0.2.2\n")
	awaitEntries(t, f, "written in place", "192.0.2.2")
	must.Write(t, path+".new", "192.0.2.3\n")
	succeed(t, os.Rename(path+".new", path))
	awaitEntries(t, f, "replaced", "192.0.2.3")
	succeed(t, os.Rename(path, path+"~")) // as some editors do
	must.Write(t, path, "192.0.2.4\n")
	awaitEntries(t, f, "after its backup", "192.0.2.4")
	succeed(t, os.Remove(path))
	time.Sleep(2 * settle)
	must.Write(t, path, "192.0.2.5\n")
	awaitEntries(t, f, "made anew", "192.0.2.5")
	succeed(t, os.RemoveAll(filepath.Join(dir, "a")))
	time.Sleep(2 * settle)
	succeed(t, os.MkdirAll(filepath.Dir(path), 0o700))
	must.Write(t, path, "192.0.2.6\n")
	awaitEntries(t, f, "made anew with its directory", "192.0.2.6")
	file, err := os.Create(path)
	succeed(t, err)
	var all []string
	for i := range 30 { // quick enough for one pass
		_, err := fmt.Fprintf(file, "198.51.100.%d\n", i)
		succeed(t, err)
		all = append(all, fmt.Sprintf("198.51.100.%d", i))
		time.Sleep(10 * time.Millisecond)
	}
	succeed(t, file.Close())
	awaitEntries(t, f, "written in steps", strings.Join(all, " "))
}

// A file that is replaced while it is read is read again: reading a large one takes seconds.
func TestWatchWhileReading(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "list")
	must.Write(t, path, "192.0.2.1\n")
	replace := sync.OnceFunc(func() {
		must.Write(t, path+".new", "192.0.2.2\n")
		succeed(t, os.Rename(path+".new", path))
		time.Sleep(4 * settleWhole)
	})
	c := config(Source{File: Path(path), MaxBytes: 1 << 20})
	c.Refuse = func(*list.Set, bool) error {
		replace()
		return nil
	}
	f := followBy(t, c)
	awaitEntries(t, f, "replaced while it was read", "192.0.2.2")
}

// Directories that are made while the one above them begins to be watched are watched, too.
func TestWatchPathMadeAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "c", "d", "e", "f", "list")
	f := follow(t, Source{File: Path(path)})
	rounds := long.Or(5, 10)
	for i := range rounds {
		succeed(t, os.MkdirAll(filepath.Dir(path), 0o700))
		text := fmt.Sprintf("192.0.2.%d", 2*i)
		must.Write(t, path, text+"\n")
		awaitEntries(t, f, "made with its directories", text)
		text = fmt.Sprintf("192.0.2.%d", 2*i+1)
		must.Write(t, path, text+"\n")
		awaitEntries(t, f, "written", text)
		succeed(t, os.RemoveAll(filepath.Join(dir, "a")))
	}
}

// What a download has written before it stalls is a part of the list: it is not read
// while the file is open.
func TestWatchStalledWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "list")
	must.Write(t, path, "192.0.2.1\n192.0.2.2\n")
	f := follow(t, Source{File: Path(path)})
	awaitEntries(t, f, "at first", "192.0.2.1 192.0.2.2")
	file, err := os.Create(path)
	succeed(t, err)
	_, err = file.WriteString("192.0.2.3\n")
	succeed(t, err)
	for began := time.Now(); time.Since(began) < 4*settle; time.Sleep(settle / 10) {
		if got := strings.Join(textsOf(f.Contents()), " "); got != "192.0.2.1 192.0.2.2" {
			t.Fatalf("read while it was written: %s", got)
		}
	}
	_, err = file.WriteString("192.0.2.4\n")
	succeed(t, err)
	succeed(t, file.Close())
	awaitEntries(t, f, "written", "192.0.2.3 192.0.2.4")
}

// A file that is made anew by several writers, one after the other, is read once it is
// left alone, and one that is put in its place whole at once.
func TestWatchWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "list")
	must.Write(t, path, "192.0.2.1\n")
	f := follow(t, Source{File: Path(path)})
	awaitEntries(t, f, "at first", "192.0.2.1")
	succeed(t, os.Remove(path))
	for i := range 6 {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		succeed(t, err)
		if i > 0 { // at first it is empty
			_, err = fmt.Fprintf(file, "198.51.100.%d\n", i)
		}
		succeed(t, err, file.Close())
		time.Sleep(3 * settleWhole)
		if got := strings.Join(textsOf(f.Contents()), " "); i < 5 && got != "192.0.2.1" {
			t.Fatalf("read while it was written: %q", got)
		}
	}
	awaitEntries(t, f, "written", "198.51.100.1 198.51.100.2 198.51.100.3 198.51.100.4 198.51.100.5")

	n := 0
	wait.For(t, "a file that was replaced is read before it could settle", func() bool { // others may use the machine
		n++
		entry := fmt.Sprintf("203.0.113.%d", n%200)
		must.Write(t, path+".new", entry+"\n")
		began := time.Now()
		succeed(t, os.Rename(path+".new", path))
		awaitEntries(t, f, "replaced", entry)
		return time.Since(began) < settle
	})
}

// Configuration managers replace a link to a directory.
func TestWatchLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	make := func(version, content string) {
		t.Helper()
		succeed(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		must.Write(t, filepath.Join(dir, version, "list"), content)
		succeed(t, os.Symlink(version, filepath.Join(dir, "..tmp")), os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
	}
	make("..1", "192.0.2.1\n")
	succeed(t, os.Symlink("..data/list", filepath.Join(dir, "list")))
	f := follow(t, Source{File: Path(filepath.Join(dir, "list"))})
	awaitEntries(t, f, "at first", "192.0.2.1")
	make("..2", "192.0.2.2\n")
	awaitEntries(t, f, "another directory", "192.0.2.2")
	make("..3", "192.0.2.3\n")
	awaitEntries(t, f, "a third one", "192.0.2.3")
	must.Write(t, filepath.Join(dir, "..3", "list"), "192.0.2.4\n")
	awaitEntries(t, f, "in the directory", "192.0.2.4")
}

// A directory is read when a file comes, goes or changes, but not for those whose
// names do not count.
func TestWatchDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "lists.d")
	f := follow(t, Source{Directory: Path(dir), Suffixes: []string{".txt"}})
	succeed(t, os.Mkdir(dir, 0o700))
	must.Write(t, dir+"/a.txt", "192.0.2.1\n")
	awaitEntries(t, f, "made", "192.0.2.1")
	must.Write(t, dir+"/b.txt", "192.0.2.2\n")
	awaitEntries(t, f, "another file", "192.0.2.1 192.0.2.2")
	must.Write(t, dir+"/a.txt", "192.0.2.3\n")
	awaitEntries(t, f, "changed", "192.0.2.2 192.0.2.3")
	succeed(t, os.Remove(dir+"/b.txt"))
	awaitEntries(t, f, "removed", "192.0.2.3")
	began := f.Status().Sources[0].Last.Began
	must.Write(t, dir+"/.c.txt.swp", "192.0.2.9\n")
	must.Write(t, dir+"/c.bak", "192.0.2.9\n")
	time.Sleep(3 * settle)
	if last := f.Status().Sources[0].Last.Began; !last.Equal(began) {
		t.Error("read again for files that do not count")
	}
}

// The number of directories is bounded, and those of sources that are gone are not
// watched any more.
func TestWatchBounds(t *testing.T) {
	w := newTestWatcher(t)
	dir := t.TempDir()
	var ends []func()
	for i := range maxWatched + 10 {
		one := filepath.Join(dir, fmt.Sprint(i))
		succeed(t, os.Mkdir(one, 0o700))
		c := config(Source{File: Path(filepath.Join(one, "list")), MaxBytes: 1})
		c.Watcher = w
		f := mustOpen(t, c, "")
		ends = append(ends, f.watch(t.Context(), f.sources[0]))
	}
	watched := func() int {
		w.fs.mu.Lock()
		defer w.fs.mu.Unlock()
		return len(w.fs.dirs)
	}
	if n := watched(); n > maxWatched || n < maxWatched/2 {
		t.Errorf("%d directories are watched, of at most %d", n, maxWatched)
	}
	for _, end := range slices.Backward(ends) {
		end()
	}
	if n := watched() + len(w.dirs) + len(w.all); n != 0 {
		t.Errorf("%d are left", n)
	}
}

// A file that is written to beside a list wakes the process ten times a second at most, and the
// list is read as before.
func TestWatchBesideALog(t *testing.T) {
	dir := t.TempDir()
	n, err := newNotifier()
	succeed(t, err)
	t.Cleanup(func() { n.Close() })
	var mu sync.Mutex
	events := make(map[string]int)
	count := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return events[filepath.Base(name)]
	}
	go n.run(func(name string, _ uint32) {
		mu.Lock()
		defer mu.Unlock()
		events[filepath.Base(name)]++
	})
	succeed(t, n.add(dir))
	log, err := os.Create(filepath.Join(dir, "log"))
	succeed(t, err)
	defer log.Close()
	began, writes := time.Now(), 0
	for ; time.Since(began) < 5*noticeEvery; writes++ {
		_, err := log.WriteString("a line\n")
		succeed(t, err)
	}
	succeed(t, os.WriteFile(filepath.Join(dir, "list"), []byte("192.0.2.1\n"), 0o600))
	for deadline := wait.Deadline(); count("list") == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a list is not noticed")
		}
	}
	// While events are read, some more come.
	if most := 3 * (2 + int(time.Since(began)/noticeEvery)); count("log") > most {
		t.Errorf("%d events of %d writes, want %d at most", count("log"), writes, most)
	}
}

// While directories of a path come and go, one of them is watched at any time.
func TestWatchBesideRemovals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "list")
	w := newTestWatcher(t)
	d := &watched{source: &source{Source: Source{File: Path(path)}}}
	ended := make(chan struct{})
	var flips sync.WaitGroup
	flips.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				succeed(t, os.MkdirAll(filepath.Dir(path), 0o700), os.RemoveAll(filepath.Join(dir, "a")))
			}
		}
	})
	for range long.Or(5_000, 25_000) {
		w.mu.Lock()
		w.follow(d)
		n := len(d.dirs)
		w.mu.Unlock()
		if n == 0 {
			t.Error("no directory is watched")
			break
		}
	}
	close(ended)
	flips.Wait()
}

// A directory is known by all names that lead to it, until it is gone.
func TestWatchNames(t *testing.T) {
	t.Parallel()
	n, err := newNotifier()
	succeed(t, err)
	defer n.Close()
	dir := t.TempDir()
	names := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	succeed(t, os.Mkdir(names[0], 0o700), os.Symlink("a", names[1]), n.add(names[0]), n.add(names[1]), n.add(names[0]))
	watch := n.dirs[names[0]]
	if got := n.named(watch, unix.IN_CREATE); !slices.Equal(got, names) {
		t.Errorf("changed: %q, want %q", got, names)
	}
	if got := n.named(watch, unix.IN_IGNORED); len(got) > 0 || len(n.dirs) > 0 || len(n.at) > 0 {
		t.Errorf("gone: %q, and %v, %v are watched", got, n.dirs, n.at)
	}
}
