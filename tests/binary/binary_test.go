package binary

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/must"
)

// module makes a module with a command that prints a text, the working directory.
func module(t *testing.T) (set func(text string)) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOWORK", "off")
	if err := os.MkdirAll("cmd/hello", 0o755); err != nil {
		t.Fatal(err)
	}
	must.Write(t, "go.mod", "module hello\n\ngo 1.26\n")
	return func(text string) {
		t.Helper()
		must.Write(t, "cmd/hello/main.go", "package main\n\nvar version = \"dev\"\n\nfunc main() { print(\""+text+" \" + version) }\n")
	}
}

func build(t *testing.T, flags ...string) (path string) {
	t.Helper()
	dir := t.TempDir()
	if err := Build(dir, "hello", "hello", flags...); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "hello")
}

func prints(t *testing.T, path, want string) {
	t.Helper()
	if got, err := exec.Command(path).CombinedOutput(); err != nil || string(got) != want {
		t.Errorf("the command prints %q, want %q: %v", got, want, err)
	}
}

// What was built is of the present sources and flags, and stays so.
func TestBuild(t *testing.T) {
	long.Seconds(t)
	set := module(t)
	set("a")
	first := build(t)
	prints(t, first, "a dev")
	linked, err := os.Stat("dist/tests/hello")
	if err != nil {
		t.Fatal(err)
	}

	again := build(t)
	prints(t, again, "a dev")
	if now, err := os.Stat("dist/tests/hello"); err != nil || !os.SameFile(now, linked) {
		t.Errorf("linked again without a change: %v", err)
	}

	set("b")
	// As old as before: a clock that was set back, or a file from an archive.
	if err := os.Chtimes("cmd/hello/main.go", time.Time{}, linked.ModTime().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	prints(t, build(t), "b dev")
	prints(t, build(t, "-ldflags=-w -X main.version=two"), "b two")
	prints(t, build(t), "b dev")
	set("a")
	prints(t, build(t), "a dev")
	prints(t, first, "a dev")
	prints(t, again, "a dev")

	set(`"`)
	if err := Build(t.TempDir(), "hello", "hello"); err == nil {
		t.Error("a source that does not compile is built")
	}
	set("c")
	prints(t, build(t), "c dev")
}

// A build that is killed while it writes the file leaves a part of it, which has the
// build ID of the whole.
func TestTorn(t *testing.T) {
	set := module(t)
	set("a")
	whole := must.Read(t, build(t))
	if err := os.Remove("dist/tests/hello"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("dist/tests/hello.linking", whole[:len(whole)/2], 0o755); err != nil {
		t.Fatal(err)
	}
	prints(t, build(t), "a dev")
}

// Packages whose tests begin together build together.
func TestAtOnce(t *testing.T) {
	set := module(t)
	set("a")
	var all sync.WaitGroup
	for range 8 {
		dir := t.TempDir()
		all.Go(func() {
			if err := Build(dir, "hello", "hello"); err != nil {
				t.Error(err)
				return
			}
			prints(t, filepath.Join(dir, "hello"), "a dev")
		})
	}
	all.Wait()
}
