package lint

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"weir/tests/must"
)

// TestSuites looks for the tests that tests/kernels/suites names. After a test is renamed, its
// pattern silently runs nothing, or leaves nothing out.
func TestSuites(t *testing.T) {
	for _, suites := range []string{"tests/kernels/suites", "tests/kernels/suites-arm64"} {
		checkSuites(t, suites)
	}
}

func checkSuites(t *testing.T, suites string) {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	checked := 0
	for line := range strings.Lines(read(t, suites)) {
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		dir := filepath.Join(root, words[0])
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Errorf("%s: %s has no tests (%v)", suites, words[0], err)
		}
		var tests []string
		for _, file := range files {
			text := must.Read(t, file)
			for _, m := range function.FindAllStringSubmatch(string(text), -1) {
				tests = append(tests, m[1])
			}
		}
		for _, argument := range words[1:] {
			name, patterns, _ := strings.Cut(argument, "=")
			if name != "-test.run" && name != "-test.skip" {
				t.Errorf("%s: %s of %s is neither -test.run nor -test.skip", suites, argument, words[0])
				continue
			}
			for pattern := range strings.SplitSeq(patterns, "|") {
				test, _, _ := strings.Cut(pattern, "/")
				matches := regexp.MustCompile(test)
				found := false
				for _, name := range tests {
					found = found || matches.MatchString(name)
				}
				if !found {
					t.Errorf("%s: no test of %s matches %s", suites, words[0], pattern)
				}
				checked++
			}
		}
	}
	if checked == 0 {
		t.Errorf("%s: no pattern was found", suites)
	}
}
