package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newHelp is `weir help`, instead of cobra's, which takes a command that does
// not exist for none.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Describe a command",
		ValidArgsFunction: func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if about, rest, err := c.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range about.Commands() {
					if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), begun) {
						names = append(names, cobra.CompletionWithDesc(sub.Name(), sub.Short))
					}
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(c *cobra.Command, args []string) error {
			about, rest, err := c.Root().Find(args)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 {
				return noCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag() // which stands in the help
			about.InitDefaultVersionFlag()
			return about.Help()
		},
	}
}

// completeWords completes what a command and those below it take by what it is: an
// interface, a file, or nothing that a shell could know.
func completeWords(c *cobra.Command) {
	if c.ValidArgsFunction == nil && len(c.ValidArgs) == 0 && !takesFiles[c.Name()] {
		c.ValidArgsFunction = cobra.NoFileCompletions
	}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if _, has := c.GetFlagCompletionFunc(f.Name); has || f.NoOptDefVal != "" {
			return // chosen by hand, or without a value
		}
		complete := cobra.NoFileCompletions
		switch argument, _ := pflag.UnquoteUsage(f); {
		case f.Name == "iface":
			complete = completeInterface
		case f.Name == "list":
			complete = completeLists(math.MaxInt)
		case slices.Contains([]string{"file", "directory", "path", "list"}, argument):
			return // by files
		}
		if err := c.RegisterFlagCompletionFunc(f.Name, complete); err != nil {
			panic(err) // the command has no such flag
		}
	})
	for _, sub := range c.Commands() {
		completeWords(sub)
	}
}

// takesFiles are the commands whose arguments are files or directories.
var takesFiles = map[string]bool{"check": true, "diff": true, "replay": true, "trace": true, "share": true, "import": true}

// completeInterface completes the last of the names that commas join.
func completeInterface(_ *cobra.Command, _ []string, begun string) (names []string, _ cobra.ShellCompDirective) {
	before := begun[:strings.LastIndex(begun, ",")+1]
	all, _ := net.Interfaces() // without them there is nothing to complete
	for _, i := range all {
		if name := before + i.Name; strings.HasPrefix(name, begun) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completions make what a shell completes commands with, by the shell's name.
var completions = map[string]func(*cobra.Command, io.Writer) error{
	"bash": func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
	"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
	"zsh":  (*cobra.Command).GenZshCompletion,
}

func newCompletion() *cobra.Command {
	c := &cobra.Command{
		Use:   "completion bash|fish|zsh",
		Short: "Print what a shell completes commands with",
		Long: `Prints what bash, fish or zsh complete the command line with. Where weir was
installed by a package or make install, it is in place already.`,
		Example: `  weir completion bash | sudo tee /etc/bash_completion.d/weir >/dev/null
  weir completion fish | source`,
		ValidArgs: slices.Sorted(maps.Keys(completions)),
	}
	c.Args = func(c *cobra.Command, args []string) error {
		if err := theArgs("SHELL")(c, args); err != nil {
			return err
		}
		return validArgs(c, args)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return completions[args[0]](c.Root(), c.OutOrStdout())
	}
	return c
}

// printUsage prints what follows a command's description: cobra's usage, with flags
// in lines of 80 characters, since a terminal breaks longer ones in the midst of words.
func printUsage(c *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if c.Runnable() {
		fmt.Fprintf(&b, "\n  %s", c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n  %s [command]", c.CommandPath())
	}
	if len(c.Aliases) > 0 {
		fmt.Fprintf(&b, "\n\nAliases:\n  %s", c.NameAndAliases())
	}
	if c.HasExample() {
		fmt.Fprintf(&b, "\n\nExamples:\n%s", c.Example)
	}
	if c.HasAvailableSubCommands() {
		groups := c.Groups()
		if len(groups) == 0 {
			groups = []*cobra.Group{{Title: "Available Commands"}}
		}
		for _, g := range groups {
			fmt.Fprintf(&b, "\n\n%s:", g.Title)
			for _, sub := range c.Commands() {
				if sub.GroupID == g.ID && (sub.IsAvailableCommand() || sub.Name() == "help") {
					fmt.Fprintf(&b, "\n  %-*s %s", sub.NamePadding(), sub.Name(), sub.Short)
				}
			}
		}
	}
	const columns = 80
	if c.HasAvailableLocalFlags() {
		fmt.Fprintf(&b, "\n\nFlags:\n%s", strings.TrimRight(c.LocalFlags().FlagUsagesWrapped(columns), " \n"))
	}
	if c.HasAvailableInheritedFlags() {
		fmt.Fprintf(&b, "\n\nGlobal Flags:\n%s", strings.TrimRight(c.InheritedFlags().FlagUsagesWrapped(columns), " \n"))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse \"%s [command] --help\" for more information about a command.", c.CommandPath())
	}
	_, err := fmt.Fprintln(c.OutOrStderr(), b.String())
	return err
}
