package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// runsAlone marks the tests that run alone, after the others of their packages: the same
// binary runs twice.
const runsAlone = "weir/tests/timed.Alone"

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

// keptBinary returns where the binary of a package is kept, such as ./tests/netns.
func keptBinary(dir, pkg string) string { return filepath.Join(dir, pkg+".test") }

// runKept runs the tests of the packages whose binaries are kept. It returns the arguments of
// go test for the other packages, nil if there are none, and how a failed one ended.
func runKept(p *printer, self string, o options, args []string) (left []string, failed error) {
	flags, packages, atOnce, ok := split(args)
	if !ok {
		return args, nil
	}
	var others []string
	p.kept = true
	defer func() { p.kept = false }()
	var running errgroup.Group
	running.SetLimit(atOnce)
	for _, pkg := range packages {
		binary := keptBinary(o.kept, pkg)
		if _, err := os.Stat(binary); err != nil {
			others = append(others, pkg)
			continue
		}
		cmd := exec.Command("go", slices.Concat(
			[]string{"tool", "test2json", "-t", "-p", "weir/" + strings.TrimPrefix(pkg, "./"), self, "exec"}, o.flags(),
			[]string{binary, "-test.paniconexit0", "-test.v=test2json"}, flags)...)
		cmd.Dir = pkg
		running.Go(func() error { return p.run(cmd) })
	}
	failed = running.Wait()
	if others == nil {
		return nil, failed
	}
	return append(slices.Clone(args[:len(args)-len(packages)]), others...), failed
}

// split returns the flags for test binaries among arguments of go test, the packages, which come
// last, and how many of them run at once: one, unless -p says otherwise. Flags for building have
// no effect on binaries; ok is false where one is not known.
func split(args []string) (flags, packages []string, atOnce int, ok bool) {
	atOnce = 1
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, has := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		args = args[1:]
		if name == "v" {
			continue // the printer's
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
