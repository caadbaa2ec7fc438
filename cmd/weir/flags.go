package main

import (
	"encoding"
	"encoding/json"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/control/engine"
	"weir/control/list"
	"weir/control/quantity"
	"weir/control/ruleset"
	"weir/filter/verdict"
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

// filterFlags are the flags that name lists, say how to read them, and how to
// filter by them.
func filterFlags(c *cobra.Command, r *ruleset.Rules) {
	f := c.Flags()
	r.MaxBad = list.DefaultMaxBad
	f.StringArrayVar(&r.Block, "block", nil, "`file` of a list to block; repeat for more")
	f.StringArrayVar(&r.Allow, "allow", nil, "`file` of a list that passes whatever blocks it; repeat for more")
	f.TextVar(&r.Direction, "direction", r.Direction,
		"`side` of packets that addresses and prefixes in the lists are held against: src, dst or both")
	f.BoolVar(&r.Lenient, "lenient", false, "mask host bits in prefixes instead of calling the line bad")
	f.TextVar(&r.MaxBad, "max-bad", r.MaxBad, "`share` of bad lines above which a file is refused")
	f.TextVar(&r.Mode, "mode", r.Mode, "`mode`: exact, or approx for more entries than memory, at a planned rate of false drops")
	f.Float64Var(&r.BitsPerKey, "bits-per-entry", engine.DefaultBitsPerKey, "`bits` per entry of the filter in approximate mode")
	f.BoolVar(&r.Monitor, "monitor", false, "count what would be dropped, and drop nothing")
	f.Func("malformed", "what becomes of malformed packets: `action` pass or drop (default pass)", func(s string) error {
		var a verdict.Action
		err := a.UnmarshalText([]byte(s))
		r.DropMalformed = a == verdict.Drop
		return err
	})
	listFlag(f, "failsafe-port", "destination `port` that always passes, as in tcp/22 or 22/tcp; repeat for more, up to 8",
		appendText(&r.FailsafePorts))
	listFlag(f, "failsafe", "`prefix` of sources that always pass; repeat for more, up to 8 of each family", func(value string) error {
		var p verdict.FailsafePrefix
		err := p.UnmarshalText([]byte(value))
		r.FailsafePrefixes = append(r.FailsafePrefixes, p.Prefix)
		return err
	})
	choices(c, "direction", "src", "dst", "both")
	choices(c, "mode", "exact", "approx")
	choices(c, "malformed", "pass", "drop")
}

// jsonFlag is the flag --json.
func jsonFlag(c *cobra.Command) *bool {
	return c.Flags().Bool("json", false, "print JSON")
}

// printJSON prints a value as indented JSON.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
