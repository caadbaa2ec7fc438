package main

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"
)

// areas says what tests show, by the directories of their packages: the first that fits.
var areas = []struct{ dirs, shows string }{
	{"filter", "filters, sketches and their mathematics"},
	{"tests/contract tests/instructions tests/kernels", "the C of the kernel against its twin in Go"},
	{"loader bpf", "programs are loaded, attached and replaced in this kernel"},
	{"tests/netns", "packets on a wire between namespaces: dropped, passed, counted"},
	{"tests/daemon tests/cli tests/faults", "daemons, a fleet and the demo, as their users run them"},
	{"control cmd", "lists, configuration, commands, fleets"},
	{"", "the tests' own tools, and documentation"},
}

// left says what make test leaves to .ci/run, by the calls that mark it.
var left = []struct{ calls, needs string }{
	{"weir/tests/long", "take longer, or run again at full size"},
	{"weir/tests/timed.Alone", "measure, and run alone"},
	{"weir/tests/lab.Tool", "need programs of other projects, as browsers, fail2ban and nftables"},
}

// proof prints what the tests have shown, and what is left.
func (p *printer) proof(began time.Time) error {
	counts, all := make([]int, len(areas)), 0
	for pkg, n := range p.passed {
		dir := strings.TrimPrefix(pkg, "weir/") + "/"
		for i, a := range areas {
			if fits(dir, a.dirs) {
				counts[i] += n
				break
			}
		}
		all += n
	}
	var self, children syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &children)
	cpu := self.Utime.Nano() + self.Stime.Nano() + children.Utime.Nano() + children.Stime.Nano()
	fmt.Fprintf(p.out, "\n%d tests passed in %v, with %v of processor time:\n", all,
		time.Since(began).Round(time.Second), time.Duration(cpu).Round(time.Second))
	for i, a := range areas {
		fmt.Fprintf(p.out, "%6d  %s\n", counts[i], a.shows)
	}
	for reason, n := range p.skips {
		if !strings.Contains(reason, "go test -short") && !strings.HasPrefix(reason, "needs WEIR_LONG=1") {
			fmt.Fprintf(p.out, "skipped %d: %s\n", n, reason)
		}
	}
	files, err := tests(".")
	if err != nil {
		return err
	}
	fmt.Fprintln(p.out, "Left to .ci/run, with the race detector, other kernels and the linters:")
	for _, l := range left {
		n := 0
		for _, of := range files {
			n += len(usingAll(of, []string{l.calls}))
		}
		fmt.Fprintf(p.out, "%6d  %s\n", n, l.needs)
	}
	return nil
}

// fits reports whether a directory is one of dirs or below it; all are below none.
func fits(dir, dirs string) bool {
	for d := range strings.FieldsSeq(dirs) {
		if strings.HasPrefix(dir, d+"/") {
			return true
		}
	}
	return dirs == ""
}

// reason returns why a test was skipped: the last line that it printed, without its place.
func (p *printer) reason(e event) string {
	for _, l := range slices.Backward(p.output[e.Package]) {
		text := strings.TrimSpace(l.text)
		if l.test != e.Test || strings.HasPrefix(text, "---") || strings.HasPrefix(text, "===") {
			continue
		}
		if _, at, ok := strings.Cut(text, ".go:"); ok {
			if _, why, ok := strings.Cut(at, ": "); ok {
				return why
			}
		}
		return text
	}
	return "no reason given"
}
