package feed

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir/tests/crash"
	"weir/tests/long"
	"weir/tests/must"
)

// keep writes and saves a good list, and returns the feed's configuration and
// the path of the saved file.
func keep(t *testing.T, directory string) (Config, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "list")
	must.Write(t, path, good)
	c := config(Source{File: Path(path)})
	f := mustOpen(t, c, directory)
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	return c, f.sources[0].saved
}

// loaded opens a feed again and returns the outcome of loading.
func loaded(t *testing.T, c Config, directory string) (*Feed, Outcome) {
	t.Helper()
	f := mustOpen(t, c, directory)
	return f, f.Status().Sources[0].Last
}

// TestDamaged truncates, extends and alters saved contents at every offset.
func TestDamaged(t *testing.T) {
	long.Seconds(t)
	crash.WithoutSyncs(t)
	dir := t.TempDir()
	c, saved := keep(t, dir)
	whole := must.Read(t, saved)
	check := func(what string, at int, content []byte) {
		t.Helper()
		must.Write(t, saved, string(content))
		f, o := loaded(t, c, dir)
		if o.Result != Failed || o.Failure != Damaged || f.Contents().Len() > 0 || !strings.Contains(o.Err.Error(), saved) {
			t.Fatalf("%s at %d: %v (%v), %d entries, error %v", what, at, o.Result, o.Failure, f.Contents().Len(), o.Err)
		}
	}
	for i := range whole {
		check("cut", i, whole[:i])
		for bit := range 8 {
			flipped := append([]byte(nil), whole...)
			flipped[i] ^= 1 << bit
			check("flipped", i, flipped)
		}
	}
	check("lengthened", len(whole), append(slices.Clip(whole), '\n'))
	check("lengthened", 0, append([]byte{'\n'}, whole...))
	check("emptied", 0, nil)

	// The next attempt repairs it.
	f, _ := loaded(t, c, dir)
	want(t, f, fetch(t, f), New, NoFailure, goodText)
	f, o := loaded(t, c, dir)
	want(t, f, o, Loaded, NoFailure, goodText)
}

// TestOtherSettings checks that saved contents which the configuration no
// longer accepts are not reported as corrupted.
func TestOtherSettings(t *testing.T) {
	dir := t.TempDir()
	c, _ := keep(t, dir)
	c.Format = jsonAt(".[]")
	f, o := loaded(t, c, dir)
	want(t, f, o, Failed, Garbage, "")
}

// TestCrash checks that a partly written file is ignored and removed.
func TestCrash(t *testing.T) {
	dir := t.TempDir()
	c, saved := keep(t, dir)
	must.Write(t, saved+".tmp", "192.0.2.9\n")
	must.Write(t, string(c.Sources[0].File), less)
	f, o := loaded(t, c, dir)
	want(t, f, o, Loaded, NoFailure, goodText)
	want(t, f, fetch(t, f), New, NoFailure, lessText)
	if _, err := os.Stat(saved + ".tmp"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	f, o = loaded(t, c, dir)
	want(t, f, o, Loaded, NoFailure, lessText)
}

// unsaved fetches new contents, which must become active without being saved,
// then fixes the cause.
func unsaved(t *testing.T, c Config, dir string, cause error, mend func()) {
	t.Helper()
	must.Write(t, string(c.Sources[0].File), less)
	backdate(t, string(c.Sources[0].File)) // it would count as unchanged, had it been saved
	f, o := loaded(t, c, dir)
	want(t, f, o, Loaded, NoFailure, goodText)
	for _, result := range []Result{New, Unchanged} {
		o := fetch(t, f)
		want(t, f, o, result, NoFailure, lessText)
		if !errors.Is(o.Unsaved, cause) || !f.Status().Sources[0].Unsaved {
			t.Fatalf("unsaved: %v, want %v", o.Unsaved, cause)
		}
	}
	mend()
	o = fetch(t, f)
	want(t, f, o, Unchanged, NoFailure, lessText)
	if o.Unsaved != nil || f.Status().Sources[0].Unsaved {
		t.Errorf("unsaved: %v", o.Unsaved)
	}
	f, o = loaded(t, c, dir)
	want(t, f, o, Loaded, NoFailure, lessText)
}

// TestFullDevice writes to a device that is always full.
func TestFullDevice(t *testing.T) {
	dir := t.TempDir()
	c, saved := keep(t, dir)
	full := func() {
		if err := os.Symlink("/dev/full", saved+".tmp"); err != nil {
			t.Fatal(err)
		}
	}
	full()
	must.Write(t, string(c.Sources[0].File), less)
	f, _ := loaded(t, c, dir)
	o := fetch(t, f)
	want(t, f, o, New, NoFailure, lessText)
	if !errors.Is(o.Unsaved, syscall.ENOSPC) {
		t.Fatalf("unsaved: %v", o.Unsaved)
	}
	// The attempt removed the link.
	o = fetch(t, f)
	want(t, f, o, Unchanged, NoFailure, lessText)
	if o.Unsaved != nil {
		t.Fatalf("unsaved: %v", o.Unsaved)
	}
}

// mount mounts a tmpfs, which requires root.
func mount(t *testing.T, options string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root: cannot mount a tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if errors.Is(err, syscall.EPERM) {
			t.Skipf("no CAP_SYS_ADMIN: cannot mount a tmpfs: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) {
	dir := mount(t, "size=64k")
	c, _ := keep(t, dir)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 64<<10), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	unsaved(t, c, dir, syscall.ENOSPC, func() {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNoInodes(t *testing.T) {
	dir := mount(t, "nr_inodes=4")
	c, _ := keep(t, dir) // the root, the feed's directory, the file
	ballast := filepath.Join(dir, "ballast")
	must.Write(t, ballast, "")
	unsaved(t, c, dir, syscall.ENOSPC, func() {
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
	})
}

func TestReadOnly(t *testing.T) {
	if os.Geteuid() != 0 {
		dir := t.TempDir()
		c, saved := keep(t, dir)
		protect := func(mode os.FileMode) {
			if err := os.Chmod(filepath.Dir(saved), mode); err != nil {
				t.Fatal(err)
			}
		}
		protect(0o500)
		unsaved(t, c, dir, syscall.EACCES, func() { protect(0o700) })
		return
	}
	dir := mount(t, "")
	c, _ := keep(t, dir)
	remount := func(flags uintptr) {
		if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	remount(syscall.MS_RDONLY)
	unsaved(t, c, dir, syscall.EROFS, func() { remount(0) })
}

// TestNoDirectory opens a feed whose state directory cannot be created.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.Write(t, file, good)
	f := mustOpen(t, config(Source{File: Path(file)}), file)
	if o := f.Status().Sources[0].Last; o.Failure != Damaged {
		t.Errorf("%+v", o)
	}
	o := fetch(t, f)
	want(t, f, o, New, NoFailure, goodText)
	if !errors.Is(o.Unsaved, syscall.ENOTDIR) {
		t.Error(o.Unsaved)
	}
}

// TestDurable lets the machine crash, and steps fail, while contents are saved, at once
// or after they are kept. Those that were saved last are loaded.
func TestDurable(t *testing.T) {
	long.Seconds(t)
	source := filepath.Join(t.TempDir(), "list")
	c := config(Source{File: Path(source)})
	crash.Test{
		Work: func(t *testing.T, d *crash.Disk) {
			dir := filepath.Join(d.Dir, "feeds")
			save := func(f *Feed, content, text string) {
				must.Write(t, source, content)
				_ = d.Do(func() error {
					o := fetch(t, f)
					want(t, f, o, New, NoFailure, text)
					if o.Unsaved == nil && c.Hold {
						return f.Keep(f.Version())
					}
					return o.Unsaved
				}, text)
			}
			c.Hold = false
			f := mustOpen(t, c, dir)
			save(f, good, goodText)
			must.Write(t, source, "damaged!") // nothing of it is left behind
			if o := fetch(t, f); o.Failure != Garbage {
				t.Errorf("%+v", o)
			}
			c.Hold = true
			save(mustOpen(t, c, dir), less, lessText)
		},
		Read: func(t *testing.T, dir string, _ int) (string, error) {
			f, o := loaded(t, c, filepath.Join(dir, "feeds"))
			return strings.Join(textsOf(f.Contents()), " "), o.Err
		},
	}.Run(t)
}

// What was accepted before is loaded, although reading it anew would be given up early.
func TestLoadKnown(t *testing.T) {
	many := addresses(300_000)
	for name, body := range map[string]string{
		"page":      "<by hand>\n" + many,
		"bad lines": strings.Repeat("x\n", 11_000) + many,
	} {
		s := serve(t, text(many))
		c, dir := config(from(s)), t.TempDir()
		c.Sources[0].MaxBytes = 16 << 20
		f := mustOpen(t, c, dir)
		fetch(t, f)
		to := &spool{path: f.sources[0].saved}
		_, _ = to.Write([]byte(body))
		r := f.sources[0].current.record
		sum := sha256.Sum256([]byte(body))
		r.SHA256, r.Files = hex.EncodeToString(sum[:]), []recordFile{{s.URL, int64(len(body))}}
		if err := to.finish(r); err != nil {
			t.Fatal(err)
		}
		if err := f.promote(f.sources[0], f.sources[0].current); err != nil {
			t.Fatal(err)
		}
		if _, o := loaded(t, c, dir); o.Result != Loaded || o.Entries != 300_000 {
			t.Errorf("%s: %v, %d entries, %v", name, o.Result, o.Entries, o.Err)
		}
	}
}

// A list that was an empty directory can become one of names: its saved contents have no files.
func TestNamesOfAnEmptyDirectory(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	c := config(Source{Directory: Path(dir)})
	c.MayBeEmpty = true
	f := mustOpen(t, c, state)
	want(t, f, fetch(t, f), New, NoFailure, "")
	c.Format.Kind = Names
	f, o := loaded(t, c, state)
	want(t, f, o, Loaded, NoFailure, "")
	must.Write(t, filepath.Join(dir, "names.txt"), "a.example.org\n")
	f.sources[0].lookup = (&zone{answers: map[string]string{"a.example.org": "192.0.2.1"}}).lookup
	want(t, f, fetch(t, f), New, NoFailure, "192.0.2.1")
}

// The saved file of another source, or one of those beside a source's own, is not taken as its
// contents; a number in the name of the source may change.
func TestSwappedSaved(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, text(good))
	other := from(s)
	other.URL += "?other"
	c := config(from(s), other)
	f := mustOpen(t, c, dir)
	if _, err := f.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	one, two := f.sources[0].saved, f.sources[1].saved
	if f, _ = loaded(t, config(other), dir); f.Contents().Len() == 0 {
		t.Error("its contents are gone with the source before it")
	}
	s.now(text(less))
	if _, err := f.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	elsewhere := config(Source{URL: URL(s.URL + "/else.txt"), MaxBytes: 1 << 20})
	for from, c := range map[string]Config{one: elsewhere, two: elsewhere, versionsPath(two): config(other)} {
		b := must.Read(t, from)
		must.Write(t, filepath.Join(filepath.Dir(one), c.Sources[0].id()), string(b))
		if g, o := loaded(t, c, dir); g.Contents().Len() > 0 || o.Failure != Damaged || !strings.Contains(o.Err.Error(), "another file") {
			t.Errorf("%s: %+v", from, o)
		}
	}
}
