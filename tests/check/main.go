// Command check runs the project's tests for the Makefile and .ci/run.
//
//	check test [FLAGS] ARGUMENTS   runs go test, and says how to repeat what failed
//	check times FILE               prints which tests took longest
//	check marked CALL…             prints the tests that make calls, by package
//
// ARGUMENTS are the arguments of go test. FLAGS are
//
//	-times FILE          append how long each test took
//	-marked CALL,…       run only the tests that make all of the calls
//	-unmarked CALL,…     run only the tests that make none of them
//	-binaries DIRECTORY  keep test binaries there, and run those that are current
//	-cached PATTERN,…    with -binaries: let Go's test cache answer for these packages
//	-proof               end with what the tests have shown, and what they have not
package main

import (
	"errors"
	"fmt"
	"os"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		if status, ok := errors.AsType[exitStatus](err); ok {
			os.Exit(int(status))
		}
		fmt.Fprintln(os.Stderr, "check:", err)
		os.Exit(2)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("want test, times or marked; see the comment of tests/check")
	}
	command, args := args[0], args[1:]
	switch command {
	case "test":
		return goTest(args)
	case "exec": // by go test -exec, for test
		return execute(args)
	case "times":
		return times(args)
	case "marked":
		return marked(args)
	}
	return fmt.Errorf("no command %q", command)
}

// exitStatus is the exit status of a command that has said why itself.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }
