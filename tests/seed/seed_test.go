package seed

import (
	"crypto/rand"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"weir/tests/long"
)

// failing makes TestThatFails fail.
const failing = "WEIR_TEST_SEED_FAILS"

// TestThatFails is for TestRepeated.
func TestThatFails(t *testing.T) {
	if os.Getenv(failing) == "" {
		return
	}
	t.Run("it's 1 (of 2)", func(t *testing.T) {
		first, second := New(t), Secrets(t)
		t.Errorf("numbers: %x %x %s", first.Uint64(), second.Uint64(), rand.Text())
	})
}

// The command that a failure logs repeats it, numbers and secrets alike; without it they
// differ.
func TestRepeated(t *testing.T) {
	long.Seconds(t)
	run := func(seed, program string, arguments ...string) string {
		t.Helper()
		c := exec.Command(program, arguments...)
		c.Env = append(os.Environ(), failing+"=1", Variable+"="+seed)
		out, err := c.CombinedOutput()
		if err == nil {
			t.Fatalf("%v passes:\n%s", arguments, out)
		}
		return string(out)
	}
	parts := func(text string) (repeat, numbers string) {
		t.Helper()
		found := regexp.MustCompile(`(?s)to repeat this: ([^\n]*)\n.*numbers: ([^\n]*)\n`).FindStringSubmatch(text)
		if found == nil {
			t.Fatal(text)
		}
		return found[1], found[2]
	}
	const only = "-test.run=^TestThatFails$"
	repeat, numbers := parts(run("", os.Args[0], only))
	if again, same := parts(run("", "sh", "-c", repeat)); again != repeat || same != numbers {
		t.Errorf("%s\n%s\nrepeated: %s\n%s", repeat, numbers, again, same)
	}
	if _, other := parts(run("", os.Args[0], only)); other == numbers {
		t.Errorf("twice by chance: %s", numbers)
	}
	if n := strings.Fields(numbers); len(n) != 3 || n[0] == n[1] {
		t.Errorf("two generators: %s", numbers)
	}
	if text := run("x", os.Args[0], only); !strings.Contains(text, Variable+`: strconv.ParseUint: parsing "x"`) {
		t.Error(text)
	}
}
