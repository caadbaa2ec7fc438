// Command mutants shows that the tests see small faults: it puts each fault of the table
// "faults" into the code, one at a time, and runs the test that has to fail.
//
// The working tree stays as it is: Go reads the changed file, or the object compiled from
// changed C, through an overlay.
package main

import (
	"context"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed faults
var table string

func main() {
	verbose := flag.Bool("v", false, "print what the tests print")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: mutants [-v] [AREA|AREA/NAME...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, flag.Args(), *verbose)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

// run tries the faults of these names or areas, or all.
func run(ctx context.Context, names []string, verbose bool) error {
	faults, err := parse(table)
	if err != nil {
		return err
	}
	if faults, err = choose(faults, names); err != nil {
		return err
	}
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("go env GOMOD: %w", err)
	}
	dir, err := os.MkdirTemp("", "weir-mutants-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{root: filepath.Dir(string(mod)), dir: dir, green: make(map[string]bool)}
	began, wrong := time.Now(), 0
	for _, f := range faults {
		r, err := b.try(ctx, f)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if verbose {
			os.Stdout.Write(r.output)
		}
		switch {
		case err != nil:
			wrong++
			fmt.Printf("%-32s ERROR: %v\n", f.name, err)
		case r.failed == "":
			wrong++
			fmt.Printf("%-32s SURVIVED: %s (%s)\n", f.name, f.what, f.command())
		default:
			fmt.Printf("%-32s caught in %.1f s by %s\n", f.name, r.took.Seconds(), r.failed)
		}
	}
	fmt.Printf("%d of %d faults caught in %v\n", len(faults)-wrong, len(faults), time.Since(began).Round(time.Second))
	if wrong > 0 {
		return fmt.Errorf("%d of %d faults are not caught", wrong, len(faults))
	}
	return nil
}

// choose returns the faults of these names or areas, or all of them.
func choose(all []fault, names []string) (chosen []fault, err error) {
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		before := len(chosen)
		for _, f := range all {
			if f.name == name || strings.HasPrefix(f.name, name+"/") {
				chosen = append(chosen, f)
			}
		}
		if len(chosen) == before {
			return nil, fmt.Errorf("%s: no fault or area has this name", name)
		}
	}
	return chosen, nil
}

// read returns the file that a fault is in, in the tree at root.
func (f fault) read(root string) (string, error) {
	b, err := os.ReadFile(filepath.Join(root, f.file))
	return string(b), err
}
