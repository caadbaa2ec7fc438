package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
)

// longest is the number of tests that times prints.
const longest = 30

// times prints the tests of a file of check test -times that took longest, by wall and by
// CPU time, and the packages.
func times(args []string) error {
	if len(args) != 1 {
		return errors.New("times: want a file")
	}
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer f.Close()
	tests, packages := make(map[string]record), make(map[string]record)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var r record
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		to := tests
		if r.Test == "" {
			to = packages
		}
		key := r.Package + " " + r.Test // what ran more than once is added up
		sum := to[key]
		to[key] = record{r.Package, r.Test, sum.Wall + r.Wall, sum.CPU + r.CPU}
	}
	print := func(title string, of map[string]record, by func(record) float64) {
		all := slices.SortedFunc(maps.Values(of), func(a, b record) int { return cmp.Compare(by(b), by(a)) })
		wall, cpu := 0., 0.
		for _, r := range all {
			wall, cpu = wall+r.Wall, cpu+r.CPU
		}
		fmt.Printf("\n%s: wall %.0f s, CPU %.0f s in all\n     wall      CPU\n", title, wall, cpu)
		for _, r := range all[:min(longest, len(all))] {
			fmt.Printf("%7.1f s %6.1f s  %s %s\n", r.Wall, r.CPU, r.Package, r.Test)
		}
	}
	wall, cpu := func(r record) float64 { return r.Wall }, func(r record) float64 { return r.CPU }
	print("packages by wall time", packages, wall)
	print("tests by wall time", tests, wall)
	print("tests by CPU time", tests, cpu)
	return nil
}
