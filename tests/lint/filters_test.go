package lint

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"weir/tests/must"
)

var update = flag.Bool("update", false, "write filter/doc.go")

// mapOfFilters is the text of filter/doc.go, without the packages of each group.
const mapOfFilters = `// Package filter is the map of the packages below it: one data structure each,
// in pure Go, without I/O. It contains no code itself.
//
// # Vocabulary
//
// The same operation has the same name in all packages:
//
//   - Add adds an element, Remove removes it and reports whether it was there, Contains reports
//     whether it may be there, Lookup returns its value, and Observe adds it and reports whether
//     it was there before. Count and Estimate return how often an element was added.
//   - Elements are byte strings in bloom, counting, weighted, attenuated and reconcile, where
//     AddHash and so on take their 64-bit hashes; they are hashes in blocked, cascade, cuckoo,
//     bloomier, invertible, recent, sketch and stable, to be computed once for several structures
//     (hash.Sum, hash.Secret); keys of packets in membership, and numbers in quotient.
//   - For returns the geometry for a number of elements and a false-positive rate, and New an empty
//     structure; FromWords and Over take memory that is there, as that of the kernel.
//   - FalsePositiveRate predicts, FillRatio measures.
//   - AppendBinary and UnmarshalBinary encode and decode, with a magic, a version and a checksum.
//     A decoder takes memory in proportion to its input, whatever that claims, and what it refuses
//     changes nothing. The sets of membership and quotient have no encoding: their keys are saved
//     (snapshot), and a set is built from them under another secret.
//
// Unless a comment says otherwise, queries may run concurrently, and changes beside nothing else.
//
// # Data plane
//
// Bit-exact twins of the C under bpf/, each tested against it. They work on
// kernel memory as well as on the heap; the control plane builds and reads the
// kernel's maps with them.
//
%s//
// # Control plane
//
// Used by the daemon or by a command, without a counterpart in the kernel.
//
%s//
// # Papers
//
// Applications from Broder and Mitzenmacher, "Network applications of Bloom
// filters: a survey", 2004, and others, for use as libraries. In weir only
// docs/papers uses them.
//
%spackage filter
`

// TestMapOfFilters checks filter/doc.go against the comments of the packages. With
// -update it writes the file.
func TestMapOfFilters(t *testing.T) {
	list := func(args ...string) string {
		cmd := exec.Command("go", append([]string{"list"}, args...)...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		return string(out)
	}
	product := strings.Fields(list("-deps", "./cmd/weir"))

	var dataPlane, controlPlane, papers strings.Builder
	dec := json.NewDecoder(strings.NewReader(list("-json=Dir,ImportPath,Name,Doc,GoFiles", "./filter/...")))
	for dec.More() {
		var p struct {
			Dir, ImportPath, Name, Doc string
			GoFiles                    []string
		}
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.Name == "filter" || strings.Contains(p.ImportPath, "/internal/") {
			continue
		}
		into, linked := &papers, slices.Contains(product, p.ImportPath)
		says, ok := strings.CutPrefix(strings.TrimSuffix(p.Doc, "."), "Package "+p.Name+" ")
		if !ok {
			t.Errorf("%s: the comment does not begin with Package %s", p.ImportPath, p.Name)
		}
		headers := twins(t, p.Dir, p.GoFiles)
		switch {
		case len(headers) > 0 && !linked:
			t.Errorf("%s: the twin of %v, but not linked into weir", p.ImportPath, headers)
		case len(headers) > 0:
			into, says = &dataPlane, says+" ("+strings.Join(headers, ", ")+")"
		case linked:
			into = &controlPlane
		}
		fmt.Fprintf(into, "  - [%s] %s.\n", p.ImportPath, says)
	}

	want := fmt.Sprintf(mapOfFilters, wrapped(dataPlane.String()), wrapped(controlPlane.String()), wrapped(papers.String()))
	path := filepath.Join(root, "filter", "doc.go")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, "filter/doc.go") != want {
		t.Error("filter/doc.go is not what the comments of the packages say: go test ./tests/lint -run TestMapOfFilters -update")
	}
}

// twins returns the C headers that a package's comment names.
func twins(t *testing.T, dir string, files []string) []string {
	for _, name := range files {
		text := must.Read(t, filepath.Join(dir, name))
		if _, doc, ok := strings.Cut("\n"+string(text), "\n// Package "); ok {
			doc, _, _ = strings.Cut(doc, "\npackage ")
			headers := regexp.MustCompile(`bpf/\w+\.h`).FindAllString(doc, -1)
			for _, h := range headers {
				read(t, h)
			}
			return headers
		}
	}
	return nil
}

// wrapped returns list items as lines of a comment, each at most 80 bytes long.
func wrapped(items string) string {
	var b strings.Builder
	for item := range strings.Lines(items) {
		line := "//   "
		for i, word := range strings.Fields(item) {
			switch {
			case i == 0:
				line += word
			case len(line)+1+len(word) > 80:
				b.WriteString(line + "\n")
				line = "//     " + word
			default:
				line += " " + word
			}
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
