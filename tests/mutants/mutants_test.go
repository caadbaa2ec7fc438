package main

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/tests/long"
	"weir/tests/must"
)

// The faults of the table can be put into the code of today, and their tests are there.
func TestTable(t *testing.T) {
	const root = "../.."
	faults, err := parse(table)
	if err != nil {
		t.Fatal(err)
	}
	if len(faults) == 0 {
		t.Fatal("no faults")
	}
	names, tests := make(map[string]bool), make(map[string][]string)
	for _, f := range faults {
		if names[f.name] {
			t.Errorf("%s: twice", f.name)
		}
		names[f.name] = true
		text, err := f.read(root)
		if err != nil {
			t.Errorf("%s: %v", f.name, err)
			continue
		}
		changed, err := f.apply(text)
		switch {
		case err != nil:
			t.Errorf("%s: %v", f.name, err)
		case changed == text:
			t.Errorf("%s: changes nothing", f.name)
		case strings.HasSuffix(f.file, ".go"):
			if _, err := parser.ParseFile(token.NewFileSet(), f.file, changed, parser.SkipObjectResolution); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		}
		if tests[f.pkg] == nil {
			if tests[f.pkg], err = testsOf(filepath.Join(root, f.pkg)); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Contains(tests[f.pkg], f.test) {
			t.Errorf("%s: %s has no %s", f.name, f.pkg, f.test)
		}
	}
}

// directive matches each go:generate line that compiles C: others would leave faults untried.
func TestDirectives(t *testing.T) {
	text := must.Read(t, "../../bpf/bpf.go")
	var sources []string
	for _, line := range directive.FindAllStringSubmatch(string(text), -1) {
		sources = append(sources, cSource.FindString(line[1]))
	}
	if strings.Join(sources, " ") != "weir.bpf.c weir_tc.bpf.c" {
		t.Errorf("go generate compiles %v", sources)
	}
}

// testsOf returns the names of a package's tests.
func testsOf(dir string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	for _, path := range files {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(d.Name.Name, "Test") {
				names = append(names, d.Name.Name)
			}
		}
	}
	return names, err
}

func TestParse(t *testing.T) {
	all, err := parse("# Area\n\na/b-1: some fault\nx/y.go ./x TestX\n \tkept\n-\tgone\n+\tcome\n+\tmore\n\nc/d: none\nz.h ./x TestZ\n-all\n")
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	want := fault{"a/b-1", "some fault", "x/y.go", "\tkept\n\tgone\n", "\tkept\n\tcome\n\tmore\n", "./x", "TestX"}
	if all[0] != want {
		t.Errorf("%+v, want %+v", all[0], want)
	}
	const before = "\tkept\n\tgone\n\t\tkept\n\tgone\n"
	for text, want := range map[string]string{
		before:                      "\tkept\n\tcome\n\tmore\n\t\tkept\n\tgone\n",
		"first\n" + before:          "first\n\tkept\n\tcome\n\tmore\n\t\tkept\n\tgone\n",
		before + "\tkept\n\tgone\n": "",
		"\tkept\n":                  "",
	} {
		if got, err := all[0].apply(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", text, got, err, want)
		}
	}
	for _, bad := range []string{
		"a fault",
		"a/b: some fault",
		"a/b: some fault\n\n-x\n",
		"a/b: some fault\nx/y.go ./x\n-x\n",
		"a/b: some fault\nx/y.go ./x TestX\nx\n",
	} {
		if all, err := parse(bad); err == nil {
			t.Errorf("%q: %+v", bad, all)
		}
	}
}

// A fault is caught by a test that fails with it and not without it.
func TestTry(t *testing.T) {
	long.Seconds(t)
	root := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"one.go": "package m\n\nfunc one() int {\n\treturn 1\n}\n\nfunc two() int {\n\treturn 2\n}\n",
		"one_test.go": `package m

import "testing"

func TestOne(t *testing.T) {
	if one() != 1 {
		t.Error(one())
	}
}

func TestTwo(t *testing.T) {
	if one() != two() {
		t.Error(two())
	}
}

func TestSkipped(t *testing.T) { t.Skip("always") }
`,
	} {
		must.Write(t, filepath.Join(root, name), text)
	}
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("GOWORK", "off")
	b := &bench{root: root, dir: t.TempDir(), green: make(map[string]bool)}
	ones := fault{file: "one.go", old: "\treturn 1\n", pkg: "."}
	for _, test := range []struct{ new, test, failed, wrong string }{
		{"\treturn 3\n", "TestOne", "TestOne", ""},
		{"\treturn 1 + 0\n", "TestOne", "", ""},
		{"\treturn 1 +\n", "TestOne", "", "go test -c"},
		{"\treturn 3\n", "TestTwo", "", "fails without the fault"},
		{"\treturn 3\n", "TestNone", "", "there is no test"},
		{"\treturn 3\n", "TestSkipped", "", "skipped"},
	} {
		f := ones
		f.new, f.test = test.new, test.test
		r, err := b.try(context.Background(), f)
		if r.failed != test.failed || (err == nil) != (test.wrong == "") || err != nil && !strings.Contains(err.Error(), test.wrong) {
			t.Errorf("%q, %s: failed %q, %v, want %q, %q\n%s", test.new, test.test, r.failed, err, test.failed, test.wrong, r.output)
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "one.go")); err != nil || strings.Contains(string(text), "3") {
		t.Errorf("the tree has changed: %s, %v", text, err)
	}
}

func TestChoose(t *testing.T) {
	all := []fault{{name: "a/b"}, {name: "a/c"}, {name: "ab/c"}}
	for names, want := range map[string]string{"": "a/b a/c ab/c", "a": "a/b a/c", "ab/c a/b": "ab/c a/b", "b": "", "a b": ""} {
		var got []string
		chosen, err := choose(all, strings.Fields(names))
		for _, f := range chosen {
			got = append(got, f.name)
		}
		if text := strings.Join(got, " "); err == nil && text != want || (err == nil) != (want != "") {
			t.Errorf("%q: %s, %v, want %s", names, text, err, want)
		}
	}
}
