package config

import (
	"strings"
	"testing"

	"weir/tests/seed"
)

// A list has a valid name of its own, whatever its file is called.
func TestAddFile(t *testing.T) {
	r := seed.New(t)
	for range 1000 {
		c := Default()
		c.Interfaces = []Interface{{Name: "eth0"}}
		for range 10 {
			name := strings.Repeat(string("a.-_ ü\xff\n"[r.IntN(8)]), r.IntN(100))
			for range r.IntN(20) {
				name += string("ab..-_ ü\xff\n"[r.IntN(10)])
			}
			if _, err := c.AddFile("/lists/x"+name+[]string{"", ".txt", ".txt.gz", ".zst"}[r.IntN(4)], Block); err != nil {
				t.Fatal(err)
			}
		}
		names := make(map[string]bool)
		for _, l := range c.Lists {
			if names[l.Name] {
				t.Errorf("two lists are named %q", l.Name)
			}
			names[l.Name] = true
		}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
	}
}
