package api

import "testing"

func TestParseStat(t *testing.T) {
	for _, c := range []struct{ stat, command, terminal string }{
		{"12 (weir) S 1 12 12 34817 12 4194560", "weir", "pts/1"},
		{"12 (a) b (c) S 1 12 12 0 -1 4194560", "a) b (c", ""},
		{"12 (weir) S 1 12 12 1025 12", "weir", "tty1"},
		{"12 (weir) S 1 12 12 1088 12", "weir", "ttyS0"},
		{"12 (weir) S 1 12 12 35072 12", "weir", "pts/256"},
		{"12 (weir) S 1 12 12 1281 12", "weir", "5:1"},
		{"12 (w\xffr) S 1 12 12 x 12", "w?r", ""},
		{"12 (weir) S 1", "weir", ""},
		{"12 )weir(", "", ""},
		{"", "", ""},
	} {
		if command, terminal := parseStat([]byte(c.stat)); command != c.command || terminal != c.terminal {
			t.Errorf("%q: %q, %q", c.stat, command, terminal)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (weir) S 1 12 12 34817 12 4194560"))
	f.Fuzz(func(_ *testing.T, stat []byte) { parseStat(stat) })
}
