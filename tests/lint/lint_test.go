// Package lint checks what the linters of .golangci.yml cannot.
package lint

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/tests/must"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	text := must.Read(t, filepath.Join(root, name))
	return string(text)
}

// TestDependencies compares go.mod, and those of the modules of tests/, with the tables of
// docs/dependencies.md. make lint keeps them tidy.
func TestDependencies(t *testing.T) {
	var direct []string
	for _, dir := range []string{".", "tests/bench/filters", "tests/browser", "tests/man", "tests/stranger"} {
		for _, d := range dependencies(t, dir) {
			if d != "weir" && !slices.Contains(direct, d) {
				direct = append(direct, d)
			}
		}
	}

	const doc = "docs/dependencies.md"
	reasons := make(map[string]string)
	row := regexp.MustCompile("(?m)^\\| `([^`]+)` \\| *([^|\\n]*?) *\\|$")
	for _, m := range row.FindAllStringSubmatch(read(t, doc), -1) {
		reasons[m[1]] = m[2]
	}
	for _, d := range direct {
		if reasons[d] == "" {
			t.Errorf("%s: no reason for %s", doc, d)
		}
		delete(reasons, d)
	}
	for d := range reasons {
		t.Errorf("%s: %s is not a direct dependency", doc, d)
	}
}

// dependencies returns the direct dependencies and tools of the module in a directory.
func dependencies(t *testing.T, dir string) (direct []string) {
	t.Helper()
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = filepath.Join(root, dir)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
		Tool []struct{ Path string }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	for _, tool := range mod.Tool {
		direct = append(direct, tool.Path)
	}
	return direct
}

// product returns the files under control/, without tests.
func product(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := make(map[string]*ast.File)
	err := fs.WalkDir(os.DirFS(root), "control", func(name string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return err
		}
		files[name], err = parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestEachPackageHasARule holds .golangci.yml to the packages under control/:
// without a rule a package may import any other. A rule may be for several packages, with *
// for the name of each, or with all names in braces.
func TestEachPackageHasARule(t *testing.T) {
	config := read(t, ".golangci.yml")
	pattern := regexp.MustCompile(`\$\{config-path\}/(control/(?:[a-z/*]+|\{[a-z/,]+\}))/\*\.go`)
	rules := make(map[string]bool) // whether there is a package for it
	for _, m := range pattern.FindAllStringSubmatch(config, -1) {
		before, names, _ := strings.Cut(strings.TrimSuffix(m[1], "}"), "{")
		for name := range strings.SplitSeq(names, ",") {
			rules[before+name] = false
		}
	}
	packages := make(map[string]bool)
	for name := range product(t) {
		packages[filepath.Dir(name)] = true
	}
	for _, dir := range slices.Sorted(maps.Keys(packages)) {
		has := false
		for rule := range rules {
			match, err := filepath.Match(rule, dir)
			if err != nil {
				t.Fatalf("%s: %v", rule, err)
			}
			if match {
				has, rules[rule] = true, true
			}
		}
		if !has {
			t.Errorf(".golangci.yml has no rule for %s", dir)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		if !rules[rule] {
			t.Errorf(".golangci.yml has a rule for %s, which matches no package", rule)
		}
	}
}

// TestRooms compares imports under control/ with the table of rooms in docs/architecture.md: a
// package imports those of its own room and of the rooms above.
func TestRooms(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "docs/architecture.md"), "| room | packages |")
	table, _, _ = strings.Cut(table, "\n\n")
	rooms := make(map[string]int) // the row of each package
	row := regexp.MustCompile("`([a-zA-Z/]+)(?:\\{([a-z,]+)\\})?`")
	for n, line := range strings.Split(table, "\n") {
		columns := strings.Split(line, "|")
		if len(columns) < 4 {
			continue
		}
		for _, m := range row.FindAllStringSubmatch(columns[2], -1) {
			for name := range strings.SplitSeq(m[2], ",") {
				rooms[m[1]+name] = n
			}
		}
	}
	roomOf := func(dir string) int {
		name := strings.TrimPrefix(dir, "control/")
		if rest, ok := strings.CutPrefix(name, "stage/"); ok && rest != "" {
			name = "stage/NAME"
		}
		n, ok := rooms[name]
		if !ok {
			t.Errorf("docs/architecture.md has no room for %s", dir)
		}
		return n
	}
	for name, file := range product(t) {
		for _, spec := range file.Imports {
			if of, ok := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), "weir/control/"); ok && roomOf("control/"+of) > roomOf(filepath.Dir(name)) {
				t.Errorf("%s imports %s, whose room is below its own in docs/architecture.md", name, of)
			}
		}
	}
}

// callbacks are the exported fields of function type that are left.
var callbacks = []string{
	"control/demo.Options.Say",
	"control/demo.Options.Show",
	"control/feed.Config.Refuse",
	"control/fleet/hub.Options.Now",
	"control/fleet/store.Store.Now",
	"control/list/listfile.Options.Progress",
	"control/stage/digest.Node.Ask",
	"control/top.Options.Read",
}

// TestCallbacks keeps exported fields of function type out of control/: what
// runs when, and in which goroutine, is hard to see through them. Results are
// return values, messages, or handles with Close.
func TestCallbacks(t *testing.T) {
	var got []string
	for name, f := range product(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok && spec.Name.IsExported() {
				for _, field := range s.Fields.List {
					if _, ok := field.Type.(*ast.FuncType); !ok {
						continue
					}
					for _, n := range field.Names {
						if n.IsExported() {
							got = append(got, filepath.Dir(name)+"."+spec.Name.Name+"."+n.Name)
						}
					}
				}
			}
			return true
		})
	}
	for _, field := range got {
		if !slices.Contains(callbacks, field) {
			t.Errorf("%s is of function type", field)
		}
	}
}

// TestFilesAreDurable checks that the daemon and the hub change files by package durable
// only, which syncs them, and which tests can let crash: a file that is renamed, replaced
// or synced by hand is easily forgotten in part.
func TestFilesAreDurable(t *testing.T) {
	byHand := []string{"Create", "CreateTemp", "Link", "Mkdir", "MkdirAll", "Rename", "Truncate", "WriteFile"}
	others := map[string]string{ // where such a function is used, and on what
		"control/api/server/socket.go Mkdir": "the directory of a socket",
		"control/replay/files.go Rename":     "files that a command writes",
	}
	seen := make(map[string]bool)
	for name, file := range product(t) {
		if dir := filepath.Dir(name); strings.HasPrefix(dir, "control/durable") || strings.HasPrefix(dir, "control/demo") {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			of, _ := f.X.(*ast.Ident)
			if of != nil && of.Name == "os" && slices.Contains(byHand, f.Sel.Name) || f.Sel.Name == "Sync" && len(call.Args) == 0 {
				use := name + " " + f.Sel.Name
				if seen[use] = true; others[use] == "" {
					t.Errorf("%s: use package durable", use)
				}
			}
			return true
		})
	}
	for use := range others {
		if !seen[use] {
			t.Errorf("%s is no more", use)
		}
	}
}

// The index of the documentation links each page, once.
func TestEachPageHasAReader(t *testing.T) {
	index := read(t, "docs/README.md")
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	of, err := filepath.Glob(filepath.Join(root, "docs", "hosts", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, of...) {
		name, err := filepath.Rel(filepath.Join(root, "docs"), page)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(index, "]("+name+")"); n != 1 && name != "README.md" {
			t.Errorf("docs/README.md links %s %d times", name, n)
		}
	}
}

// Links between pages lead to files and headings that exist.
func TestLinks(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "*.md")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("not a git repository: %v", err)
	}
	link := regexp.MustCompile(`\]\(([^):# ]*)(?:#([^) ]+))?\)`)
	place := regexp.MustCompile(`(?m)^#+ (.*)$|<a id="([^"]+)">`)
	mark := regexp.MustCompile(`\]\([^)]*\)|[^\w\- ]`)
	links := 0
	for page := range strings.FieldsSeq(string(out)) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			links++
			to := page
			if m[1] != "" {
				to = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s links %s, which does not exist", page, to)
				continue
			}
			if m[2] == "" || filepath.Ext(to) != ".md" {
				continue
			}
			if !slices.ContainsFunc(place.FindAllStringSubmatch(read(t, to), -1), func(p []string) bool {
				name := mark.ReplaceAllString(p[1], "")
				return p[2] == m[2] || strings.ReplaceAll(strings.ToLower(name), " ", "-") == m[2]
			}) {
				t.Errorf("%s links #%s of %s, which has no such heading", page, m[2], to)
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links", links)
	}
}
