package main

import (
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/config"
)

func newCheck() *cobra.Command {
	c := &cobra.Command{
		Use:   "check CONFIG",
		Short: "Say what is wrong with a configuration",
		Long: `Reads a configuration as weir run -c does, and says what is wrong with it: a
line for each error, with file, line and column. It changes nothing, and takes
neither a running weir nor privileges.

--print shows the configuration with all that it does not say, as YAML. What is
secret in it, such as headers for a feed, is shown as it is.`,
		Example: `  weir check /etc/weir/weir.yaml
  weir check --print weir.yaml
  weir check --json weir.yaml | jq -r '.errors[].path'`,
		Args: theArgs("CONFIG"),
	}
	whole := c.Flags().Bool("print", false, "print the configuration with its defaults")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if *whole && *asJSON {
			return usageError{errors.New("--print gives YAML: without --json")}
		}
		conf, err := config.Load(args[0])
		var wrong config.Errors
		if err != nil && !errors.As(err, &wrong) {
			return err // it cannot be read
		}
		out := c.OutOrStdout()
		switch {
		case *asJSON:
			if err := printJSON(out, checked(args[0], wrong)); err != nil {
				return err
			}
		case *whole && err == nil:
			return conf.Print(out)
		case err == nil:
			fmt.Fprintf(out, "%s: no errors; interfaces: %d, lists: %d, trackers: %d%s\n",
				args[0], len(conf.Interfaces), len(conf.Lists), len(conf.Trackers), memoryOf(conf))
		default:
			for _, e := range wrong {
				fmt.Fprintln(c.ErrOrStderr(), e)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: errors: %d", args[0], len(wrong))
		}
		return nil
	}
	return c
}

// memoryOf says how much memory a configuration without errors asks for that is not
// told by its lists: of digests it may be more than there is.
func memoryOf(conf *config.Config) string {
	d := conf.Digests()
	if d == nil {
		return ""
	}
	g, err := d.Geometry()
	if err != nil {
		return ""
	}
	slices := uint64(d.Keep / d.Slice)
	return fmt.Sprintf("; digests: %s of memory for each interface", humanize.Bytes(slices*uint64(g.Bytes())))
}

// configError is an error of a configuration as it is printed in JSON.
type configError struct {
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Path   string `json:"path"`
	Error  string `json:"error"`
}

func checked(file string, wrong config.Errors) any {
	all := []configError{}
	for _, e := range wrong {
		all = append(all, configError{e.Line, e.Column, e.Path, e.Err.Error()})
	}
	return map[string]any{"file": file, "errors": all}
}
