package house

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dependencies = "docs/dependencies.md"

// goMod is what `go mod edit -json` says of go.mod, as far as it matters here.
type goMod struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Tool []struct{ Path string }
}

// direct lists what go.mod asks for on our own account: modules that one of
// the imports comes from, whatever their comment says, modules without the
// comment "// indirect", and tools.
func (m goMod) direct(imports []string) []string {
	var paths []string
	for _, r := range m.Require {
		if !r.Indirect || slices.ContainsFunc(imports, func(i string) bool { return within(r.Path, i) }) {
			paths = append(paths, r.Path)
		}
	}
	for _, tool := range m.Tool {
		paths = append(paths, tool.Path)
	}
	return paths
}

// A row of a table: a path in backquotes, then a reason.
var rowPattern = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| *([^|\\n]*?) *\\|$")

// reasons reads the tables of docs/dependencies.md.
func reasons(doc []byte) map[string]string {
	rows := map[string]string{}
	for _, match := range rowPattern.FindAllSubmatch(doc, -1) {
		rows[string(match[1])] = string(match[2])
	}
	return rows
}

// compare says where go.mod and the tables differ.
func compare(direct []string, rows map[string]string) []string {
	var wrong []string
	for _, d := range direct {
		switch reason, ok := rows[d]; {
		case !ok:
			wrong = append(wrong, d+" is a dependency without a row")
		case reason == "":
			wrong = append(wrong, d+" has a row without a reason")
		}
	}
	for _, d := range slices.Sorted(maps.Keys(rows)) {
		if !slices.Contains(direct, d) {
			wrong = append(wrong, d+" has a row, but is no direct dependency")
		}
	}
	return wrong
}

func TestDependenciesAreJustified(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v", cmd, err)
	}
	var mod goMod
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, dependencies))
	if err != nil {
		t.Fatal(err)
	}
	_, files := sources(t)
	var imports []string
	for _, f := range files {
		imports = append(imports, f.imports()...)
	}
	for _, wrong := range compare(mod.direct(imports), reasons(doc)) {
		t.Errorf("%s: %s", dependencies, wrong)
	}
}

func TestCompare(t *testing.T) {
	var mod goMod
	if err := json.NewDecoder(strings.NewReader(`{
		"Require": [
			{"Path": "example.org/a"},
			{"Path": "example.org/b", "Indirect": true},
			{"Path": "example.org/imported", "Indirect": true}
		],
		"Tool": [{"Path": "example.org/c/cmd/tool"}]
	}`)).Decode(&mod); err != nil {
		t.Fatal(err)
	}
	direct := mod.direct([]string{"fmt", "example.org/imported/sub"})
	want := []string{"example.org/a", "example.org/imported", "example.org/c/cmd/tool"}
	if !slices.Equal(direct, want) {
		t.Fatalf("direct: got %q, want %q", direct, want)
	}

	good := []byte(strings.Join([]string{
		"| module | why |",
		"|---|---|",
		"| `example.org/a` | reads a |",
		"| `example.org/imported` | imports |",
		"",
		"| `example.org/c/cmd/tool` | makes c |",
	}, "\n"))
	for _, c := range []struct {
		name     string
		old, new string
		want     int
	}{
		{"as it should be", "", "", 0},
		{"row missing", "| `example.org/a` | reads a |", "", 1},
		{"reason missing", "reads a", "", 1},
		{"only named in prose", "| `example.org/a` | reads a |", "`example.org/a` reads a", 1},
		{"row too many", "reads a |", "reads a |\n| `example.org/gone` | was read |", 1},
	} {
		doc := bytes.Replace(good, []byte(c.old), []byte(c.new), 1)
		if wrong := compare(direct, reasons(doc)); len(wrong) != c.want {
			t.Errorf("%s: got %d complaints %q, want %d", c.name, len(wrong), wrong, c.want)
		}
	}
}
