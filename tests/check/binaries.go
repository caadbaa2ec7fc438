package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// A testBinary is the test binary of a package. Go caches what it compiles, but not what it
// links, which takes a second for each of them: so they are kept from one run to the next, each
// with a file that names its id.
type testBinary struct {
	pkg  string // its import path
	dir  string // its directory, such as ./tests/netns
	file string // of the binary, which need not exist
	id   string // a hash of all that it is linked from, and how
}

// keptBinary returns the file of a package's binary, such as ./tests/netns.
func keptBinary(dir, pkg string) string { return filepath.Join(dir, pkg+".test") }

// keep links a test binary, which go test removes, to another name.
func keep(binary, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Link(binary, to) // not to another file system: go test makes it once more
	return nil
}

// isCurrent reports whether go test would link the same binary now. Otherwise it removes the id.
func (b *testBinary) isCurrent() bool {
	id, err := os.ReadFile(b.file + ".id")
	if err == nil && string(id) == b.id {
		_, err = os.Stat(b.file)
	}
	if err != nil || string(id) != b.id {
		_ = os.Remove(b.file + ".id")
		return false
	}
	return true
}

// record writes the id, if go test has linked the binary since then.
func (b *testBinary) record(since time.Time) error {
	if info, err := os.Stat(b.file); err != nil || info.ModTime().Before(since) {
		return nil
	}
	return os.WriteFile(b.file+".id", []byte(b.id), 0o644)
}

// listed returns the import paths of packages that patterns match.
func listed(patterns []string) ([]string, error) {
	out, err := exec.Command("go", append([]string{"list"}, patterns...)...).Output()
	return strings.Fields(string(out)), err
}

// testBinaries returns the binaries of the packages that have tests, in their order. It
// compiles what Go's cache does not have.
func testBinaries(kept string, flags, packages []string) (all []testBinary, err error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	named, err := listed(packages)
	if err != nil {
		return nil, err
	}
	deps, err := exec.Command("go", append([]string{"list", "-deps", "-test", "-export",
		"-json=ImportPath,Dir,BuildID,Deps"}, packages...)...).Output()
	if err != nil {
		return nil, err
	}
	type pkg struct {
		ImportPath, Dir, BuildID string
		Deps                     []string
	}
	byPath := make(map[string]pkg)
	for d := json.NewDecoder(bytes.NewReader(deps)); ; {
		var p pkg
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, err
		}
		byPath[p.ImportPath] = p
	}
	seen := make(map[string]bool)
	for _, path := range named {
		main, ok := byPath[path+".test"]
		if !ok || seen[path] {
			continue
		}
		seen[path] = true
		dir, err := filepath.Rel(root, main.Dir)
		if err != nil {
			return nil, err
		}
		hash := sha256.New()
		fmt.Fprintf(hash, "%q\n%s\n", flags, main.BuildID)
		for _, dep := range slices.Sorted(slices.Values(main.Deps)) {
			fmt.Fprintln(hash, dep, byPath[dep].BuildID)
		}
		dir = "./" + dir
		all = append(all, testBinary{path, dir, keptBinary(kept, dir), fmt.Sprintf("%x", hash.Sum(nil))})
	}
	return all, nil
}

// runBinaries runs the tests of the packages that args of go test name: binaries that are
// current by themselves, the others by go test, which makes and keeps them. As many packages run
// at once as go test would run.
func (p *printer) runBinaries(o options, args []string) error {
	flags, packages, atOnce, ok := split(args)
	if !ok {
		return p.goTest(o, args)
	}
	buildFlags := args[:len(args)-len(packages)]
	if o.cached != "" {
		all, err := listed(packages)
		if err != nil {
			return err
		}
		cached, err := listed(strings.Split(o.cached, ","))
		if err != nil {
			return err
		}
		packages = slices.DeleteFunc(all, func(p string) bool { return slices.Contains(cached, p) })
		// Results of -count=1 are not cached, nor those of tests that -exec starts.
		asked := slices.DeleteFunc(slices.Clone(buildFlags), func(f string) bool { return f == "-count=1" })
		if err := p.goTest(options{times: o.times}, append(asked, cached...)); err != nil {
			return err
		}
	}
	began := time.Now()
	all, err := testBinaries(o.binaries, slices.DeleteFunc(slices.Clone(buildFlags), func(f string) bool {
		return !strings.HasPrefix(strings.TrimLeft(f, "-"), "ldflags")
	}), packages)
	if err != nil { // go test says what is wrong
		return p.goTest(o, args)
	}
	var current, others []testBinary
	for _, b := range all {
		if b.isCurrent() {
			current = append(current, b)
			p.kept[b.pkg] = true
		} else {
			others = append(others, b)
		}
	}

	run := o
	run.binaries = ""
	runCurrent := func(atOnce int) error {
		var running errgroup.Group
		running.SetLimit(atOnce)
		for _, b := range current {
			cmd := exec.Command("go", slices.Concat(
				[]string{"tool", "test2json", "-t", "-p", b.pkg, p.self, "exec"}, run.flags(),
				[]string{b.file, "-test.paniconexit0", "-test.v=test2json"}, flags)...)
			cmd.Dir = b.dir
			running.Go(func() error { return p.run(cmd) })
		}
		return running.Wait()
	}
	runOthers := func(atOnce int) error {
		if len(others) == 0 {
			return nil
		}
		with := slices.Concat(buildFlags, []string{"-p", strconv.Itoa(atOnce)})
		for _, b := range others {
			with = append(with, b.dir)
		}
		failed := p.goTest(o, with)
		for _, b := range others {
			if err := b.record(began); err != nil {
				return errors.Join(failed, err)
			}
		}
		return failed
	}
	if atOnce == 1 || len(current) == 0 || len(others) == 0 {
		return cmp.Or(runOthers(atOnce), runCurrent(atOnce))
	}
	// Both run at once, each with a share of the packages.
	share := max(1, min(atOnce-1, atOnce*len(current)/len(all)))
	var both errgroup.Group
	both.Go(func() error { return runOthers(atOnce - share) })
	both.Go(func() error { return runCurrent(share) })
	return both.Wait()
}

// split returns the flags for test binaries among arguments of go test, the packages, which come
// last, and how many of them run at once: one, unless -p says otherwise. Flags for building have
// no effect on binaries; ok is false where one is not known.
func split(args []string) (flags, packages []string, atOnce int, ok bool) {
	atOnce = 1
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, has := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		args = args[1:]
		switch name {
		case "v":
			continue // the printer's
		case "short":
			flags = append(flags, "-test.short")
			continue
		}
		if !has {
			if len(args) == 0 {
				return nil, nil, 0, false
			}
			value, args = args[0], args[1:]
		}
		switch name {
		case "run", "skip", "count", "timeout", "parallel":
			flags = append(flags, fmt.Sprintf("-test.%s=%s", name, value))
		case "p":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 {
				return nil, nil, 0, false
			}
			atOnce = n
		case "vet", "ldflags":
		default:
			return nil, nil, 0, false
		}
	}
	return flags, args, atOnce, true
}
