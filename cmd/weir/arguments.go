package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// noArgs takes no arguments. Of a command that has others below it, an argument
// is the name of one that does not exist.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !c.HasAvailableSubCommands() {
		return usageError{fmt.Errorf("%q: %s takes no arguments", args[0], c.CommandPath())}
	}
	return noCommand(c, args[0])
}

// noCommand says that there is no such command below another, and which is
// spelt like it.
func noCommand(c *cobra.Command, name string) error {
	text := fmt.Sprintf("%q: %s has no such command", name, c.CommandPath())
	like := synonyms[strings.ToLower(name)]
	if c.HasParent() || like == nil {
		// Two letters of a short name may be most of it.
		c.SuggestionsMinimumDistance = min(2, (len(name)+1)/3)
		like = c.SuggestionsFor(name)
	}
	if len(like) > 0 {
		text += ": did you mean " + strings.Join(like, " or ") + "?"
	}
	return usageError{errors.New(text)}
}

// synonyms are the names of the commands in other programs.
var synonyms = map[string][]string{
	"add": {"block", "allow"}, "ban": {"block"}, "blacklist": {"block"}, "deny": {"block"}, "drop": {"block"}, "reject": {"block"},
	"unban": {"unblock"}, "del": {"unblock", "unallow"}, "delete": {"unblock", "unallow"}, "remove": {"unblock", "unallow"}, "rm": {"unblock", "unallow"},
	"accept": {"allow"}, "whitelist": {"allow"}, "permit": {"allow"},
	"start": {"run"}, "daemon": {"run"}, "attach": {"run"},
	"stop": {"detach"}, "off": {"detach"}, "disable": {"detach"}, "unload": {"detach"},
	"restart": {"reload"}, "apply": {"reload"},
	"update": {"refresh"}, "fetch": {"refresh"},
	"list": {"lists", "entries"}, "ls": {"lists", "entries"}, "show": {"status", "lists", "entries"},
	"clear": {"flush"}, "save": {"export"}, "restore": {"import"}, "load": {"import"},
	"log": {"events"}, "logs": {"events"}, "watch": {"top", "events"}, "tail": {"events"}, "dump": {"capture", "export"},
	"stats": {"status", "top"}, "info": {"status"}, "why": {"explain"}, "test": {"check", "explain"}, "validate": {"check"}, "lint": {"check"},
}

// theArgs takes as many arguments as there are names for.
func theArgs(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usageError{fmt.Errorf("%s is missing", names[len(args)])}
		case len(args) > len(names):
			return usageError{fmt.Errorf("%q: %s takes %s, and nothing more", args[len(names)], c.CommandPath(), strings.Join(names, " and "))}
		}
		return nil
	}
}

// maybeArg takes an argument or none.
func maybeArg(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > 1 {
			return usageError{fmt.Errorf("%q: %s takes %s, and nothing more", args[1], c.CommandPath(), name)}
		}
		return nil
	}
}

// someArgs takes one argument or more.
func someArgs(name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError{fmt.Errorf("%s is missing", name)}
		}
		return nil
	}
}

// validArgs takes some of the words that a shell completes a command with.
func validArgs(c *cobra.Command, args []string) error {
	for _, arg := range args {
		if !slices.Contains(c.ValidArgs, arg) {
			return usageError{fmt.Errorf("%q is none of %s", arg, strings.Join(c.ValidArgs, ", "))}
		}
	}
	return nil
}
