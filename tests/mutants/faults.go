package main

import (
	"fmt"
	"regexp"
	"strings"
)

// fault is a change of a file that a test is to see.
type fault struct {
	name string // area/name
	what string
	file string // from the root of the repository
	old  string // whole lines, which occur once
	new  string
	pkg  string // of the test, as ./control/journal
	test string
}

// command returns what runs the test without the fault.
func (f fault) command() string {
	return fmt.Sprintf("go test -count=1 -run '^%s$' %s", f.test, f.pkg)
}

// apply returns the text of the file with the fault.
func (f fault) apply(text string) (string, error) {
	if n := strings.Count("\n"+text, "\n"+f.old); n != 1 {
		return "", fmt.Errorf("%s: the lines are there %d times, want once:\n%s", f.file, n, f.old)
	}
	before, after, _ := strings.Cut("\n"+text, "\n"+f.old)
	return strings.TrimPrefix(before+"\n", "\n") + f.new + after, nil
}

var (
	head  = regexp.MustCompile(`^([a-z]+/[a-z0-9-]+): (.+)$`)
	place = regexp.MustCompile(`^(\S+\.(?:go|h|c)) (\./\S+) (Test\w+)$`)
)

// parse reads a table. A fault has a line with its name and what it is, a line with the
// file, the package and the name of the test, and a change of lines as diff -u has it, without
// line numbers. What begins with # is a comment.
func parse(text string) (all []fault, err error) {
	type state int
	const (
		between state = iota
		named
		changing
	)
	at := between
	for i, line := range strings.Split(text, "\n") {
		bad := func(want string) error { return fmt.Errorf("line %d: %q: want %s", i+1, line, want) }
		f := &fault{}
		if len(all) > 0 {
			f = &all[len(all)-1]
		}
		switch {
		case at != named && (line == "" || line[0] == '#'):
			at = between
		case at == named:
			m := place.FindStringSubmatch(line)
			if m == nil {
				return nil, bad("FILE PACKAGE TEST")
			}
			f.file, f.pkg, f.test = m[1], m[2], m[3]
			at = changing
		case at == changing && line[0] == ' ':
			f.old, f.new = f.old+line[1:]+"\n", f.new+line[1:]+"\n"
		case at == changing && line[0] == '-':
			f.old += line[1:] + "\n"
		case at == changing && line[0] == '+':
			f.new += line[1:] + "\n"
		default:
			m := head.FindStringSubmatch(line)
			if m == nil {
				return nil, bad("AREA/NAME: DESCRIPTION")
			}
			all = append(all, fault{name: m[1], what: m[2]})
			at = named
		}
	}
	if at == named {
		return nil, fmt.Errorf("%s ends early", all[len(all)-1].name)
	}
	return all, nil
}
