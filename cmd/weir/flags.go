package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/control/engine"
	"weir/control/ruleset"
)

// value is a flag of any type that can be parsed.
type value[T fmt.Stringer] struct {
	to    *T
	parse func(string) (T, error)
}

func valueOf[T fmt.Stringer](to *T, parse func(string) (T, error)) pflag.Value {
	return value[T]{to, parse}
}

func (v value[T]) Set(s string) (err error) {
	*v.to, err = v.parse(s)
	return err
}

func (v value[T]) String() string { return (*v.to).String() }
func (v value[T]) Type() string   { return "value" } // the usage names it in backquotes

// values is a flag that may be repeated, and whose values may be joined by
// commas.
type values[T any] struct {
	separator string // "": a value is one, whatever is in it
	to        *[]T
	parse     func(string) (T, error)
}

func valuesOf[T any](to *[]T, parse func(string) (T, error)) pflag.Value {
	return values[T]{",", to, parse}
}

// each is a flag that may be repeated, whose values have commas of their own.
func each[T any](to *[]T, parse func(string) (T, error)) pflag.Value {
	return values[T]{"", to, parse}
}

func (v values[T]) Set(s string) error {
	words := []string{s}
	if v.separator != "" {
		words = strings.Split(s, v.separator)
	}
	for _, word := range words {
		t, err := v.parse(word)
		if err != nil {
			return err
		}
		*v.to = append(*v.to, t)
	}
	return nil
}

func (v values[T]) String() string { return "" } // there is no default
func (v values[T]) Type() string   { return "values" }

// option is a flag that may be left out.
type option[T any] struct {
	to    **T
	parse func(string) (T, error)
}

func optional[T any](to **T, parse func(string) (T, error)) pflag.Value { return option[T]{to, parse} }

func (o option[T]) Set(s string) error {
	t, err := o.parse(s)
	*o.to = &t
	return err
}

func (o option[T]) String() string { return "" } // there is no default
func (o option[T]) Type() string   { return "value" }

// malformed is a flag that says what becomes of malformed packets.
type malformed struct{ drop *bool }

func (m malformed) Set(s string) (err error) {
	*m.drop, err = ruleset.ParseMalformed(s)
	return err
}

func (m malformed) String() string {
	if *m.drop {
		return "drop"
	}
	return "pass"
}

func (m malformed) Type() string { return "value" }

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
	r.MaxBad, _ = ruleset.ParseShare("5%")
	f.StringArrayVar(&r.Block, "block", nil, "`file` of a list to block; repeat for more")
	f.StringArrayVar(&r.Allow, "allow", nil, "`file` of a list that passes whatever blocks it; repeat for more")
	f.Var(valueOf(&r.Direction, engine.ParseDirection), "direction",
		"`side` of packets that addresses and prefixes in the lists are held against: src, dst or both")
	f.BoolVar(&r.Lenient, "lenient", false, "mask host bits in prefixes instead of calling the line bad")
	f.Var(valueOf(&r.MaxBad, ruleset.ParseShare), "max-bad", "`share` of bad lines above which a file is refused")
	f.Var(valueOf(&r.Mode, ruleset.ParseMode), "mode", "`mode`: exact, or approx for more entries than memory, at a planned rate of false drops")
	f.Float64Var(&r.BitsPerKey, "bits-per-entry", engine.DefaultBitsPerKey, "`bits` per entry of the filter in approximate mode")
	f.BoolVar(&r.Monitor, "monitor", false, "count what would be dropped, and drop nothing")
	f.Var(malformed{&r.DropMalformed}, "malformed", "what becomes of malformed packets: `action` pass or drop")
	f.Var(valuesOf(&r.FailsafePorts, ruleset.ParseFailsafePort), "failsafe-port",
		"destination `port` that always passes, as in tcp/22; repeat for more, up to 8")
	f.Var(valuesOf(&r.FailsafePrefixes, ruleset.ParseFailsafePrefix), "failsafe",
		"`prefix` of sources that always pass; repeat for more, up to 8 of each family")
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
