package durable_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/durable"
	"weir/tests/crash"
	"weir/tests/must"
)

// contents returns a file's contents, or that there is none.
func contents(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "none", nil
	}
	return string(b), err
}

// TestReplaceCrash replaces, renames and removes a file in a directory that it makes.
func TestReplaceCrash(t *testing.T) {
	crash.Test{
		Begin: "none",
		Work: func(t *testing.T, d *crash.Disk) {
			dir := filepath.Join(d.Dir, "a", "b")
			path := filepath.Join(dir, "file")
			for _, text := range []string{"first", "second, longer", "3rd"} {
				_ = d.Do(func() error {
					return errors.Join(durable.MkdirAll(dir), durable.WriteFile(path, []byte(text[:2]), nil, []byte(text[2:])))
				}, text)
			}
			_ = d.Do(func() error {
				err := durable.WriteFile(path+".next", []byte("renamed"))
				if err == nil {
					err = durable.Rename(path+".next", path)
				}
				return err
			}, "renamed")
			for range 2 { // the second time nothing is there, but the first may have failed
				_ = d.Do(func() error { return durable.Remove(path) }, "none")
			}
		},
		Read: func(_ *testing.T, dir string, _ int) (string, error) {
			return contents(filepath.Join(dir, "a", "b", "file"))
		},
	}.Run(t)
}

// TestAppendCrash appends to a new file and to one that replaces it, and opens it again.
// What is torn has no full stop.
func TestAppendCrash(t *testing.T) {
	crash.Test{
		Work: func(t *testing.T, d *crash.Disk) {
			path := filepath.Join(d.Dir, "log")
			var f *durable.File
			all := ""
			add := func(text string) {
				if f == nil {
					return
				}
				before := all + text
				if d.Do(func() error { return f.Append([]byte(text)) }, before) == nil {
					all = before
				}
				if int(f.Size()) != len(all) {
					t.Errorf("%d bytes, want %q", f.Size(), all)
				}
			}
			f, _ = durable.Create(path)
			add("one.")
			add("two, which is longer.")
			n, err := durable.Create(path + ".new")
			if err == nil {
				_ = d.Do(func() error {
					for i := range all {
						_, _ = n.Write([]byte(all[i : i+1])) // Replace returns the error
					}
					return n.Replace(path)
				}, all)
				if n.Path() == path {
					if f != nil {
						_ = f.Close()
					}
					f = n
				}
			}
			add("three.")
			if f != nil {
				_ = f.Close()
			}
			for _, text := range []string{"four.", "five, which is longer.", "six."} {
				f, err = durable.Open(path, os.O_CREATE)
				if err != nil {
					continue
				}
				if d.Do(func() error { return f.Cut(int64(len(all))) }, all) != nil {
					// What a failed sync has lost, only who writes it again can make durable.
					_ = f.Close()
					return
				}
				add(text)
				n := 0
				_ = d.Do(func() error {
					n, _ = f.Write([]byte("seven.eight."))
					return errors.New("killed before it syncs")
				}, all+"seven.", all+"seven.eight.")
				if n >= len("seven.") {
					all += "seven."
				}
				_ = f.Close()
			}
		},
		Read: func(_ *testing.T, dir string, _ int) (string, error) {
			text, err := contents(filepath.Join(dir, "log"))
			if text == "none" {
				return "", err
			}
			text = strings.TrimRight(text, "\x00")
			end := strings.LastIndex(text, ".") + 1
			for _, whole := range []string{"one.", "two, which is longer.", "three.", "four.", "five, which is longer.", "six.", "seven.", "eight."} {
				if strings.HasPrefix(whole, text[end:]) {
					return text[:end], err
				}
			}
			return text, err
		},
	}.Run(t)
}

// TestFile checks the errors of a file.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if _, err := durable.Open(path, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err := durable.Open(dir, 0); err == nil {
		t.Error("a directory was opened")
	}
	f, err := durable.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Append([]byte("text")); err != nil {
		t.Fatal(err)
	}
	if err := f.Cut(5); err == nil {
		t.Error("cut behind the end")
	}
	b := make([]byte, 2)
	if _, err := f.ReadAt(b, 1); err != nil || string(b) != "ex" {
		t.Error(string(b), err)
	}
	if err := f.Replace(filepath.Join(dir, "none", "file")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if text, _ := contents(path); text != "none" {
		t.Error("what could not replace a file is left behind")
	}
	_, err1 := f.Write(nil)
	_, err2 := f.ReadAt(b, 0)
	for _, err := range []error{err1, err2, f.Append(b), f.Cut(0), f.Replace(path)} {
		if !errors.Is(err, fs.ErrClosed) {
			t.Error(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

// TestRemoveMissing removes a file from a directory that does not exist.
func TestRemoveMissing(t *testing.T) {
	if err := durable.Remove(filepath.Join(t.TempDir(), "none", "file")); err != nil {
		t.Error(err)
	}
	path := filepath.Join(t.TempDir(), "file")
	must.Write(t, path, "")
	if err := durable.MkdirAll(path); err == nil {
		t.Error("a file was taken for a directory")
	}
}
