// Command weir filters packets: see `weir --help`.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/cmd/interrupt"
	"weir/cmd/terminal"
	"weir/control/api/client"
	"weir/control/serve"
)

func main() {
	ctx, stop := interrupt.Context()
	code := execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// The exit codes, which scripts rely on.
const (
	exitOK      = 0
	exitFailure = 1 // what was asked for could not be done, or the demo's proof failed
	exitUsage   = 2 // the command line is wrong
	exitDropped = 3 // weir explain --exit-code: it would be dropped
	exitDiffer  = 3 // weir diff --exit-code: the lists differ

	exitUnfiltered  = 4 // weir status, weir reload: something is not filtered as configured
	exitProblem     = 4 // weir doctor: there is a problem
	exitUnpublished = 5 // weir fleet: it is done, and nodes get it when the hub can publish it
)

// usageError is a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errDropped ends a command with exitDropped, and nothing more to say.
var errDropped = errors.New("would be dropped")

// errUnfiltered ends a command with exitUnfiltered; the command has said what is
// not filtered.
var errUnfiltered = errors.New("not filtered as configured")

// errProblem ends a command with exitProblem; the command has said which.
var errProblem = errors.New("there is a problem")

// errUnpublished ends a command with exitUnpublished; the command has said so.
var errUnpublished = errors.New("not published yet")

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	out := terminal.NewWriter(stdout)
	stderr = terminal.NewWriter(stderr)
	root.SetArgs(args)
	root.SetIn(interrupt.NewReader(ctx, stdin))
	root.SetOut(out)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	err = cmp.Or(err, out.Err()) // most commands do not look whether they could print
	if serve.ToJournal(terminal.Raw(stderr)) {
		stderr = serve.JournalError(stderr)
	}
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errDropped):
		return exitDropped
	case errors.Is(err, errDiffer):
		return exitDiffer
	case errors.Is(err, errUnfiltered):
		return exitUnfiltered
	case errors.Is(err, errProblem):
		return exitProblem
	case errors.Is(err, errUnpublished):
		return exitUnpublished
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "weir: %v\nTry `%s --help`.\n", err, command.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "weir: %v\n", err)
	for _, line := range client.WayOut(err) {
		fmt.Fprintf(stderr, "  %s\n", line)
	}
	return exitFailure
}

// aboutWeir is the title of the last group of commands.
const aboutWeir = "About weir"

// flagError says what a flag takes, where pflag says what strconv has not parsed.
func flagError(err error) error {
	var bad *pflag.InvalidValueError
	var number *strconv.NumError
	if !errors.As(err, &bad) || !errors.As(err, &number) {
		return err
	}
	want := ""
	switch kind := bad.GetFlag().Value.Type(); {
	case kind == "bool":
		want = "want true or false"
	case errors.Is(number.Err, strconv.ErrRange):
		want = "out of range"
	case kind == "float64":
		want = "want a number"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		want = "want a whole number"
	default:
		return err
	}
	return fmt.Errorf("invalid argument %q for \"--%s\" flag: %s", bad.GetValue(), bad.GetFlag().Name, want)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "weir",
		Short: "Drop listed packets before the kernel's network stack sees them",
		Long: `weir drops packets whose source, destination or flow is on one of its lists,
before the network stack sees them. Lists may have tens of millions of entries.
Every packet is counted under one reason.

ARP, neighbour discovery and DHCP always pass, then what is failsafe: ports,
prefixes, kinds of ICMP.
An allow list beats every block list.

Exit codes: 0 done, 1 failed, 2 wrong command line, 3 would be dropped, or is
different (weir explain, diff and fleet explain, with --exit-code), 4 something
is not as configured (weir status, reload, fleet status and fleet rollout), a
problem was found (weir doctor), or something is lost (weir fleet lost), 5 done,
but not published to the nodes yet, or not in effect on all (weir fleet).`,
		Example: `  weir run --iface eth0 --block feed.txt --failsafe-port tcp/22
  weir status
  weir explain 192.0.2.1
  weir demo`,
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	// No templates: text/template calls methods by name, so that the linker keeps all
	// methods of all types, some 3 MB.
	root.SetUsageFunc(printUsage)
	printVersion := root.Flags().BoolP("version", "v", false, "version for weir")
	root.RunE = func(c *cobra.Command, _ []string) error {
		if *printVersion {
			_, err := fmt.Fprintf(c.OutOrStdout(), "weir %s\n", version)
			return err
		}
		return c.Help()
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{flagError(err)} })
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if err := cmp.Or(c.ValidateRequiredFlags(), c.ValidateFlagGroups()); err != nil { // as cobra does next
			return usageError{err}
		}
		return nil
	}
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Filter", []*cobra.Command{newRun(), newCheck(), newReload(), newConfirm(), newMonitor(), newPolice(), newLimit(), newStatus(), newDoctor(), newExplain(), newDetach()}},
		{"Lists", []*cobra.Command{
			newBlock(), newUnblock(), newAllow(), newUnallow(), newEntries(), newFlush(), newLists(), newEnforce(), newCollateral(), newRefresh(), newFeeds(), newDiff(), newExport(), newImport(),
		}},
		{"Watch", []*cobra.Command{newTop(), newFlood(), newWeb(), newDrops(), newHistory(), newEvents(), newCapture(), newTrace(), newAudit(), newWeights()}},
		{"Notify and forward", []*cobra.Command{newNotify(), newAnnounce(), newReceive(), newMulticast()}},
		{"Fleet", []*cobra.Command{newFleet(), newJoin(), newHub()}},
		{"Plan and try", []*cobra.Command{newPlan(), newReplay(), newDemo()}},
		{aboutWeir, []*cobra.Command{newVersion(), newCompletion(), newShare()}},
	} {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, c := range g.commands {
			c.GroupID = g.title
		}
		root.AddCommand(g.commands...)
	}
	help := newHelp()
	help.GroupID = aboutWeir
	root.SetHelpCommand(help)
	completeWords(root)
	return root
}
