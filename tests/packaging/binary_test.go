package packaging

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// unwanted matches packages that the binary must not contain: plotting with its
// fonts, linear algebra, and all of tests/, the benchmark included.
var unwanted = regexp.MustCompile(`^gonum\.org/v1/(plot|gonum/(mat|lapack|stat)$)|/(freetype|fonts|go-md2man)(/|$)|^weir/tests(/|$)`)

func TestBinaryImports(t *testing.T) {
	for imported := range strings.FieldsSeq(output(t, exec.Command("go", "list", "-deps", "weir/cmd/weir"))) {
		if unwanted.MatchString(imported) {
			t.Errorf("the binary contains %s", imported)
		}
	}
	for _, name := range []string{
		"gonum.org/v1/plot", "gonum.org/v1/plot/vg", "gonum.org/v1/gonum/mat", "github.com/golang/freetype",
		"github.com/go-fonts/liberation/fonts/x", "weir/tests/bench/probe",
		"github.com/cpuguy83/go-md2man/v2/md2man",
	} {
		if !unwanted.MatchString(name) {
			t.Errorf("%s is not unwanted", name)
		}
	}
}
