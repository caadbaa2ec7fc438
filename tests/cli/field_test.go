package cli

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"weir/tests/must"
)

// TestFieldLists checks a configuration whose lists are files in which more than the addresses
// matters: weir check is not silent about any that it does not read whole, and reads the others
// as weir diff does, which has the entries that the table of the files says.
func TestFieldLists(t *testing.T) {
	t.Parallel()
	const files = "../../control/feed/testdata/field"
	index := must.Read(t, filepath.Join(files, "INDEX.md"))
	absolute, err := filepath.Abs(files)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"ipset-netmask.ipset", "ipset-exist.ipset", "nft-spaced.nft", "nft-define.nft", "nft-delete.nft", "archive.tar.gz",
		"plain-spaced.txt", "range-to-netmask.txt", "stix-benign.json"}
	config := "interfaces: [lo]\nlists:\n"
	entries := make(map[string]string)
	for _, name := range names {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(name) + ` \| (\w+) \| ([^|]*?) ?\|`).FindStringSubmatch(string(index))
		if row == nil {
			t.Fatalf("%s: no row", name)
		}
		entries[name] = row[1] + " " + row[2]
		config += fmt.Sprintf("  %s: {format: %s, sources: [{file: %s}]}\n", list(name), row[1], filepath.Join(absolute, name))
	}
	path := filepath.Join(t.TempDir(), "weir.yaml")
	must.Write(t, path, config)
	out, _ := exec.Command(program, "check", "--json", path).Output() // fails where it has errors
	var checked struct {
		Errors   []struct{ Path, Error string }
		Warnings []string
	}
	if err := json.Unmarshal(out, &checked); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(checked.Errors) == 0 {
		t.Error("weir check has no errors")
	}
	for _, name := range names {
		var said []string
		for _, e := range checked.Errors {
			if e.Path == "lists."+list(name) {
				said = append(said, e.Error)
			}
		}
		format, right, _ := strings.Cut(entries[name], " ")
		if len(said) > 0 {
			t.Logf("%s", said[0])
			continue
		}
		if right == "" {
			t.Errorf("%s: weir check is silent", name)
			continue
		}
		want := filepath.Join(t.TempDir(), "right")
		must.Write(t, want, strings.ReplaceAll(right, ", ", "\n")+"\n")
		out, _ := weir(t, 0, "diff", "--json", want, filepath.Join(absolute, name)+",format="+format)
		var differ struct{ Removed, Added []string }
		if err := json.Unmarshal([]byte(out), &differ); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if len(differ.Added) > 0 || len(differ.Removed) > 0 {
			t.Errorf("%s: weir check is silent, and reads %.5q more, %.5q less", name, differ.Added, differ.Removed)
		}
	}
}

// list is a name of a list for a file.
func list(file string) string {
	name, _, _ := strings.Cut(file, ".")
	return name
}
