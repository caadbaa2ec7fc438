package main

import (
	"encoding"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/control/quantity"
)

// listFlag adds a flag that may be repeated and whose values may be joined by
// commas. It calls add for each value.
func listFlag(f *pflag.FlagSet, name, usage string, add func(value string) error) {
	f.Func(name, usage, func(s string) error {
		for value := range strings.SplitSeq(s, ",") {
			if err := add(value); err != nil {
				return err
			}
		}
		return nil
	})
}

// appendText returns a function that reads a value and appends it.
func appendText[T any, P interface {
	*T
	encoding.TextUnmarshaler
}](to *[]T) func(value string) error {
	return func(value string) error {
		var v T
		if err := P(&v).UnmarshalText([]byte(value)); err != nil {
			return err
		}
		*to = append(*to, v)
		return nil
	}
}

// durationFlag adds a flag for a duration, which may have days.
func durationFlag(f *pflag.FlagSet, to *time.Duration, name string, otherwise time.Duration, usage string) {
	f.TextVar((*quantity.Duration)(to), name, quantity.Duration(otherwise), usage)
	if otherwise == 0 {
		f.Lookup(name).DefValue = "" // the usage says what 0 means
	}
}

// choices are the values that a shell completes a flag with.
func choices(c *cobra.Command, flag string, values ...string) {
	complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := c.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // the command has no such flag
	}
}

// jsonFlag is the flag --json.
func jsonFlag(c *cobra.Command) *bool {
	return c.Flags().Bool("json", false, "print JSON")
}

// wantsJSON reports whether the flag is given.
func wantsJSON(c *cobra.Command) bool {
	given, _ := c.Flags().GetBool("json")
	return given
}
