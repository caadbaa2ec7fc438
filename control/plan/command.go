package plan

import (
	"fmt"

	"github.com/spf13/pflag"

	"weir/control/quantity"
)

// Command is a subcommand of weir plan.
type Command struct {
	Use, Short, Long, Example string
	Required                  []string // flags
	Planner
}

// Planner plans by the values of flags.
type Planner interface {
	// Flags adds the flags.
	Flags(*pflag.FlagSet)
	// Plan fails with an InvalidError where their values make no sense.
	Plan() (Result, error)
}

// Result is a plan, which --json prints.
type Result interface {
	// Rows returns the plan for readers.
	Rows() []Row
}

// CountFlag adds a flag for a number that may be written as in 10M.
func CountFlag(f *pflag.FlagSet, name, usage string) *int {
	n := new(int)
	f.Func(name, usage, func(s string) error {
		var c quantity.Count
		err := c.UnmarshalText([]byte(s))
		*n = int(c)
		return err
	})
	return n
}

// Row is a line of a plan for readers. A name that begins with spaces belongs to the row
// before.
type Row struct{ Name, Text string }

// NewRow returns a row with a formatted text.
func NewRow(name, format string, args ...any) Row { return Row{name, fmt.Sprintf(format, args...)} }

// InvalidError is an error in a request. Other errors mean that no filter can
// meet it.
type InvalidError struct{ error }

func (e InvalidError) Unwrap() error { return e.error }

// Invalid returns an InvalidError with a formatted text.
func Invalid(format string, args ...any) error { return InvalidError{fmt.Errorf(format, args...)} }
