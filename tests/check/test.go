package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// environment names the variables that choose what tests do, and so belong to the
// command that repeats one.
var environment = []string{"WEIR_LONG", "WEIR_EXHAUSTIVE", "WEIR_SEED", "CI", "GOWORK"}

// goTest runs go test with -json, and prints what go test prints without it: a line for each
// package, and the output of tests that failed.
func goTest(args []string) error {
	var o options
	args, err := o.parse(args)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p := printer{self: self, out: os.Stdout, verbose: slices.Contains(args, "-v"), kept: make(map[string]bool),
		output: make(map[string][]line), good: make(map[test]bool), passed: make(map[string]int), skips: make(map[string]int)}
	run := p.goTest
	if o.binaries != "" {
		run = p.runBinaries
	}
	began := time.Now()
	status := run(o, args)
	if status != nil {
		p.summary(args)
	} else if o.proof {
		if err := p.proof(began); err != nil {
			return err
		}
	}
	if failed, ok := errors.AsType[*exec.ExitError](status); ok {
		return exitStatus(failed.ExitCode())
	}
	return status
}

// goTest runs go test.
func (p *printer) goTest(o options, args []string) error {
	cmd := exec.Command("go", "test", "-json")
	if flags := o.flags(); len(flags) > 0 {
		cmd.Args = append(cmd.Args, "-exec", strings.Join(append([]string{p.self, "exec"}, flags...), " "))
	}
	cmd.Args = append(cmd.Args, args...)
	return p.run(cmd)
}

// run runs a command that prints events.
func (p *printer) run(cmd *exec.Cmd) error {
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	readErr := p.copy(out)
	return cmp.Or(cmd.Wait(), readErr)
}

// event is an event of go test -json: see go doc test2json.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64 // seconds
}

// A printer turns events into text.
type printer struct {
	self    string     // the file of this program
	mu      sync.Mutex // guards what follows, since packages may run at once
	out     io.Writer
	verbose bool
	kept    map[string]bool   // packages whose last line no go test prints
	output  map[string][]line // by package, until it ends
	good    map[test]bool     // passed or skipped
	failed  []test
	ran     int
	skipped int
	passed  map[string]int // top-level tests by package
	skips   map[string]int // tests by the reason
}

type line struct{ test, text string }

type test struct{ pkg, name string }

func (p *printer) copy(events io.Reader) error {
	lines := bufio.NewReader(events)
	for {
		text, err := lines.ReadString('\n')
		if text != "" {
			p.print(text)
		}
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func (p *printer) print(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var e event
	if json.Unmarshal([]byte(text), &e) != nil {
		fmt.Fprint(p.out, text)
		return
	}
	switch e.Action {
	case "build-output":
		fmt.Fprint(p.out, e.Output)
	case "output":
		if p.verbose {
			fmt.Fprint(p.out, e.Output)
			return
		}
		p.output[e.Package] = append(p.output[e.Package], line{e.Test, e.Output})
	case "pass", "fail", "skip":
		switch {
		case e.Test == "":
			p.end(e)
		case e.Action == "fail":
			p.failed = append(p.failed, test{e.Package, e.Test})
			p.ran++
		case e.Action == "skip":
			p.good[test{e.Package, e.Test}] = true
			p.skipped++
			p.skips[p.reason(e)]++
		default:
			p.good[test{e.Package, e.Test}] = true
			p.ran++
			if !strings.Contains(e.Test, "/") {
				p.passed[e.Package]++
			}
		}
	}
}

// end prints what is to be said of a package: if it failed, the output of all that did not
// pass, such as that of tests that ran when it panicked, and reports of data races, which may
// stand in the output of any test; or else its last line.
func (p *printer) end(e event) {
	lines := p.output[e.Package]
	delete(p.output, e.Package)
	if p.kept[e.Package] {
		word := "FAIL"
		if e.Action == "pass" {
			word, lines = "ok  ", nil
		}
		lines = append(lines, line{"", fmt.Sprintf("%s\t%s\t%.3fs\n", word, e.Package, e.Elapsed)})
	}
	race := false
	for i, l := range lines {
		switch l.text {
		case "WARNING: DATA RACE\n":
			race = true
		case "==================\n":
			race = false
		}
		if i == len(lines)-1 || e.Action == "fail" && (race || !p.good[test{e.Package, l.test}]) {
			fmt.Fprint(p.out, l.text)
		}
	}
}

// summary prints the tests that failed with the commands that repeat them.
func (p *printer) summary(args []string) {
	var set []string
	for _, name := range environment {
		if value := os.Getenv(name); value != "" {
			set = append(set, name+"="+value+" ")
		}
	}
	race := ""
	if slices.Contains(args, "-race") {
		race = "-race "
		set = append(set, "CGO_ENABLED=1 ")
	}
	fmt.Fprintf(p.out, "\n%d tests passed or failed, %d were skipped. Repeat what failed by:\n", p.ran, p.skipped)
	for _, f := range p.failed {
		if !strings.Contains(f.name, "/") {
			fmt.Fprintf(p.out, "  %sgo test -count=1 %s-run '^%s$' %s\n", strings.Join(set, ""), race, f.name, f.pkg)
		}
	}
}
