package main

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// The table of systems says of each where it is, and that exists, or why not.
func TestSystems(t *testing.T) {
	paths := regexp.MustCompile(`\b(filter|bpf|control)/[a-z/]+[a-z](\.h)?`)
	for _, of := range systemsOf {
		for _, s := range of.all {
			found := paths.FindAllString(s.where, -1)
			for _, path := range found {
				if _, err := os.Stat(filepath.Join("..", "..", path)); err != nil {
					t.Errorf("%s: %v", s.what, err)
				}
			}
			if s.status == inKernel && len(found) == 0 {
				t.Errorf("%s: %q names no package", s.what, s.where)
			}
			if s.where == "" {
				t.Errorf("%s is %s without a word", s.what, s.status)
			}
		}
	}
}
