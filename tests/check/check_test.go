package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/tests/long"
)

func TestUsing(t *testing.T) {
	const source = `package p
import ("testing"; "weir/tests/long"; alone "weir/tests/timed")
var sizes = []int{long.Or(1, 2)}
func size() int { return sizes[0] }
func helper(t *testing.T) { alone.Alone(t) }
func TestDirect(t *testing.T) { long.Only(t, "") }
func TestByWay(t *testing.T) { _ = size() }
func TestNeither(t *testing.T) { var long struct{ X int }; _ = long.X }
func TestBoth(t *testing.T) { helper(t); _ = size() }
`
	f, err := parser.ParseFile(token.NewFileSet(), "p_test.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		calls []string
		want  string
	}{
		{[]string{"weir/tests/long"}, "TestBoth TestByWay TestDirect TestNeither"}, // a local name: one too many
		{[]string{"weir/tests/long.Only"}, "TestDirect"},
		{[]string{"weir/tests/timed.Alone"}, "TestBoth"},
		{[]string{"weir/tests/long", "weir/tests/timed.Alone"}, "TestBoth"},
		{[]string{"weir/tests/other"}, ""},
	} {
		if got := strings.Join(usingAll([]*ast.File{f}, test.calls), " "); got != test.want {
			t.Errorf("%v: %s, want %s", test.calls, got, test.want)
		}
	}
}

// What fails is printed with the command that repeats it; what passes is a line.
func TestTest(t *testing.T) {
	long.Seconds(t)
	t.Setenv("WEIR_LONG", "1")
	t.Setenv("WEIR_SEED", "")
	t.Setenv("CI", "")
	t.Setenv("GOWORK", "")
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"a/a_test.go": `package a
import ("syscall"; "testing"; "time")
func TestGood(t *testing.T) { t.Log("good") }
func TestBad(t *testing.T) { t.Log("before"); t.Run("sub", func(t *testing.T) { t.Error("wrong") }) }
func TestSkipped(t *testing.T) { t.Skip() }
func TestSpins(t *testing.T) {
	for u := (syscall.Rusage{}); u.Utime.Nano() < int64(300*time.Millisecond); { syscall.Getrusage(0, &u) }
}
func TestRace(t *testing.T) { println("WARNING: DATA RACE\nRead at\n==================") }
func TestSleeps(t *testing.T) { time.Sleep(300*time.Millisecond) }
`,
		"b/b_test.go": "package b\nimport \"testing\"\nfunc TestPasses(t *testing.T) { t.Log(\"silent\") }\n",
		"c/c_test.go": "package c\nimport \"testing\"\nfunc TestPanics(t *testing.T) { panic(\"at the disco\") }\n",
	})
	binary := build(t, dir)
	cmd := exec.Command(binary, "test", "-times", "times", "-vet=off", "./...")
	cmd.Dir = dir
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 {
		t.Fatalf("%v: %s%s", err, &out, &stderr)
	}
	for text, want := range map[string]bool{
		"wrong": true, "before": true, "Read at": true, "at the disco": true, "goroutine ": true,
		"ok  \tm/b": true, "FAIL\tm/a": true, "FAIL\tm/c": true,
		"1 were skipped": true,
		"  WEIR_LONG=1 go test -count=1 -run '^TestBad$' m/a\n":    true,
		"  WEIR_LONG=1 go test -count=1 -run '^TestPanics$' m/c\n": true,
		"good": false, "silent": false, "TestGood": false,
	} {
		if strings.Contains(out.String(), text) != want {
			t.Errorf("%q in the output: %t, want %t:\n%s", text, !want, want, &out)
		}
	}

	timed := exec.Command(binary, "times", "times")
	timed.Dir = dir
	table, err := timed.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, table)
	}
	_, byWall, _ := strings.Cut(string(table), "tests by wall time")
	byWall, byCPU, _ := strings.Cut(byWall, "tests by CPU time")
	if i, j := strings.Index(byWall, "TestSleeps"), strings.Index(byWall, "TestGood"); i < 0 || j < i {
		t.Errorf("by wall time, TestSleeps is not before TestGood:\n%s", byWall)
	}
	if i, j := strings.Index(byCPU, "TestSpins"), strings.Index(byCPU, "TestSleeps"); i < 0 || j < i {
		t.Errorf("by CPU time, TestSpins is not before TestSleeps:\n%s", byCPU)
	}
}

// build builds check into a directory.
func build(t *testing.T, dir string) (binary string) {
	t.Helper()
	binary = filepath.Join(dir, "check")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return binary
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Each package runs the tests that are marked in it, although another has tests of the same
// names. A binary that is current runs without go test, which makes the others.
func TestMarkedAndBinaries(t *testing.T) {
	long.Seconds(t)
	for _, name := range environment {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"go.mod":               "module weir\n\ngo 1.26\n",
		"tests/timed/timed.go": "package timed\n\n//go:noinline\nfunc Alone() {}\n",
		"tests/long/long.go":   "package long\nfunc Only() {}\n",
		"a/a_test.go": `package a
import ("testing"; "weir/tests/long"; "weir/tests/timed")
func TestOne(t *testing.T) { timed.Alone() }
func TestTwo(t *testing.T) { long.Only() }
func TestBoth(t *testing.T) { timed.Alone(); long.Only(); t.Error("wrong") }
func TestNeither(t *testing.T) {}
`,
		"b/b_test.go": `package b
import ("testing"; "weir/tests/long")
func TestOne(t *testing.T) { long.Only() }
func TestTwo(t *testing.T) {}
`,
		"c/c_test.go": "package c\nimport (\"testing\"; \"weir/tests/timed\")\nfunc TestThree(t *testing.T) { timed.Alone() }\n",
	})
	binary := build(t, dir)
	check := func(want string, args ...string) {
		t.Helper()
		cmd := exec.Command(binary, append([]string{"test"}, args...)...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		var got []string
		for line := range strings.Lines(string(out)) {
			words := strings.Fields(line)
			if len(words) > 2 && (words[0] == "---" || words[0] == "ok" || words[0] == "FAIL" && words[1] != "") {
				got = append(got, strings.Trim(words[0]+words[1], "-:")+":"+words[2])
			}
		}
		for i, g := range got { // without times
			if pkg, _, _ := strings.Cut(g, ":"); !strings.HasPrefix(g, "PASS") && !strings.HasPrefix(g, "FAIL:") {
				got[i] = pkg
			}
		}
		if text := strings.Join(got, " "); text != want || (err != nil) != strings.Contains(want, "FAIL") {
			t.Errorf("%q: %s, %v, want %s:\n%s", args, text, err, want, out)
		}
	}
	const alone, long = "weir/tests/timed.Alone", "weir/tests/long"
	linked := func(pkg string) time.Time {
		t.Helper()
		info, err := os.Stat(filepath.Join(dir, "binaries", pkg+".test"))
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	check("PASS:TestTwo PASS:TestNeither okweir/a PASS:TestOne PASS:TestTwo okweir/b",
		"-binaries", "binaries", "-unmarked", alone, "-v", "-vet=off", "-p", "1", "./a", "./b")
	a, b := linked("a"), linked("b")
	flags := []string{"-binaries", "binaries", "-marked", alone, "-v", "-vet=off", "-count=1", "-timeout", "1m", "-p", "1"}
	check("PASS:TestThree okweir/c PASS:TestOne FAIL:TestBoth FAILweir/a", append(flags, "./a", "./c")...)
	if linked("a") != a {
		t.Error("a is linked again, although nothing has changed")
	}
	check("PASS:TestOne PASS:TestTwo okweir/b", "-binaries", "binaries", "-v", "-vet=off", "-p", "2", "./tests/...", "./b", "weir/b")
	if linked("b") != b {
		t.Error("b is linked again, although nothing has changed")
	}

	// A function that a package calls has changed, and the package as it is compiled has not.
	write(t, dir, map[string]string{"tests/timed/timed.go": "package timed\n\n//go:noinline\nfunc Alone() { panic(0) }\n"})
	check("FAIL:TestOne FAILweir/a", append(flags, "./a")...)
	write(t, dir, map[string]string{"tests/timed/timed.go": "package timed\n\n//go:noinline\nfunc Alone() {}\n"})
	check("PASS:TestOne FAIL:TestBoth FAILweir/a PASS:TestThree okweir/c", append(flags, "./a", "./c")...)
	// Other flags for the linker make another binary.
	c := linked("c")
	check("PASS:TestThree okweir/c", append(flags, "-ldflags=-s", "./c")...)
	if linked("c") == c {
		t.Error("c is not linked with other flags")
	}
	write(t, dir, map[string]string{"c/c_test.go": "package c\nfunc no\n"})
	check("FAILweir/c", append(flags, "./c")...)
	check("PASS:TestOne okweir/b", "-marked", long, "-unmarked", alone, "-v", "-vet=off", "./b")
}

// Binaries run as many at once as -p says.
func TestSplit(t *testing.T) {
	for _, c := range []struct {
		args   []string
		flags  []string
		atOnce int
	}{
		{[]string{"-count=1", "-p", "2", "-vet=off", "./a", "./b"}, []string{"-test.count=1"}, 2},
		{[]string{"-run", "X", "./a", "./b"}, []string{"-test.run=X"}, 1},
		{[]string{"-p", "none", "./a", "./b"}, nil, 0},
		{[]string{"-unknown=1", "./a", "./b"}, nil, 0},
	} {
		flags, packages, atOnce, ok := split(c.args)
		if ok != (c.atOnce > 0) || atOnce != c.atOnce || !slices.Equal(flags, c.flags) || ok && !slices.Equal(packages, []string{"./a", "./b"}) {
			t.Errorf("%q: %q, %q, %d at once, %t", c.args, flags, packages, atOnce, ok)
		}
	}
}

// A run that ends well says what its tests have shown, which were skipped and why, and what is left.
func TestProof(t *testing.T) {
	long.Seconds(t)
	for _, name := range environment {
		t.Setenv(name, "")
	}
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"go.mod":             "module weir\n\ngo 1.26\n",
		"tests/long/long.go": "package long\nimport \"testing\"\nfunc Seconds(t *testing.T) { if testing.Short() { t.Skip(\"takes seconds, and go test -short leaves it out\") } }\n",
		"filter/a/a_test.go": "package a\nimport \"testing\"\nfunc TestOne(t *testing.T) { t.Run(\"part\", func(*testing.T) {}) }\nfunc TestTwo(*testing.T) {}\n",
		"loader/b_test.go": `package loader
import ("testing"; "weir/tests/long")
func TestRoot(t *testing.T) { t.Skip("needs root") }
func TestLonger(t *testing.T) { long.Seconds(t) }
`,
	})
	binary := build(t, dir)
	for range 2 { // by Go's cache and the kept binary the second time
		cmd := exec.Command(binary, "test", "-proof", "-binaries", "binaries", "-cached", "./filter/...", "-vet=off", "-short", "-count=1", "./...")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for _, want := range []string{"2 tests passed in ", "     2  filters", "skipped 1: needs root\n", "     1  take longer"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
		if strings.Contains(string(out), "skipped 1: takes") {
			t.Errorf("what is left out is skipped:\n%s", out)
		}
	}
}
