package feed_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"weir/control/feed"
	"weir/control/list/listfile"
	"weir/tests/lab"
	"weir/tests/must"
)

// none is a share of bad lines below that of one.
const none = 1e-9

// script is a file for one of the tools that own a format.
type script struct {
	name string // what it was made as
	text string
}

// load loads each script by a tool into a network namespace that is empty again before the
// next, and returns what the commands of list print. Where a tool refuses a script, or does not
// end, these are nil.
func load(t *testing.T, scripts []script, load string, list []string, clear string) [][]string {
	t.Helper()
	lab.Root(t)
	dir := t.TempDir()
	for i, s := range scripts {
		must.Write(t, filepath.Join(dir, fmt.Sprint(i, ".in")), s.text)
	}
	loop := fmt.Sprintf("i=0; while [ $i -lt %d ]; do if timeout 20 %s <$i.in >$i.said 2>&1; then\n", len(scripts), load)
	for n, l := range list {
		loop += fmt.Sprintf("%s >$i.%d || exit 1\n", l, n)
	}
	loop += "fi; " + clear + "\ni=$((i+1)); done"
	c := exec.Command("sh", "-c", loop)
	c.Dir = dir
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	results := make([][]string, len(scripts))
	refused := 0
	for i, s := range scripts {
		for n := range list {
			out, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.%d", i, n)))
			if err != nil {
				said, _ := os.ReadFile(filepath.Join(dir, fmt.Sprint(i, ".said")))
				if refused++; refused <= 3 {
					t.Logf("%s itself refuses a script: %s\n%s", load, said, s.text)
				}
				break
			}
			results[i] = append(results[i], string(out))
		}
	}
	if refused > 1+len(scripts)/20 {
		t.Errorf("%s itself refuses %d of %d scripts", load, refused, len(scripts))
	}
	return results
}

// tally counts what weir does with files that a tool takes.
type tally struct {
	files    map[string]int // by name
	refused  map[string]int
	messages map[string]int
	failed   int
}

func newTally() *tally {
	return &tally{make(map[string]int), make(map[string]int), make(map[string]int), 0}
}

var (
	variable = regexp.MustCompile(`"[^"]*"|[0-9a-fA-F:]*:[0-9a-fA-F:.]*[0-9a-fA-F]|[0-9][0-9.]*`)
	place    = regexp.MustCompile(`:\d+: |\bline \d+`)
)

// check compares what weir reads with the addresses that a file has by its owner. Read whole, a
// file has these or is refused. Where bad lines are left out, it has no others, and lacks
// addresses only beside such lines.
func (c *tally) check(t *testing.T, name, text string, f feed.Format, lenient bool, want spans) {
	t.Helper()
	if c.failed > 20 {
		return
	}
	if lenient {
		c.files[name]++
	}
	fail := func(format string, args ...any) {
		t.Helper()
		if c.failed++; c.failed <= 20 {
			t.Errorf("%s, sets %q, lenient %v: %s\n%s", name, f.Sets, lenient, fmt.Sprintf(format, args...), shortened(text))
		}
	}
	o := listfile.Options{Lenient: lenient, MaxBad: none}
	e, _, err := feed.Read("file", strings.NewReader(text), f, 1<<30, o)
	got, flows := covered(e)
	switch {
	case err != nil:
		if lenient { // or else host bits are refused
			c.refused[name]++
		}
		c.messages[variable.ReplaceAllString(err.Error(), "…")]++
		if e.Len() > 0 {
			fail("%d entries beside the error %v", e.Len(), err)
		}
		if !place.MatchString(err.Error()) {
			fail("an error without a line: %v", err)
		}
	case len(flows) > 0:
		fail("flows %q", flows)
	case !slices.Equal(got, want):
		fail("too much: %v, missing: %v", got.without(want), want.without(got))
	}
	o.MaxBad = 1
	e, report, err := feed.Read("file", strings.NewReader(text), f, 1<<30, o)
	got, flows = covered(e)
	if more := got.without(want); len(more) > 0 || len(flows) > 0 {
		fail("too much beside bad lines: %v, %q", more, flows)
	}
	if less := want.without(got); err == nil && report.Bad == 0 && len(less) > 0 {
		fail("missing without a bad line: %v", less)
	}
}

// report logs the shares of refusals, and fails the test where they are too large.
func (c *tally) report(t *testing.T, most float64) {
	t.Helper()
	files, refused := 0, 0
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		files += c.files[name]
		refused += c.refused[name]
		t.Logf("%s: %d of %d files refused, %.2f %%", name, c.refused[name], c.files[name], 100*float64(c.refused[name])/float64(c.files[name]))
	}
	messages := slices.SortedFunc(maps.Keys(c.messages), func(a, b string) int { return c.messages[b] - c.messages[a] })
	for _, m := range messages[:min(len(messages), 30)] {
		t.Logf("%6d × %s", c.messages[m], m)
	}
	share := float64(refused) / float64(max(files, 1))
	t.Logf("in all: %d of %d files refused, %.2f %%", refused, files, 100*share)
	if files >= 1000 && share > most {
		t.Errorf("%.2f %% of the files are refused, at most %.0f %% may be", 100*share, 100*most)
	}
	if files == 0 || files >= 30 && refused == files {
		t.Errorf("of %d files, none was read", files)
	}
}

func shortened(text string) string {
	if len(text) > 3000 {
		return text[:3000] + "…"
	}
	return text
}

// pick returns one of some values.
func pick[T any](r interface{ IntN(int) int }, values ...T) T { return values[r.IntN(len(values))] }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// lacking ends a test where the kernel or the machine lacks something: skipped, but failed under
// CI=true.
func lacking(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("needs %s, and under CI=true may not be skipped", what)
	}
	t.Skipf("needs %s", what)
}

// owned returns a format with the sets to read.
func owned(t *testing.T, kind string, sets ...string) feed.Format {
	t.Helper()
	f, err := feed.ParseFormat(kind)
	if err != nil {
		t.Fatal(err)
	}
	f.Sets = sets
	return f
}
