// Package data finds the body of real data that tests run over: captures of
// traffic, good and malformed, and address lists. The data is no part of the
// project; tests skip where it is absent.
package data

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/capture"

	"github.com/klauspost/compress/gzip"
)

// Dir returns the data directory. Where there is none it skips the test, but
// fails it if the variable CI is "true".
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := Find()
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("no test data: %v", err)
		}
		t.Skipf("no test data (set WEIR_DATA to its directory): %v", err)
	}
	return dir
}

// Find finds the data directory: the environment variable WEIR_DATA, or else
// ../shared/data beside the project's root.
func Find() (string, error) {
	dir := os.Getenv("WEIR_DATA")
	if dir == "" {
		root, err := root()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(root, "..", "shared", "data")
	}
	return filepath.EvalSymlinks(dir) // a walk does not follow a link that it starts at
}

// root returns the directory of weir's go.mod, above the directory of the running test, which
// may be in a module of tests/.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if text, err := os.ReadFile(filepath.Join(dir, "go.mod")); err == nil && strings.HasPrefix(string(text), "module weir\n") {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("data: no go.mod above the working directory")
		}
		dir = parent
	}
}

// Captures calls fn with a reader at the start of each capture that [Walk]
// finds in the data directory, and fails the test if that cannot be read.
func Captures(t testing.TB, fn func(name string, r *capture.Reader)) {
	t.Helper()
	err := Walk(Dir(t), func(name string, r *capture.Reader) error {
		fn(name, r)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Walk calls fn with a reader at the start of each capture that [Files] finds.
// Captures that cannot be opened, because of their link type or a damaged
// header, are left out; those that are damaged further on are not. An error of
// fn ends the walk and is returned.
func Walk(dir string, fn func(name string, r *capture.Reader) error) error {
	return Files(dir, func(name string, content io.Reader) error {
		r, err := capture.NewReader(name, content)
		if err != nil {
			return nil
		}
		defer r.Close()
		return fn(name, r)
	})
}

// Files calls fn with the content of each capture file under dir, in the order
// of their names: *.pcap and *.pcapng, plain or with .gz or .zst added, and
// those that are members of a *.tar.gz. The content of the former is as the
// file has it, possibly compressed. The name is relative to dir and goes on
// with the member's name. An error of fn ends the walk and is returned.
func Files(dir string, fn func(name string, content io.Reader) error) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		archive := strings.HasSuffix(path, ".tar.gz")
		if err != nil || d.IsDir() || !archive && !isCapture(path) {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if archive {
			return members(name, f, fn)
		}
		return fn(name, f)
	})
}

// members calls fn with each capture in an archive.
func members(name string, archive io.Reader, fn func(name string, content io.Reader) error) error {
	z, err := gzip.NewReader(archive)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	t := tar.NewReader(z)
	for {
		h, err := t.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if !isCapture(h.Name) {
			continue
		}
		if err := fn(name+"/"+h.Name, t); err != nil {
			return err
		}
	}
}

// isCapture decides by the name, as the content may be too damaged.
func isCapture(name string) bool {
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".gz"), ".zst")
	return strings.HasSuffix(name, ".pcap") || strings.HasSuffix(name, ".pcapng")
}
