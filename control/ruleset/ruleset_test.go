package ruleset

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/filter/verdict"
)

func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a", "feed.txt"), "192.0.2.1\nbad\n192.0.2.2\n")
	b := write(t, filepath.Join(dir, "b", "feed.netset"), "198.51.100.0/24\n")
	empty := write(t, filepath.Join(dir, "empty"), "# nothing\n")
	var progress []string
	l, err := Rules{Block: []string{a, b}, Allow: []string{empty}, MaxBad: 0.5}.Load(func(file string, done, total int64) {
		progress = append(progress, file)
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range l.Sources {
		names = append(names, s.Name)
	}
	if want := []string{"feed", "feed-2", "empty"}; !slices.Equal(names, want) {
		t.Errorf("names: %q, want %q", names, want)
	}
	if l.Entries() != 3 || l.Sources[0].Allow || !l.Sources[2].Allow {
		t.Errorf("%d entries of %+v", l.Entries(), l.Sources)
	}
	w := l.Warnings()
	if len(w) != 2 || !strings.HasPrefix(w[0], a+":2: ") || !strings.HasPrefix(w[1], empty+": ") {
		t.Errorf("warnings: %q", w)
	}
	if !slices.Contains(progress, a) || !slices.Contains(progress, b) {
		t.Errorf("progress of %q", progress)
	}
}

func TestLoadRefuses(t *testing.T) {
	feed := write(t, filepath.Join(t.TempDir(), "feed.txt"), "192.0.2.1\nbad\n")
	nine := make([]netip.Prefix, verdict.MaxFailsafe+1)
	for i := range nine {
		nine[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16)
	}
	for name, c := range map[string]struct {
		change func(*Rules)
		want   string
	}{
		"bad line":          {func(r *Rules) {}, feed + ":2: "},
		"no file":           {func(r *Rules) { r.Block[0] += "x" }, feed + "x"},
		"failsafe prefixes": {func(r *Rules) { r.FailsafePrefixes = nine }, "failsafe"},
		"bits":              {func(r *Rules) { r.BitsPerKey = 0.5 }, "bits per entry"},
	} {
		r := Rules{Block: []string{feed}}
		c.change(&r)
		if _, err := r.Load(nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one of %q", name, err, c.want)
		}
	}
}

// A block list that holds half of a family is noticed, an allow list may.
func TestTooWide(t *testing.T) {
	for text, want := range map[string]string{
		"0.0.0.0/0": "IPv4", "128.0.0.0/1": "IPv4", "1.0.0.0-255.255.255.255": "IPv4", "> 0.0.0.0/1": "IPv4",
		"::/0": "IPv6", "8000::/1": "IPv6", "> ::/1": "IPv6",
		"128.0.0.0/2": "", "4000::/2": "", "> 64.0.0.0/2": "", "tcp *:* > *:25": "",
	} {
		file := write(t, filepath.Join(t.TempDir(), "feed.txt"), "192.0.2.1\n"+text+"\n")
		l, err := Rules{Block: []string{file}}.Load(nil)
		if err != nil {
			t.Fatal(err)
		}
		err = l.TooWide()
		if (err != nil) != (want != "") || err != nil && !(strings.HasPrefix(err.Error(), file+": ") &&
			strings.Contains(err.Error(), "half of "+want) && strings.Contains(err.Error(), "--wide")) {
			t.Errorf("%q: %v", text, err)
		}
		if l, err = (Rules{Allow: []string{file}}).Load(nil); err != nil {
			t.Fatal(err)
		}
		if err := l.TooWide(); err != nil {
			t.Errorf("allow %q: %v", text, err)
		}
	}
}

func TestShare(t *testing.T) {
	for text, want := range map[string]Share{"5%": 0.05, "0.05": 0.05, "0%": -1, "0": -1, "100%": 1} {
		var got, again Share
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("share %q: %v, %v, want %v", text, got, err, want)
		}
		written, _ := got.MarshalText()
		if err := again.UnmarshalText(written); err != nil || again != got {
			t.Errorf("share %v is written %q, which is %v, %v", got, written, again, err)
		}
	}
}
