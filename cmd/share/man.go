// Package share writes the files of a command that are installed below /usr/share: man
// pages and shell completions.
package share

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Program is a command with its subcommands, and what its man page adds to its help.
type Program struct {
	Root    *cobra.Command
	Version string
	Files   string // in the macros of man(7)
	SeeAlso string
}

// manSection is the section for system administration.
const manSection = "8"

// manName returns the name of a command's page, as in weir-plan-fpr.
func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// NoPage is the annotation of a command that another program's page describes.
const NoPage = "no page"

// documented returns a command and those below it that have pages.
func documented(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if _, elsewhere := sub.Annotations[NoPage]; !sub.Hidden && !elsewhere {
			all = append(all, documented(sub)...)
		}
	}
	return all
}

// manPage returns a command's man page, in the macros of man(7).
func (p Program) manPage(c *cobra.Command) string {
	var b strings.Builder
	name := manName(c)
	fmt.Fprintf(&b, ".TH %s %s \"\" \"weir %s\" \"\"\n", roff(strings.ToUpper(name)), manSection, roff(p.Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n", roff(c.UseLine()))
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "%s\n", roff(c.CommandPath()+" COMMAND"))
	}
	fmt.Fprintf(&b, ".fi\n.SH DESCRIPTION\n%s", manText(c.Long))
	if c.HasAvailableSubCommands() {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range c.Commands() {
			if !sub.Hidden {
				fmt.Fprintf(&b, ".TP\n\\fB%s\\fR(%s)\n%s\n", roff(manName(sub)), manSection, roff(sub.Short))
			}
		}
	}
	if flags := manFlags(c.Flags()); flags != "" {
		fmt.Fprintf(&b, ".SH OPTIONS\n%s", flags)
	}
	if c.Runnable() {
		b.WriteString(".SH EXIT STATUS\n0 on success, 1 on failure, 2 for a wrong command line; the description names others.\n")
	}
	fmt.Fprintf(&b, ".SH EXAMPLES\n%s", manText(c.Example))
	if !c.HasParent() {
		fmt.Fprintf(&b, ".SH FILES\n%s.SH SEE ALSO\n%s\n", p.Files, p.SeeAlso)
	} else {
		fmt.Fprintf(&b, ".SH SEE ALSO\n\\fB%s\\fR(%s)\n", roff(manName(c.Parent())), manSection)
	}
	return b.String()
}

func manFlags(flags *pflag.FlagSet) string {
	var b strings.Builder
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		argument, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR", roff(name))
		if argument != "" {
			fmt.Fprintf(&b, " \\fI%s\\fR", roff(argument))
		}
		if none := []string{"", "[]", "false", "0", "0s"}; !slices.Contains(none, f.DefValue) {
			usage += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(&b, "\n%s\n", roff(usage))
	})
	return b.String()
}

// manText returns the text of a help page in roff. Paragraphs are filled; lines that
// are indented or have columns stay as they are.
func manText(text string) string {
	var b strings.Builder
	literal := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		columns := strings.Contains(line, "  ")
		switch {
		case columns && !literal:
			b.WriteString(".nf\n")
		case !columns && literal:
			b.WriteString(".fi\n")
		}
		literal = columns
		if line == "" {
			line = ".PP"
		} else {
			line = roff(line)
		}
		b.WriteString(line + "\n")
	}
	if literal {
		b.WriteString(".fi\n")
	}
	return b.String()
}

// What the formatter would take for a request, or print as another character
// than it was: a copied example must work.
var roffEscapes = strings.NewReplacer(
	`\`, `\e`, `-`, `\-`, `'`, `\(aq`, "`", `\(ga`, `^`, `\(ha`, `~`, `\(ti`)

// roff escapes a line of text.
func roff(line string) string {
	line = roffEscapes.Replace(line)
	if strings.HasPrefix(line, ".") {
		line = `\&` + line
	}
	return line
}
