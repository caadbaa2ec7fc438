// Package house holds the repository to its own plan: who may import whom,
// what packages are called, and why each dependency is there. It reads the
// sources rather than asking the go command, so that files of every build tag
// count.
package house

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "weir"
)

// A room is a top-level directory with Go in it.
type room struct {
	rooms   []string // what it may import of ours, besides itself
	modules []string // what it may import of others; nil is anything
}

// The arrows of the house. Test files are held to the same rooms, but may
// import any module, and may share what tests/ offers.
var rooms = map[string]room{
	"bpf":     {modules: []string{"github.com/cilium/ebpf"}},
	"filter":  {modules: []string{"github.com/cespare/xxhash/v2", "gonum.org/v1/gonum"}},
	"loader":  {rooms: []string{"bpf"}},
	"control": {rooms: []string{"filter", "loader"}},
	"cmd":     {rooms: []string{"control"}},
	"tests":   {rooms: []string{"bpf", "filter", "loader", "control", "cmd"}},
}

// Such names say nothing of what is inside.
var namelessPackages = []string{"util", "utils", "common", "helper", "helpers"}

// checkImport says what is wrong with a file in directory dir (relative to the
// root) importing a package.
func checkImport(dir string, test bool, imported string) error {
	from, ok := rooms[roomOf(dir)]
	if !ok {
		return fmt.Errorf("%q is no room of the house", roomOf(dir))
	}
	if imported == module || strings.HasPrefix(imported, module+"/") {
		to := roomOf(strings.TrimPrefix(strings.TrimPrefix(imported, module), "/"))
		if to == roomOf(dir) || slices.Contains(from.rooms, to) || test && to == "tests" {
			return nil
		}
		return fmt.Errorf("%s may not use %q", roomOf(dir), to)
	}
	if isStandard(imported) || test || from.modules == nil {
		return nil
	}
	if !slices.ContainsFunc(from.modules, func(m string) bool { return within(m, imported) }) {
		return fmt.Errorf("%s may not use this module", roomOf(dir))
	}
	return nil
}

// checkName says what is wrong with a package's name and its directory's.
func checkName(dir, name string) error {
	for _, n := range []string{path.Base(dir), strings.TrimSuffix(name, "_test")} {
		if slices.Contains(namelessPackages, n) {
			return fmt.Errorf("a package should be called after what it holds, not %q", n)
		}
	}
	return nil
}

// exits finds the calls that end the process. Only main may decide that: from
// anywhere else they skip the deferred calls that detach and unpin.
func exits(f *ast.File) []token.Pos {
	var found []token.Pos
	ast.Inspect(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if ok && (pkg.Name == "log" && strings.HasPrefix(sel.Sel.Name, "Fatal") ||
			pkg.Name == "os" && sel.Sel.Name == "Exit") {
			found = append(found, sel.Pos())
		}
		return true
	})
	return found
}

func roomOf(dir string) string {
	first, _, _ := strings.Cut(dir, "/")
	return first
}

func isStandard(imported string) bool {
	first, _, _ := strings.Cut(imported, "/")
	return !strings.Contains(first, ".")
}

// within reports whether a package belongs to a module, by their paths.
func within(modulePath, imported string) bool {
	return imported == modulePath || strings.HasPrefix(imported, modulePath+"/")
}

type source struct {
	dir  string // relative to the root
	test bool
	*ast.File
}

func (s source) imports() []string {
	var paths []string
	for _, spec := range s.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			panic(err) // the parser has accepted it
		}
		paths = append(paths, imported)
	}
	return paths
}

// sources parses every Go file of the module.
func sources(t *testing.T) (*token.FileSet, map[string]source) {
	t.Helper()
	fset, files := token.NewFileSet(), map[string]source{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != root {
			// What the go command ignores.
			if b := d.Name(); b[0] == '.' || b[0] == '_' || b == "testdata" || b == "vendor" {
				return filepath.SkipDir
			}
		}
		if d.IsDir() || filepath.Ext(name) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		files[rel] = source{
			dir:  filepath.ToSlash(filepath.Dir(rel)),
			test: strings.HasSuffix(rel, "_test.go"),
			File: f,
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// A walk that finds nothing would find nothing wrong.
	if _, ok := files["tests/house/house_test.go"]; !ok {
		t.Fatal("the walk misses this very file")
	}
	return fset, files
}

func TestHouse(t *testing.T) {
	fset, files := sources(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		for _, imported := range f.imports() {
			if err := checkImport(f.dir, f.test, imported); err != nil {
				t.Errorf("%s imports %s: %v", name, imported, err)
			}
		}
		if err := checkName(f.dir, f.Name.Name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if f.Name.Name != "main" && !f.test {
			for _, pos := range exits(f.File) {
				t.Errorf("%v: only package main may end the process", fset.Position(pos))
			}
		}
	}
}

func TestCheckImport(t *testing.T) {
	for _, c := range []struct {
		dir      string
		test     bool
		imported string
		ok       bool
	}{
		{"bpf", false, "embed", true},
		{"bpf", false, "github.com/cilium/ebpf/btf", true},
		{"bpf", false, "github.com/cilium/ebpfother", false},
		{"bpf", false, "golang.org/x/sys/unix", false},
		{"bpf", false, "weir/filter/hash", false},
		{"bpf", true, "weir/loader", false},

		{"filter/key", false, "weir/filter/hash", true},
		{"filter/hash", false, "github.com/cespare/xxhash/v2", true},
		{"filter/hash", false, "github.com/cilium/ebpf", false},
		{"filter/hash", true, "github.com/cilium/ebpf", true},
		{"filter/hash", true, "weir/tests/traffic", true},
		{"filter/hash", false, "weir/bpf", false},

		{"loader", false, "weir/bpf", true},
		{"loader", false, "github.com/vishvananda/netlink", true},
		{"loader", false, "weir/filter/key", false},
		{"loader", false, "weir/control", false},

		{"control/feed", false, "weir/filter/key", true},
		{"control/feed", false, "weir/loader", true},
		{"control", false, "weir/bpf", false},
		{"control", false, "weir/tests/traffic", false},

		{"cmd/weir", false, "weir/control", true},
		{"cmd/weir", false, "weir/loader", false},
		{"cmd/weir", false, "weir/filter/key", false},

		{"tests/contract", true, "weir/bpf", true},
		{"tests/traffic", false, "weir/loader", true},

		{"pkg/key", false, "fmt", false},
		{"filter/key", false, "weir", false},
		{".", false, "fmt", false},
	} {
		if err := checkImport(c.dir, c.test, c.imported); (err == nil) != c.ok {
			t.Errorf("%s (test: %v) imports %s: got %v, want ok = %v",
				c.dir, c.test, c.imported, err, c.ok)
		}
	}
}

func TestCheckName(t *testing.T) {
	for _, c := range []struct {
		dir, name string
		ok        bool
	}{
		{"filter/key", "key", true},
		{"filter/key", "key_test", true},
		{"control/util", "feed", false},
		{"control/feed", "helpers", false},
		{"control/feed", "common_test", false},
	} {
		if err := checkName(c.dir, c.name); (err == nil) != c.ok {
			t.Errorf("package %s in %s: got %v, want ok = %v", c.name, c.dir, err, c.ok)
		}
	}
}

func TestExits(t *testing.T) {
	const src = `package feed
func f() {
	log.Print("fine")
	log.Fatalf("%v", err)
	logger.Fatal(err)
	defer os.Exit(1)
}`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "feed.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var lines []int
	for _, pos := range exits(f) {
		lines = append(lines, fset.Position(pos).Line)
	}
	if want := []int{4, 6}; !slices.Equal(lines, want) {
		t.Errorf("found calls in lines %v, want %v", lines, want)
	}
}
