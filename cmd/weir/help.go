package main

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// newHelp is `weir help`, in the place of cobra's, which takes a command that does
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
