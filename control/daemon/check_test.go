package daemon

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"weir/control/attach"
	"weir/control/config"
	"weir/loader"
	"weir/tests/lab"
	"weir/tests/long"
	"weir/tests/seed"
)

// generator writes configurations at random: most are fine, others are refused
// for all sorts of reasons.
type generator struct {
	*rand.Rand
	dir   string
	iface lab.End
	pins  string
}

func (g *generator) file(name, text string, mode os.FileMode) string {
	path := filepath.Join(g.dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		panic(err)
	}
	return path
}

// often returns true with a probability.
func (g *generator) often(p float64) bool { return g.Float64() < p }

// contents returns the text of a list.
func (g *generator) contents() string {
	var b strings.Builder
	switch g.IntN(9) {
	case 0:
		return "" // empty
	case 1:
		return "0.0.0.0/0\n" // too much
	case 2:
		return "what\nis\nthis\n" // bad lines
	case 3: // more shapes than a program has
		for x := 8; x <= 8+g.IntN(26); x++ {
			for _, y := range []int{8, 16, 24, 32} {
				fmt.Fprintf(&b, "tcp 10.0.0.0/%d:* > 10.0.0.0/%d:80\n", x, y)
			}
		}
	case 4:
		return "10.0.0.0/8\n" // covers a failsafe prefix, perhaps
	case 5:
		return "2001:db8::/32\ntcp 192.0.2.1:* > *:25\n"
	default:
		for range 1 + g.IntN(100) {
			fmt.Fprintf(&b, "192.0.%d.%d\n", g.IntN(256), g.IntN(256))
		}
	}
	return b.String()
}

// config returns the text of a configuration.
func (g *generator) config(n int) string {
	var b strings.Builder
	add := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	add("interfaces: [{name: %s, netns: %s, required: %v}]", g.iface.Iface, g.iface.Netns, g.often(0.5))
	add("pins: %s\nkeep: false\napi: {socket: \"\"}", g.pins)
	if g.often(0.5) {
		add("state_dir: %s", filepath.Join(g.dir, "state", fmt.Sprint(n)))
	} else {
		add(`state_dir: ""`)
	}
	if g.often(0.3) {
		add("mode: approx\nbits_per_entry: %d", 4+g.IntN(20))
	}
	if g.often(0.3) {
		add("monitor: true")
	}
	if g.often(0.3) {
		add("failsafe: {ports: [tcp/22], prefixes: [10.1.0.0/16]}")
	}
	if g.often(0.3) {
		add("max_coverage: 100%%")
	}
	if g.often(0.3) {
		add("learning: {exact: true, elements: %d}", 100*g.IntN(3))
	}
	if g.often(0.4) {
		add("trackers:")
		for _, key := range []string{"src", "dst", "flow", "src/24"}[:1+g.IntN(4)] {
			add("  - {key: %s, threshold: %dkpps}", key, 1+g.IntN(9))
		}
	}
	if g.often(0.2) {
		add("digest: {rate: 1k/s}")
	}
	if g.often(0.2) {
		key := g.file(fmt.Sprint("key", n), strings.Repeat("0123456789abcdef", 1+g.IntN(2)), []os.FileMode{0o600, 0o604}[g.IntN(2)])
		add("loop: {node: 1, key_file: %s, size: %d}", key, []int{64, 100, 128}[g.IntN(3)])
	}
	lists := g.IntN(4)
	if g.often(0.1) {
		lists = 700 // more than can be described
	}
	if lists > 0 {
		add("lists:")
	}
	for i := range lists {
		add("  list-%s-%d:", strings.Repeat("x", 20), i)
		add("    action: %s", []string{"block", "allow"}[g.IntN(2)])
		if lists > 4 || g.often(0.2) {
			continue
		}
		path := filepath.Join(g.dir, "absent")
		if g.often(0.9) {
			path = g.file(fmt.Sprintf("list-%d-%d", n, i), g.contents(), 0o600)
		}
		add("    sources: [{file: %s}]", path)
		add("    required: %v\n    direction: %s", g.often(0.5), []string{"src", "dst", "both"}[g.IntN(3)])
	}
	return b.String()
}

// What weir check accepts starts, and what a start refuses, weir check refuses for
// the same reason.
func TestCheckAgreesWithStart(t *testing.T) {
	long.Seconds(t)
	t.Parallel() // it waits a lot
	l := lab.New(t)
	g := &generator{Rand: seed.New(t), dir: t.TempDir(), iface: l.B, pins: "/sys/fs/bpf/" + l.B.Netns}
	t.Cleanup(func() {
		if _, err := attach.DetachAll(loader.Pins(g.pins)); err != nil {
			t.Error(err)
		}
		os.Remove(g.pins)
	})
	rounds := long.Rounds(20, 60, 500)
	log := slog.New(slog.DiscardHandler)
	started, drawn := 0, 0
	refused := make(map[string]bool)
	few := func() bool { return started < rounds/5 || len(refused) < rounds/10 }
	for ; drawn < rounds || few() && drawn < 4*rounds; drawn++ {
		text := g.config(drawn)
		reader := config.File(g.file("weir.yaml", text, 0o600))
		checked := func() error {
			c, err := reader.Read()
			if err != nil {
				return err
			}
			p, err := Prepare(t.Context(), c, log, nil)
			if err != nil {
				return err
			}
			e, err := p.Build()
			if err == nil {
				e.Close()
			}
			return err
		}()
		d, err := Start(t.Context(), Options{Config: reader, Log: log})
		if err == nil {
			started++
			if bad := d.Stop(); bad != nil {
				t.Errorf("stop: %v\n%s", bad, text)
			}
		} else {
			refused[err.Error()] = true
		}
		if fmt.Sprint(checked) != fmt.Sprint(err) {
			t.Errorf("weir check: %v\nweir run: %v\nof\n%s", checked, err, text)
		}
	}
	t.Logf("%d started, %d reasons to refuse", started, len(refused))
	if few() {
		t.Errorf("of %d configurations %d started, and there were %d reasons to refuse one: the test tests little", drawn, started, len(refused))
	}
}
