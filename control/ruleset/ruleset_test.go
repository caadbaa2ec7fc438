package ruleset

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"weir/filter/membership"
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

func TestParse(t *testing.T) {
	for _, m := range []membership.Mode{membership.Exact, membership.Approximate} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("mode %v: %v, %v", m, got, err)
		}
	}
	for text, want := range map[string]Share{"5%": 0.05, "0.05": 0.05, " 12.5 % ": 0.125, "0%": -1, "0": -1, "100%": 1} {
		got, err := ParseShare(text)
		if err != nil || got != want {
			t.Errorf("share %q: %v, %v, want %v", text, got, err, want)
		}
		if again, err := ParseShare(got.String()); err != nil || again != got {
			t.Errorf("share %v is written %q, which is %v, %v", got, got.String(), again, err)
		}
	}
	if p, err := ParseFailsafePort("tcp/22"); err != nil || p != (verdict.FailsafePort{Proto: 6, Port: 22}) || FormatFailsafePort(p) != "tcp/22" {
		t.Errorf("port: %v, %v", p, err)
	}
	for text, want := range map[string]string{"192.0.2.1": "192.0.2.1/32", "10.0.0.0/8": "10.0.0.0/8", "2001:db8::/32": "2001:db8::/32",
		"::ffff:192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.0/120": "192.0.2.0/24"} {
		if p, err := ParseFailsafePrefix(text); err != nil || p.String() != want {
			t.Errorf("prefix %q: %v, %v", text, p, err)
		}
	}
	for text, parse := range map[string]func(string) error{
		"fuzzy":             func(s string) error { _, err := ParseMode(s); return err },
		"101%":              func(s string) error { _, err := ParseShare(s); return err },
		"-1%":               func(s string) error { _, err := ParseShare(s); return err },
		"NaN":               func(s string) error { _, err := ParseShare(s); return err },
		"tcp/":              func(s string) error { _, err := ParseFailsafePort(s); return err },
		"tcp/65536":         func(s string) error { _, err := ParseFailsafePort(s); return err },
		"icmp/8":            func(s string) error { _, err := ParseFailsafePort(s); return err },
		"22":                func(s string) error { _, err := ParseFailsafePort(s); return err },
		"10.0.0.1/8":        func(s string) error { _, err := ParseFailsafePrefix(s); return err },
		"fe80::1%lo":        func(s string) error { _, err := ParseFailsafePrefix(s); return err },
		"0.0.0.0/0":         func(s string) error { _, err := ParseFailsafePrefix(s); return err },
		"::/0":              func(s string) error { _, err := ParseFailsafePrefix(s); return err },
		"::ffff:0.0.0.0/96": func(s string) error { _, err := ParseFailsafePrefix(s); return err },
		"maybe":             func(s string) error { _, err := ParseMalformed(s); return err },
	} {
		if err := parse(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: error %v", text, err)
		}
	}
}
