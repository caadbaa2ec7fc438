package lint

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestMapOfFilters checks filter/doc.go: every package is on the map once, under
// the heading of its use in the product, and the C headers it names exist.
func TestMapOfFilters(t *testing.T) {
	list := func(args ...string) []string {
		cmd := exec.Command("go", append([]string{"list"}, args...)...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", cmd, err)
		}
		return strings.Fields(string(out))
	}
	product := list("-deps", "./cmd/weir")

	var mapped []string
	for _, section := range strings.Split(read(t, "filter/doc.go"), "// # ")[1:] {
		heading, _, _ := strings.Cut(section, "\n")
		for _, entry := range strings.Split(section, "//   - [")[1:] {
			name, entry, _ := strings.Cut(entry, "]: ")
			mapped = append(mapped, name)
			headers := regexp.MustCompile(`bpf/\w+\.h`).FindAllString(entry, -1)
			for _, h := range headers {
				read(t, h)
			}
			if (heading == "Data plane") != (len(headers) > 0) {
				t.Errorf("%s: under %q with the headers %v", name, heading, headers)
			}
			if linked := slices.Contains(product, name); linked != (heading != "Papers" && heading != "Next") {
				t.Errorf("%s: under %q, but linked into weir is %t", name, heading, linked)
			}
		}
	}

	var want []string
	for _, p := range list("./filter/...") {
		if p != "weir/filter" && !strings.Contains(p, "/internal/") {
			want = append(want, p)
		}
	}
	slices.Sort(mapped)
	if !slices.Equal(mapped, want) {
		t.Errorf("on the map are\n%q, want\n%q", mapped, want)
	}
}
