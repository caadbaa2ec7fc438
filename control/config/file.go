package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// maxFileBytes bounds a list in a file that an operator names: room for some 200
// million addresses.
const maxFileBytes = 4 << 30

// AddFile adds a list that a file contains, "-" for standard input, and that is
// required. It is called after the file. Nothing bounds how it may shrink:
// it is the operator's own.
func (c *Config) AddFile(file string, action Action) (*List, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	if file == "-" {
		path = os.Stdin.Name()
	}
	var s Source
	s.SetDefaults()
	s.File, s.MaxBytes = Path(path), maxFileBytes
	var l List
	l.SetDefaults()
	l.Name, l.Action, l.Sources, l.MaxShrink, l.Required = c.nameAfter(path), action, []Source{s}, 1, true
	c.Lists = append(c.Lists, l)
	return &c.Lists[len(c.Lists)-1], nil
}

var (
	notInName = regexp.MustCompile(`[^A-Za-z0-9_.-]+`)
	dots      = regexp.MustCompile(`\.\.+`)
)

// nameAfter returns a name for the list in a file: the file's, without directory
// and extensions, and with a number where another list has it.
func (c *Config) nameAfter(file string) string {
	base := filepath.Base(file)
	for _, packed := range []string{".gz", ".zst"} {
		base = strings.TrimSuffix(base, packed)
	}
	if stem := strings.TrimSuffix(base, filepath.Ext(base)); stem != "" {
		base = stem
	}
	base = dots.ReplaceAllString(notInName.ReplaceAllString(base, "-"), ".")
	base = strings.Trim(base[:min(len(base), maxName-len("-9999"))], ".")
	if base == "" {
		base = "list"
	}
	name := base
	for n := 2; slices.ContainsFunc(c.Lists, func(l List) bool { return l.Name == name }); n++ {
		name = fmt.Sprintf("%s-%d", base, n)
	}
	return name
}
