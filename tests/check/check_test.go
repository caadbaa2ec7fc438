package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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

// go test -skip takes one pattern for all packages: a test of the same name as one that is
// run alone would not be run at all.
func TestMarkedNamesAreUnique(t *testing.T) {
	all, err := tests("../..")
	if err != nil {
		t.Fatal(err)
	}
	marked := make(map[string]string)
	for dir, files := range all {
		for _, name := range usingAll(files, []string{"weir/tests/timed.Alone"}) {
			if other, ok := marked[name]; ok {
				t.Errorf("%s is in %s and in %s", name, dir, other)
			}
			marked[name] = dir
		}
	}
	if len(marked) == 0 {
		t.Fatal("no test is marked")
	}
	for dir, files := range all {
		for _, f := range files {
			for _, d := range f.Decls {
				if names, _ := declared(d); len(names) > 0 && marked[names[0]] != "" && marked[names[0]] != dir {
					t.Errorf("%s of %s is run alone, and so skips the one of %s", names[0], marked[names[0]], dir)
				}
			}
		}
	}
}

// What fails is printed with the command that repeats it; what passes is a line.
func TestTest(t *testing.T) {
	t.Setenv("WEIR_LONG", "1")
	t.Setenv("WEIR_SEED", "")
	t.Setenv("CI", "")
	t.Setenv("GOWORK", "")
	dir := t.TempDir()
	for name, text := range map[string]string{
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
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(dir, "check")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
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
