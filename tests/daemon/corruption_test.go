package daemon

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"weir/tests/long"
	"weir/tests/must"
	"weir/tests/seed"
)

// said matches what an answer says of saved state that is damaged, or missing.
var said = regexp.MustCompile(`(?i)damaged|nothing is known|could not be read|cannot be read|no such file|not a journal`)

// corrupt damages a file of a directory at random, and returns what it did.
func corrupt(t *testing.T, random *rand.Rand, dir string) string {
	t.Helper()
	var all []string
	if err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if info, err := e.Info(); err == nil && info.Size() > 0 {
				all = append(all, path)
			}
		}
		return err
	}); err != nil || len(all) < 3 {
		t.Fatal(all, err)
	}
	path := all[random.IntN(len(all))]
	name, _ := filepath.Rel(dir, path) // it lies there
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, at := bytes.Clone(b), random.IntN(len(b))
	end := at + 1 + random.IntN(min(len(b)-at, 4096))
	var how string
	switch random.IntN(7) {
	case 0, 1:
		b[at] ^= 1 << random.IntN(8)
		how = fmt.Sprintf("bit at %d", at)
	case 2:
		b = b[:at]
		how = fmt.Sprintf("cut at %d", at)
	case 3:
		clear(b[at:end])
		how = fmt.Sprintf("zeros from %d to %d", at, end)
	case 4:
		b = append(b[:end:end], b[at:]...)
		how = fmt.Sprintf("doubled from %d to %d", at, end)
	case 5:
		b = append(b[:at:at], b[end:]...)
		how = fmt.Sprintf("without %d to %d", at, end)
	case 6:
		other := all[random.IntN(len(all))]
		text := must.Read(t, other)
		must.Write(t, other, b)
		b = text
		other, _ = filepath.Rel(dir, other) // it lies there
		how = "swapped with " + other
	}
	if bytes.Equal(b, before) {
		how += ", the same"
	}
	must.Write(t, path, b)
	return fmt.Sprintf("%s (%d bytes): %s", name, len(before), how)
}

// Whatever file of the state directory is damaged while the sources are away, explain without a
// daemon, and a daemon that starts with it, give no wrong answer without a word of it.
func TestCorruptState(t *testing.T) {
	long.Seconds(t)
	t.Parallel()
	h, random := newHost(t), seed.New(t)
	nets := h.write("nets.txt", []byte("# networks\n"+strings.Join(lines(addresses(cleanBlock, 0, 300)), "\n")+"\n203.0.113.0/24\n"))
	friends := h.write("friends.txt", []byte("203.0.113.9\n"))
	h.configure(h.B.Iface, "lists: {always: {%s}, nets: {sources: [{file: %s}], ttl: 2d}, friends: {action: allow, sources: [{file: %s}]}, jail: {}}\n",
		h.feed(1000), nets, friends)
	config, socket := h.path("weir.yaml"), h.path("weir.sock")
	d := h.start(releases[0])
	h.mustChange("jail", false, "192.0.2.1", "192.0.2.4/30", "198.51.100.7")
	h.mustChange("jail", true, "198.51.100.7")
	for _, l := range []string{"always", "nets", "friends"} {
		h.settled(l)
	}
	h.feed(1010) // a second version
	h.refresh("always", 1010)
	d.stop()
	h.start(releases[0]).stop() // the journal has its length now
	for _, f := range []string{"feed.txt", "nets.txt", "friends.txt"} {
		if err := os.Rename(h.path(f), h.path("away-"+f)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(h.path("state"), h.path("whole")); err != nil {
		t.Fatal(err)
	}
	right := map[string]string{
		address(feedBlock, 7).String(): "drop", address(feedBlock, 1005).String(): "drop", address(cleanBlock, 250).String(): "drop",
		"203.0.113.8": "drop", "203.0.113.9": "pass", "192.0.2.1": "drop", "192.0.2.6": "drop", "198.51.100.7": "pass", "198.51.100.8": "pass",
	}
	counts := make(map[string]int)
	// judge compares answers with the right ones; words has the other output.
	judge := func(what, out, words, source string) {
		t.Helper()
		verdict := "?"
		if m := regexp.MustCompile(`(?m)^\s*(?:\S+: +)?.*?\b(drop|pass)\b`).FindStringSubmatch(out); m != nil {
			verdict = m[1]
		}
		switch {
		case verdict == right[source]:
			counts["right"]++
		case said.MatchString(out), said.MatchString(words):
			counts["wrong, and said"]++
		default:
			counts["wrong"]++
			t.Errorf("%s: %s: want %s:\n%s\n%s", what, source, right[source], out, words)
		}
	}
	began := time.Now()
	for i := range long.Rounds(6, 16, 320) {
		if err := os.RemoveAll(h.path("state")); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(h.path("state"), os.DirFS(h.path("whole"))); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("%d: nothing", i)
		if i > 0 { // at first, all is right
			what = fmt.Sprintf("%d: %s", i, corrupt(t, random, h.path("state")))
		}
		for source := range right {
			out, _ := h.command("explain", "-c", config, source)
			judge("explain -c: "+what, out, "", source)
		}
		d := h.begin(releases[0])
		d.until("filtering")
		if d.gone() {
			if log := d.tail(1000); !said.MatchString(log) {
				t.Errorf("%s: the start fails:\n%s", what, log)
			}
			counts["no start"]++
			continue
		}
		status, _ := h.status()
		lists, _ := h.command("lists", "--socket", socket)
		for source := range right {
			out, _ := h.command("explain", "--socket", socket, source)
			judge(what, out, status, source)
			if said.MatchString(out+status) && !said.MatchString(lists+status) {
				t.Errorf("%s: lists: %s", what, lists)
			}
		}
		d.kill()
		t.Logf("%s: %v after %v", what, counts, time.Since(began).Round(time.Second))
	}
	if counts["right"] == 0 || counts["wrong, and said"] == 0 {
		t.Errorf("%v", counts)
	}
}

// until waits for an event, or the end of the process.
func (d *daemon) until(prefix string) {
	d.h.t.Helper()
	for !d.gone() && d.after(0, prefix) == 0 {
		time.Sleep(time.Millisecond)
	}
}
