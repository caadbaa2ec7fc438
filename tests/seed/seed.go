// Package seed gives tests random numbers that a failure can be repeated with.
package seed

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
)

// Variable names the environment variable with the seed of tests. Without it each test
// draws a seed of its own.
const Variable = "WEIR_SEED"

var (
	mu    sync.Mutex
	tests = make(map[testing.TB]*drawn)
)

// drawn is the seed of a test.
type drawn struct {
	seed  uint64
	calls uint64
}

// New returns a generator. A test that fails logs its seed, and the command that repeats
// it. A test may have several generators: they differ, and are the same in each run with
// that seed.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	d := of(t)
	mu.Lock()
	defer mu.Unlock()
	d.calls++
	return rand.New(rand.NewPCG(d.seed, d.calls))
}

// Secrets is New, and seeds crypto/rand as well until the test ends, which the secrets of
// hashes come from. The test cannot be parallel, and is to call Secrets before it starts
// what outlives it.
func Secrets(t testing.TB) *rand.Rand {
	t.Helper()
	r := New(t)
	if t, ok := t.(*testing.T); ok { // a benchmark measures, whatever they are
		cryptotest.SetGlobalRandom(t, r.Uint64())
	}
	return r
}

// of returns the seed of a test, which it draws and logs the first time.
func of(t testing.TB) *drawn {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if d := tests[t]; d != nil {
		return d
	}
	d := &drawn{seed: rand.Uint64()}
	if text := os.Getenv(Variable); text != "" {
		var err error
		if d.seed, err = strconv.ParseUint(text, 0, 64); err != nil {
			t.Fatalf("%s: %v", Variable, err)
		}
	}
	tests[t] = d
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		delete(tests, t)
	})
	if _, ok := t.(*testing.T); ok { // of a benchmark, logs are shown always
		t.Logf("to repeat this: %s", command(d.seed, t.Name()))
	}
	return d
}

// command returns the command that runs a test with a seed.
func command(seed uint64, test string) string {
	var settings strings.Builder
	for _, name := range []string{"WEIR_LONG", "WEIR_EXHAUSTIVE"} {
		if value := os.Getenv(name); value != "" {
			fmt.Fprintf(&settings, "%s=%s ", name, value)
		}
	}
	names := strings.Split(test, "/")
	for i, n := range names {
		names[i] = "^" + regexp.QuoteMeta(n) + "$"
	}
	of := "."
	if info, ok := debug.ReadBuildInfo(); ok && info.Path != "" {
		of = strings.TrimSuffix(info.Path, ".test")
	}
	quoted := strings.ReplaceAll(strings.Join(names, "/"), "'", `'\''`)
	return fmt.Sprintf("%s%s=%#x go test -count=1 -run '%s' %s", settings.String(), Variable, seed, quoted, of)
}
