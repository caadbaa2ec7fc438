package main

import (
	"flag"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// options are flags of check test, which come before the arguments of go test.
type options struct {
	times            string
	marked, unmarked string // calls, separated by commas
	binaries         string // their directory
	cached           string // patterns of packages, separated by commas
	proof            bool
}

func (o *options) flagSet() *flag.FlagSet {
	f := flag.NewFlagSet("check", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.times, "times", "", "")
	f.StringVar(&o.marked, "marked", "", "")
	f.StringVar(&o.unmarked, "unmarked", "", "")
	f.StringVar(&o.binaries, "binaries", "", "")
	f.StringVar(&o.cached, "cached", "", "")
	f.BoolVar(&o.proof, "proof", false, "")
	return f
}

// parse takes the options from the front of args, and returns the rest.
func (o *options) parse(args []string) ([]string, error) {
	f, own := o.flagSet(), 0
	for own < len(args) && f.Lookup(strings.TrimLeft(args[own], "-")) != nil {
		if own++; args[own-1] != "-proof" {
			own = min(own+1, len(args))
		}
	}
	if err := f.Parse(args[:own]); err != nil {
		return nil, err
	}
	// Test binaries run in the directories of their packages.
	for _, path := range []*string{&o.times, &o.binaries} {
		if *path != "" {
			var err error
			if *path, err = filepath.Abs(*path); err != nil {
				return nil, err
			}
		}
	}
	return args[own:], nil
}

// flags returns the options that check exec needs, as parse takes them.
func (o *options) flags() []string {
	var flags []string
	for name, value := range map[string]string{"times": o.times, "marked": o.marked, "unmarked": o.unmarked, "binaries": o.binaries} {
		if value != "" {
			flags = append(flags, "-"+name, value)
		}
	}
	return flags
}

// choose returns arguments of the binary of the package in the working directory that
// choose its tests.
func (o *options) choose(args []string) (chosen []string, err error) {
	if o.marked == "" && o.unmarked == "" {
		return args, nil
	}
	all, err := tests(".")
	if err != nil {
		return nil, err
	}
	files := all["."]
	if o.marked != "" {
		args = append(slices.Clone(args), "-test.run="+pattern(usingAll(files, strings.Split(o.marked, ","))))
	}
	var skip []string
	if o.unmarked != "" {
		for call := range strings.SplitSeq(o.unmarked, ",") {
			skip = append(skip, usingAll(files, []string{call})...)
		}
	}
	if len(skip) > 0 {
		const skips = "-test.skip="
		patterns := []string{pattern(skip)}
		for _, arg := range args {
			if more, ok := strings.CutPrefix(arg, skips); ok && more != "" {
				patterns = append(patterns, more)
			}
		}
		args = append(slices.Clone(args), skips+strings.Join(patterns, "|"))
	}
	return args, nil
}

// pattern returns go test's pattern for tests by their names.
func pattern(names []string) string { return "^(" + strings.Join(names, "|") + ")$" }
