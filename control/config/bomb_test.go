package config

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/lexer"

	"weir/tests/long"
	"weir/tests/must"
)

// TestBombs reads documents that make a YAML parser take gigabytes, or minutes, each
// in a process of its own.
func TestBombs(t *testing.T) {
	long.Unraced(t)
	long.Seconds(t)
	if path := os.Getenv("WEIR_TEST_BOMB"); path != "" {
		_, err := Load(path)
		fmt.Println(err)
		status, _ := os.ReadFile("/proc/self/status")
		fmt.Println(string(status))
		return
	}
	for _, bomb := range []struct{ name, text, want string }{
		{"brackets", strings.Repeat("[", 1_000_000), "nested deeper than 100"},
		{"braces", strings.Repeat("{a: ", 250_000), "nested deeper than 100"},
		{"brackets on lines", strings.Repeat("[\n", 500_000), "nested deeper than 100"},
		{"brackets after closed ones", strings.Repeat("]\n", 1000) + strings.Repeat("[\n", 500_000), "nested deeper than 100"},
		{"brackets with quoted ones", strings.Repeat("[\"]\",", 170_000), "nested deeper than 100"},
		{"dashes", strings.Repeat("- ", 500_000), "nested deeper than 100"},
		{"size", "", "1:1: more than 1048576 bytes"},
		{"aliases", "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nlists: {x: *b}\n", "anchors, aliases and tags are not supported"},
		{"tags", strings.Repeat("!a ", 300_000), "not YAML"},
	} {
		t.Run(bomb.name, func(t *testing.T) {
			path := t.TempDir() + "/weir.yaml"
			must.Write(t, path, bomb.text)
			if bomb.text == "" {
				if err := os.Truncate(path, 4<<30); err != nil { // a hole
					t.Fatal(err)
				}
			}
			c := exec.Command(os.Args[0], "-test.run=^TestBombs$")
			c.Env = append(os.Environ(), "GOGC=100", "WEIR_TEST_BOMB="+path)
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%.2000s", err, out)
			}
			if !strings.Contains(string(out), bomb.want) {
				t.Errorf("%.500s, want %q", out, bomb.want)
			}
			var peak int
			_, status, _ := strings.Cut(string(out), "VmHWM:")
			if _, err := fmt.Sscan(status, &peak); err != nil || peak > 512<<10 {
				t.Errorf("%d KiB, %v", peak, err)
			}
		})
	}
}

// Brackets in text do not count.
func TestDepth(t *testing.T) {
	for text, want := range map[string]bool{
		"":                              false,
		strings.Repeat("[", 100):        false,
		strings.Repeat("[", 101):        true,
		strings.Repeat("#[\n", 1000):    false,
		strings.Repeat("- '['\n", 1000): false,
		strings.Repeat("- [x]\n", 1000): false,
		strings.Repeat("- ", 101):       true,
		strings.Repeat("- x\n", 1000):   false,
	} {
		if got := tooDeep(lexer.Tokenize(text)) != nil; got != want {
			t.Errorf("%.20q: %v", text, got)
		}
	}
}
