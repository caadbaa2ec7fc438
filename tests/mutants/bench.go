package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// patience is how long a test may take; one that a fault has brought to a halt fails then.
const patience = 3 * time.Minute

// waiting is the patience of tests: most faults let a test wait until it ends.
const waiting = "15s"

// bench runs tests of the tree at root, with and without faults.
type bench struct {
	root, dir string
	green     map[string]bool // by fault.command: whether the test passes without a fault
}

// result is the outcome of a test.
type result struct {
	failed string // which test did, or why; "": it has passed
	took   time.Duration
	output []byte
}

// try runs the test of a fault, once without it.
func (b *bench) try(ctx context.Context, f fault) (result, error) {
	text, err := f.read(b.root)
	if err != nil {
		return result{}, err
	}
	if text, err = f.apply(text); err != nil {
		return result{}, err
	}
	green, known := b.green[f.command()]
	if !known {
		r, err := b.test(ctx, f, nil)
		if err != nil {
			return r, err
		}
		green = r.failed == ""
		b.green[f.command()] = green
	}
	if !green {
		return result{}, fmt.Errorf("fails without the fault: %s", f.command())
	}
	replaced, err := b.replace(ctx, f, text)
	if err != nil {
		return result{}, err
	}
	return b.test(ctx, f, replaced)
}

// replace writes the changed text to where Go is to find it, and returns the overlay.
func (b *bench) replace(ctx context.Context, f fault, text string) (map[string]string, error) {
	if strings.HasSuffix(f.file, ".go") {
		changed := filepath.Join(b.dir, "changed.go")
		return map[string]string{filepath.Join(b.root, f.file): changed}, os.WriteFile(changed, []byte(text), 0o600)
	}
	return b.compile(ctx, f, text)
}

// directive matches a go:generate line that compiles C, in a shell or not.
var directive = regexp.MustCompile(`(?m)^//go:generate (?:sh -c ")?go tool bpf2go (.*?)"?$`)

// cSource is a source of a program in such a line.
var cSource = regexp.MustCompile(`\w+\.bpf\.c`)

// compile compiles the C of the directory of a fault as make generate does, but only for the
// byte order of this machine, and into another directory.
func (b *bench) compile(ctx context.Context, f fault, text string) (map[string]string, error) {
	if os.Getenv("BPF2GO_CC") == "" {
		return nil, errors.New("which compiler is to be used, the Makefile says: make mutants FAULTS=" + f.name)
	}
	from, to := filepath.Join(b.root, filepath.Dir(f.file)), filepath.Join(b.dir, "c")
	if err := errors.Join(os.RemoveAll(to), os.Mkdir(to, 0o700)); err != nil {
		return nil, err
	}
	source, err := os.ReadFile(filepath.Join(from, "bpf.go"))
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(from, "*.[ch]"))
	if err != nil {
		return nil, err
	}
	for _, path := range files {
		c, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if path == filepath.Join(b.root, f.file) {
			c = []byte(text)
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(path)), c, 0o600); err != nil {
			return nil, err
		}
	}
	target := "bpfel"
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		target = "bpfeb"
	}
	for _, line := range directive.FindAllStringSubmatch(string(source), -1) {
		args := strings.Replace(line[1], "bpfel,bpfeb", target, 1)
		args = cSource.ReplaceAllString(args, to+"/$0")
		c := exec.CommandContext(ctx, "sh", "-c", "go tool bpf2go -output-dir "+to+" "+args)
		c.Dir, c.Env = from, append(os.Environ(), "GOPACKAGE=bpf")
		if out, err := c.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("bpf2go: %w\n%s", err, out)
		}
	}
	c := exec.CommandContext(ctx, "go", "run", "weir/bpf/compress", to, strings.TrimPrefix(target, "bpf"))
	c.Dir = from
	if out, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compress: %w\n%s", err, out)
	}
	return differing(from, to)
}

// differing returns the objects in a directory that differ from those of the same name in
// another, as an overlay of that.
func differing(from, to string) (map[string]string, error) {
	overlay := make(map[string]string)
	objects, err := filepath.Glob(filepath.Join(to, "*.o.zst"))
	for _, path := range objects {
		replaced := filepath.Join(from, filepath.Base(path))
		before, err := os.ReadFile(replaced)
		if err != nil {
			return nil, err
		}
		after, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if !bytes.Equal(before, after) {
			overlay[replaced] = path
		}
	}
	if err == nil && len(overlay) == 0 {
		err = errors.New("compiles to the same programs")
	}
	return overlay, err
}

// failure is a line by which a test says that it has failed.
var failure = regexp.MustCompile(`(?m)^\s*(?:--- FAIL: (\S+)|panic: .*|fatal error: .*)`)

// test compiles the tests of a package, with the files that replace others, and runs that of
// the fault.
func (b *bench) test(ctx context.Context, f fault, replaced map[string]string) (result, error) {
	program, overlay := filepath.Join(b.dir, "test"), filepath.Join(b.dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return result{}, err
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		return result{}, err
	}
	// In the environment, since some tests compile a command and run it.
	env := append(os.Environ(), "WEIR_PATIENCE="+waiting, "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -overlay="+overlay))
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-ldflags=-w", "-o", program, f.pkg)
	build.Dir, build.Env = b.root, env
	if out, err := build.CombinedOutput(); err != nil {
		return result{}, fmt.Errorf("go test -c %s: %w\n%s", f.pkg, err, out)
	}
	c := exec.CommandContext(ctx, program, "-test.v", "-test.failfast", "-test.timeout", patience.String(), "-test.run", "^"+f.test+"$")
	c.Dir, c.Env = filepath.Join(b.root, f.pkg), env
	c.WaitDelay = time.Second // what a test has started may outlive its panic
	began := time.Now()
	out, err := c.CombinedOutput()
	r := result{took: time.Since(began), output: out}
	switch {
	case c.ProcessState == nil:
		return r, err
	case !c.ProcessState.Success():
		r.failed, err = c.ProcessState.String(), nil
		if first := failure.FindSubmatch(out); first != nil {
			r.failed = cmp.Or(string(first[1]), string(first[0]))
		}
	case bytes.Contains(out, []byte("testing: warning: no tests to run")):
		err = fmt.Errorf("there is no test: %s", f.command())
	case !bytes.Contains(out, []byte("\n--- PASS: ")):
		err = fmt.Errorf("skipped: %s\n%s", f.command(), out)
	}
	return r, err
}
